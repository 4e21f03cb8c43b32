"""A bounded pool of reusable connections, which serves waiting requests first come, first served.

A *place* is the right to have one connection. There are `max_connections` places. Waiting requests are served in order,
each with an idle connection (and its place) or with a place for a new one. While a request waits, no connection is
idle.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import httpx

from proxy.http.connect import Origin
from proxy.http.connection import Http1Connection, RequestTimeouts

Connect: TypeAlias = Callable[[Origin, float | None], Awaitable[Http1Connection]]
_Waiter: TypeAlias = asyncio.Future[Http1Connection | None]

# Less than load balancers wait for the next request (AWS 60 s, nginx 75 s). A server that waits less announces it, or
# the next request finds its connection closed.
IDLE_SECONDS = 30.0


class Pool:
    """The connections of one transport; `connect` makes a connection to an origin, within a number of seconds."""

    def __init__(self, connect: Connect, *, max_connections: int) -> None:
        self._connect = connect
        self._max_connections = max_connections
        self._places_taken = 0
        self._connections: set[Http1Connection] = set()
        # The most recently used at the end. It is taken first, so that the others expire while there are few requests.
        self._idle: dict[Origin, OrderedDict[Http1Connection, None]] = {}
        self._waiting: OrderedDict[_Waiter, Origin] = OrderedDict()
        self._sweep: asyncio.TimerHandle | None = None

    async def acquire(self, origin: Origin, timeouts: RequestTimeouts, *, fresh: bool = False) -> Http1Connection:
        """A connection for one request. The connection releases itself when its response is complete.

        Raises:
            httpx.PoolTimeout: all places are taken.
            httpx.ConnectError, httpx.ConnectTimeout: no new connection could be made.
        """
        while True:
            same = self._idle.get(origin)
            if same and not self._waiting and not fresh:
                connection, _ = same.popitem()
            else:
                place = await self._place(origin, timeouts.pool)
                if place is None:
                    return await self._make(origin, timeouts.connect)
                connection = place
            if connection.is_usable() and not fresh:
                return connection
            connection.close()

    def release(self, connection: Http1Connection, seconds: float | None) -> None:
        """Take back a connection. Its server waits `seconds` for another request; None if unknown."""
        waiter = self._next_waiter() if self._waiting else None
        if waiter is not None:
            if self._waiting[waiter] == connection.origin:
                del self._waiting[waiter]
                waiter.set_result(connection)
            else:
                connection.close()  # its place goes to the waiter
            return
        # One second less than the server: a request sent just as it closes the connection would fail.
        wait = IDLE_SECONDS if seconds is None else min(IDLE_SECONDS, seconds - 1)
        if wait <= 0:
            connection.close()
            return
        connection.expires = connection.loop.time() + wait
        self._idle.setdefault(connection.origin, OrderedDict())[connection] = None
        if self._sweep is None:
            self._sweep = connection.loop.call_later(IDLE_SECONDS / 4, self._expire, connection.loop)

    def discard(self, connection: Http1Connection) -> None:
        """Forget a connection that is closed."""
        self._connections.discard(connection)
        if same := self._idle.get(connection.origin):
            same.pop(connection, None)
        self._release_place()

    async def aclose(self) -> None:
        """Close every connection. Requests that wait for a connection fail."""
        for waiter in list(self._waiting):
            if not waiter.done():
                waiter.set_exception(httpx.CloseError("The transport was closed."))
        self._waiting.clear()
        closing = list(self._connections)
        for connection in closing:
            connection.close()
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for connection in closing:
            await connection.wait_closed()

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweep = None
        now = loop.time()
        for connection in [known for same in self._idle.values() for known in same]:
            if connection.expires <= now:
                connection.close()
        self._idle = {origin: same for origin, same in self._idle.items() if same}
        if self._idle:
            self._sweep = loop.call_later(IDLE_SECONDS / 4, self._expire, loop)

    async def _place(self, origin: Origin, seconds: float | None) -> Http1Connection | None:
        """A place, with a connection that has just been released; None if there is no connection with it."""
        if not self._waiting:
            if self._places_taken >= self._max_connections:
                self._evict_idle()
            if self._places_taken < self._max_connections:
                self._places_taken += 1
                return None
        waiter: _Waiter = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = origin
        try:
            async with asyncio.timeout(seconds):
                return await self._wait_for(waiter)
        except TimeoutError as exc:
            raise httpx.PoolTimeout("All connections are in use.") from exc

    async def _wait_for(self, waiter: _Waiter) -> Http1Connection | None:
        """The connection or place for a waiter. If the request is cancelled, the next waiter gets it."""
        try:
            return await waiter
        except asyncio.CancelledError:
            self._waiting.pop(waiter, None)
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                # It was served and cancelled in the same step of the event loop.
                if connection := waiter.result():
                    self.release(connection, None)
                else:
                    self._release_place()
            raise

    async def _make(self, origin: Origin, seconds: float | None) -> Http1Connection:
        try:
            connection = await self._connect(origin, seconds)
        except BaseException:
            self._release_place()
            raise
        self._connections.add(connection)
        connection.adopt(self.release, self.discard)
        return connection

    def _release_place(self) -> None:
        """Give a free place to the next waiter."""
        waiter = self._next_waiter()
        if waiter is None:
            self._places_taken -= 1
        else:
            del self._waiting[waiter]
            waiter.set_result(None)

    def _next_waiter(self) -> _Waiter | None:
        while self._waiting:
            waiter = next(iter(self._waiting))
            if not waiter.done():
                return waiter
            del self._waiting[waiter]  # it has just been cancelled
        return None

    def _evict_idle(self) -> None:
        """Close an idle connection, if there is one, because another origin needs its place."""
        for same in self._idle.values():
            if same:
                next(iter(same)).close()
                return
