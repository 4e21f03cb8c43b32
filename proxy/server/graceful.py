"""uvicorn's server, extended to report readiness and to stop without losing a request, alone or as one of several."""

import asyncio
import contextlib
import gc
import socket
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from multiprocessing.connection import Connection
from types import FrameType

import uvicorn

from proxy.api.middleware.admission import Lifecycle
from proxy.ports import NoObserver, Observer
from proxy.server import systemd
from proxy.server.protocol import HttpProtocol
from proxy.server.supervisor import ABORT, DRAIN, READY, RELOAD, handling_stops

# For the first request of a connection that has just been accepted; and the interval at which it is looked for.
_FIRST_REQUEST_SECONDS, _POLL_SECONDS = 1.0, 0.01
_TICK_SECONDS = 0.05
# Until the next health checks have failed; balancers ask every second or two.
_NOTICE_SECONDS = 3.0
# For the error event of each stream that is still open, and for nothing else.
_LAST_EVENT_SECONDS = 3.0
_LAST_EVENT_SECONDS_WHEN_FORCED = 0.5


class Server(uvicorn.Server):
    """uvicorn's server with a report of readiness and an orderly stop.

    signal --> draining: accepts connections, answers health checks, refuses new work, finishes open requests; requests
               that another proxy forwards are still admitted for a few seconds, until its health check has failed
           --> all done, the grace is over, or a second signal
           --> open streams end in an error event, the listener closes, the process ends with 0

    Args:
        config: uvicorn's.
        lifecycle: tells the application that the process is about to stop.
        grace: seconds that open requests may take after the first signal; may be changed while the server serves.
        ready: called once the server accepts connections.
        background: runs while the server serves, until it is cancelled; raises nothing.
        observe: takes an event when the server begins to drain, and one when it has stopped.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        lifecycle: Lifecycle | None = None,
        grace: float = 0,
        ready: Callable[[], None] = lambda: None,
        background: Callable[[], Coroutine[None, None, None]] | None = None,
        observe: Observer | None = None,
    ) -> None:
        super().__init__(config)
        self.grace = grace
        self._lifecycle = lifecycle or Lifecycle()
        self._ready = ready
        self._background = background
        self._observe = observe or NoObserver()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the server and its listeners."""
        await super().startup(sockets)
        # Objects that exist now are exempt from garbage collection. Requests form few reference cycles, so a collection
        # after each 50,000 new objects is enough, instead of after 700. With some hundreds of open requests, the
        # collector would search their objects repeatedly, and find nothing. With 256 connections, this takes 7 to 10 %
        # of the CPU.
        gc.enable()
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        # The event loop interrupts threads that run Python code sooner than after the default of 5 ms. While a thread
        # reads a large request, the median delay of a chunk falls from 3.2 to 0.6 ms.
        sys.setswitchinterval(0.0005)
        if self.started:
            self._ready()

    async def main_loop(self) -> None:
        """Serve until the process should stop."""
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self._background()) if self._background else None
            await super().main_loop()
            if task is not None:
                task.cancel()

    def drain(self) -> None:
        """Admit no new requests, finish the open ones, and stop."""
        self._lifecycle.draining = True
        self.should_exit = True

    def abort(self) -> None:
        """Stop without waiting for anything."""
        self.drain()
        self.force_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        """Handle a signal. The first signal drains, the second one aborts, SIGINT and SIGTERM alike."""
        if self.should_exit:
            self.abort()
        else:
            self.drain()

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override] # uvicorn's is narrower
        """Stop on SIGINT and SIGTERM, and let the process end with 0. uvicorn would raise the signal again."""
        return handling_stops(self.handle_exit)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop in the order above. uvicorn would close the listener first, and health checks could not connect."""
        systemd.notify("STOPPING=1")
        self._observe("server.draining", grace=self.grace)
        loop = asyncio.get_running_loop()
        grace_ends_at = loop.time() + self.grace
        notice = loop.call_later(_NOTICE_SECONDS, self._refuse_all)
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await self._await_requests(self.grace)
        notice.cancel()
        grace_is_over = bool(self.server_state.tasks)
        await self._stop_listening(sockets or [])
        if not grace_is_over:
            await self._await_first_requests(grace_ends_at)
        for task in list(self.server_state.tasks):
            task.cancel()
        seconds = _LAST_EVENT_SECONDS_WHEN_FORCED if self.force_exit else _LAST_EVENT_SECONDS
        await self._await_requests(seconds, even_if_forced=True)
        for connection in list(self.server_state.connections):
            connection.transport.close()
        await self.lifespan.shutdown()
        self._observe("server.stopped")

    def _refuse_all(self) -> None:
        self._lifecycle.refuses_forwarded = True

    async def _stop_listening(self, listeners: list[socket.socket]) -> None:
        """Close the listener, but first accept the connections that the kernel holds, because it would reset them."""
        for server in self.servers[1:]:
            server.close()
        accepted = []
        with contextlib.suppress(OSError):  # there are no more
            while listeners:
                accepted.append(listeners[0].accept()[0])
        for server in self.servers[:1]:
            server.close()
        for listener in listeners:
            listener.close()
        make: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        protocol = partial(make, config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
        for connection in accepted:
            await asyncio.get_running_loop().connect_accepted_socket(protocol, connection)
        await asyncio.sleep(0)  # uvloop calls `connection_made` an iteration after it has accepted

    async def _await_first_requests(self, grace_ends_at: float) -> None:
        """Wait a moment for the requests of connections that were accepted just now, and let them finish."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + _FIRST_REQUEST_SECONDS
        while not self.force_exit and loop.time() < ends_at and self._has_silent_connection():  # noqa: ASYNC110 - no event
            await asyncio.sleep(_POLL_SECONDS)
        await self._await_requests(max(ends_at, grace_ends_at) - loop.time())

    def _has_silent_connection(self) -> bool:
        connections = self.server_state.connections
        return any(isinstance(one, HttpProtocol) and one.awaits_request for one in connections)

    async def _await_requests(self, seconds: float, *, even_if_forced: bool = False) -> None:
        """Wait until no request is open, for at most the given seconds."""
        ends_at = asyncio.get_running_loop().time() + seconds
        while self.server_state.tasks and (even_if_forced or not self.force_exit):
            left = ends_at - asyncio.get_running_loop().time()
            if left <= 0:
                return
            await asyncio.wait(self.server_state.tasks, timeout=min(left, _TICK_SECONDS))


