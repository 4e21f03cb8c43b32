"""One connection to an origin: a request at a time, and its response, pulled by whoever reads it.

    connected --request--> waiting for the head --> body --complete--> idle, in its pool
                                                         '--anything else: closed, and its place in the pool is free

What goes wrong closes the connection at once, a cancelled reader included: half a response cannot be picked up again.
"""

import asyncio
import select
from collections.abc import AsyncIterable, Callable, Coroutine
from contextvars import Context, copy_context
from typing import Any, Protocol, TypeAlias

import httpx
from msgspec import Struct

from proxy.http.connect import Origin
from proxy.http.parser import Head, Headers, ResponseParser
from proxy.timeouts import continued

Handle: TypeAlias = Callable[[bytes], Coroutine[Any, Any, bool]]
"""Takes some of a body; true: it has enough."""

# What is kept for a reader that does not read: beyond it the server is no longer listened to.
MAX_UNREAD_BYTES = 64 * 1024
# Up to this size a head and its body are joined, so that they travel in one packet.
_JOINED_BYTES = 64 * 1024


class Timeouts(Struct, frozen=True):
    """In seconds; None: forever. `read` and `write` bound the silence, not the whole."""

    connect: float | None = None
    read: float | None = None
    write: float | None = None
    pool: float | None = None


class Owner(Protocol):
    """The pool of a connection, as far as the connection knows it."""

    def idle(self, connection: "Http1Connection", seconds: float | None) -> None:
        """A response is complete, and another request may follow; the server waits for it so many seconds."""
        ...

    def gone(self, connection: "Http1Connection") -> None:
        """The connection is closed, or about to be. Told once."""
        ...


