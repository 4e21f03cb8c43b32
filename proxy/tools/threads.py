"""Blocking work in daemon threads, which hold neither the event loop nor the end of the process."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


class ThreadsBusy(Exception):
    """Every thread is taken, some perhaps by work that its caller has given up."""


class DaemonThreads:
    """At most `most` pieces of work at a time, each in a thread of its own.

    The event loop's own executor would not do: a hostile page or name server could fill it, upstreams' names are
    resolved there, and the interpreter joins its threads before it ends.
    """

    def __init__(self, name: str, *, most: int) -> None:
        self._name = name
        self._slots = asyncio.Semaphore(most)

    async def run(self, work: Callable[[], T], *, queue: bool = True) -> T:
        """Run `work` in a thread and return its result. A cancelled call leaves the work behind, in its slot.

        Args:
            work: blocking; it sees the caller's context variables.
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
            except BaseException as exc:  # noqa: BLE001 - it is raised where the call is awaited
                resolve, value = outcome.set_exception, exc
                if isinstance(exc, StopIteration):  # a future cannot carry it
                    value = RuntimeError("the work raised StopIteration")
                    value.__cause__ = exc
            with suppress(RuntimeError):  # the loop has been closed meanwhile
                loop.call_soon_threadsafe(settle, resolve, value)

        try:
            threading.Thread(target=main, name=self._name, daemon=True).start()
        except RuntimeError:  # the system gives no more threads
            self._slots.release()
            raise
        return await outcome
