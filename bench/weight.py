"""The weight of the program: how much of it a request enters, and how much there is to read.

    entered    functions of proxy/ that a warm streamed request with one web search enters, for each API
    lines      lines of proxy/
    code       lines that do something: with a token that is no comment, docstring or import; for each room
    imports    modules that a module of proxy/api/ imports, on average

    python -m bench.weight            print the figures beside those of bench/weight.json
    python -m bench.weight --check    and exit with 1 where one is higher than recorded
    python -m bench.weight --write    record the figures; a commit that records a higher one says why

The figures are counts, so a busy machine does not change them. The proxy runs in this process, with its own server
protocol and a scripted upstream in another process, and the functions are counted by `sys.setprofile`.
"""

import argparse
import ast
import asyncio
import http.client
import io
import sys
import tempfile
import tokenize
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import orjson
import uvicorn

from bench.processes import PYTHON, first_line, running
from bench.targets import KEY, ROOT
from proxy.app import create_app
from proxy.app.configuration import parse
from proxy.config.model import TelemetryConfig
from proxy.server.listener import address_of, listen
from proxy.server.process import uvicorn_config
from proxy.telemetry import log

RECORDED = ROOT / "bench" / "weight.json"
PROXY = ROOT / "proxy"

_WARM_UP = 5
_ROUNDS = 3  # of which the least counts: a read of the socket may split an event in two
_QUESTION = "What is the weather in Nanaimo?"
_SCRIPT = """
conversations:
  - when: nanaimo
    turns:
      - reasoning: I should look that up.
        text: Let me check.
        calls:
          - {name: web_search, arguments: {query: Nanaimo weather}}
      - text: It rains in Nanaimo from two o'clock on (https://weather.example/nanaimo), so take a jacket with you.
"""
_CONFIG = """
server: {{port: 0, workers: 1}}
clients: [{{name: bench, key: {key}, requests_per_minute: 100000}}]
upstreams: {{up: {{base_url: {upstream}/v1, api_key: bench-upstream-key, profile: openai}}}}
models: {{m: {{upstream: up}}}}
tools: {{web_search: {{type: serper, api_key: bench-search-key, base_url: {upstream}}}}}
"""


class _Request(NamedTuple):
    path: str
    fields: dict[str, Any]


_REQUESTS = {
    "chat": _Request("/v1/chat/completions", {"messages": [{"role": "user", "content": _QUESTION}]}),
    "messages": _Request(
        "/v1/messages",
        {
            "max_tokens": 1000,
            "messages": [{"role": "user", "content": _QUESTION}],
            "tools": [{"type": "web_search_20250305", "name": "web_search"}],
        },
    ),
    "responses": _Request("/v1/responses", {"input": _QUESTION, "tools": [{"type": "web_search"}]}),
}


