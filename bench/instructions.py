"""Instructions per request, loop and chunk, counted by callgrind: a figure that a noisy machine does not disturb.

    request      a whole answer without server tools, which Chat Completions relays
    chunk        a chunk of a stream without server tools
    answer       a whole answer with a server tool in play, which the model does not call
    loop         a whole answer after one call of that tool
    search       a whole answer after one web search with ten results
    loop_chunk   a chunk of a stream after one tool call

    python -m bench.instructions            print the counts beside those of bench/instructions.json
    python -m bench.instructions --check    and exit with 1 where one is more than 5 % away from its recorded value
    python -m bench.instructions --write    record the counts
    python -m bench.instructions --traces   count with all traces sent to a receiver on loopback, and print how much
                                            more that is than without; with --check, exit with 1 above 50 %
    python -m bench.instructions --surface messages    count on the Messages API, or on the Responses API, and on Chat
                                                       Completions, and print the difference

The proxy runs under valgrind with one worker. Client and upstream are one process and act in lockstep: a chunk is sent
when the chunk before it has reached the client, so every run reads the same bytes in the same pieces. Counted are
instructions in user space; the kernel's part is not seen. A count holds for one build of Python on one kind of
processor, so a machine without recorded counts of its own has nothing to compare and passes.
"""

import argparse
import asyncio
import contextlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson

from bench.processes import PYTHON, first_line, running
from bench.targets import KEY, ROOT
from bench.upstream import CALLING, CALLING_STREAM, END, HEAD, OPENING, WHOLE, event, found, searching

RECORDED = ROOT / "bench" / "instructions.json"
TOLERANCE = 0.05
TRACES_COST = 0.5

