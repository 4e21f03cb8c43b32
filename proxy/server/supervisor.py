"""The supervisor of several worker processes: starts them, restarts those that die, and stops them.

Orders are sent through a pipe, not as signals: a terminal's Ctrl-C and systemd's stop reach workers too, and an order
must not look like a second, impatient signal. If the supervisor dies, its workers read the end of the pipe, and stop.
"""

import contextlib
import signal
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.process import BaseProcess
from types import FrameType

from proxy.ports import Observer
from proxy.server import systemd
from proxy.wire.errors import ConfigurationError

# Sent by a worker: it serves the configuration that it was given last.
READY = b"ready"
# Sent to a worker. The configuration follows `RELOAD`.
DRAIN, ABORT, RELOAD = b"drain", b"abort", b"reload"

_TICK_SECONDS = 0.1
_START_SECONDS = 30.0
# A worker that dies at once would otherwise be restarted as fast as the machine can.
_RESTART_SECONDS = 1.0
# After the grace: time for a worker's last events to its clients and its clean-up. Then it is killed.
_CLEAN_UP_SECONDS = 5.0


@dataclass(slots=True)
class _Worker:
    """A process. At most one configuration is on its way to the process, so a busy worker does not hold up others."""

    process: BaseProcess
    orders: Connection
    began: float
    is_ready: bool = False
    configuration: bytes | None = None  # to be sent when it is ready

    def hand_over(self) -> None:
        """Send the configuration when the worker is ready for it."""
        with contextlib.suppress(OSError, EOFError):  # the worker has ended
            while self.orders.poll():
                self.is_ready = self.orders.recv_bytes() == READY
            if self.is_ready and self.configuration is not None:
                self.orders.send_bytes(RELOAD + self.configuration)
                self.is_ready, self.configuration = False, None


class Supervisor:
    """Keeps a number of workers running until a signal.

    Args:
        start: starts a worker, which reads its orders from the pipe and writes `READY` to it.
        count: the number of workers.
        grace: seconds that open requests may take after the first signal.
        observe: takes events about workers that die, and about workers that drain and have stopped.
        reload: asked continuously for another configuration, in the form that workers read; None if there is none.
            Workers that start later already have it.
        stop_listening: closes the supervisor's copy of the listener when no more workers will start. While that copy is
            open, clients can connect after the last worker has closed its own, and are not answered.
    """

    def __init__(
        self,
        start: Callable[[Connection], BaseProcess],
        count: int,
        *,
        grace: Callable[[], float],
        observe: Observer,
        reload: Callable[[], bytes | None],
        stop_listening: Callable[[], None],
    ) -> None:
        self._start = start
        self._count = count
        self._grace = grace
        self._observe = observe
        self._reload = reload
        self._stop_listening = stop_listening
        self._workers: list[_Worker] = []
        self._signals = 0
        self._kill_at = float("inf")

    def run(self, ready: Callable[[], None]) -> None:
        """Serve until a signal, and return when the last worker has ended. `ready` is called once all workers serve.

        Raises:
            ConfigurationError: a worker did not start.
        """
        with handling_stops(self._count_signal):
            self._workers = [self._start_one() for _ in range(self._count)]
            if all(self._is_ready(worker) for worker in self._workers):
                ready()
            elif not self._signals:
                self._order(ABORT)
                raise ConfigurationError(["a worker process did not start; the log says why"])
            else:  # one that does not serve yet reads no orders
                for worker in self._workers:
                    worker.process.terminate()
            self._watch()

    def _watch(self) -> None:
        handled = 0
        while self._workers:
            wait([worker.process.sentinel for worker in self._workers if worker.process.is_alive()], _TICK_SECONDS)
            if self._signals > handled:
                handled = self._signals
                self._stop_listening()
                if handled == 1:
                    systemd.notify("STOPPING=1")
                    self._observe("server.draining", grace=self._grace())
                self._order(DRAIN if handled == 1 else ABORT)
                self._kill_at = time.monotonic() + _CLEAN_UP_SECONDS + (self._grace() if handled == 1 else 0)
            if not self._signals:
                configuration = self._reload()
                for worker in self._workers:
                    worker.configuration = configuration or worker.configuration
                    worker.hand_over()
            self._workers = [worker for worker in map(self._replace_if_dead, self._workers) if worker is not None]
        self._observe("server.stopped")

    def _replace_if_dead(self, worker: _Worker) -> _Worker | None:
        """The worker, or its replacement; None if it has ended for good."""
        if worker.process.is_alive():
            if time.monotonic() >= self._kill_at:
                worker.process.kill()
            return worker
        if self._signals:
            return None
        if time.monotonic() < worker.began + _RESTART_SECONDS:
            return worker  # to be replaced at a later tick
        self._observe("worker.died", pid=worker.process.pid, exit_code=worker.process.exitcode)
        worker.orders.close()
        return self._start_one()

    def _start_one(self) -> _Worker:
        ours, theirs = Pipe()
        worker = _Worker(self._start(theirs), ours, time.monotonic())
        theirs.close()
        return worker

    def _is_ready(self, worker: _Worker) -> bool:
        """Wait for a worker, and return whether it serves."""
        ends_at = time.monotonic() + _START_SECONDS
        while not self._signals and worker.process.is_alive() and time.monotonic() < ends_at:
            if worker.orders.poll(_TICK_SECONDS):
                with contextlib.suppress(EOFError):
                    worker.is_ready = worker.orders.recv_bytes() == READY
                    return worker.is_ready
        return False

    def _order(self, what: bytes) -> None:
        for worker in self._workers:
            with contextlib.suppress(OSError):  # the worker has ended by itself
                worker.orders.send_bytes(what)

    def _count_signal(self, _: int, __: object) -> None:
        self._signals += 1


@contextlib.contextmanager
def handling_stops(handler: Callable[[int, FrameType | None], None]) -> Generator[None, None, None]:
    """Handle SIGINT and SIGTERM within the `with` statement."""
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
