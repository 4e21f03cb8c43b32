"""Makes the pictures in docs/images/ of the program of today: `make pictures`.

The program is served on this machine with the shipped configuration, in front of a scripted model and search. A real
Chromium shows its pages, and draws what a terminal shows. The picture of an agent needs Codex on the PATH (`npm install
-g @openai/codex`) and leaves out its warnings about this machine; without Codex, the picture stays as it is.
"""

import asyncio
import html
import os
import pty
import re
import shutil
import struct
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ
from typing import Final

import httpx

from proxy.demo.serve import search_anything
from proxy.mock.script import Conversation, Script, ScriptedCall, ScriptedTurn
from proxy.mock.server import MockUpstream
from proxy.server.serving import serving
from tests.browser import Page, browsing
from tests.free_port import free_port

ROOT: Final = Path(__file__).resolve().parent.parent
IMAGES: Final = ROOT / "docs" / "images"
COLUMNS, LINES = 80, 60
QUESTION: Final = "What is the weather in Nanaimo, and is the ferry running?"
ANSWER: Final = """\
**Take a jacket**: Nanaimo has 11 degrees, and rain from two o'clock on (https://weather.example/nanaimo).

The ferry to Horseshoe Bay sails on schedule, with space on the 15:20 (https://ferries.example/departures):

| Departure | Full |
|---|---:|
| 15:20 | 38 % |
| 17:40 | 91 % |
"""
SEARCHES: Final = ("Nanaimo weather today", "Nanaimo Horseshoe Bay ferry status")
SCRIPT: Final = Script(
    pace=0.01,
    conversations=(
        Conversation(
            when="ferry",
            turns=(
                ScriptedTurn(
                    reasoning="Two separate facts: I can look both up at the same time.",
                    text="I'll look both of them up.",
                    calls=tuple(ScriptedCall(name="web_search", arguments={"query": query}) for query in SEARCHES),
                ),
                ScriptedTurn(reasoning="Rain in the afternoon, ferries on schedule.", text=ANSWER),
            ),
        ),
        Conversation(
            when="busy", turns=(ScriptedTurn(status=500, body={"error": {"message": "overloaded"}}, pace=0.0),)
        ),
        Conversation(turns=(ScriptedTurn(text="Hello!"),)),
    ),
)
# The colours of a terminal, by their SGR parameters, in the style of the log (proxy/kit/terminal.py).
STYLES: Final = {
    "1": "font-weight:bold", "2": "color:#8b929c", "3": "font-style:italic", "31": "color:#ff8f8f",
    "32": "color:#9fc9a5", "33": "color:#e8b06a", "34": "color:#7aa7ff", "35": "color:#d8a0e8", "36": "color:#7fd3d8",
}  # fmt: skip
SGR: Final = re.compile(r"\x1b\[([\d;]*)m")
# The columns of this font are 8 pixels wide at this size.
SCREEN: Final = (
    "<body style='margin:0;background:#111316'><pre style='margin:0;padding:20px 22px;color:#edeef0;width:{}px;"
    'white-space:pre-wrap;word-break:break-all;font:13.29px/1.4 "DejaVu Sans Mono",monospace\'>{}</pre>'
)


class Terminal:
    """A program on a terminal of its own, and what it has written."""

    def __init__(self, process: asyncio.subprocess.Process, descriptor: int) -> None:
        self.process = process
        self.written = b""
        self._descriptor = descriptor
        self._more = asyncio.Event()
        asyncio.get_running_loop().add_reader(descriptor, self._read)

    def _read(self) -> None:
        data = b""
        with suppress(OSError):  # the end of the program is an error here
            data = os.read(self._descriptor, 65536)
        self.written += data
        self._more.set()
        if not data:
            asyncio.get_running_loop().remove_reader(self._descriptor)

    async def until(self, text: bytes) -> None:
        """Wait until the program has written a text."""
        async with asyncio.timeout(60):
            while text not in self.written:
                self._more.clear()
                await self._more.wait()


@asynccontextmanager
async def on_terminal(
    *command: str, environ: Mapping[str, str], folder: Path, columns: int = COLUMNS
) -> AsyncIterator[Terminal]:
    """Run a program on a terminal, and stop it in the end."""
    ours, theirs = pty.openpty()
    ioctl(theirs, TIOCSWINSZ, struct.pack("HHHH", LINES, columns, 0, 0))
    options = {"stdin": theirs, "stdout": theirs, "stderr": theirs, "cwd": folder, "start_new_session": True}
    process = await asyncio.create_subprocess_exec(*command, env={**environ, "TERM": "xterm-256color"}, **options)
    os.close(theirs)
    terminal = Terminal(process, ours)
    try:
        yield terminal
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        await asyncio.sleep(0.2)  # for its last words
        asyncio.get_running_loop().remove_reader(ours)
        os.close(ours)


def as_html(written: str, columns: int) -> str:
    """What a terminal shows, as a page: text with colours. Other sequences are left out."""
    plain = re.sub(r"\x1b\[(?![\d;]*m)[\d;?]*[A-Za-z]|\x1b[=>]|\x1b\][^\x07]*\x07|\r", "", written)
    shown, styles = [], []
    for number, part in enumerate(SGR.split(plain)):
        if number % 2 == 0:
            text = html.escape(part)
            shown.append(f"<span style='{';'.join(styles)}'>{text}</span>" if styles else text)
        elif part in ("", "0"):
            styles = []
        else:
            styles += [STYLES[one] for one in part.split(";") if one in STYLES]
    return SCREEN.format(8 * columns, "".join(shown).strip("\n"))