class Entered:
    """The functions of proxy/ that this process enters while it is the profile function."""

    def __init__(self) -> None:
        self._inside = f"{PROXY}/"
        self._codes: set[CodeType] = set()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Note a call; comprehensions and lambdas have no name and are left out."""
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(self._inside) and not code.co_name.startswith("<"):
            self._codes.add(code)

    @property
    def count(self) -> int:
        """How many functions were entered."""
        return len(self._codes)


@asynccontextmanager
async def _proxy(upstream: str) -> AsyncIterator[str]:
    """The proxy in this process; its address."""
    loaded = parse(_CONFIG.format(upstream=upstream, key=KEY), {})
    listener = listen("127.0.0.1", 0)
    config = uvicorn_config(loaded.config, create_app(loaded))
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup([listener])
    try:
        yield address_of(listener).partition("//")[2]
    finally:
        await server.shutdown()


class _Client:
    """A client with one connection."""

    def __init__(self, host: str) -> None:
        self._connection = http.client.HTTPConnection(host)

    def ask(self, request: _Request) -> None:
        """Send a request and read its stream to the end. Raises `RuntimeError` if it fails."""
        headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
        body = orjson.dumps({"model": "m", "stream": True, **request.fields})
        self._connection.request("POST", request.path, body, headers)
        response = self._connection.getresponse()
        answer = response.read()
        if response.status != HTTPStatus.OK or b"jacket" not in answer:
            raise RuntimeError(answer.decode())

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


async def functions_entered() -> dict[str, int]:
    """How many functions a warm request enters, by API."""
    log.configure(TelemetryConfig(log_level="error"))
    with tempfile.TemporaryDirectory() as where:
        script = Path(where) / "script.yaml"
        script.write_text(_SCRIPT)
        with running(
            [PYTHON, "-m", "proxy", "mock-upstream", "--port", "0", "--script", str(script)], cwd=ROOT
        ) as process:
            upstream = first_line(process).partition("http://")[2].partition("/")[0].split()[0]
            async with _proxy(f"http://{upstream}") as host:
                return {name: await _entered_by(host, request) for name, request in _REQUESTS.items()}


async def _entered_by(host: str, request: _Request) -> int:
    client = _Client(host)
    for _ in range(_WARM_UP):
        await asyncio.to_thread(client.ask, request)
    counts: list[int] = []
    for _ in range(_ROUNDS):
        entered = Entered()
        sys.setprofile(entered)
        await asyncio.to_thread(client.ask, request)
        await asyncio.sleep(0.05)  # the end of the request, after its last byte
        sys.setprofile(None)
        counts.append(entered.count)
    client.close()
    return min(counts)


def lines_of_code(text: str) -> int:
    """The lines of a module that do something."""
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant(value=str())):
                left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    empty = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    written: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in empty:
            written.update(range(token.start[0], token.end[0] + 1))
    return len(written - left_out)


def imports_of(text: str) -> int:
    """How many modules a module imports, of the project and of others."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.ImportFrom(module=str(module)):
                found.add(module)
            case ast.Import(names=names):
                found.update(one.name for one in names)
    return len(found)


def _modules(folder: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted(folder.rglob("*.py")):
        yield path, path.read_text()


def to_read() -> dict[str, float]:
    """The lines, the code by room, and the mean of imports in api/."""
    lines, code = 0, dict[str, int]()
    for path, text in _modules(PROXY):
        lines += text.count("\n")
        room = path.relative_to(PROXY).parts[0].removesuffix(".py")
        code[room] = code.get(room, 0) + lines_of_code(text)
    imports = [imports_of(text) for path, text in _modules(PROXY / "api") if path.name != "__init__.py"]
    by_room = {f"code {room}": count for room, count in sorted(code.items()) if count}
    return {"lines": lines, "code": sum(code.values()), **by_room, "imports api": round(sum(imports) / len(imports), 1)}


def figures() -> dict[str, float]:
    """All figures, by name."""
    entered = asyncio.run(functions_entered())
    return {**{f"entered {api}": count for api, count in entered.items()}, **to_read()}


def main() -> int:
    """Count, compare and record."""
    parser = argparse.ArgumentParser(prog="bench.weight", description="What a request enters, and how much to read.")
    parser.add_argument("--check", action="store_true", help=f"fail where a figure is higher than in {RECORDED.name}")
    parser.add_argument("--write", action="store_true", help=f"record the figures in {RECORDED.name}")
    options = parser.parse_args()
    recorded: dict[str, float] = orjson.loads(RECORDED.read_bytes()) if RECORDED.exists() else {}
    counted = figures()
    grown = [name for name, figure in counted.items() if figure > recorded.get(name, 0)]
    for name, figure in counted.items():
        mark = "  grown" if name in grown else ""
        print(f"{name:<20} {figure:>9,} {recorded.get(name, 0):>9,}{mark}")
    if options.write:
        RECORDED.write_bytes(orjson.dumps(counted, option=orjson.OPT_INDENT_2) + b"\n")
    return int(options.check and bool(grown))


if __name__ == "__main__":
    sys.exit(main())