class Http1Connection(asyncio.Protocol):
    """A connected protocol, made by a pool, which then adopts it."""

    __slots__ = (
        "_closed",
        "_lost",
        "_owner",
        "_poll",
        "_reply",
        "_sent",
        "_timer",
        "_timer_at",
        "_transport",
        "_writing_paused",
        "expires",
        "heard",
        "loop",
        "origin",
        "reading_paused",
        "requests",
    )

    def __init__(self, origin: Origin, loop: asyncio.AbstractEventLoop) -> None:
        self.origin = origin
        self.loop = loop
        self.requests = 0
        self.heard = False  # whether a byte of the latest response has come
        self.expires = 0.0  # the pool's: when it has been idle for too long
        self._owner: Owner | None = None
        self._transport: Any = None
        self._closed = False
        self._lost: asyncio.Future[None] = loop.create_future()
        self._poll: select.poll | None = None
        self._reply: Reply | None = None
        self._sent = True
        self._writing_paused = False
        self.reading_paused = False  # more has come than its reader has taken
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def adopt(self, owner: Owner) -> None:
        """Say whose it is."""
        self._owner = owner
        if self._closed:  # it has not lived that long
            self._leave()

    def is_usable(self) -> bool:
        """Whether a request may be sent: the server has neither closed the connection nor said a word.

        The event loop may not have come round to what has arrived; the kernel is asked.
        """
        if self._closed or self._transport.is_closing():
            return False
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not self._poll.poll(0)

    async def request(
        self, head: bytes, body: bytes | AsyncIterable[bytes], timeouts: Timeouts, *, to_head: bool = False
    ) -> "Reply":
        """Send a request and wait for the head of its response.

        Raises:
            httpx.TransportError: there is none.
        """
        reply = self._reply = Reply(self, timeouts.read, to_head=to_head)
        self.requests += 1
        self.heard = self._sent = False
        try:
            if self._closed or self._transport.is_closing():
                raise httpx.RemoteProtocolError("Server disconnected without sending a response.")  # noqa: TRY301 - as below
            if isinstance(body, bytes):
                self._send(head, body)
                if self._writing_paused:
                    await self._drain(reply, timeouts.write)
                    self._sent = not self._writing_paused
            else:
                await self._send_parts(reply, head, body, timeouts.write)
            while (answered := reply.parser.head) is None:
                await reply.wait(timeouts.read, httpx.ReadTimeout)
            reply.status, reply.headers = answered.status, answered.headers
        except BaseException:
            # Not the connection: once the response is complete, another request may be under way on it.
            reply.close()
            raise
        return reply

    def close(self) -> None:
        """Close it, whatever is under way. A reply that is not complete is told that it has failed."""
        self._break(httpx.ReadError("The connection was closed."))

    async def wait_closed(self) -> None:
        """Wait until the event loop has let go of it."""
        await asyncio.shield(self._lost)

    def _send(self, head: bytes, body: bytes) -> None:
        if len(body) <= _JOINED_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))
        self._sent = not self._writing_paused

    async def _send_parts(
        self, reply: "Reply", head: bytes, parts: AsyncIterable[bytes], patience: float | None
    ) -> None:
        self._transport.write(head)
        async for part in parts:
            if reply.parser.head is not None:  # answered early: the rest is of no use
                return
            if reply.failure is not None:
                raise reply.what_failed()
            self._transport.write(part)
            await self._drain(reply, patience)
        self._sent = not self._writing_paused

    async def _drain(self, reply: "Reply", patience: float | None) -> None:
        """Wait while the server does not read, unless it answers all the same."""
        while self._writing_paused and reply.parser.head is None:
            left = self._transport.get_write_buffer_size()
            try:
                await reply.wait(patience, httpx.WriteTimeout)
            except httpx.WriteTimeout:
                if self._transport.get_write_buffer_size() >= left:  # slow is not silent
                    raise

    # What a reply wants.

    def watch(self, due: float) -> None:
        """Look after the reply at that time. One timer for all waits: mostly it finds that there is nothing to do."""
        if self._timer is None or self._timer_at > due:
            self._set_timer(due)

    def listen(self) -> None:
        """The reply's reader has caught up."""
        if self.reading_paused and not self._closed:
            self.reading_paused = False
            self._transport.resume_reading()

    # What the event loop tells.

    def connection_made(self, transport: Any) -> None:
        """Connected, TLS included."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Some of the response."""
        reply = self._reply
        if reply is None:  # nothing was asked: whatever this answers, it must not be taken for the next answer
            self.close()
            return
        self.heard = True
        try:
            reply.unread += len(data)
            reply.parser.feed(data, reply.pieces)
        except httpx.RemoteProtocolError as exc:
            self._break(exc)
            return
        if reply.parser.complete:
            self._finish(reply)
        elif reply.unread > MAX_UNREAD_BYTES and not self.reading_paused:
            self.reading_paused = True
            self._transport.pause_reading()
        reply.arrived()

    def eof_received(self) -> None:
        """The server has said everything."""
        reply = self._reply
        if reply is not None:
            try:
                reply.parser.end()
            except httpx.RemoteProtocolError as exc:
                self._break(exc)
                return
            self._finish(reply)
            reply.wake()
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed, by whichever side."""
        if exc is None:
            self.eof_received()
        else:
            error = httpx.ReadError(str(exc) or type(exc).__name__)
            error.__cause__ = exc
            self._break(error)
        if not self._lost.done():
            self._lost.set_result(None)

    def pause_writing(self) -> None:
        """The server does not read as fast as we write."""
        self._writing_paused = True

    def resume_writing(self) -> None:
        """It has caught up."""
        self._writing_paused = False
        if self._reply is not None:
            self._reply.wake()

    def _finish(self, reply: "Reply") -> None:
        """The response is complete; the connection is its pool's again, if it can be used again."""
        self._reply = None
        reply.connection = None
        sent = self._sent and not self._writing_paused and not self._transport.get_write_buffer_size()
        if self._owner is None or not sent or not reply.parser.reusable:
            self.close()
            return
        self.listen()
        self._owner.idle(self, reply.parser.idle_seconds)

    def _break(self, error: httpx.TransportError) -> None:
        """Close the connection; its reply, if it is not complete, gets the error."""
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.connection = None
            reply.failure = error.with_traceback(None)  # which leads to whoever has caught it, and so back to the reply
            reply.wake()
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._transport.abort()
        self._leave()

    def _leave(self) -> None:
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.gone(self)

    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = when
        self._timer = self.loop.call_at(when, self._tick)

    def _tick(self) -> None:
        self._timer = None
        reply = self._reply
        if reply is None or reply.due is None:
            return
        if self.loop.time() < reply.due:
            self._set_timer(reply.due)
        else:
            reply.give_up()


