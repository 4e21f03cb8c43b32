"""The load: raw sockets in a process of its own, a line of JSON in, one out.

    echo '{"kind": "closed", ...}' | python -m bench.load

closed    `connections` that each send the next request when they have the answer to the last, for `seconds`
open      `rate` requests a second over `connections`, for `seconds`
streams   `connections` streams at once, each read to its end
hold      `connections` streams that are left open, until standard input ends
"""

import asyncio
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import uvloop

from bench.processes import TIMING_PRIORITY, come_first

_LENGTH = re.compile(rb"content-length: *([0-9]+)", re.IGNORECASE)
_REFUSED = re.compile(rb"HTTP/1\.1 503 .*\r\nretry-after: ?[0-9]", re.IGNORECASE | re.DOTALL)
_TIMED = re.compile(rb'"content": ?"([0-9]{20})"')
# A digit string that is cut by the end of a read is found with what comes next.
_TAIL = 64
_LAST_CHUNK = b"\r\n0\r\n\r\n"
_SECOND = 1e9
# New connections at a time: more would overflow the listen queue and wait a second for the next attempt.
_AT_A_TIME = 200


class Spec(msgspec.Struct, frozen=True):
    """What to do; `first`: before all other processes of the machine."""

    kind: str
    port: int
    body: str
    headers: dict[str, str] = {}
    connections: int = 1
    seconds: float = 1.0
    rate: float = 0.0
    path: str = "/v1/chat/completions"
    first: bool = False

    def request(self) -> bytes:
        """The request's bytes."""
        body = self.body.encode()
        lines = [
            f"POST {self.path} HTTP/1.1",
            "host: bench",
            "content-type: application/json",
            f"content-length: {len(body)}",
            *(f"{name}: {value}" for name, value in self.headers.items()),
        ]
        return "\r\n".join((*lines, "", "")).encode() + body


class Figures(msgspec.Struct):
    """What was seen: answers, refusals (503 with Retry-After), and what is neither. Times in microseconds.

    `ended` is the machine's monotonic clock in seconds.
    """

    answers: int = 0
    refusals: int = 0
    failures: int = 0
    chunks: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    p50: float = 0.0
    p99: float = 0.0
    p999: float = 0.0
    worst: float = 0.0
    refusal_p50: float = 0.0
    refusal_p99: float = 0.0
    ended: float = 0.0

    def of_times(self, answers: list[int], refusals: Sequence[int] = ()) -> "Figures":
        """With the quantiles of these, in nanoseconds."""
        self.p50, self.p99, self.p999, self.worst = _quantiles(answers)
        self.refusal_p50, self.refusal_p99, *_ = _quantiles(refusals)
        return self


def _quantiles(nanoseconds: Sequence[int]) -> tuple[float, float, float, float]:
    """Median, 99 %, 99.9 % and the longest, in microseconds."""
    if not nanoseconds:
        return 0.0, 0.0, 0.0, 0.0
    ordered = sorted(nanoseconds)
    last = len(ordered) - 1
    p50, p99, p999, worst = (ordered[int(last * part)] / 1000 for part in (0.5, 0.99, 0.999, 1))
    return p50, p99, p999, worst


class Tally:
    """Whole answers as they come in."""

    def __init__(self) -> None:
        self.figures = Figures()
        self._answers: list[int] = []
        self._refusals: list[int] = []

    def count(self, client: "Client") -> None:
        """One more: what this client has just been answered."""
        took = time.monotonic_ns() - client.began
        if client.answered.startswith(b"HTTP/1.1 200"):
            self.figures.answers += 1
            self._answers.append(took)
        elif _REFUSED.match(client.answered):
            self.figures.refusals += 1
            self._refusals.append(took)
        else:
            self.figures.failures += 1

    def end(self, seconds: float) -> Figures:
        """All of them; they took so long."""
        self.figures.seconds = seconds
        return self.figures.of_times(self._answers, self._refusals)


class Client(asyncio.Protocol):
    """One connection with at most one request under way, of whose answer nothing is looked at but its end."""

    def __init__(self, done: "Callable[[Client], None]") -> None:
        self._done = done
        self.answered = b""
        self._need = 0
        self.began = 0
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        """Connected."""
        self.transport = transport

    def ask(self, request: bytes) -> None:
        """Send a request."""
        self.answered, self._need = b"", 0
        self.began = time.monotonic_ns()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        """Some of the answer."""
        got = self.answered = self.answered + data if self.answered else data
        if not self._need:
            end = got.find(b"\r\n\r\n")
            length = _LENGTH.search(got, 0, end) if end >= 0 else None
            if length is None:
                if end >= 0 and got.endswith(_LAST_CHUNK):
                    self._done(self)
                return
            self._need = end + 4 + int(length[1])
        if len(got) >= self._need:
            self._done(self)

    def connection_lost(self, _: Exception | None) -> None:
        """Never meant to happen; what waits for an answer waits in vain."""