_WARM_UP, _REQUESTS, _CHUNKS = 50, 200, 400
# Under load, traces are sent in full batches of so many requests. A request is measured with its share of one batch,
# and a batch is not sent before it is full, however long the requests take under callgrind.
_BATCH = 512
_FULL_BATCHES = {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": str(_BATCH), "OTEL_BSP_SCHEDULE_DELAY": "86400000"}
_CONFIG = """
server: {{port: 0, workers: 1}}
clients: [{{name: bench, key: {key}, requests_per_minute: 1000000, max_concurrent_requests: 1000}}]
upstreams: {{model: {{base_url: "http://127.0.0.1:{upstream}/v1", api_key: bench-upstream-key}}}}
models: {{"*": {{upstream: model}}}}
tools:
  current_time: {{type: clock}}
  web_search: {{type: serper, base_url: "http://127.0.0.1:{upstream}/serper", api_key: bench-search-key}}
"""
# The tools that are offered to a model; to any other one, the clock.
_TOOLS_OF = {"relayed": "none", "searches": "web_search"}
_LENGTH = re.compile(rb"content-length: *([0-9]+)", re.IGNORECASE)
_TOTALS = re.compile(r"^(?:totals|summary): (\d+)", re.MULTILINE)
_CALLING_MODEL, _SEARCHING_MODEL, _SEARCH = b'"model":"calls"', b'"model":"searches"', b"POST /serper/"
_MESSAGE = [{"role": "user", "content": "What does all work and no play make of a proxy? " * 16}]


@dataclass(frozen=True, slots=True)
class Surface:
    """An API of the proxy's, as far as the client has to know it.

    Attributes:
        path: of its endpoint.
        fields: of its requests, beside model, temperature and stream.
        end: a line of its streams with this in it is the last one.
    """

    path: str
    fields: dict[str, object]
    end: bytes


SURFACES = {
    "chat": Surface("/v1/chat/completions", {"messages": _MESSAGE}, b"[DONE]"),
    "responses": Surface("/v1/responses", {"input": _MESSAGE, "store": False}, b"event: response.completed"),
    "messages": Surface("/v1/messages", {"messages": _MESSAGE, "max_tokens": 1000}, b'data: {"type":"message_stop"'),
}


@dataclass(frozen=True, slots=True)
class Connection:
    """Both halves of one TCP connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def message(self) -> bytes:
        """The head and the body of the next HTTP message that has a Content-Length."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        return head + await self.reader.readexactly(int(length[1]) if length else 0)


class Upstream:
    """A model server and a search server.

    The model `calls` calls a tool where it is offered one, and `searches` searches the web, each time for something
    else; everything else is answered with text.

    Args:
        received: waits until the client has received the chunk that was sent last.

    Attributes:
        chunks: how many content chunks a stream has.
    """

    def __init__(self, received: Callable[[], Awaitable[None]]) -> None:
        self.chunks = 0
        self._received = received
        self._searches = 0
        self._handlers: list[asyncio.Future[None]] = []

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a new connection in a task of its own."""
        self._handlers.append(asyncio.ensure_future(self._serve(Connection(reader, writer))))

    async def closed(self) -> None:
        """Wait until every connection is closed by its client."""
        await asyncio.gather(*self._handlers)

    async def _serve(self, connection: Connection) -> None:
        writer = connection.writer
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                request = await connection.message()
                is_first = b'"tools"' in request and b'"role":"tool"' not in request
                calls = is_first and _CALLING_MODEL in request
                if request.startswith(_SEARCH):
                    writer.write(found(self._searches))
                elif is_first and _SEARCHING_MODEL in request:
                    self._searches += 1
                    writer.write(searching(self._searches))
                elif b'"stream":true' not in request:
                    writer.write(CALLING if calls else WHOLE)
                elif calls:
                    writer.write(CALLING_STREAM)
                else:
                    await self._stream(writer)

    async def _stream(self, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + OPENING)
        for number in range(self.chunks):
            writer.write(event(b'"content":"chunk %06d"' % number))
            await self._received()
        writer.write(END)


async def receive_traces(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An OTLP receiver that accepts every batch but the last: the event loop does not run while the proxy stops."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
        while True:
            await Connection(reader, writer).message()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")


class Measurement:
    """A proxy under callgrind, its upstream, and the one client that asks it.

    Args:
        surface: the API that the client speaks.
        traces: whether the proxy sends traces: one batch before whole answers are counted, and one while they are.
    """

    def __init__(self, surface: Surface, *, traces: bool) -> None:
        self._surface = surface
        self._requests = _BATCH if traces else _REQUESTS
        self._warm_up = _WARM_UP + (_BATCH if traces else 0)
        self._arrived = asyncio.Event()
        self.upstream = Upstream(self._wait_for_chunk)

    async def _wait_for_chunk(self) -> None:
        await self._arrived.wait()
        self._arrived.clear()

    async def ask(self, client: Connection, *, stream: bool, model: str) -> None:
        """Send one request and read its answer to the end; the model decides whether tools are in play."""
        body = orjson.dumps({"model": model, **self._surface.fields, "temperature": 0.5, "stream": stream})
        choice = _TOOLS_OF.get(model, "current_time")
        head = (
            f"POST {self._surface.path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {KEY}\r\nx-server-tools: {choice}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        client.writer.write(head.encode() + body)
        if not stream:
            answer = await client.message()
            if not answer.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(answer.decode())
            return
        while self._surface.end not in (line := await client.reader.readline()):
            if b'"chunk ' in line:
                self._arrived.set()
        await client.reader.readuntil(b"0\r\n\r\n")

    async def of_answer(self, client: Connection, proxy: "Callgrind", model: str) -> int:
        """Instructions per whole answer."""
        return await self._instructions(client, proxy, self._requests, stream=False, model=model) // self._requests

    async def of_chunk(self, client: Connection, proxy: "Callgrind", model: str) -> int:
        """Instructions per chunk of a stream."""
        self.upstream.chunks = 1
        short = await self._instructions(client, proxy, 1, stream=True, model=model)
        self.upstream.chunks = 1 + _CHUNKS
        long = await self._instructions(client, proxy, 1, stream=True, model=model)
        return (long - short) // _CHUNKS

    async def _instructions(
        self, client: Connection, proxy: "Callgrind", times: int, *, stream: bool, model: str
    ) -> int:
        for _ in range(self._warm_up if not stream else 2):
            await self.ask(client, stream=stream, model=model)
        await proxy.reset()
        for _ in range(times):
            await self.ask(client, stream=stream, model=model)
        return await proxy.instructions()


@dataclass(frozen=True, slots=True)
class Callgrind:
    """A process that callgrind watches."""

    pid: int
    output: Path

    async def reset(self) -> None:
        """Set the count to zero."""
        await self._control("--zero")

    async def instructions(self) -> int:
        """Instructions since the last reset."""
        before = set(self.output.parent.glob(f"{self.output.name}*"))
        await self._control("--dump")
        (dump,) = set(self.output.parent.glob(f"{self.output.name}*")) - before
        totals = _TOTALS.search(dump.read_text())
        if totals is None:
            raise RuntimeError(f"callgrind wrote no total into {dump.name}")
        return int(totals[1])

    async def _control(self, command: str) -> None:
        process = await asyncio.create_subprocess_exec(
            "callgrind_control", command, str(self.pid), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        if await process.wait():
            raise RuntimeError(f"callgrind_control {command} failed")


@contextmanager
def _proxy(upstream: int, where: Path, endpoint: str | None) -> Iterator[tuple[Callgrind, int]]:
    """A proxy under callgrind, and its port; it sends traces to an endpoint, if there is one."""
    more = f"telemetry: {{otlp_endpoint: '{endpoint}'}}" if endpoint else ""
    (where / "config.yaml").write_text(_CONFIG.format(upstream=upstream, key=KEY) + more)
    output = where / "callgrind.out"
    valgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={output}"]
    command = [*valgrind, PYTHON, "-m", "proxy", "serve", "--config", str(where / "config.yaml")]
    with running(command, environ={"PYTHONHASHSEED": "0", **_FULL_BATCHES}, log=where / "log", cwd=ROOT) as process:
        port = int(first_line(process).rpartition(":")[2].partition("/")[0])
        yield Callgrind(process.pid, output), port


@asynccontextmanager
async def _connected(port: int) -> AsyncIterator[Connection]:
    connection = Connection(*await asyncio.open_connection("127.0.0.1", port))
    yield connection
    connection.writer.close()


async def measure(surface: Surface, *, traces: bool = False) -> dict[str, int]:
    """The counts of one surface, by name."""
    measurement = Measurement(surface, traces=traces)
    receiver = await asyncio.start_server(receive_traces, "127.0.0.1", 0)
    endpoint = f"http://127.0.0.1:{receiver.sockets[0].getsockname()[1]}"
    server = await asyncio.start_server(measurement.upstream.connected, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with (
        tempfile.TemporaryDirectory() as where,
        _proxy(port, Path(where), endpoint if traces else None) as (proxy, served),
    ):
        async with _connected(served) as client:
            counts = {
                "request": await measurement.of_answer(client, proxy, "relayed"),
                "chunk": await measurement.of_chunk(client, proxy, "relayed"),
                "answer": await measurement.of_answer(client, proxy, "answers"),
                "loop": await measurement.of_answer(client, proxy, "calls"),
                "search": await measurement.of_answer(client, proxy, "searches"),
                "loop_chunk": await measurement.of_chunk(client, proxy, "calls"),
            }
    await measurement.upstream.closed()
    server.close()
    receiver.close()
    return counts


def build() -> str:
    """The interpreter and the processor, which together decide what the counts are."""
    return f"{platform.python_implementation()} {platform.python_version()} {platform.machine()}"


def main() -> int:
    """Count, compare and record."""
    parser = argparse.ArgumentParser(prog="bench.instructions", description="Instructions per request, loop and chunk.")
    parser.add_argument("--check", action="store_true", help=f"fail where a count is over {TOLERANCE:.0%}% off")
    parser.add_argument("--write", action="store_true", help=f"record the counts in {RECORDED.name}")
    parser.add_argument("--traces", action="store_true", help="compare all traces sent with none")
    parser.add_argument("--surface", choices=SURFACES, default="chat", help="the API that the client speaks")
    options = parser.parse_args()
    if options.surface != "chat" and (options.check or options.write):
        parser.error("counts are recorded of Chat Completions only")
    if options.traces and options.write:
        parser.error("counts are recorded without traces only")
    if not (shutil.which("valgrind") and shutil.which("callgrind_control")):
        print("skipped: there is no valgrind on this machine")
        return 0
    recorded = orjson.loads(RECORDED.read_bytes()) if RECORDED.exists() else {}
    expected = recorded.get(build(), {})
    if options.check and not expected and not options.traces:
        print(f"skipped: no counts are recorded for {build()}")
        return 0
    surface, tolerance = SURFACES[options.surface], TOLERANCE
    if options.traces:
        expected, tolerance = asyncio.run(measure(surface)), TRACES_COST
    elif options.surface != "chat":
        expected = asyncio.run(measure(SURFACES["chat"]))
    counts = asyncio.run(measure(surface, traces=options.traces))
    off = False
    for name, count in counts.items():
        change = count / expected[name] - 1 if name in expected else 0.0
        off = off or abs(change) > tolerance
        print(f"{name:<12} {count:>10,} {change:+8.1%}")
    if options.write:
        RECORDED.write_bytes(orjson.dumps({**recorded, build(): counts}, option=orjson.OPT_INDENT_2) + b"\n")
    return int(options.check and off)


if __name__ == "__main__":
    sys.exit(main())
