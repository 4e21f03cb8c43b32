"""The app under uvicorn: listening socket, address line, signals, the way to stop, workers."""

import asyncio
import contextlib
import errno
import functools
import gc
import math
import signal
import socket
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import FrameType

import msgspec
import uvicorn
from starlette.types import ASGIApp

from proxy.app import create_app
from proxy.config import Config, TelemetryConfig, secrets_of
from proxy.config_rules import SHORTEST_CLIENT_KEY
from proxy.loop.errors import ConfigurationError
from proxy.ports import Lifecycle
from proxy.server.head import Bounds
from proxy.server.protocol import BoundedProtocol
from proxy.server.supervisor import ABORT, DRAIN, READY, Supervisor
from proxy.telemetry import log, workers
from proxy.tools.catalog import answered_by_fallback

_BACKLOG = 2048
# More than this the kernel does not hold of what a client has not been sent yet. It would take megabytes for each slow
# reader, and room for more, by which it is seen that the client reads at all, would show only after a third of them.
_MOST_UNSENT_BYTES = 128 * 1024
# libuv takes one connection from a listener in each round of its loop, and a loop that is busy makes few rounds: a
# health check would wait for a second behind those who came before it.
_ACCEPTED_PER_ROUND = 32
# For the first request of a connection that has just been accepted; and how often is looked for it.
_FIRST_WORD_SECONDS, _GLANCE_SECONDS = 1.0, 0.01
_TICK_SECONDS = 0.05
# Until whoever checks our health has found out that we stop; balancers ask every second or two.
_NOTICE_SECONDS = 3.0
# For the error event of each stream that is still open, and for nothing else.
_FAREWELL_SECONDS = 3.0
_FAREWELL_WHEN_FORCED = 0.5


class Server(uvicorn.Server):
    """uvicorn's server, which says when it is ready, and stops in an orderly way.

    signal --> draining: listens on, answers health checks, refuses new work, finishes what is open; what another proxy
               forwards is still taken on for a few seconds, until its health check has failed
           --> all done, the grace is over, or a second signal
           --> what is still open is told so, the listener closes, the process ends with 0
    """

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        lifecycle: Lifecycle | None = None,
        grace: float = 0,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(config)
        self._lifecycle = lifecycle or Lifecycle()
        self._grace = grace
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve."""
        await super().startup(sockets)
        _leave_what_is_there_alone()
        if self.started:
            self._ready()

    def drain(self) -> None:
        """Take on nothing new, finish what is open, and stop."""
        self._lifecycle.draining = True
        self.should_exit = True

    def abort(self) -> None:
        """Stop without waiting for anything."""
        self.drain()
        self.force_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        """A signal; the second one is impatient, whichever it is."""
        if self.should_exit:
            self.abort()
        else:
            self.drain()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Stop on SIGINT and SIGTERM, and let the process end with 0; uvicorn would raise the signal again."""
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop, as said above; uvicorn would close the listener first, and a health check would find nobody."""
        loop = asyncio.get_running_loop()
        grace_ends_at = loop.time() + self._grace
        notice = loop.call_later(_NOTICE_SECONDS, self._refuse_all)
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await self._finished(self._grace)
        notice.cancel()
        grace_is_over = bool(self.server_state.tasks)
        await self._stop_listening(sockets or [])
        if not grace_is_over:
            await self._first_words(grace_ends_at)
        for task in list(self.server_state.tasks):
            task.cancel()
        await self._finished(_FAREWELL_WHEN_FORCED if self.force_exit else _FAREWELL_SECONDS, even_if_forced=True)
        for connection in list(self.server_state.connections):
            connection.transport.close()
        await self.lifespan.shutdown()

    async def _stop_listening(self, listeners: list[socket.socket]) -> None:
        """Close the listener, and take over who has connected to it before: the kernel would reset those."""
        for server in self.servers[1:]:
            server.close()
        connected = list(_accepted(listeners[0])) if listeners else []
        for server in self.servers[:1]:
            server.close()
        for listener in listeners:
            listener.close()
        for connection in connected:
            await asyncio.get_running_loop().connect_accepted_socket(self._protocol, connection)
        await asyncio.sleep(0)  # uvloop calls `connection_made` a turn after it has accepted

    def _protocol(self) -> asyncio.Protocol:
        """What serves one connection."""
        make: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    def _refuse_all(self) -> None:
        self._lifecycle.refuses_forwarded = True

    async def _first_words(self, grace_ends_at: float) -> None:
        """Wait a moment for what connections that were accepted just now want to ask, and let it finish."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + _FIRST_WORD_SECONDS
        while not self.force_exit and loop.time() < ends_at and self._has_unasked():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(_GLANCE_SECONDS)
        await self._finished(max(ends_at, grace_ends_at) - loop.time())

    def _has_unasked(self) -> bool:
        connections = self.server_state.connections
        return any(isinstance(one, BoundedProtocol) and one.cycle is None for one in connections)

    async def _finished(self, seconds: float, *, even_if_forced: bool = False) -> None:
        """Wait until no request is open, at most so long."""
        ends_at = asyncio.get_running_loop().time() + seconds
        while self.server_state.tasks and (even_if_forced or not self.force_exit):
            left = ends_at - asyncio.get_running_loop().time()
            if left <= 0:
                return
            await asyncio.wait(self.server_state.tasks, timeout=min(left, _TICK_SECONDS))