class Worker(Server):
    """One of several worker processes. Its supervisor orders when to reload, when to stop, and whether at once.

    `orders` is the pipe to the supervisor. `apply` puts the configuration of an order in force, and raises nothing.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        lifecycle: Lifecycle,
        grace: float,
        orders: Connection,
        apply: Callable[[bytes], Coroutine[None, None, None]],
    ) -> None:
        ready = partial(orders.send_bytes, READY)
        super().__init__(config, lifecycle=lifecycle, grace=grace, ready=ready, background=self._reload_as_ordered)
        self._orders = orders
        self._apply = apply
        self._configurations: asyncio.Queue[bytes] = asyncio.Queue()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to serve, and to read the supervisor's orders."""
        asyncio.get_running_loop().add_reader(self._orders.fileno(), self._obey)
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        """Handle a signal to the whole group of processes; only the supervisor decides whether to abort."""
        self.drain()

    def _obey(self) -> None:
        try:
            order = self._orders.recv_bytes()
        except (EOFError, OSError):  # the supervisor is gone
            asyncio.get_running_loop().remove_reader(self._orders.fileno())
            order = DRAIN
        if order.startswith(RELOAD):
            self._configurations.put_nowait(order.removeprefix(RELOAD))
        elif order == ABORT:
            self.abort()
        else:
            self.drain()

    async def _reload_as_ordered(self) -> None:
        while True:
            await self._apply(await self._configurations.get())
            with contextlib.suppress(OSError):  # the supervisor is gone, which `_obey` notices
                self._orders.send_bytes(READY)
