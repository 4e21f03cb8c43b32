"""Responses: `Response`, the interface for readers, and `Http1Response`, a response on an `Http1Connection`."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, TypeAlias

import httpx

from proxy.http.parser import Head, Headers, ResponseParser
from proxy.timeouts import resumed

if TYPE_CHECKING:
    from proxy.http.connection import Http1Connection

MOST_AT_ONCE = 16 * 1024
"""The bytes of a body after which its reader gives way to others. No event of them takes the processor for long: the
worst, a few thousand comments, take some milliseconds."""

Handle: TypeAlias = Callable[[bytes], Coroutine[Any, Any, bool]]
"""Takes a part of a body; returns true if it needs no more."""


class Response(httpx.AsyncByteStream):
    """Status, headers, and the bytes of the body as they arrive, not decoded.

    A response has to be closed. If it has been read to its end, the connection is kept for other requests; if not,
    closing the response closes the connection too.

    Attributes:
        status: the HTTP status.
        headers: the headers in their order, with names in lower case.
    """

    __slots__ = ("headers", "status")

    status: int
    headers: Headers

    def header(self, name: bytes) -> bytes:
        """The first value of a header, empty if there is none; `name` in lower case."""
        for known, value in self.headers:
            if known == name:
                return value
        return b""

    def take_whole(self) -> bytes | None:
        """The rest of the body, if all of it has arrived already; None: there may be more to read."""
        return None

    async def read(self) -> bytes:
        """The next part of the body; empty at its end. Raises `httpx.HTTPError`."""
        raise NotImplementedError

    async def pump(self, handle: Handle) -> None:
        """Give the body to `handle` as it comes, until it needs no more or the body ends.

        Raises:
            httpx.HTTPError: the body broke off, or cannot be read.
            Exception: whatever `handle` raises.
        """
        while (part := await self.read()) and not await handle(part):
            pass

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The parts of the body, for httpx."""
        while part := await self.read():
            yield part


class Http1Response(Response):
    """A response on one of our connections."""

    __slots__ = (
        "_context",
        "_handle",
        "_rest",
        "_seconds",
        "_too_slow",
        "_waiter",
        "connection",
        "due",
        "failure",
        "head",
        "parser",
        "unread",
    )

    def __init__(self, connection: "Http1Connection", seconds: float | None, *, is_head_request: bool) -> None:
        """A response that is to come, with at most `seconds` of silence between its parts."""
        self.parser = ResponseParser(is_head_request=is_head_request)
        self.connection: Http1Connection | None = connection  # None once the response is complete or has failed
        self.head: Head  # set before `Http1Connection.request` returns
        self.failure: httpx.TransportError | None = None
        self.unread = 0
        self.due: float | None = None
        self._seconds = seconds
        self._handle: Handle | None = None  # takes bytes in the callback in which they arrive
        self._context: Context | None = None  # the context in which the handler is called there
        self._rest: Coroutine[Any, Any, bool] | None = None  # the rest of a call of the handler that has to wait
        self._too_slow: type[httpx.TimeoutException] = httpx.ReadTimeout
        self._waiter: asyncio.Future[bool] | None = None

    async def read(self) -> bytes:
        """The next part of the body, after a wait until there is one; empty at the end of the body.

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

        Bytes are handled in the callback in which they arrive: waking a task would take another iteration of the event
        loop for each chunk of each stream (24 % of a chunk's instructions). Only if `handle` has to wait, for instance
        for a client that does not read, or if more than `MOST_AT_ONCE` arrives at once, does the task continue. Bytes
        that arrive in the meantime are buffered, and when the buffer is full, reading from the server is paused.

        Raises:
            httpx.ReadTimeout: nothing arrived for too long.
            httpx.TransportError: the response broke off, or cannot be read.
            Exception: whatever `handle` raises.
        """
        self._context = copy_context()
        try:
            while self.parser.pieces or not self.parser.complete:
                if self.parser.pieces:
                    if await handle(self._take(MOST_AT_ONCE)):
                        return
                    if self.parser.pieces:  # much has arrived at once, or arrives all the time
                        await asyncio.sleep(0)
                    continue
                self._handle = handle
                if await self.wait(self._seconds, httpx.ReadTimeout):
                    return
                self._handle = None  # from here on the task handles the bytes that arrive
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

    def wake(self) -> None:
        """Give the bytes that have arrived to the handler of `pump`, or wake the reader."""
        needs_no_more = False
        if self._handle is not None and self._context is not None and self.parser.pieces:
            coroutine = self._handle(self._take(MOST_AT_ONCE))
            if self._seconds is not None and self.connection is not None:
                self.due = self.connection.loop.time() + self._seconds
            try:
                self._rest = resumed(coroutine, self._context.run(coroutine.send, None))
            except StopIteration as stop:
                needs_no_more = bool(stop.value)
            except Exception as exc:  # noqa: BLE001 - raised again in `pump`
                self._handle = None
                if self._waiter is not None and not self._waiter.done():
                    self._waiter.set_exception(exc)
                return
            if needs_no_more or self._rest is not None or self.parser.pieces:
                self._handle = None
        # No local variable for the waiter: if it held the handler's exception, there would be a reference cycle.
        if (self._handle is None or self.connection is None) and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(needs_no_more)

    def take_whole(self) -> bytes | None:
        """The rest of the body, if all of it has arrived; None: there is more to read."""
        return self._take() if self.parser.complete and self.failure is None else None

    async def aclose(self) -> None:
        """Discard the rest of the body, and close the connection unless the response is complete."""
        if self.connection is not None:
            self.connection.close()

    def _take(self, most: int | None = None) -> bytes:
        """Take the unread bytes of the body, at most `most`; if none is left, resume reading from the server."""
        pieces = self.parser.pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
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
        """Wait until something has happened; whether the handler of `pump` needs no more.

        Raises the failure of the response, an exception of the handler, or `too_slow`.
        """
        connection = self.connection
        if connection is None:
            raise self.new_failure()
        self._waiter = connection.loop.create_future()
        if seconds is not None:
            self._too_slow = too_slow
            self.due = connection.loop.time() + seconds
            timer = connection.timer
            if timer is None or timer.when() > self.due:
                if timer is not None:
                    timer.cancel()
                connection.timer = connection.loop.call_at(self.due, connection.check_due)
        try:
            return await self._waiter
        finally:
            self._waiter = self.due = None

    def new_failure(self) -> httpx.TransportError:
        """The failure as a new exception each time: a raised one refers to its frames, and so to the response."""
        failure = self.failure or httpx.ReadError("The response is complete.")
        again = type(failure)(str(failure))
        again.__cause__ = failure.__cause__
        return again

    def give_up(self) -> None:
        """End a wait that has exceeded the timeout."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(self._too_slow("The server was silent for too long."))
