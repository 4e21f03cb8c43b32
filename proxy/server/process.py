"""Runs the app with uvicorn, in one process or several: the checks at start, the listening socket, the address line."""

import functools
import gc
import math
import os
import pickle
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from proxy import __version__
from proxy.api.middleware.admission import Lifecycle
from proxy.app import Application, SystemClock, create_app
from proxy.config.loaded import Loaded
from proxy.config.model import Config, ServerConfig
from proxy.config.redaction import secrets_of
from proxy.kit.terminal import style_of
from proxy.ports import Observer
from proxy.server import systemd
from proxy.server.banner import banner
from proxy.server.checks import check_startable, check_usable
from proxy.server.graceful import Server, Worker
from proxy.server.hangup import Hangup
from proxy.server.head import Bounds
from proxy.server.listener import accept_in_bulk, address_of, listen
from proxy.server.protocol import HttpProtocol
from proxy.server.reload import Reloads, Trigger, report
from proxy.server.supervisor import Supervisor
from proxy.telemetry import build_observer, log, workers
from proxy.wire.errors import ConfigurationError

_BACKLOG = 2048


def serve(load: Callable[[], Loaded], *, watched: Sequence[Path] = ()) -> None:
    """Serve until a signal, or until the terminal is gone. Any other SIGHUP reloads the configuration.

    Args:
        load: reads the configuration.
        watched: files that are reloaded when they change: the configuration, and files next to it that need not exist.

    Raises:
        ConfigurationError: the configuration does not permit it, the address is taken, or there is no folder for the
            metrics of several workers.
    """
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    trigger = Trigger(now=time.monotonic, hangup=Hangup(now=time.monotonic, is_ignored=is_ignored))
    signal.signal(signal.SIGHUP, trigger.ask)
    if watched:
        trigger.watch(*watched)
    loaded = load()
    config = loaded.config
    check_startable(loaded)
    listener = listen(config.server.host, config.server.port)
    url = address_of(listener)
    log.configure(config.telemetry, secrets=secrets_of(loaded))
    report(loaded, log.LogObserver(), tells_unset=not sys.stdout.isatty())
    with workers.shared_directory(config):
        reloads_for = functools.partial(Reloads, loaded, load=load, check=check_usable, trigger=trigger)
        if config.server.workers == 1:
            app = create_app(loaded, lifecycle=(lifecycle := Lifecycle()))
            _serve_alone(app, lifecycle, reloads_for(observe=app.observe), listener, url)
        else:
            observe = build_observer(config, version=__version__)
            _serve_together(reloads_for(observe=observe), observe, listener, url)
    # The interpreter, as it ends, takes its handlers away, and the signal would kill it.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _serve_alone(app: Application, lifecycle: Lifecycle, reloads: Reloads, listener: socket.socket, url: str) -> None:
    config = reloads.loaded.config
    app.observe("server.started", version=__version__, pid=os.getpid(), workers=1)
    server = Server(
        uvicorn_config(config, app),
        lifecycle=lifecycle,
        grace=config.server.shutdown_grace_seconds,
        ready=functools.partial(announce, url, reloads.loaded, app.observe),
        background=lambda: reloads.run(functools.partial(_put_in_force, app, server), SystemClock()),
        observe=app.observe,
    )
    server.run(accept_in_bulk(listener))


def _serve_together(reloads: Reloads, observe: Observer, listener: socket.socket, url: str) -> None:
    config = reloads.loaded.config
    if not config.state.is_shared:
        observe("state.not_shared", workers=config.server.workers, why="memory:// is each worker's own")
    observe("server.started", version=__version__, pid=os.getpid(), workers=config.server.workers)

    def start(orders: Connection) -> BaseProcess:
        return _start_worker(reloads.loaded, listener, orders)

    def reload() -> bytes | None:
        before = reloads.loaded
        found = reloads.reload()
        if found is None:
            return None
        log.reconfigure(found.config.telemetry, secrets=secrets_of(found) | secrets_of(before))
        return pickle.dumps(found)

    supervisor = Supervisor(
        start,
        config.server.workers,
        grace=lambda: reloads.loaded.config.server.shutdown_grace_seconds,
        observe=observe,
        reload=reload,
        stop_listening=listener.close,
    )
    gc.enable()  # the command turns it off, and each reload leaves garbage
    gc.freeze()
    supervisor.run(lambda: announce(url, reloads.loaded, observe))


