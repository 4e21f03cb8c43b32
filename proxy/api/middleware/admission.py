"""No more requests at a time than configured: a few wait briefly for a place, the rest is told at once.

A long queue would make every request late and none of them fewer: whoever waited long has often gone by the time that
it would be served.

Nor do all of them begin at once: in one turn of the event loop so many may, and the others follow turn by turn. In
between, what was begun before goes on, open streams among it; and less is in hand at a time, which costs less. When
places run out, those who have one and wait to begin are let go: a place is for who uses it.
"""

import asyncio
from collections import deque

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proxy.api.bodies import BodyMemory, open_share
from proxy.api.body import is_forwarded
from proxy.api.middleware.auth import OPEN_PATHS
from proxy.config import ServerConfig
from proxy.loop.errors import Overloaded, Stopping
from proxy.ports import Lifecycle

# With 256 connections, 16 did as much good.
_BEGUN_PER_TURN = 32


class Admission:
    """Lets requests in, health checks aside, and none any more when the process is about to stop.

    What another proxy forwards is let in for some seconds more: that proxy has sent it here in good faith, and learns
    from its next health check that it should not.

    Args:
        app: what is asked.
        server: how many requests may be open, and how many wait.
        lifecycle: whether the process is about to stop.
        bodies: what the bodies of open requests may take.
    """

    def __init__(self, app: ASGIApp, *, server: ServerConfig, lifecycle: Lifecycle, bodies: BodyMemory) -> None:
        self._app = app
        self._lifecycle = lifecycle
        self._bodies = bodies
        most, queued = server.max_concurrent_requests, server.max_queued_requests
        self._places = Places(most, queue=most // 10 if queued is None else queued)
        self._patience = server.queue_timeout_seconds
        self._turnstile = Turnstile(_BEGUN_PER_TURN)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        if self._lifecycle.draining:
            if self._lifecycle.refuses(forwarded=is_forwarded(scope)):
                raise Stopping
            send = _with_connection_close(send)
        if not self._places.take_now():
            self._turnstile.let_all_through()  # they have a place each, and others want one
            await self._places.take(self._patience)
        share = open_share(scope, self._bodies)
        try:
            turn = self._turnstile.pass_through()
            if turn is not None:
                await turn
            await self._app(scope, receive, send)
        finally:
            share.give_back()
            self._places.give_back()


def _with_connection_close(send: Send) -> Send:
    """A `send` whose response ends its connection, as the process is about to end it anyway."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
        await send(message)

    return sending


class Places:
    """A number of places, and a queue of those who wait for one, first come first served."""

    def __init__(self, count: int, *, queue: int) -> None:
        self._free = count
        self._queue = queue
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take_now(self) -> bool:
        """Have a place, if one is free."""
        if not self._free:
            return False
        self._free -= 1
        return True

    async def take(self, patience: float) -> None:
        """Have a place, after waiting for at most `patience` seconds. Raises `Overloaded`."""
        if self.take_now():
            return
        if len(self._waiting) >= self._queue:
            raise _full()
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            async with asyncio.timeout(patience):
                await place
        except BaseException as exc:
            if place.done() and not place.cancelled():
                self.give_back()  # it came in the very moment in which it was no longer wanted
            if isinstance(exc, TimeoutError):
                raise _full() from exc
            raise
        finally:
            if place in self._waiting:
                self._waiting.remove(place)

    def give_back(self) -> None:
        """Leave a place to the next in the queue."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._free += 1


class Turnstile:
    """Lets so many through in one turn of the event loop, first come first served.

    Whether a new turn has begun is only looked for when all that one lets through have gone through.
    """

    def __init__(self, per_turn: int) -> None:
        self._per_turn = self._left = per_turn
        self._waiting: deque[asyncio.Future[None]] = deque()

    def pass_through(self) -> asyncio.Future[None] | None:
        """Go through at once; or, where those who may in this turn have done so, when what is returned is done."""
        if not self._left:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            return turn
        self._left -= 1
        if not self._left:
            self._look_again()
        return None

    def let_all_through(self) -> None:
        """Let go whoever waits."""
        while self._waiting:
            self._let_through(self._waiting.popleft())

    def _look_again(self) -> None:
        asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._left = self._per_turn
        while self._waiting and self._left:
            self._left -= self._let_through(self._waiting.popleft())
        if not self._left:
            self._look_again()

    @staticmethod
    def _let_through(turn: asyncio.Future[None]) -> bool:
        """Say that it is somebody's turn; False where nobody waits for it any more."""
        if turn.done():
            return False
        turn.set_result(None)
        return True


def _full() -> Overloaded:
    return Overloaded("The proxy is serving as many requests as it may; try again in a moment.")
