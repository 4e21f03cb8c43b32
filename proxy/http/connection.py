"""One connection to an origin, with one request and its response at a time.

    connected --request--> waiting for the head --> body --complete--> idle, in its pool
                                                         '--anything else: closed, and its place in the pool is free

Any failure closes the connection at once, and so does the cancellation of a reader: the rest of a response cannot be
skipped.
"""

import asyncio
import select
from collections.abc import AsyncIterable
from typing import TYPE_CHECKING, Any

import httpx
from msgspec import Struct

from proxy.http.connect import Origin
from proxy.http.response import Http1Response

if TYPE_CHECKING:
    from proxy.http.pool import Pool

# Reading from the server is paused while more bytes of a response are unread.
MAX_UNREAD_BYTES = 64 * 1024
# A body of up to this size is joined with the head, so that they are sent together.
_JOINED_BYTES = 64 * 1024


class RequestTimeouts(Struct, frozen=True):
    """Timeouts of one request, in seconds; None: no limit. `read` and `write` limit each silence, not the whole."""

    connect: float | None = None
    read: float | None = None
    write: float | None = None
    pool: float | None = None


class Http1Connection(asyncio.Protocol):
    """A connected protocol, which its pool adopts."""

    __slots__ = (
        "_closed",
        "_lost",
        "_poll",
        "_pool",
        "_response",
        "_sent",
        "_transport",
        "_writing_paused",
        "expires",
        "has_answered",
        "loop",
        "origin",
        "reading_paused",
        "requests",
        "timer",
    )

    def __init__(self, origin: Origin, loop: asyncio.AbstractEventLoop) -> None:
        self.origin = origin
        self.loop = loop
        self.requests = 0
        self.has_answered = False  # whether a byte of the latest response has arrived
        self.expires = 0.0  # the time until which the connection may be idle; set by the pool
        self._pool: Pool | None = None
        self._transport: Any = None
        self._closed = False
        self._lost: asyncio.Future[None] = loop.create_future()
        self._poll: select.poll | None = None
        self._response: Http1Response | None = None
        self._sent = True
        self._writing_paused = False
        self.reading_paused = False  # too many bytes are unread
        self.timer: asyncio.TimerHandle | None = None  # for all waits of responses; calls `check_due`

    def adopt(self, pool: "Pool") -> None:
        """Set the owning pool."""
        self._pool = pool
        if self._closed:  # the connection was lost before it had a pool
            self._leave()

    def is_usable(self) -> bool:
        """Whether a request may be sent: the server has neither closed the connection nor sent anything.

        The kernel is asked, because the event loop may not have read yet.
        """
        if self._closed or self._transport.is_closing():
            return False
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not self._poll.poll(0)

    async def request(
        self,
        head: bytes,
        body: bytes | AsyncIterable[bytes],
        timeouts: RequestTimeouts,
        *,
        is_head_request: bool = False,
    ) -> Http1Response:
        """Send a request and wait for the head of its response.

        Raises:
            httpx.TransportError: the request could not be sent, or no head arrived.
        """
        response = self._response = Http1Response(self, timeouts.read, is_head_request=is_head_request)
        self.requests += 1
        self.has_answered = self._sent = False
        try:
            if self._closed or self._transport.is_closing():
                raise httpx.RemoteProtocolError("Server disconnected without sending a response.")  # noqa: TRY301 - as below
            if not isinstance(body, bytes):
                await self._send_parts(response, head, body, timeouts.write)
            else:
                if len(body) <= _JOINED_BYTES:
                    self._transport.write(head + body)
                else:
                    # Not `writelines`, which asyncio's own transports let grow without bounds (CVE-2024-12254).
                    self._transport.write(head)
                    self._transport.write(body)
                if self._writing_paused:
                    await self._drain(response, timeouts.write)
                self._sent = not self._writing_paused
            while (answered := response.parser.head) is None:
                await response.wait(timeouts.read, httpx.ReadTimeout)
            response.head, response.status, response.headers = answered, answered.status, answered.headers
        except BaseException:
            # Not the connection: if the response is complete, the connection may have another request already.
            await response.aclose()
            raise
        return response

    def close(self) -> None:
        """Close the connection at once. A response that is not complete fails."""
        self._break(httpx.ReadError("The connection was closed."))

    async def wait_closed(self) -> None:
        """Wait until the event loop has closed the connection."""
        await asyncio.shield(self._lost)

    async def _send_parts(
        self, response: Http1Response, head: bytes, parts: AsyncIterable[bytes], seconds: float | None
    ) -> None:
        self._transport.write(head)
        async for part in parts:
            if response.parser.head is not None:  # the server has answered early, and does not need the rest
                return
            if response.failure is not None:
                raise response.new_failure()
            self._transport.write(part)
            await self._drain(response, seconds)
        self._sent = not self._writing_paused

    async def _drain(self, response: Http1Response, seconds: float | None) -> None:
        """Wait while the server does not read; the arrival of a response ends the wait as well."""
        while self._writing_paused and response.parser.head is None:
            left = self._transport.get_write_buffer_size()
            try:
                await response.wait(seconds, httpx.WriteTimeout)
            except httpx.WriteTimeout:
                if self._transport.get_write_buffer_size() >= left:  # a server that reads slowly is not silent
                    raise

    # For the response.

    def check_due(self) -> None:
        """End the wait of a response that is overdue; usually none is, and the timer is set again."""
        self.timer = None
        response = self._response
        if response is None or response.due is None:
            return
        if self.loop.time() < response.due:
            self.timer = self.loop.call_at(response.due, self.check_due)
        else:
            response.give_up()

    def resume_reading(self) -> None:
        """Read from the server again, after a pause because too many bytes were unread."""
        if not self._closed:
            self.reading_paused = False
            self._transport.resume_reading()

    # For the event loop.

    def connection_made(self, transport: Any) -> None:
        """Take the transport of a new connection, after any TLS handshake."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Parse a part of the response; when it is complete, return a reusable connection to its pool."""
        response = self._response
        if response is None:  # no request was sent, and the next one must not get this as its response
            self.close()
            return
        self.has_answered = True
        try:
            response.unread += len(data)
            response.parser.feed(data)
        except httpx.RemoteProtocolError as exc:
            self._break(exc)
            return
        if response.parser.complete:
            self._response = response.connection = None
            sent = self._sent and not self._writing_paused and not self._transport.get_write_buffer_size()
            if self._pool is None or not sent or not response.parser.reusable:
                self.close()
            else:
                if self.reading_paused:
                    self.resume_reading()
                self._pool.release(self, response.parser.idle_seconds)
        elif response.unread > MAX_UNREAD_BYTES and not self.reading_paused:
            self.reading_paused = True
            self._transport.pause_reading()
        response.wake()

    def eof_received(self) -> None:
        """Handle the end of the bytes from the server."""
        response = self._response
        if response is not None:
            try:
                response.parser.end()
            except httpx.RemoteProtocolError as exc:
                self._break(exc)
                return
            self._response = response.connection = None
            response.wake()
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection, whichever side closed it."""
        if exc is None:
            self.eof_received()
        else:
            error = httpx.ReadError(str(exc) or type(exc).__name__)
            error.__cause__ = exc
            self._break(error)
        if not self._lost.done():
            self._lost.set_result(None)

    def pause_writing(self) -> None:
        """Handle a full write buffer: the server reads more slowly than we write."""
        self._writing_paused = True

    def resume_writing(self) -> None:
        """Handle a write buffer that has room again."""
        self._writing_paused = False
        if self._response is not None:
            self._response.wake()

    def _break(self, error: httpx.TransportError) -> None:
        """Close the connection; a response that is not complete fails with the error."""
        response, self._response = self._response, None
        if response is not None:
            response.connection = None
            response.failure = error.with_traceback(None)  # its frames would refer to the response
            response.wake()
        if self._closed:
            return
        self._closed = True
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self._transport.abort()
        self._leave()

    def _leave(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.discard(self)
