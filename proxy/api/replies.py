"""Answers on the wire: JSON at once, or a stream of server-sent events with a heartbeat."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

import orjson
from starlette.types import Scope, Send

from proxy.api.peer import peer_of
from proxy.loop import sse
from proxy.loop.errors import ProxyError

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
Farewell: TypeAlias = Callable[[ProxyError], bytes]
"""How a surface tells in its streams that they end in a failure; as the last bytes of the response."""

_FAREWELL = "toolproxy.farewell"


def set_farewell(scope: Scope, farewell: Farewell) -> None:
    """Streams of this request end in a failure as `farewell` says, not with the error in OpenAI's envelope alone."""
    scope[_FAREWELL] = farewell


def farewell_of(scope: Scope) -> Farewell:
    """How a stream of this request ends in a failure."""
    farewell: Farewell = scope.get(_FAREWELL, lambda error: sse.encode(error.envelope()))
    return farewell


def forget_farewell(scope: Scope) -> None:
    """Let go of what a farewell knows of its answer: the answer knows the scope, and would be kept by that circle."""
    scope.pop(_FAREWELL, None)


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


class EventStream:
    """A stream of server-sent events; `scope` tells which client it goes to.

    The status is committed with the first byte, so that an early failure still has its proper status.
    """

    _HEADERS: Headers = (
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),  # nginx in front of us must not hold events back
    )

    def __init__(self, scope: Scope, send: Send, *, extra: Headers = ()) -> None:
        self._peer = peer_of(scope)
        self._send = send
        self._headers = (*self._HEADERS, *extra)
        self._starting = asyncio.Lock()
        loop = asyncio.get_running_loop()
        self._written = loop.create_future()  # to be awaited for what needs no waiting
        self._written.set_result(None)
        self._now = loop.time
        self._last_write = self._now()
        self.started = False

    def write(self, data: bytes) -> Awaitable[None]:
        """Bytes of whole events, or of a comment. Waits while the client does not read."""
        if not self.started:
            return self._begin(data)
        self._last_write = self._now()
        if self._peer is not None and self._peer.write_chunk(data):
            return self._written
        return self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def _begin(self, data: bytes) -> None:
        async with self._starting:
            if not self.started:
                await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
                self.started = True
        await self.write(data)

    async def keep_alive(self, seconds: float) -> None:
        """A comment whenever nothing was written for `seconds`: balancers end silent streams after 60. Never ends."""
        while True:
            silent = self._now() - self._last_write
            if silent >= seconds:
                await self.write(sse.KEEPALIVE)
                silent = 0
            await asyncio.sleep(seconds - silent)

    async def close(self) -> None:
        """The end of the response."""
        await self._send({"type": "http.response.body", "body": b""})
