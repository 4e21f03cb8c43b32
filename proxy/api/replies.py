"""Responses: JSON in one piece, or a stream of server-sent events with a heartbeat."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import orjson
from starlette.types import Scope, Send

from proxy.api.race import CONNECTION, ClientConnection
from proxy.loop import sse
from proxy.loop.errors import ProxyError

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]

STREAM_ERROR_ENCODER: Final = "toolproxy.stream_error_encoder"
"""The key in a scope for a `Callable[[ProxyError], bytes]`: the last bytes of a stream that ends in that error.

Without it, the last event of such a stream is the error in OpenAI's envelope.
"""


async def send_bytes(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """A whole response."""
    headers = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_json(send: Send, payload: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
    """A whole JSON response."""
    extra = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in (headers or {}).items()]
    await send_bytes(send, status, [(b"content-type", b"application/json"), *extra], orjson.dumps(payload))


async def send_error(send: Send, error: ProxyError) -> None:
    """An error in OpenAI's envelope."""
    await send_json(send, error.envelope(), status=error.status, headers=error.headers)


def _comment() -> bytes:
    return sse.KEEPALIVE


class EventStream:
    """A stream of server-sent events.

    The status is committed with the first byte, so that an early failure still has its proper status.

    Attributes:
        is_started: whether the status is committed.
        heartbeat: makes what is sent when the stream would be silent for long; a comment unless the surface sets it.
    """

    _HEADERS: Headers = (
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),  # nginx in front of us must not hold events back
    )

    def __init__(self, scope: Scope, send: Send, *, extra: Headers = ()) -> None:
        self._connection: ClientConnection | None = scope.get("extensions", {}).get(CONNECTION)
        self._send = send
        self._headers = (*self._HEADERS, *extra)
        self._starting = asyncio.Lock()
        self.is_started = False
        self.heartbeat: Callable[[], bytes] = _comment
        loop = asyncio.get_running_loop()
        self._written = loop.create_future()  # what `write` returns where nothing is to be waited for
        self._written.set_result(None)
        self._now = loop.time
        self._last_write = self._now()

    def write(self, data: bytes) -> Awaitable[None]:
        """Send whole events, or a comment. Waits while the client does not read."""
        if not self.is_started:
            return self._begin(data)
        self._last_write = self._now()
        if self._connection is not None and self._connection.write_chunk(data):
            return self._written
        return self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def _begin(self, data: bytes) -> None:
        async with self._starting:  # the heartbeat may want to be first as well
            if not self.is_started:
                await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
                self.is_started = True
        await self.write(data)

    async def keep_alive(self, seconds: float) -> None:
        """Send a heartbeat whenever nothing was sent for `seconds`: balancers end silent streams after 60."""
        while True:
            silent = self._now() - self._last_write
            if silent >= seconds:
                await self.write(self.heartbeat())
                silent = 0
            await asyncio.sleep(seconds - silent)

    async def close(self) -> None:
        """End the response."""
        await self._send({"type": "http.response.body", "body": b""})


class Outbox:
    """Events on their way into a stream, written in order, by one task at a time.

    Tools report their progress from tasks of their own, and one that is cancelled while it waits loses nothing.
    """

    def __init__(self, stream: EventStream) -> None:
        self.pending = bytearray()
        self._stream = stream
        self._writing = asyncio.Lock()

    def write(self, data: bytes) -> Awaitable[None]:
        """Write whole events behind those that wait."""
        if self.pending or self._writing.locked() or not self._stream.is_started:
            self.pending += data
            return self.flush()
        return self._stream.write(data)

    async def flush(self) -> None:
        """Write everything that waits."""
        async with self._writing:
            while data := bytes(self.pending):
                await self._stream.write(data)
                del self.pending[: len(data)]
