"""A model server that costs next to nothing: what it answers is in the name of the model that it is asked for.

whole           one answer of 1.1 KB
after-MS        the same after MS milliseconds
paced-N-MS      a stream of N chunks, one every MS milliseconds; each says when it was sent
burst-N         a stream of N chunks as fast as they are taken
idle            the head and the first chunk of a stream, then silence
tool-N-MS       asks for `current_time` first; given its result, the answer: `whole`, or `paced-N-MS` where it streams
calls           asks for `current_time` first, whatever the history holds; then as `whole`, or as `burst-20`

    python -m bench.upstream      prints its port; serves until it is told to stop
"""

import asyncio
import re
import socket
import sys
import time
from typing import Any

import orjson
import uvloop

_LENGTH = re.compile(rb"content-length: *([0-9]+)", re.IGNORECASE)
_MODEL = re.compile(rb'"model": ?"([^"]+)"')
_BACKLOG = 8192

_ENVELOPE = b'{"id":"up-1","object":"chat.completion%s","created":1700000000,"model":"bench","choices":[{"index":0,'
_TEXT = b"All work and no play makes a dull proxy. " * 19
_USAGE = b'"usage":{"prompt_tokens":200,"completion_tokens":180,"total_tokens":380}}'
_CALL = b'{"id":"call_1","type":"function","function":{"name":"%s","arguments":"%s"}}'
_RESULT = (
    b'{"title":"Page %06d of the dull proxies","link":"https://www.example%06d.com/work/and/no-play?page=%06d",'
    b'"snippet":"All work and no play makes a dull proxy, as page %06d says in a hundred and fifty characters, which '
    b'is about what Google shows of a page ...","date":"Nov 3, 2026","position":1}'
)
_RESULTS = 10


def _response(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def _whole(message: bytes, reason: bytes) -> bytes:
    choice = b'"message":{"role":"assistant",%s},"logprobs":null,"finish_reason":"%s"}],' % (message, reason)
    return _response(_ENVELOPE % b"" + choice + _USAGE)


def searching(number: int) -> bytes:
    """A turn that searches the web for something else with each `number`."""
    call = _CALL % (b"web_search", b'{\\"query\\":\\"dull proxy %06d\\"}' % number)
    return _whole(b'"content":null,"tool_calls":[%s]' % call, b"tool_calls")


def found(number: int) -> bytes:
    """What Serper finds in the search with that `number`: pages that no other search finds."""
    pages = [b"%06d" % (number * _RESULTS + at) for at in range(_RESULTS)]
    results = [_RESULT.replace(b"%06d", page) for page in pages]
    return _response(b'{"searchParameters":{"q":"dull"},"organic":[%s],"credits":1}' % b",".join(results))


def event(delta: bytes, reason: bytes = b"null", usage: bytes = b"}") -> bytes:
    """A chunk of a stream, framed for chunked transfer; `usage` ends its JSON."""
    choice = b'"delta":{%s},"logprobs":null,"finish_reason":%s}]' % (delta, reason)
    data = b"data: " + _ENVELOPE % b".chunk" + choice + usage + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


def _end(reason: bytes) -> bytes:
    """The end of a stream: the last chunk with the usage in it, as GLM sends it, whatever the request asked for."""
    return event(b"", reason, b"," + _USAGE) + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


WHOLE = _whole(b'"content":"%s"' % _TEXT, b"stop")
_CLOCK_CALL = _CALL % (b"current_time", b"{}")
CALLING = _whole(b'"content":null,"tool_calls":[%s]' % _CLOCK_CALL, b"tool_calls")
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
OPENING = event(b'"role":"assistant","content":""')
END = _end(b'"stop"')
CALLING_STREAM = (
    HEAD + OPENING + event(b'"tool_calls":[%s]' % _CLOCK_CALL.replace(b"{", b'{"index":0,', 1)) + _end(b'"tool_calls"')
)


def timed_event() -> bytes:
    """A chunk of some 190 bytes that says when it was made, in nanoseconds of the machine's monotonic clock."""
    return event(b'"content":"%020d"' % time.monotonic_ns())


class Upstream(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._rest = b""
        self._left = 0
        self._open = True

    def connection_made(self, transport: Any) -> None:
        """Connected."""
        self._transport = transport

    def connection_lost(self, _: Exception | None) -> None:
        """The client has left."""
        self._open = False

    def data_received(self, data: bytes) -> None:
        """Requests, each read to its end."""
        data = self._rest + data if self._rest else data
        while data:
            end = data.find(b"\r\n\r\n") + 4
            length = _LENGTH.search(data, 0, end) if end >= 4 else None  # noqa: PLR2004 - not found
            size = end + (int(length[1]) if length else 0)
            if end < 4 or len(data) < size:  # noqa: PLR2004
                break
            self._answer(data[end:size])
            data = data[size:]
        self._rest = data

    def _answer(self, body: bytes) -> None:
        asked = _MODEL.search(body)
        kind, *numbers = (asked[1] if asked else b"whole").split(b"-")
        streams = b'"stream":true' in body
        match kind:
            case b"tool" if b'"role":"tool"' not in body:
                self._transport.write(CALLING_STREAM if streams else CALLING)
            case b"calls" if b'"call_1"' not in body:
                self._transport.write(CALLING_STREAM if streams else CALLING)
            case b"paced" | b"tool" if streams:
                self._transport.write(HEAD + OPENING)
                self._left = int(numbers[0])
                self._pace(int(numbers[1]) / 1000, self._loop.time())
            case b"after":
                self._loop.call_later(int(numbers[0]) / 1000, self._transport.write, WHOLE)
            case b"burst" | b"calls" if streams:
                chunk = timed_event()
                self._transport.write(HEAD + OPENING + chunk * int(numbers[0] if numbers else 20) + END)
            case b"idle":
                self._transport.write(HEAD + timed_event())
            case _:
                self._transport.write(WHOLE)

    def _pace(self, seconds: float, due: float) -> None:
        if not self._open:
            return
        if not self._left:
            self._transport.write(END)
            return
        self._left -= 1
        self._transport.write(timed_event())
        self._loop.call_at(due + seconds, self._pace, seconds, due + seconds)


async def _serve() -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
    server = await asyncio.get_running_loop().create_server(Upstream, sock=listener, backlog=_BACKLOG)
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    orjson.loads(WHOLE.partition(b"\r\n\r\n")[2])
    uvloop.run(_serve())
