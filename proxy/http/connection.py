"""One connection to an origin, with one request and its response at a time.

    connected --request--> waiting for the head --> body --complete--> idle, in its pool
                                                         '--anything else: closed, and its place in the pool is free

Any failure closes the connection at once. So does the cancellation of a reader, because the rest of a response cannot
be skipped.

A task reads a response, and its bytes arrive in a callback of the event loop. The states:

    state     _handle  _waiter   _rest      bytes are taken by              what `wake` does
    working   None     None      None       the task                        nothing: the bytes wait in `parser.pieces`
    waiting   None     pending   None       the task, once it runs          ends the wait
    pumping   set      pending   None       the callback                    calls the handler, while the task sleeps on
    woken     None     done      None       the task, which is about to run nothing
    resuming  None     done      coroutine  the task, which awaits `_rest`  nothing

    working --wait--> waiting --wake--> woken --> working      for the head, in `read`, and for room to write
    working --pump--> pumping --wake--> pumping                the handler has taken the bytes
                      pumping --wake--> resuming --> working   the handler has to wait: the task finishes its call
                      pumping --wake--> woken --> working      the handler needs no more, more than READ_BYTES came,
                                                               or the response has ended, failed or is overdue

If the response ends or fails while it is pumped, `_handle` stays set until the task runs, and bytes that came before
are still given to the handler.
"""

import asyncio
import select
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import Any, TypeAlias

import httpx
from msgspec import Struct

from proxy.http.connect import Origin
from proxy.http.parser import ResponseParser
from proxy.http.response import READ_BYTES, Handle, Response
from proxy.kit.timeouts import resumed

# Reading from the server is paused while more bytes of a response are unread.
MAX_UNREAD_BYTES = 64 * 1024
# A body of up to this size is joined with the head, so that they are sent together.
_JOINED_BYTES = 64 * 1024
_PIECE_BYTES = 256 * 1024  # of a larger one


_Release: TypeAlias = "Callable[[Http1Connection, float | None], None]"
_Discard: TypeAlias = "Callable[[Http1Connection], None]"


class RequestTimeouts(Struct, frozen=True):
    """Timeouts of one request, in seconds; None: no limit. `read` and `write` limit each silence, not the whole."""

    connect: float | None = None
    read: float | None = None
    write: float | None = None
    pool: float | None = None


class Http1Connection(asyncio.Protocol):
    """A connected protocol, which its pool adopts."""

    __slots__ = (
        "_closed", "_discard", "_lost", "_poll", "_release", "_response", "_sent", "_transport", "_writing_paused",
        "expires", "has_answered", "loop", "origin", "reading_paused", "requests", "timer",
    )  # fmt: skip

    def __init__(self, origin: Origin, loop: asyncio.AbstractEventLoop) -> None:
        self.origin = origin
        self.loop = loop
        self.requests = 0
        self.has_answered = False  # whether a byte of the latest response has arrived
        self.expires = 0.0  # the time until which the connection may be idle; set by the pool
        self._release: _Release | None = None
        self._discard: _Discard | None = None
        self._transport: Any = None
        self._closed = False
        self._lost: asyncio.Future[None] = loop.create_future()
        self._poll: select.poll | None = None
        self._response: Http1Response | None = None
        self._sent = True
        self._writing_paused = False
        self.reading_paused = False  # too many bytes are unread
        self.timer: asyncio.TimerHandle | None = None  # for all waits of responses; calls `check_due`

    def adopt(self, release: _Release, discard: _Discard) -> None:
        """Set the callbacks that return the connection to its pool (with the server's idle seconds) or remove it."""
        self._release, self._discard = release, discard
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
        self, head: bytes, body: bytes, timeouts: RequestTimeouts, *, is_head_request: bool = False
    ) -> "Http1Response":
        """Send a request and wait for the head of its response.

        Raises:
            httpx.TransportError: the request could not be sent, or no head arrived.
        """
        response = self._response = Http1Response(self, timeouts.read, is_head_request=is_head_request)
        self.requests += 1
        self.has_answered = self._sent = False
        try:
            if self._closed or self._transport.is_closing():
                raise httpx.RemoteProtocolError("Server disconnected without sending a response.")  # noqa: TRY301 - `except` closes
            # From here on the response may arrive, and even be complete, before the request has been sent.
            if len(body) <= _JOINED_BYTES:
                self._transport.write(head + body)
            else:
                self._transport.write(head)
                await self._send_large(response, body, timeouts.write)
            if self._writing_paused:
                await self._drain(response, timeouts.write)
            # An early answer ends `_drain`. What is then unsent makes the connection useless for another request.
            self._sent = not self._writing_paused
            while (answered := response.parser.head) is None:
                await response.wait(timeouts.read, httpx.ReadTimeout)
            response.status, response.headers = answered.status, answered.headers
        except BaseException:
            # Not the connection: if the response is complete, the connection may have another request already.
            await response.aclose()
            raise
        return response

    def close(self) -> None:
        """Close the connection at once. An incomplete response fails."""
        self._break(httpx.ReadError("The connection was closed."))

    async def wait_closed(self) -> None:
        """Wait until the event loop has closed the connection."""
        await asyncio.shield(self._lost)

    async def _send_large(self, response: "Http1Response", body: bytes, seconds: float | None) -> None:
        """Send a large body in pieces, so that other tasks run while the kernel copies it."""
        # Not by `writelines`, which asyncio's own transports let grow without bounds (CVE-2024-12254).
        view = memoryview(body)
        for at in range(0, len(body), _PIECE_BYTES):
            if self._writing_paused:
                await self._drain(response, seconds)
            if self._response is not response:  # it has ended early, and the connection with it
                return
            self._transport.write(view[at : at + _PIECE_BYTES])

    async def _drain(self, response: "Http1Response", seconds: float | None) -> None:
        """Wait while the server does not read. The arrival of a response also ends the wait."""
        while self._writing_paused and response.parser.head is None:
            left = self._transport.get_write_buffer_size()
            try:
                await response.wait(seconds, httpx.WriteTimeout)
            except httpx.WriteTimeout:
                if self._transport.get_write_buffer_size() >= left:  # a server that reads slowly is not silent
                    raise

    # For the response.

    def check_due(self) -> None:
        """End the wait for an overdue response. Usually none is overdue, and the timer is set again."""
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
        """Parse a part of the response. When the response is complete, return a reusable connection to its pool."""
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
            # Parted before the release, which may start another request on this connection at once.
            self._response = response.connection = None
            sent = self._sent and not self._writing_paused and not self._transport.get_write_buffer_size()
            if self._release is None or not sent or not response.parser.reusable:
                self.close()
            else:
                # The reader may still have bytes to take, but resumes nothing that is no longer its own.
                if self.reading_paused:
                    self.resume_reading()
                self._release(self, response.parser.idle_seconds)
        elif response.unread > MAX_UNREAD_BYTES and not self.reading_paused:
            self.reading_paused = True
            self._transport.pause_reading()
        # Last, because the handler runs in here. It does not close the connection: the task does that after `pump`.
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
        """Close the connection. An incomplete response fails with the error."""
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
        discard, self._release, self._discard = self._discard, None, None
        if discard is not None:
            discard(self)


