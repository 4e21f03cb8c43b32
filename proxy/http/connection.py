"""One connection to an origin: a request at a time, and its response, pulled by its reader.

    connected --request--> waiting for the head --> body --complete--> idle, in its pool
                                                         '--anything else: closed, and its place in the pool is free

Any fault closes the connection at once, a cancelled reader included: half a response cannot be picked up again.
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

# Unread bytes of a response beyond which its server is not read from any longer.
MAX_UNREAD_BYTES = 64 * 1024
# Up to this size a head and its body are joined, so that they travel in one packet.
_JOINED_BYTES = 64 * 1024


class RequestTimeouts(Struct, frozen=True):
    """Timeouts of one request, in seconds; None: unlimited. `read` and `write` limit silences, not the whole."""

    connect: float | None = None
    read: float | None = None
    write: float | None = None
    pool: float | None = None


class Http1Connection(asyncio.Protocol):
    """A connected protocol, made by a pool, which then adopts it."""

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
        self.has_answered = False  # whether a byte of the latest response has come
        self.expires = 0.0  # set by the pool: when it has been idle for too long
        self._pool: Pool | None = None
        self._transport: Any = None
        self._closed = False
        self._lost: asyncio.Future[None] = loop.create_future()
        self._poll: select.poll | None = None
        self._response: Http1Response | None = None
        self._sent = True
        self._writing_paused = False
        self.reading_paused = False  # more has come than its reader has taken
        self.timer: asyncio.TimerHandle | None = None  # one for all waits of its responses, which `check_due` ends

    def adopt(self, pool: "Pool") -> None:
        """Set the owning pool."""
        self._pool = pool
        if self._closed:  # it was lost before it had a pool
            self._leave()

    def is_usable(self) -> bool:
        """Whether a request may be sent: the server has neither closed the connection nor sent anything.

        The event loop may not have read yet what has arrived; the kernel is asked.
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
            httpx.TransportError: there is none.
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
            # Not the connection: once the response is complete, another request may be under way on it.
            await response.aclose()
            raise
        return response

    def close(self) -> None:
        """Close it, whatever is under way. A response that is not complete fails."""
        self._break(httpx.ReadError("The connection was closed."))

    async def wait_closed(self) -> None:
        """Wait until the event loop has closed the connection."""
        await asyncio.shield(self._lost)

    async def _send_parts(
        self, response: Http1Response, head: bytes, parts: AsyncIterable[bytes], seconds: float | None
    ) -> None:
        self._transport.write(head)
        async for part in parts:
            if response.parser.head is not None:  # answered early: the rest is of no use
                return
            if response.failure is not None:
                raise response.new_failure()
            self._transport.write(part)
            await self._drain(response, seconds)
        self._sent = not self._writing_paused

    async def _drain(self, response: Http1Response, seconds: float | None) -> None:
        """Wait while the server does not read; a response that arrives nevertheless ends the wait."""
        while self._writing_paused and response.parser.head is None:
            left = self._transport.get_write_buffer_size()
            try:
                await response.wait(seconds, httpx.WriteTimeout)
            except httpx.WriteTimeout:
                if self._transport.get_write_buffer_size() >= left:  # slow is not silent
                    raise

    # For the response.

    def check_due(self) -> None:
        """End the wait of a response that is overdue; mostly none is, and the timer is set anew."""
        self.timer = None
        response = self._response
        if response is None or response.due is None:
            return
        if self.loop.time() < response.due:
            self.timer = self.loop.call_at(response.due, self.check_due)
        else:
            response.give_up()

    def resume_reading(self) -> None:
        """Read from the server again, after too much was unread."""
        if not self._closed:
            self.reading_paused = False
            self._transport.resume_reading()

    # For the event loop.

    def connection_made(self, transport: Any) -> None:
        """Take the transport of a connection that is made, TLS included."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Read a part of the response; once it is complete, the connection goes back to its pool, if it is reusable."""
        response = self._response
        if response is None:  # nothing was asked: it must not be taken for the next response
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
        """Handle the end of the server's stream."""
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
        """Handle the end of the connection, by whichever side."""
        if exc is None:
            self.eof_received()
        else:
            error = httpx.ReadError(str(exc) or type(exc).__name__)
            error.__cause__ = exc
            self._break(error)
        if not self._lost.done():
            self._lost.set_result(None)

    def pause_writing(self) -> None:
        """Handle a full write buffer: the server does not read as fast as we write."""
        self._writing_paused = True

    def resume_writing(self) -> None:
        """Handle a write buffer that has room again."""
        self._writing_paused = False
        if self._response is not None:
            self._response.wake()

    def _break(self, error: httpx.TransportError) -> None:
        """Close the connection; its response, if it is not complete, gets the error."""
        response, self._response = self._response, None
        if response is not None:
            response.connection = None
            response.failure = error.with_traceback(None)  # whose frames lead back to the response
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
