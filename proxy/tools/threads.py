"""Blocking work in threads that nothing waits for: neither shutdown nor the work of others."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


class DaemonThreads:
    """At most `most` pieces of work at a time, each in a thread of its own; the rest wait their turn.

    The event loop's own executor would not do: a hostile page or name server could fill it, upstreams' names are
    resolved there, and the interpreter waits for its threads before it ends.
    """

    def __init__(self, name: str, *, most: int) -> None:
        self._name = name
        self._slots = asyncio.Semaphore(most)

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises. Whoever is cancelled leaves it behind, in its slot until it ends."""
        await self._slots.acquire()
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: Exception | None) -> None:
            self._slots.release()
            if outcome.done():
                return
            if error is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(result)  # type: ignore[arg-type]  # a T, where there is no error

        def main() -> None:
            result, error = None, None
            try:
                result = work()
            except Exception as exc:  # noqa: BLE001 - whatever it is, the caller gets it
                error = exc
            with suppress(RuntimeError):  # the loop has been closed meanwhile
                loop.call_soon_threadsafe(settle, result, error)

        try:
            threading.Thread(target=main, name=self._name, daemon=True).start()
        except RuntimeError:  # the system gives no more threads
            self._slots.release()
            raise
        return await outcome