def _accepted(listener: socket.socket) -> Iterator[socket.socket]:
    """The connections that wait to be accepted."""
    with contextlib.suppress(OSError):  # there are no more
        while True:
            connection, _ = listener.accept()
            yield connection


class _Worker(Server):
    """One of several processes: its supervisor says when to stop, and whether at once."""

    def __init__(self, config: uvicorn.Config, *, lifecycle: Lifecycle, grace: float, orders: Connection) -> None:
        super().__init__(config, lifecycle=lifecycle, grace=grace, ready=lambda: orders.send_bytes(READY))
        self._orders = orders

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve, and to listen to the supervisor."""
        asyncio.get_running_loop().add_reader(self._orders.fileno(), self._obey)
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        """A signal to the whole group of processes; how urgent it is, the supervisor knows."""
        self.drain()

    def _obey(self) -> None:
        try:
            order = self._orders.recv_bytes()
        except (EOFError, OSError):  # the supervisor is gone
            asyncio.get_running_loop().remove_reader(self._orders.fileno())
            order = DRAIN
        if order == ABORT:
            self.abort()
        else:
            self.drain()


def _leave_what_is_there_alone() -> None:
    """What has been made until now stays: the garbage collector need not look at it again and again.

    Requests make few cycles, so it looks for new ones less often too: after 50,000 objects, not after 700. Requests
    that are under way are objects as well: with some hundreds of them, it would look through them in vain all the time.
    """
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def serve(config: Config) -> None:
    """Serve until told to stop.

    Raises:
        ConfigurationError: the configuration does not permit it, the address is taken, or there is no folder for what
            several workers count.
    """
    check_startable(config)
    listener = listen(config.server.host, config.server.port)
    url = address_of(listener)
    log.configure(config.telemetry, secrets=secrets_of(config))
    fallbacks = {f"tools.{name}": tool.fallback for name, tool in answered_by_fallback(config)}
    for where, entry in config.disabled.items():
        log.LogObserver()("configuration.disabled", where=where, why=entry.why, fallback=fallbacks.get(where))
    for warning in config.warnings:
        log.LogObserver()("configuration.doubtful", why=warning)
    if config.server.workers == 1:
        _serve_alone(config, listener, url)
    else:
        _serve_together(config, listener, url)


def _serve_alone(config: Config, listener: socket.socket, url: str) -> None:
    lifecycle = Lifecycle()
    grace, ready = config.server.shutdown_grace_seconds, functools.partial(announce, url)
    with workers.counting_together(config):
        app = create_app(config, lifecycle=lifecycle)
        Server(uvicorn_config(config, app), lifecycle=lifecycle, grace=grace, ready=ready).run(watched(listener))


def _serve_together(config: Config, listener: socket.socket, url: str) -> None:
    if config.state.url.startswith("memory://"):
        log.LogObserver()("state.not_shared", workers=config.server.workers, why="memory:// is each worker's own")
    start = functools.partial(_start_worker, config, listener)
    grace = config.server.shutdown_grace_seconds
    supervisor = Supervisor(
        start, config.server.workers, grace=grace, observe=log.LogObserver(), stop_listening=listener.close
    )
    with workers.counting_together(config):
        supervisor.run(lambda: announce(url))


def _unwatched(config: Config) -> Config:
    """The same for a process that answers nothing, and so has nothing to count, to remember or to trace."""
    return msgspec.structs.replace(config, telemetry=TelemetryConfig(metrics=False))


def _start_worker(config: Config, listener: socket.socket, orders: Connection) -> BaseProcess:
    process = get_context("spawn").Process(target=work, args=(config, listener, orders), daemon=True)
    process.start()
    return process


def work(config: Config, listener: socket.socket, orders: Connection) -> None:
    """One of several workers, in a process of its own."""
    log.configure(config.telemetry, secrets=secrets_of(config))
    lifecycle = Lifecycle()
    app = create_app(config, lifecycle=lifecycle)
    grace = config.server.shutdown_grace_seconds
    _Worker(uvicorn_config(config, app), lifecycle=lifecycle, grace=grace, orders=orders).run(watched(listener))


def uvicorn_config(config: Config, app: ASGIApp) -> uvicorn.Config:
    """Uvicorn's settings; its own logging and access log are left out for ours."""
    protocol = functools.partial(BoundedProtocol, bounds=Bounds.of(config.server), observe=log.LogObserver())
    return uvicorn.Config(
        app,
        http=protocol,  # type: ignore[arg-type] # it is called as the class would be
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nothing here depends on where a request says it comes from
        lifespan="on",
        backlog=_BACKLOG,
        timeout_keep_alive=math.ceil(config.server.idle_timeout_seconds),
    )


