"""`toolproxy mock-upstream`: the scripted upstream by itself, in one process or several."""

import functools
import logging
import signal
import socket
import sys
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory

import uvicorn

from proxy.api.middleware.admission import Lifecycle
from proxy.config.model import ServerConfig
from proxy.mock.demo import DEMO
from proxy.mock.journal import Attempts, journal_in
from proxy.mock.script import Script, load
from proxy.mock.server import MockUpstream
from proxy.ports import NoObserver
from proxy.server.graceful import Server, Worker
from proxy.server.head import Bounds
from proxy.server.listener import accept_in_bulk, address_of, listen
from proxy.server.protocol import HttpProtocol
from proxy.server.supervisor import Supervisor

_BACKLOG = 4096
_GRACE_SECONDS = 0.5  # nobody waits for the end of a scripted stream


def main(*, host: str, port: int, workers: int, script: Path | None) -> None:
    """Serve until a signal. Raises `ConfigurationError`."""
    scripted = DEMO if script is None else load(script)
    listener = listen(host, port)
    ready = functools.partial(_announce, address_of(listener))
    if workers == 1:
        Server(uvicorn_config(MockUpstream(scripted)), ready=ready).run(accept_in_bulk(listener))
        return
    with TemporaryDirectory(prefix="toolproxy-mock-") as shared:
        Supervisor(
            functools.partial(_start_worker, scripted, Path(shared), listener),
            workers,
            grace=lambda: _GRACE_SECONDS,
            observe=NoObserver(),
            reload=lambda: None,
            stop_listening=listener.close,
        ).run(ready)


def uvicorn_config(mock: MockUpstream) -> uvicorn.Config:
    """The settings of uvicorn, with the proxy's own protocol, which writes a chunk in a third of the time."""
    # A scripted answer may end without its end, which the server would report as a fault of the application.
    logging.getLogger("proxy.server.cycle").setLevel(logging.CRITICAL)
    protocol = functools.partial(HttpProtocol, bounds=Bounds.of(ServerConfig()), observe=NoObserver())
    return uvicorn.Config(
        mock,
        http=protocol,  # type: ignore[arg-type] # to uvicorn, a protocol is a class
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        backlog=_BACKLOG,
        timeout_keep_alive=75,
    )


def _start_worker(script: Script, shared: Path, listener: socket.socket, orders: Connection) -> BaseProcess:
    process = get_context("spawn").Process(target=work, args=(script, shared, listener, orders), daemon=True)
    process.start()
    return process


def work(script: Script, shared: Path, listener: socket.socket, orders: Connection) -> None:
    """Run one of several workers, in a process of its own."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    mock = MockUpstream(script, journal=journal_in(shared), attempts=Attempts(shared))

    async def apply(_: bytes) -> None: ...

    config = uvicorn_config(mock)
    Worker(config, lifecycle=Lifecycle(), grace=_GRACE_SECONDS, orders=orders, apply=apply).run(
        accept_in_bulk(listener)
    )


def _announce(url: str) -> None:
    sys.stdout.write(f"mock upstream is serving at {url}/v1, search at {url}/search, requests at {url}/journal\n")
    sys.stdout.flush()
