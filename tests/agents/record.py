"""Records a day of each agent: `python -m tests.agents.record FOLDER`, which has them in its `node_modules/.bin`.

    npm install --prefix FOLDER @anthropic-ai/claude-code @openai/codex opencode-ai

The agents run for real, by `toolproxy run`, in a home and a project that are made for it and thrown away; a proxy that
writes down what passes stands between them and toolproxy. Nothing but addresses of this machine is called.
"""

import http.client
import http.server
import os
import shutil
import subprocess
import sys
import threading
import zlib
from contextlib import contextmanager, suppress
from pathlib import Path

import orjson
import yaml

from tests.agents import days, player, recording
from tests.test_cli import PLAIN, ROOT, running

HOP = {"host", "accept-encoding", "connection", "content-length", "transfer-encoding", "date", "server"}
NOTES = [sys.executable, str(Path(__file__).with_name("notes_server.py"))]
PLACE = Path(days.PROJECT).parent


@contextmanager
def recorder(target, exchanges):
    """Relays requests to a target as they are, and adds each exchange to a list."""

    class Relay(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            onward = http.client.HTTPConnection(target.removeprefix("http://"))
            headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
            onward.request(self.command, self.path, body or None, headers)
            response = onward.getresponse()
            self.send_response(response.status)
            for name, value in response.getheaders():
                if name.lower() not in HOP:
                    self.send_header(name, value)
            self.end_headers()
            answer = b""
            while piece := response.read1():
                answer += piece
                if self.command != "HEAD":
                    with suppress(OSError):
                        self.wfile.write(piece)
            if body:
                one = {"path": self.path, "headers": dict(self.headers), "body": orjson.loads(body)}
                exchanges.append({**one, "answer": answer.decode()})

        do_GET = do_HEAD = do_DELETE = do_POST  # noqa: N815 - as http.server calls them

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Relay)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()


def project():
    """A new home and a project with a picture, under version control."""
    shutil.rmtree(PLACE, ignore_errors=True)
    here = Path(days.PROJECT)
    here.mkdir(parents=True)
    (PLACE / "home").mkdir()
    (here / "README.md").write_text("# A project\n\nTwo files.\n")
    rows = zlib.compress((b"\0" + b"\x20\x80\xff" * 32) * 32)
    size = (32).to_bytes(4, "big") * 2
    parts = [(b"IHDR", size + b"\x08\x02\0\0\0"), (b"IDAT", rows), (b"IEND", b"")]
    chunks = [
        len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big") for kind, data in parts
    ]
    (here / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
    for words in (
        ["init", "-q"],
        ["add", "-A"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first"],
    ):
        subprocess.run(["git", *words], cwd=here, check=True)  # noqa: S607 - the one on the path


def commands(agent):
    """What the user of an agent types in a day, and what its environment has besides."""
    match agent:
        case "claude":
            servers = {"mcpServers": {"notes": {"command": NOTES[0], "args": NOTES[1:]}}}
            tools = "Bash,Read,Write,Edit,Agent,WebSearch,mcp__notes__add_note"
            common = ["--mcp-config", orjson.dumps(servers).decode(), "--allowedTools", tools]
            common += ["--permission-mode", "acceptEdits"]
            said = (["-p", days.MORNING], *(["-p", "-c", text] for text in (days.AFTERNOON, "/compact", days.EVENING)))
            return [[*words, *common] for words in said], {}
        case "codex":
            common = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
            common += ["-c", f'mcp_servers.notes.command="{NOTES[0]}"', "-c", f'mcp_servers.notes.args=["{NOTES[1]}"]']
            common += ["-c", "model_auto_compact_token_limit=100000"]
            said = (
                ["exec", days.MORNING],
                *(["exec", "resume", "--last", text] for text in (days.AFTERNOON, days.EVENING)),
            )
            return [[*words[:-1], *common, words[-1]] for words in said], {}
        case _:
            limit = {"limit": {"context": 120_000, "output": 8_000}}
            config = {
                "provider": {"toolproxy": {"models": {days.MODEL: limit}}},
                "mcp": {"notes": {"type": "local", "command": NOTES}},
            }
            said = (["run", days.MORNING], *(["run", "--continue", text] for text in (days.AFTERNOON, days.EVENING)))
            environ = {"OPENCODE_CONFIG_CONTENT": orjson.dumps(config).decode()}
            return [[words[0], "--auto", *words[1:]] for words in said], environ


def record(agent, folder):
    """Record the day of one agent. Raises where a part of it fails."""
    project()
    (PLACE / "script.yaml").write_text(yaml.safe_dump(days.script(agent)))
    exchanges = []
    with running("mock-upstream", "--script", str(PLACE / "script.yaml")) as (_, mock):
        config = player.CONFIG.format(mock=f"{mock}/v1", search=mock, model=days.MODEL)
        (PLACE / "serve.yaml").write_text(f"server: {{port: 0}}\n{config}")
        with running("serve", "--config", str(PLACE / "serve.yaml")) as (_, url), recorder(url, exchanges) as port:
            (PLACE / "run.yaml").write_text(f"server: {{port: {port}}}\n{config}")
            words, more = commands(agent)
            path = f"{folder / 'node_modules' / '.bin'}:{os.environ['PATH']}"
            environ = {**PLAIN, "HOME": str(PLACE / "home"), "PATH": path, "PYTHONPATH": str(ROOT), **more}
            for one in words:
                command = [sys.executable, "-m", "proxy", "run", agent, "--config", str(PLACE / "run.yaml"), "--", *one]
                subprocess.run(
                    command, cwd=days.PROJECT, env=environ, stdin=subprocess.DEVNULL, timeout=600, check=True
                )
    recording.write(agent, exchanges)
    sys.stderr.write(f"{agent}: {len(exchanges)} exchanges\n")


if __name__ == "__main__":
    for name in sys.argv[2:] or ("claude", "codex", "opencode"):
        record(name, Path(sys.argv[1]).resolve())