async def picture(page: Page, name: str, width: int, height: int) -> None:
    """Write what a page shows to docs/images/."""
    await page.resize(width, height)
    (IMAGES / f"{name}.png").write_bytes(await page.screenshot())
    sys.stdout.write(f"docs/images/{name}.png: {width} x {height}\n")


async def picture_of_terminal(page: Page, name: str, command: str, written: str, columns: int = COLUMNS) -> None:
    """Write what a terminal shows to docs/images/, as large as it is."""
    await page.resize(1000, 700)
    await page.open("about:blank")  # whose policy permits styles
    await page.show(as_html(f"$ {command}\n{written}", columns))
    size = "[box.width, box.height].map(Math.ceil)"
    width, height = await page.evaluate(
        f"(() => {{ const box = document.querySelector('pre').getBoundingClientRect(); return {size} }})()"
    )
    await picture(page, name, width, height)


async def picture_the_pages(page: Page, url: str) -> None:
    """Ask on the chat page, and look at the requests."""
    await page.resize(840, 760)
    await page.until("document.querySelectorAll('#model option').length > 0")
    await page.evaluate("document.getElementById('model').value = 'glm-4.7'")
    await page.write("#question", QUESTION, key="Enter")
    await page.until("document.querySelector('.about')")
    await picture(page, "chat", 840, 760)
    request_id = await page.evaluate("document.querySelector('.about a').pathname.split('/').pop()")
    async with httpx.AsyncClient(base_url=f"{url}/v1", timeout=60) as client:
        for model, question in (
            ("glm-5", "Hello"),
            ("gpt-5", "Hello"),
            ("glm-4.6", "Are you busy?"),
            ("glm-4.7", QUESTION),
        ):
            messages = [{"role": "user", "content": question}]
            await client.post("/chat/completions", json={"model": model, "messages": messages})
    await page.open(f"{url}/debug")
    await picture(page, "debug-requests", 1100, 620)
    await page.open(f"{url}/debug/requests/{request_id}")
    await picture(page, "debug-request", 1100, 620)


async def picture_an_agent(page: Page, environ: Mapping[str, str], folder: Path) -> None:
    """Have Codex ask a question that needs a search."""
    if shutil.which("codex") is None:
        sys.stdout.write("docs/images/agent.png stays as it is: there is no codex on the PATH\n")
        return
    asked = (
        "toolproxy",
        "run",
        "codex",
        "--model",
        "glm-4.7",
        "--",
        "exec",
        "--skip-git-repo-check",
        "Is the ferry running?",
    )
    command = (sys.executable, "-m", "proxy", *asked[1:5], "--config", str(folder / "config.yaml"), *asked[5:])
    async with on_terminal(*command, environ=environ, folder=folder / "project") as terminal:
        await asyncio.wait_for(terminal.process.wait(), 120)
    lines = terminal.written.decode(errors="replace").replace(str(folder), "~").splitlines()
    shown = "\n".join(line for line in lines if not re.match("warning:", SGR.sub("", line), re.IGNORECASE))
    quoted = " ".join(f'"{word}"' if " " in word else word for word in asked)
    await picture_of_terminal(page, "agent", quoted, shown)


async def main() -> None:
    """Make all pictures."""
    mock = MockUpstream(SCRIPT, search_seconds=0.6, answer_search=search_anything)
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as name:  # Codex wants a home that is not in /tmp
        folder, port = Path(name), free_port()
        (folder / "project").mkdir()
        shipped = (ROOT / "config.yaml").read_text(encoding="utf-8")
        (folder / "config.yaml").write_text(shipped.replace("log_level: info", "log_content: true, log_level: info"))
        async with serving(mock, lifespan="off") as mock_url, browsing("about:blank") as page:
            environ = {
                "PATH": os.environ["PATH"], "HOME": name, "PYTHONPATH": str(ROOT), "TOOLPROXY_STATE_URL": "memory://",
                "ZAI_API_KEY": "key-for-pictures", "ZAI_BASE_URL": f"{mock_url}/v1", "ZAI_SEARCH_BASE_URL": mock_url,
                "SERPER_API_KEY": "key-for-pictures", "SERPER_BASE_URL": mock_url,
            }  # fmt: skip
            serve = (sys.executable, "-m", "proxy", "serve", "--port", str(port))
            async with on_terminal(*serve, environ=environ, folder=folder, columns=COLUMNS) as terminal:
                await terminal.until(b"server.ready")
                await page.open(f"http://127.0.0.1:{port}/chat")
                await picture_the_pages(page, f"http://127.0.0.1:{port}")
                shown = terminal.written.decode().replace(f":{port}", ":8080").replace(mock_url, "https://api.z.ai")
            await picture_of_terminal(page, "console", "toolproxy serve", shown, COLUMNS)
            await picture_an_agent(page, environ, folder)


if __name__ == "__main__":
    asyncio.run(main())