class Reply:
    """A response: its head, and its body as it comes. Read to its end or closed, else its connection is never free."""

    __slots__ = (
        "_context",
        "_end",
        "_handle",
        "_patience",
        "_too_slow",
        "_waiter",
        "connection",
        "due",
        "failure",
        "headers",
        "parser",
        "pieces",
        "status",
        "unread",
    )

    def __init__(self, connection: Http1Connection, patience: float | None, *, to_head: bool) -> None:
        self.parser = ResponseParser(to_head=to_head)
        self.connection: Http1Connection | None = connection  # until it is complete, or has failed
        self.failure: httpx.TransportError | None = None
        self.status = 0
        self.headers: Headers = []  # names in lower case
        self.unread = 0
        self.due: float | None = None
        self.pieces: list[bytes] = []
        self._patience = patience
        self._handle: Handle | None = None  # takes what arrives in the moment in which it arrives
        self._context: Context | None = None  # in which that is done
        self._end: Coroutine[Any, Any, object] | None = None  # what is still to be awaited of it
        self._too_slow: type[httpx.TimeoutException] = httpx.ReadTimeout
        self._waiter: asyncio.Future[None] | None = None

    @property
    def head(self) -> Head:
        """Status and headers: they are here before anybody is given a reply."""
        if self.parser.head is None:
            raise RuntimeError("The response has no head yet.")
        return self.parser.head

    async def read(self) -> bytes:
        """What has come of the body; waits until there is something. Nothing is the end.

        Raises:
            httpx.ReadTimeout: nothing came for too long.
            httpx.TransportError: the response broke off, or cannot be read.
        """
        while not self.pieces:
            if self.parser.complete:
                return b""
            try:
                await self.wait(self._patience, httpx.ReadTimeout)
            except BaseException:
                self.close()
                raise
        return self._taken()

    async def pump(self, handle: "Handle") -> None:
        """Give the body to `handle` as it comes, until it has enough or the body ends.

        What arrives is handled in the very callback in which it arrives: to wake a task for it would take another round
        of the event loop, for each chunk of each stream. Only where `handle` has to wait for something, such as a
        client that does not read, this does; what comes meanwhile is kept, and then the server not listened to.

        Raises:
            httpx.ReadTimeout: nothing came for too long.
            httpx.TransportError: the response broke off, or cannot be read.
            Exception: whatever `handle` raises.
        """
        self._context = copy_context()
        try:
            while data := await self.read():
                if await handle(data):
                    return
                if self.pieces or self.parser.complete or self.connection is None:
                    continue
                self._handle = handle
                await self.wait(self._patience, httpx.ReadTimeout)
                self._handle = None  # whatever it was that woke us: from here on the task handles what comes
                end, self._end = self._end, None
                if end is not None and await end:
                    return
        except BaseException:
            self.close()
            raise
        finally:
            if self._end is not None:  # nobody is going to wait for it any more
                self._end.close()
            self._handle = self._context = self._end = None

    def arrived(self) -> None:
        """Some of it has come, or its end."""
        if self._handle is not None and self._context is not None and self.pieces:
            self._hand_over(self._handle, self._context)
        if self._handle is None or self.parser.complete:
            self.wake()

    def _hand_over(self, handle: "Handle", context: Context) -> None:
        """Let `handle` take what is there, as far as it need not wait; the rest is awaited where it is pumped."""
        coroutine = handle(self._taken())
        if self._patience is not None and self.connection is not None:
            self.due = self.connection.loop.time() + self._patience
        try:
            waiting = context.run(coroutine.send, None)
        except StopIteration as stop:
            end = _came_to(stop.value) if stop.value else None
        except Exception as exc:  # noqa: BLE001 - raised again where it is pumped
            end = _came_to(exc)
        else:
            end = continued(coroutine, waiting)
        if end is not None:
            self._handle, self._end = None, end

    def take_whole(self) -> bytes | None:
        """What has come of the body, where its end has come as well; None: there is more to read."""
        return self._taken() if self.parser.complete and self.failure is None else None

    def close(self) -> None:
        """Do without the rest; a connection on which there is a rest is closed."""
        if self.connection is not None:
            self.connection.close()

    async def aclose(self) -> None:
        """The same, for callers that have to wait with other replies."""
        self.close()

    def _taken(self) -> bytes:
        """What has come, which makes room for more."""
        pieces, self.pieces = self.pieces, []
        self.unread = 0
        connection = self.connection
        if connection is not None and connection.reading_paused:
            connection.listen()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def wait(self, patience: float | None, too_slow: type[httpx.TimeoutException]) -> None:
        """Wait until something has happened. Raises why nothing can any more, or `too_slow`."""
        connection = self.connection
        if connection is None:
            raise self.what_failed()
        self._waiter = connection.loop.create_future()
        if patience is not None:
            self._too_slow = too_slow
            self.due = connection.loop.time() + patience
            connection.watch(self.due)
        try:
            await self._waiter
        finally:
            self._waiter = self.due = None

    def what_failed(self) -> httpx.TransportError:
        """Why nothing can happen any more: made anew each time, for what is raised leads to whoever knows it."""
        failure = self.failure or httpx.ReadError("The response is complete.")
        again = type(failure)(str(failure))
        again.__cause__ = failure.__cause__
        return again

    def wake(self) -> None:
        """Something has happened."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def give_up(self) -> None:
        """Nothing has happened for too long."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(self._too_slow("The server was silent for too long."))


async def _came_to(outcome: object) -> object:
    """A coroutine that has ended already, to be awaited as if it had not."""
    if isinstance(outcome, Exception):
        try:
            raise outcome
        finally:
            del outcome  # its traceback leads back to this frame
    return outcome
