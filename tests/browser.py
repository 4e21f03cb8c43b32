"""A real Chromium, driven over its DevTools protocol: what a person would see and type.

The protocol's messages go over two pipes, each message ended by a zero byte (Chromium's `--remote-debugging-pipe`).
"""

import asyncio
import os
import shutil
import signal
import tempfile
from base64 import b64decode
from contextlib import asynccontextmanager
from itertools import count

import orjson

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_KEYS = {"Enter": {"windowsVirtualKeyCode": 13, "text": "\r"}, "Escape": {"windowsVirtualKeyCode": 27}}


class Page:
    """One page of a browser."""

    def __init__(self, ask, receive, loaded, session):
        self._ask = ask
        self._receive = receive
        self._loaded = loaded
        self._session = session

    async def evaluate(self, expression):
        """The value of a JavaScript expression; a promise is awaited."""
        options = {"expression": expression, "awaitPromise": True, "returnByValue": True}
        answer = await self._ask("Runtime.evaluate", options, self._session)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, expression):
        """Wait until a JavaScript expression is true, which is looked at whenever the page is drawn."""
        frame = "await new Promise((next) => requestAnimationFrame(next))"
        return await self.evaluate(f"(async () => {{ let is; while (!(is = {expression})) {frame}; return is }})()")

    async def open(self, url):
        """Load a page in the place of this one."""
        await self._load("Page.navigate", {"url": url})

    async def reload(self):
        """Load the page again."""
        await self._load("Page.reload", {})

    async def show(self, content):
        """Show a page that is given as HTML."""
        frames = await self._ask("Page.getFrameTree", {}, self._session)
        where = frames["frameTree"]["frame"]["id"]
        await self._ask("Page.setDocumentContent", {"frameId": where, "html": content}, self._session)

    async def resize(self, width, height):
        """Make the window so many pixels large."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await self._ask("Emulation.setDeviceMetricsOverride", size, self._session)

    async def screenshot(self):
        """What the window shows, as a PNG."""
        return b64decode((await self._ask("Page.captureScreenshot", {"format": "png"}, self._session))["data"])

    async def _load(self, method, params):
        before = self._loaded()
        await self._ask(method, params, self._session)
        while self._loaded() == before:  # which may be before the answer
            await self._receive(lambda _: True)

    async def write(self, selector, text, *, key=None):
        """Type text into a field, as from a keyboard, and then a key."""
        await self.evaluate(f"document.querySelector({orjson.dumps(selector).decode()}).focus()")
        await self._ask("Input.insertText", {"text": text}, self._session)
        if key:
            for kind in ("keyDown", "keyUp"):
                pressed = {"type": kind, "key": key, "code": key, **_KEYS[key]}
                await self._ask("Input.dispatchKeyEvent", pressed, self._session)


@asynccontextmanager
async def browsing(url):
    """A page that shows `url`. Everything that the browser would ask of other hosts is switched off."""
    quiet = ("background-networking", "component-update", "sync", "gpu", "quic", "dev-shm-usage")
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        # The browser reads from descriptor 3 and writes to 4.
        command = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
        options = ["--headless", "--no-sandbox", "--no-first-run", "--remote-debugging-pipe", f"--user-data-dir={home}"]
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", command, CHROMIUM, *options, *(f"--disable-{name}" for name in quiet)),
            pass_fds=(theirs_in, theirs_out),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        reader = asyncio.StreamReader(limit=2**24)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ours_in, "rb")
        )
        numbers = count(1)

        loads = 0

        async def receive(wanted):
            """The next message that is wanted; others are passed over, and the pages that were loaded are counted."""
            nonlocal loads
            message = None
            while message is None or not wanted(message):
                message = orjson.loads((await reader.readuntil(b"\0"))[:-1])
                loads += message.get("method") == "Page.loadEventFired"
            assert "error" not in message, message
            return message

        async def ask(method, params, session=None):
            number = next(numbers)
            message = {"id": number, "method": method, "params": params}
            os.write(ours_out, orjson.dumps(message | ({"sessionId": session} if session else {})) + b"\0")
            return (await receive(lambda answer: answer.get("id") == number))["result"]

        try:
            target = await ask("Target.createTarget", {"url": "about:blank"})
            session = (await ask("Target.attachToTarget", {**target, "flatten": True}))["sessionId"]
            await ask("Page.enable", {}, session)
            page = Page(ask, receive, lambda: loads, session)
            await page.open(url)
            yield page
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            transport.close()
            os.close(ours_out)
