"""Admission: at most `max_concurrent_requests` at a time; a few more wait briefly in a queue, the rest get 503 at once.

A long queue would make every request late and none of them fewer: a client that waited long has often left by the time
that it would be served.

Nor do all admitted requests start at once: at most 32 per iteration of the event loop, so that open streams keep their
pace in a burst. While the limit is reached, those that wait to start are started, because they occupy it already.
"""

import asyncio
from collections import deque
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.api.body import is_forwarded
from proxy.api.body_memory import SHARE, BodyMemory, Share
from proxy.api.response import RESPONSE
from proxy.config.model import ServerConfig
from proxy.paths import OPEN_PATHS
from proxy.wire.errors import Overloaded, Stopping

# With 256 connections, 16 did as much good.
_STARTS_PER_ITERATION = 32


@dataclass(slots=True)
class Lifecycle:
    """Whether this process accepts new requests. The server sets it, the API acts on it.

    draining           no new requests are accepted from clients directly; open ones may finish
    refuses_forwarded  none are accepted from another proxy either: its health check has had the time to fail
    """

    draining: bool = False
    refuses_forwarded: bool = False


class Admission:
    """Admits requests, health checks aside, until the process is about to stop.

    Requests forwarded by another proxy are admitted for some seconds more: only its next health check will stop it.
    `queue_timeout` is the number of seconds for which a request waits in the queue.
    """

    def __init__(self, app: ASGIApp, *, capacity: "Capacity", queue_timeout: float, lifecycle: Lifecycle) -> None:
        self._app = app
        self._lifecycle = lifecycle
        self._bodies = capacity.bodies
        self._limit = capacity.limit
        self._throttle = capacity.throttle
        self._queue_timeout = queue_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        if self._lifecycle.draining:
            if self._lifecycle.refuses_forwarded or not is_forwarded(scope):
                raise Stopping
            scope[RESPONSE].headers.append((b"connection", b"close"))  # the process is about to close it anyway
        if self._limit.free > 0:
            self._limit.free -= 1
        else:
            self._throttle.start_all()  # they occupy the limit that this request waits for
            await self._limit.acquire(self._queue_timeout)
        share = scope[SHARE] = Share(self._bodies)
        try:
            start = self._throttle.enter()
            if start is not None:
                await start
            await self._app(scope, receive, send)
        finally:
            share.reserve(0)
            self._limit.release()


class Capacity:
    """The places that the requests of a process share, under whichever configuration they began.

    Attributes:
        limit: bounds the number of open requests.
        throttle: bounds the number of requests that start at once.
        bodies: bounds the memory for the bodies of open requests.
    """

    def __init__(self, server: ServerConfig, *, body_bytes: int) -> None:
        self.limit = ConcurrencyLimit(server.max_concurrent_requests, queue=_most_queued(server))
        self.throttle = StartThrottle(_STARTS_PER_ITERATION)
        self.bodies = BodyMemory(body_bytes)

    def change(self, server: ServerConfig, *, body_bytes: int) -> None:
        """Take the bounds of another configuration; requests that are open stay counted, even beyond them."""
        self.limit.change(server.max_concurrent_requests, queue=_most_queued(server))
        self.bodies.limit = body_bytes


def _most_queued(server: ServerConfig) -> int:
    most = server.max_queued_requests
    return server.max_concurrent_requests // 10 if most is None else most


class ConcurrencyLimit:
    """A number of requests that may be open, and a queue of those that wait, first come first served.

    Attributes:
        free: how many more requests may be opened at once; below 0 after the number was lowered.
    """

    def __init__(self, count: int, *, queue: int) -> None:
        self.free = count
        self._count = count
        self._queue = queue
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def acquire(self, timeout: float) -> None:  # noqa: ASYNC109 - the queue is left on the way out
        """Open a request, after at most `timeout` seconds in the queue. Raises `Overloaded`."""
        if self.free > 0:
            self.free -= 1
            return
        if len(self._waiting) >= self._queue:
            raise _overloaded()
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(timeout):
                await turn
        except BaseException as exc:
            if turn.done() and not turn.cancelled():
                self.release()  # granted in the very moment in which the waiting ended
            if isinstance(exc, TimeoutError):
                raise _overloaded() from exc
            raise
        finally:
            if turn in self._waiting:
                self._waiting.remove(turn)

    def change(self, count: int, *, queue: int) -> None:
        """Permit another number of requests: those that are open stay open, and some that wait may be opened."""
        more, self._count, self._queue = count - self._count, count, queue
        self.free += min(more, 0)
        for _ in range(more):
            self.release()

    def release(self) -> None:
        """Close a request; the next in the queue opens in its place."""
        while self._waiting and self.free >= 0:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.free += 1


class StartThrottle:
    """Starts a number of requests in each iteration of the event loop, first come first served.

    Iterations are counted only after the last start that one permits, while requests may have to wait.
    """

    def __init__(self, per_iteration: int) -> None:
        self._per_iteration = self._left = per_iteration
        self._waiting: deque[asyncio.Future[None]] = deque()

    def enter(self) -> asyncio.Future[None] | None:
        """Return None where the caller may start at once, else a future to await first."""
        if not self._left:
            start = asyncio.get_running_loop().create_future()
            self._waiting.append(start)
            return start
        self._left -= 1
        if not self._left:
            asyncio.get_running_loop().call_soon(self._next_iteration)
        return None

    def start_all(self) -> None:
        """Start everything that waits."""
        while self._waiting:
            self._start_next()

    def _next_iteration(self) -> None:
        self._left = self._per_iteration
        while self._waiting and self._left:
            self._left -= self._start_next()
        if not self._left:
            asyncio.get_running_loop().call_soon(self._next_iteration)

    def _start_next(self) -> bool:
        """Start the first that waits; False where it has been cancelled."""
        start = self._waiting.popleft()
        if start.done():
            return False
        start.set_result(None)
        return True


def _overloaded() -> Overloaded:
    return Overloaded("The proxy is serving as many requests as it may; try again in a moment.")
