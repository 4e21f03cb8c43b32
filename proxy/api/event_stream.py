"""A response as a stream of server-sent events, with heartbeats, written by one task or several."""

import asyncio
from collections.abc import Awaitable, Callable

from starlette.types import Scope, Send

from proxy.api.exchange import CONNECTION, ClientConnection
from proxy.wire import sse
from proxy.wire.relayed import Headers


class EventStream:
    """A stream of server-sent events.

    The status is sent with the first byte, so that a failure before it still has its proper status.

    Args:
        scope: of the request.
        send: sends what is not written straight to the connection.
        headers: further headers of the response.

    Attributes:
        is_started: whether the status has been sent.
        heartbeat: makes the bytes that are sent after a long silence; a comment unless the surface sets it.
    """

    _HEADERS: Headers = (
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),  # an nginx in front of the proxy must not hold events back
    )

    def __init__(self, scope: Scope, send: Send, headers: Headers = ()) -> None:
        self._connection: ClientConnection | None = scope.get("extensions", {}).get(CONNECTION)
        self._send = send
        self._headers = (*self._HEADERS, *headers)
        self._starting = asyncio.Lock()
        self.is_started = False
        self.heartbeat: Callable[[], bytes] = lambda: sse.KEEPALIVE
        loop = asyncio.get_running_loop()
        self._written = loop.create_future()  # what `write` returns when there is nothing to wait for
        self._written.set_result(None)
        self._now = loop.time
        self._last_write = self._now()

    def note_ids(self) -> None:
        """Send heartbeats in the form for a stream whose events carry an `id`."""
        self.heartbeat = lambda: sse.KEEPALIVE_BETWEEN_IDS

    def write(self, data: bytes) -> Awaitable[None]:
        """Send whole events, or a comment. Waits as long as the client does not read."""
        if not self.is_started:
            return self._begin(data)
        self._last_write = self._now()
        if self._connection is not None and self._connection.write_chunk(data):
            return self._written
        return self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def _begin(self, data: bytes) -> None:
        async with self._starting:  # the heartbeat may be sending the first bytes at the same time
            if not self.is_started:
                await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
                self.is_started = True
        await self.write(data)

    async def keep_alive(self, seconds: float) -> None:
        """Send a heartbeat whenever nothing was sent for `seconds`: load balancers end silent streams after 60."""
        while True:
            silent = self._now() - self._last_write
            if silent >= seconds:
                await self.write(self.heartbeat())
                silent = 0
            await asyncio.sleep(seconds - silent)

    async def finish(self, data: bytes = b"") -> None:
        """Send the last events and the end of the response in one piece: clients disconnect once they read `[DONE]`."""
        if not self.is_started:
            await self._begin(b"")
        await self._send({"type": "http.response.body", "body": data})
