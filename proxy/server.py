"""The app under uvicorn: listening socket, address line, signals, workers."""

import contextlib
import math
import os
import signal
import socket
import sys
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from uvicorn.supervisors import Multiprocess

from proxy import config_file
from proxy.app import create_app
from proxy.config import Config
from proxy.core.errors import ConfigurationError
from proxy.telemetry import log

_BACKLOG = 2048
_START_SECONDS = 30.0


class Server(uvicorn.Server):
    """uvicorn's server, which says when it is ready and stops without an error."""

    def __init__(self, config: uvicorn.Config, *, ready: Callable[[], None] = lambda: None) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve."""
        await super().startup(sockets)
        if self.started:
            self._ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Stop on SIGINT and SIGTERM, and let the process end with 0; uvicorn would raise the signal again."""
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def serve(config: Config, config_path: Path) -> None:
    """Serve until told to stop.

    Raises:
        ConfigurationError: the configuration does not permit it, or the address is taken.
    """
    check_servable(config)
    listener = listen(config.server.host, config.server.port)
    url = address_of(listener)
    log.configure(config.telemetry)
    for where, entry in config.disabled.items():
        log.observer()("configuration.disabled", where=where, why=entry.why)
    app = create_app(config)  # for several workers too: what is wrong is said once, not by each of them
    if config.server.workers > 1:
        log.observer()("state.not_shared", workers=config.server.workers, why="memory:// is each worker's own")
    if config.server.workers == 1:
        Server(uvicorn_config(config, app), ready=lambda: announce(url)).run([listener])
        return
    # Each worker reads the configuration anew: an app cannot be handed to another process.
    os.environ["TOOLPROXY_CONFIG"] = str(config_path)
    supervised = uvicorn_config(config, "proxy.server:worker_app")
    _Workers(supervised, [listener], ready=lambda: announce(url)).run()


def worker_app() -> Starlette:
    """The app of one of several workers."""
    config = config_file.load(Path(os.environ["TOOLPROXY_CONFIG"]), os.environ)
    log.configure(config.telemetry)
    return create_app(config)


class _Workers(Multiprocess):
    """uvicorn's supervisor, which says when its first workers serve."""

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket], *, ready: Callable[[], None]) -> None:
        super().__init__(config, sockets)
        self._ready = ready

    def init_processes(self) -> None:
        """Start the workers and wait until they serve."""
        super().init_processes()
        if all(process.wait_until_ready(_START_SECONDS) for process in self.processes):
            self._ready()


def uvicorn_config(config: Config, app: Starlette | str) -> uvicorn.Config:
    """Uvicorn's settings; its own logging and access log are left out for ours."""
    return uvicorn.Config(
        app,
        factory=isinstance(app, str),
        workers=config.server.workers,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nothing here depends on where a request says it comes from
        lifespan="on",
        backlog=_BACKLOG,
        timeout_graceful_shutdown=math.ceil(config.server.shutdown_grace_seconds),
    )


def check_servable(config: Config) -> None:
    """Refuse what cannot work or is not safe.

    Raises:
        ConfigurationError: no usable upstream, or an address beyond loopback without clients.
    """
    if not config.upstreams:
        disabled = [entry for where, entry in config.disabled.items() if where.startswith("upstreams.")]
        wanted = " or ".join(dict.fromkeys(name for entry in disabled for name in entry.variables))
        raise ConfigurationError([f"there is no usable upstream: {f'set {wanted}' if wanted else 'configure one'}"])
    host = config.server.host
    if not config.clients and not config.server.allow_anonymous and not is_loopback(host):
        how = "set TOOLPROXY_KEY (or configure clients), or TOOLPROXY_ALLOW_ANONYMOUS=true to let anyone in"
        raise ConfigurationError([f"refusing to serve just anyone on {host}: {how}"])


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
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except (OSError, UnicodeError) as exc:
        why = getattr(exc, "strerror", None) or exc
        raise ConfigurationError([f"cannot listen on {host}:{port}: {why}"]) from exc
    listener.set_inheritable(True)
    return listener


def address_of(listener: socket.socket) -> str:
    """The URL under which a listener is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def announce(url: str) -> None:
    """The one line on standard output."""
    sys.stdout.write(f"toolproxy is serving at {url}/v1\n")
    sys.stdout.flush()