class Stream(asyncio.Protocol):
    """One stream, read to its end or for as long as it lasts."""

    def __init__(self, times: list[int]) -> None:
        loop = asyncio.get_running_loop()
        self.begun, self.ended = loop.create_future(), loop.create_future()
        self.transport: Any = None
        self.good = self.whole = False
        self._times = times
        self._tail = b""

    def connection_made(self, transport: Any) -> None:
        """Connected."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Some chunks of it."""
        now = time.monotonic_ns()
        if not self.begun.done():
            self.good = data.startswith(b"HTTP/1.1 200")
            self.begun.set_result(None)
        seen = self._tail + data
        last = 0
        for match in _TIMED.finditer(seen):
            self._times.append(now - int(match[1]))
            last = match.end()
        self._tail = seen[max(last, len(seen) - _TAIL) :]
        if b"[DONE]" in seen:
            self.whole = True
            self._end()

    def connection_lost(self, _: Exception | None) -> None:
        """Over."""
        self._end()

    def _end(self) -> None:
        for future in (self.begun, self.ended):
            if not future.done():
                future.set_result(None)


async def _clients(spec: Spec, done: Callable[[Client], None]) -> list[Client]:
    made: list[Client] = []
    while len(made) < spec.connections:
        many = min(_AT_A_TIME, spec.connections - len(made))
        pairs = await asyncio.gather(*(_connect(spec, lambda: Client(done)) for _ in range(many)))
        made += (client for _, client in pairs)
    return made


async def _connect(spec: Spec, make: Callable[[], Any]) -> tuple[Any, Any]:
    return await asyncio.get_running_loop().create_connection(make, "127.0.0.1", spec.port)


async def _closed(spec: Spec) -> Figures:
    request, tally = spec.request(), Tally()
    over = asyncio.get_running_loop().create_future()
    ends = time.monotonic_ns() + int(spec.seconds * _SECOND)
    under_way = spec.connections

    def done(client: Client) -> None:
        nonlocal under_way
        tally.count(client)
        if time.monotonic_ns() < ends:
            client.ask(request)
            return
        under_way -= 1
        if not under_way:
            over.set_result(None)

    clients = await _clients(spec, done)
    began = time.monotonic_ns()
    ends = began + int(spec.seconds * _SECOND)
    for client in clients:
        client.ask(request)
    await over
    tally.figures.ended = time.monotonic()
    return tally.end((time.monotonic_ns() - began) / _SECOND)


async def _open(spec: Spec) -> Figures:
    request, tally = spec.request(), Tally()
    loop = asyncio.get_running_loop()
    idle: deque[Client] = deque()

    def done(client: Client) -> None:
        tally.count(client)
        idle.append(client)

    idle.extend(await _clients(spec, done))
    began = loop.time()
    for number in range(int(spec.rate * spec.seconds)):
        await asyncio.sleep(max(0.0, began + number / spec.rate - loop.time()))
        if idle:
            idle.popleft().ask(request)
        else:
            tally.figures.failures += 1
    tally.figures.ended = time.monotonic()
    await asyncio.sleep(1)
    return tally.end(spec.seconds)


async def _streams(spec: Spec, times: list[int], *, spread: float = 0.0) -> list[Stream]:
    """Open them all, spread over so many seconds, so that their chunks do not come at once."""
    request = spec.request()
    streams: list[Stream] = []
    while len(streams) < spec.connections:
        many = min(max(1, spec.connections // 20), _AT_A_TIME, spec.connections - len(streams))
        for _, stream in await asyncio.gather(*(_connect(spec, lambda: Stream(times)) for _ in range(many))):
            stream.transport.write(request)
            streams.append(stream)
        await asyncio.sleep(spread * many / spec.connections)
    return streams


async def _read_streams(spec: Spec) -> Figures:
    times: list[int] = []
    began = time.monotonic_ns()
    streams = await _streams(spec, times, spread=spec.seconds)
    for stream in streams:
        await stream.ended
    figures = Figures(
        answers=sum(stream.good and stream.whole for stream in streams),
        chunks=len(times),
        seconds=(time.monotonic_ns() - began) / _SECOND,
    )
    figures.failures = len(streams) - figures.answers
    return figures.of_times(times)


async def _hold(spec: Spec) -> Figures:
    streams = await _streams(spec, [])
    for stream in streams:
        await stream.begun
    sys.stdout.write("held\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    good = sum(stream.good and not stream.ended.done() for stream in streams)
    return Figures(answers=good, failures=len(streams) - good)


KINDS = {"closed": _closed, "open": _open, "streams": _read_streams, "hold": _hold}


def main() -> None:
    """As the module says."""
    spec = msgspec.json.decode(sys.stdin.readline(), type=Spec)
    if spec.first:
        come_first(os.getpid(), TIMING_PRIORITY)
    figures = uvloop.run(KINDS[spec.kind](spec))
    figures.cpu = time.process_time()
    sys.stdout.write(msgspec.json.encode(figures).decode() + "\n")


if __name__ == "__main__":
    main()
