"""The app under uvicorn, in one process or several: checks before the start, the listening socket, the address line."""

import errno
import functools
import math
import socket
import sys
from collections.abc import Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import msgspec
import uvicorn
from starlette.types import ASGIApp

from proxy.app import create_app
from proxy.config import Config, TelemetryConfig, secrets_of
from proxy.config_rules import SHORTEST_CLIENT_KEY
from proxy.loop.errors import ConfigurationError
from proxy.ports import Lifecycle
from proxy.server.banner import banner
from proxy.server.graceful import Server, Worker
from proxy.server.head import Bounds
from proxy.server.protocol import BoundedProtocol
from proxy.server.supervisor import Supervisor
from proxy.telemetry import log, workers
from proxy.terminal import style_of
from proxy.tools.catalog import answered_by_fallback

_BACKLOG = 2048
# Bytes that the kernel buffers for a client and has not sent yet. Unbounded, they would be megabytes for each slow
# reader, and the socket would become writable, which shows that the client reads at all, only after a third of them.
_MOST_UNSENT_BYTES = 128 * 1024
# libuv accepts one connection from a listener in each iteration of its loop, and a busy loop makes few iterations: a
# health check would wait for a second behind the connections before it.
_ACCEPTED_PER_ITERATION = 32


def serve(config: Config) -> None:
    """Serve until a signal.

    Raises:
        ConfigurationError: the configuration does not permit it, the address is taken, or there is no folder for the
            metrics of several workers.
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
    grace, ready = config.server.shutdown_grace_seconds, functools.partial(announce, url, config)
    with workers.counting_together(config):
        app = create_app(config, lifecycle=lifecycle)
        Server(uvicorn_config(config, app), lifecycle=lifecycle, grace=grace, ready=ready).run(accept_in_bulk(listener))


def _serve_together(config: Config, listener: socket.socket, url: str) -> None:
    if config.state.url.startswith("memory://"):
        log.LogObserver()("state.not_shared", workers=config.server.workers, why="memory:// is each worker's own")
    start = functools.partial(_start_worker, config, listener)
    grace = config.server.shutdown_grace_seconds
    supervisor = Supervisor(
        start, config.server.workers, grace=grace, observe=log.LogObserver(), stop_listening=listener.close
    )
    with workers.counting_together(config):
        supervisor.run(lambda: announce(url, config))


def _without_telemetry(config: Config) -> Config:
    """The configuration without telemetry, for a process that answers no request."""
    return msgspec.structs.replace(config, telemetry=TelemetryConfig(metrics=False))


def _start_worker(config: Config, listener: socket.socket, orders: Connection) -> BaseProcess:
    process = get_context("spawn").Process(target=work, args=(config, listener, orders), daemon=True)
    process.start()
    return process


def work(config: Config, listener: socket.socket, orders: Connection) -> None:
    """Run one of several workers, in a process of its own."""
    log.configure(config.telemetry, secrets=secrets_of(config))
    lifecycle = Lifecycle()
    app = create_app(config, lifecycle=lifecycle)
    grace = config.server.shutdown_grace_seconds
    Worker(uvicorn_config(config, app), lifecycle=lifecycle, grace=grace, orders=orders).run(accept_in_bulk(listener))


def uvicorn_config(config: Config, app: ASGIApp) -> uvicorn.Config:
    """The settings of uvicorn, whose logs the proxy's own replace."""
    protocol = functools.partial(BoundedProtocol, bounds=Bounds.of(config.server), observe=log.LogObserver())
    return uvicorn.Config(
        app,
        http=protocol,  # type: ignore[arg-type] # it is called as the class would be
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nothing here depends on the address that a request claims to come from
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
    create_app(_without_telemetry(config))


def _upstream_faults(config: Config) -> Iterator[str]:
    if not config.upstreams:
        disabled = [entry for where, entry in config.disabled.items() if where.startswith("upstreams.")]
        wanted = " or ".join(dict.fromkeys(name for entry in disabled for name in entry.variables))
        reasons = [*_invalid_keys("upstreams.", config), *([f"set {wanted}"] if wanted else [])]
        yield f"there is no usable upstream: {'; '.join(reasons) or 'configure one'}"


def _invalid_keys(section: str, config: Config) -> list[str]:
    """The disabled entries of a section with a value that is not a key."""
    return [
        f"{where}: {entry.why}"
        for where, entry in config.disabled.items()
        if where.startswith(section) and not entry.variables
    ]


def _exposure_faults(config: Config) -> Iterator[str]:
    """Beyond loopback, anybody may call where no key is required or a key can be guessed."""
    host = config.server.host
    if config.server.allow_anonymous or is_loopback(host):
        return
    if not config.clients:
        how = "set TOOLPROXY_KEY (or configure clients), or TOOLPROXY_ALLOW_ANONYMOUS=true to let anyone in"
        yield f"refusing to serve just anyone on {host}: {'; '.join([*_invalid_keys('clients[', config), how])}"
    for client in config.clients:
        if any(len(key) < SHORTEST_CLIENT_KEY for key in client.keys):
            yield (
                f"refusing to serve on {host}: the key of client {client.name!r} can be guessed, "
                f"it has fewer than {SHORTEST_CLIENT_KEY} characters"
            )


def _address_faults(config: Config) -> Iterator[str]:
    """An address that is not this machine's. One in use is no fault: the proxy that is to be reloaded may use it."""
    try:
        listen(config.server.host, config.server.port).close()
    except ConfigurationError as exc:
        if not isinstance(exc.__cause__, OSError) or exc.__cause__.errno != errno.EADDRINUSE:
            yield from exc.faults


def is_loopback(host: str) -> bool:
    """Whether every address of `host` is this machine's own."""
    try:
        found: Sequence[tuple[object, ...]] = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    addresses = [str(entry[4][0]) for entry in found]  # type: ignore[index]
    return bool(addresses) and all(address == "::1" or address.startswith("127.") for address in addresses)


def listen(host: str, port: int) -> socket.socket:
    """A bound socket. Raises `ConfigurationError` where the address cannot be bound."""
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


def accept_in_bulk(listener: socket.socket) -> list[socket.socket]:
    """Duplicates of the listener, one for each connection that libuv may accept in one iteration of the event loop.

    The listener is made non-blocking first. A duplicate gets the timeout that Python has stored for the original, and
    that of a socket from another process is "blocking". All of them are one socket to the kernel: it would block for
    the workers that serve already, and each would hang in `accept` until the next client connects.
    """
    listener.setblocking(False)
    return [listener, *(listener.dup() for _ in range(_ACCEPTED_PER_ITERATION - 1))]


def address_of(listener: socket.socket) -> str:
    """The URL of a listener."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def announce(url: str, config: Config) -> None:
    """Print the address line, the only one on standard output; on a terminal, what can be used and how is below it."""
    sys.stdout.write(f"toolproxy is serving at {url}/v1\n")
    if sys.stdout.isatty():
        sys.stdout.write(banner(url, config, style_of(sys.stdout)))
    sys.stdout.flush()