def check_startable(config: Config) -> None:
    """Refuse a configuration with which nothing can be served: for `serve`, and for `check`, so that they agree.

    Raises:
        ConfigurationError: no usable upstream, an address that is not safe to listen on, a tool that cannot be made.
    """
    if faults := [*_upstream_faults(config), *_exposure_faults(config), *_address_faults(config)]:
        raise ConfigurationError(faults)
    create_app(_unwatched(config))


def _upstream_faults(config: Config) -> Iterator[str]:
    if not config.upstreams:
        disabled = [entry for where, entry in config.disabled.items() if where.startswith("upstreams.")]
        wanted = " or ".join(dict.fromkeys(name for entry in disabled for name in entry.variables))
        reasons = [*_keys_that_are_none("upstreams.", config), *([f"set {wanted}"] if wanted else [])]
        yield f"there is no usable upstream: {'; '.join(reasons) or 'configure one'}"


def _keys_that_are_none(section: str, config: Config) -> list[str]:
    """The disabled entries of a section that have something in the place of their key."""
    return [
        f"{where}: {entry.why}"
        for where, entry in config.disabled.items()
        if where.startswith(section) and not entry.variables
    ]


def _exposure_faults(config: Config) -> Iterator[str]:
    """Beyond loopback everybody may call whom no key keeps out."""
    host = config.server.host
    if config.server.allow_anonymous or is_loopback(host):
        return
    if not config.clients:
        how = "set TOOLPROXY_KEY (or configure clients), or TOOLPROXY_ALLOW_ANONYMOUS=true to let anyone in"
        yield f"refusing to serve just anyone on {host}: {'; '.join([*_keys_that_are_none('clients[', config), how])}"
    for client in config.clients:
        if client.key is not None and len(client.key) < SHORTEST_CLIENT_KEY:
            yield (
                f"refusing to serve on {host}: the key of client {client.name!r} can be guessed, "
                f"it has fewer than {SHORTEST_CLIENT_KEY} characters"
            )


def _address_faults(config: Config) -> Iterator[str]:
    """An address that is not this machine's; one that is taken may be by the very proxy that is to be reloaded."""
    try:
        listen(config.server.host, config.server.port).close()
    except ConfigurationError as exc:
        if not isinstance(exc.__cause__, OSError) or exc.__cause__.errno != errno.EADDRINUSE:
            yield from exc.faults


def is_loopback(host: str) -> bool:
    """Whether every address that `host` stands for is this machine's own."""
    try:
        found: Sequence[tuple[object, ...]] = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    addresses = [str(entry[4][0]) for entry in found]  # type: ignore[index]
    return bool(addresses) and all(address == "::1" or address.startswith("127.") for address in addresses)


def listen(host: str, port: int) -> socket.socket:
    """A bound socket. Raises `ConfigurationError` when the address cannot be had."""
    listener = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # connections inherit it
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _MOST_UNSENT_BYTES)
        listener.bind(address)
    except (OSError, UnicodeError) as exc:
        if listener is not None:
            listener.close()
        why = getattr(exc, "strerror", None) or exc
        raise ConfigurationError([f"cannot listen on {host}:{port}: {why}"]) from exc
    listener.set_inheritable(True)
    return listener


def watched(listener: socket.socket) -> list[socket.socket]:
    """The listener as often as connections may be taken from it at once.

    A duplicate gets the timeout that Python knows of the original, and a socket that came from another process counts
    as one that blocks. All of them are one socket to the kernel: it would block for the workers that serve already,
    and each of them would hang in `accept` until the next client connects.
    """
    listener.setblocking(False)
    return [listener, *(listener.dup() for _ in range(_ACCEPTED_PER_ROUND - 1))]


def address_of(listener: socket.socket) -> str:
    """The URL under which a listener is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def announce(url: str) -> None:
    """The one line on standard output."""
    sys.stdout.write(f"toolproxy is serving at {url}/v1\n")
    sys.stdout.flush()
