"""A response as a stream of server-sent events, with heartbeats, written by one task or several."""

import asyncio
from collections.abc import Awaitable, Callable

from starlette.types import Scope, Send

from proxy.api.exchange import CONNECTION, ClientConnection
from proxy.wire import sse
from proxy.wire.relayed import Headers

_HEADERS: Headers = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # an nginx in front of the proxy must not hold events back
)


class EventStream:
    """A stream of server-sent events.

    The status is sent with the first byte, so that a failure before it still has its proper status. Tools report
    progress from their own tasks, so events wait in a queue, and one task at a time sends them. The events of a task
    that is cancelled while it waits to send stay in the queue.

    Args:
        scope: of the request.
        send: sends what is not written straight to the connection.
        headers: further headers of the response.

    Attributes:
        heartbeat: makes the bytes that are sent after a long silence; a comment unless the API sets it.
        is_started: whether the status has been sent.
        queue: the events that are not sent yet.
    """

    def __init__(self, scope: Scope, send: Send, headers: Headers = ()) -> None:
        self._connection: ClientConnection | None = scope.get("extensions", {}).get(CONNECTION)
        self._send = send
        self._headers = (*_HEADERS, *headers)
        self.heartbeat: Callable[[], bytes] = lambda: sse.KEEPALIVE
        self._sending = asyncio.Lock()
        self.is_started = False
        self.queue = bytearray()
        loop = asyncio.get_running_loop()
        self._written = loop.create_future()  # what `write` returns when there is nothing to wait for
        self._written.set_result(None)
        self._now = loop.time
        self._last_write = self._now()

    def note_ids(self) -> None:
        """Send heartbeats in the form for a stream whose events carry an `id`."""
        self.heartbeat = lambda: sse.KEEPALIVE_BETWEEN_IDS

    def write(self, data: bytes) -> Awaitable[None]:
        """Send whole events, or a comment, after those in the queue. Waits as long as the client does not read."""
        if self.queue or self._sending.locked() or not self.is_started:
            self.queue += data
            return self._send_queue()
        self._last_write = self._now()
        if self._connection is not None and self._connection.write_chunk(data):
            return self._written
        return self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def _send_queue(self) -> None:
        async with self._sending:
            await self._begin()
            while data := bytes(self.queue):
                self._last_write = self._now()
                await self._send({"type": "http.response.body", "body": data, "more_body": True})
                del self.queue[: len(data)]

    async def _begin(self) -> None:
        if not self.is_started:
            await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
            self.is_started = True

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
        self.queue += data
        async with self._sending:
            await self._begin()
            await self._send({"type": "http.response.body", "body": bytes(self.queue)})
            self.queue.clear()