def _start_worker(loaded: Loaded, listener: socket.socket, orders: Connection) -> BaseProcess:
    process = get_context("spawn").Process(target=work, args=(loaded, listener, orders), daemon=True)
    # Until it has a handler of its own, a signal to the whole group of processes would end it. What is blocked here
    # is blocked there as well.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    return process


def work(loaded: Loaded, listener: socket.socket, orders: Connection) -> None:
    """Run one of several workers, in its own process."""
    # The supervisor says when to reload. A handler, since processes that are started here would inherit SIG_IGN.
    signal.signal(signal.SIGHUP, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    os.environ.pop("NOTIFY_SOCKET", None)  # systemd hears the supervisor alone
    config = loaded.config
    log.configure(config.telemetry, secrets=secrets_of(loaded))
    lifecycle = Lifecycle()
    app = create_app(loaded, lifecycle=lifecycle)

    async def apply(configuration: bytes) -> None:
        try:
            await _put_in_force(app, server, pickle.loads(configuration))  # noqa: S301 - the supervisor has written it
        except Exception as exc:  # noqa: BLE001 - the supervisor has found it valid; whatever it is, this worker goes on
            faults = exc.faults if isinstance(exc, ConfigurationError) else [type(exc).__name__]
            app.observe("configuration.refused", faults=faults, pid=os.getpid())

    grace = config.server.shutdown_grace_seconds
    server = Worker(uvicorn_config(config, app), lifecycle=lifecycle, grace=grace, orders=orders, apply=apply)
    server.run(accept_in_bulk(listener))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as in `serve`


async def _put_in_force(app: Application, server: Server, loaded: Loaded) -> None:
    """Use another configuration from now on, for requests and for the limits of connections."""
    await app.reload(loaded)
    config = loaded.config
    server.grace = config.server.shutdown_grace_seconds
    server.config.http_protocol_class = _protocol(config.server)
    server.config.timeout_keep_alive = math.ceil(config.server.idle_timeout_seconds)


def _protocol(server: ServerConfig) -> Any:
    """The factory of connection protocols. uvicorn takes it for a class."""
    return functools.partial(HttpProtocol, bounds=Bounds.of(server), observe=log.LogObserver())


def uvicorn_config(config: Config, app: ASGIApp) -> uvicorn.Config:
    """The settings of uvicorn. The proxy's own log replaces uvicorn's."""
    return uvicorn.Config(
        app,
        http=_protocol(config.server),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nothing here depends on the address that a request claims to come from
        lifespan="on",
        backlog=_BACKLOG,
        timeout_keep_alive=math.ceil(config.server.idle_timeout_seconds),
    )


def announce(url: str, loaded: Loaded, observe: Observer) -> None:
    """Tell the log and systemd the address; print it on a terminal, with the banner, and where any port was free.

    Elsewhere standard output may go where the log goes, each line of which is JSON.
    """
    observe("server.ready", url=url)
    systemd.notify("READY=1")
    is_terminal = sys.stdout.isatty()
    try:
        if is_terminal or not loaded.config.server.port:
            sys.stdout.write(f"toolproxy is serving at {url}/v1\n")
        if is_terminal:
            sys.stdout.write(banner(url, loaded, style_of(sys.stdout)))
        sys.stdout.flush()
    except OSError:
        if not is_terminal:
            raise
        # The terminal has just gone. What is left in the buffer would be written again as the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