class Http1Response(Response):
    """A response on an `Http1Connection`."""

    __slots__ = (
        "_context", "_ends", "_handle", "_rest", "_seconds", "_too_slow", "_waiter", "connection", "due", "failure",
        "parser", "unread",
    )  # fmt: skip

    def __init__(self, connection: Http1Connection, seconds: float | None, *, is_head_request: bool) -> None:
        """A response that will arrive, with at most `seconds` of silence between its parts."""
        self.parser = ResponseParser(is_head_request=is_head_request)
        self.connection: Http1Connection | None = connection  # None once the response is complete or has failed
        self.failure: httpx.TransportError | None = None
        self.unread = 0
        self.due: float | None = None
        self._seconds = seconds
        self._ends: float | None = None  # when the wait for the rest of the body ends, whatever arrives
        self._handle: Handle | None = None  # takes bytes in the callback in which they arrive
        self._context: Context | None = None  # the context in which the handler is called there
        self._rest: Coroutine[Any, Any, bool] | None = None  # the rest of a call of the handler that has to wait
        self._too_slow: type[httpx.TimeoutException] = httpx.ReadTimeout
        self._waiter: asyncio.Future[bool] | None = None

    async def read(self) -> bytes:
        """Wait for the next part of the body, and return it. It is empty at the end of the body.

        Raises:
            httpx.ReadTimeout: nothing arrived for too long.
            httpx.TransportError: the response broke off, or cannot be read.
        """
        while not self.parser.pieces:
            if self.parser.complete:
                return b""
            try:
                await self.wait(self._seconds, httpx.ReadTimeout)
            except BaseException:
                await self.aclose()
                raise
        return self._take()

    async def pump(self, handle: Handle) -> None:
        """Give the body to `handle` as it comes, until it needs no more or the body ends.

        When `handle` needs no more, `pump` returns with the response open, and the caller closes it or reads on.

        Bytes are handled in the callback in which they arrive: waking a task would take another iteration of the event
        loop for each chunk of each stream (24 % of a chunk's instructions). Only if `handle` has to wait, for instance
        for a client that does not read, or if more than `READ_BYTES` arrives at once, does the task continue. Bytes
        that arrive in the meantime are buffered, and when the buffer is full, reading from the server is paused.

        Raises:
            httpx.ReadTimeout: nothing arrived for too long.
            httpx.TransportError: the response broke off, or cannot be read.
            Exception: any exception of `handle`.
        """
        self._context = copy_context()
        try:
            while self.parser.pieces or not self.parser.complete:
                # Bytes that have already arrived are handled here, not in the callback, so that they keep their order.
                if self.parser.pieces:
                    if await handle(self._take(READ_BYTES)):
                        return
                    if self.parser.pieces:  # much has arrived at once, or arrives all the time
                        await asyncio.sleep(0)
                    continue
                self._handle = handle
                if await self.wait(self._seconds, httpx.ReadTimeout):
                    return
                self._handle = None  # from here on the task handles the bytes that arrive
                # The task owns the call now. `finally` closes one that nobody has taken, because the task was cancelled
                # between `wake` and here.
                rest, self._rest = self._rest, None
                if rest is not None and await rest:
                    return
        except BaseException:
            await self.aclose()
            raise
        finally:
            if self._rest is not None:  # nothing awaits it any more
                self._rest.close()
            self._handle = self._context = self._rest = None

    def end_within(self, seconds: float) -> None:
        """Read for at most `seconds` more, whatever arrives."""
        if (connection := self.connection) is not None:
            # Set `_seconds` to None, so that `wake` does not move `due`.
            self._seconds, self._ends = None, connection.loop.time() + seconds
            if self._waiter is not None:
                self._wait_until(connection, self._ends)

    def wake(self) -> None:
        """Give the bytes that have arrived to the handler of `pump`, or wake the reader."""
        needs_no_more = False
        if self._handle is not None and self._context is not None and self.parser.pieces:
            coroutine = self._handle(self._take(READ_BYTES))
            # The wait goes on, so its timeout begins anew; the timer looks at `due` only when it fires.
            if self._seconds is not None and self.connection is not None:
                self.due = self.connection.loop.time() + self._seconds
            try:
                # One step. A handler that need not wait ends in this step, with StopIteration.
                self._rest = resumed(coroutine, self._context.run(coroutine.send, None))
            except StopIteration as stop:
                needs_no_more = bool(stop.value)
            except Exception as exc:  # noqa: BLE001 - raised again in `pump`
                self._handle = None
                if self._waiter is not None and not self._waiter.done():
                    self._waiter.set_exception(exc)
                return
            # Until the task runs, further bytes stay in `pieces`: the handler never runs twice at a time.
            if needs_no_more or self._rest is not None or self.parser.pieces:
                self._handle = None
        # No local variable for the waiter: if it held the handler's exception, there would be a reference cycle.
        if (self._handle is None or self.connection is None) and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(needs_no_more)

    def take_whole(self) -> bytes | None:
        """The rest of the body if all of it has arrived; None if there may be more to read."""
        return self._take() if self.parser.complete and self.failure is None else None

    async def aclose(self) -> None:
        """Give up what has not arrived: close the connection, unless the response is complete."""
        if self.connection is not None:
            self.connection.close()

    def _take(self, most: int | None = None) -> bytes:
        """Take the unread bytes of the body, at most `most`. If none are left, resume reading from the server."""
        pieces = self.parser.pieces
        data = b"".join(pieces)  # a single one is not copied
        pieces.clear()
        if most is not None and len(data) > most:
            pieces.append(data[most:])
            self.unread = len(data) - most
            return data[:most]
        self.unread = 0
        if self.connection is not None and self.connection.reading_paused:
            self.connection.resume_reading()
        return data

    async def wait(self, seconds: float | None, too_slow: type[httpx.TimeoutException]) -> bool:
        """Wait until something has happened. Return whether the handler of `pump` needs no more.

        Raises the failure of the response, an exception of the handler, or `too_slow`.
        """
        connection = self.connection
        if connection is None:
            raise self.new_failure()
        self._waiter = connection.loop.create_future()
        # One timer for the connection, not one for each wait: it is set again only if this wait ends earlier.
        due = self._ends if seconds is None else connection.loop.time() + seconds
        if due is not None:
            self._too_slow = too_slow
            self._wait_until(connection, due)
        try:
            return await self._waiter
        finally:
            self._waiter = self.due = None

    def _wait_until(self, connection: Http1Connection, due: float) -> None:
        """Set the time at which the current wait is overdue."""
        self.due = due
        timer = connection.timer
        if timer is None or timer.when() > due:
            if timer is not None:
                timer.cancel()
            connection.timer = connection.loop.call_at(due, connection.check_due)

    def new_failure(self) -> httpx.TransportError:
        """The failure as a new exception. A raised exception refers to its frames, and through them to the response."""
        failure = self.failure or httpx.ReadError("The response is complete.")
        again = type(failure)(str(failure))
        again.__cause__ = failure.__cause__
        return again

    def give_up(self) -> None:
        """End a wait that has exceeded the timeout."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(self._too_slow("The server was silent for too long."))
