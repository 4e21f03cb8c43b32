"""Blocking work in daemon threads, which block neither the event loop nor the end of the process."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


class ThreadsBusy(Exception):
    """All threads are in use, perhaps by work whose caller was cancelled."""


class DaemonThreads:
    """Runs at most `most` functions at a time, each in a thread of its own.

    The event loop's own executor is not suitable: a hostile page or name server could fill it, it also resolves the
    names of upstreams, and the interpreter joins its threads at exit.
    """

    def __init__(self, name: str, *, most: int) -> None:
        self._name = name
        self._slots = asyncio.Semaphore(most)

    async def run(self, work: Callable[[], T], *, queue: bool = True) -> T:
        """Run `work` in a thread and return its result. If the call is cancelled, the work goes on, and keeps its slot.

        Args:
            work: a blocking function; it has the caller's context variables.
            queue: whether to wait while all slots are taken.

        Raises:
            ThreadsBusy: all slots are taken, and `queue` is false.
        """
        if not queue and self._slots.locked():
            raise ThreadsBusy
        await self._slots.acquire()
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()

        def settle(resolve: Callable[[Any], None], value: Any) -> None:
            self._slots.release()
            if not outcome.done():  # cancelled meanwhile
                resolve(value)

        def main() -> None:
            resolve: Callable[[Any], None] = outcome.set_result
            try:
                value: Any = context.run(work)
            except BaseException as exc:  # noqa: BLE001 - raised again where the call is awaited
                resolve, value = outcome.set_exception, exc
                if isinstance(exc, StopIteration):  # a future cannot carry it
                    value = RuntimeError("the work raised StopIteration")
                    value.__cause__ = exc
            with suppress(RuntimeError):  # the loop has been closed in the meantime
                loop.call_soon_threadsafe(settle, resolve, value)

        try:
            threading.Thread(target=main, name=self._name, daemon=True).start()
        except RuntimeError:  # the system has no more threads
            self._slots.release()
            raise
        return await outcome
