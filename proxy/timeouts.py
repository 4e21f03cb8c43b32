"""Coroutines that mostly have nothing to wait for: a timer, or a task, is for the others."""

import asyncio
from collections.abc import Coroutine, Generator
from types import coroutine as awaitable_generator
from typing import Any, TypeVar

T = TypeVar("T")


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is given so much time from when it first has to wait.

    Raises:
        TimeoutError: it took longer.
    """
    try:
        waiting = work.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    async with asyncio.timeout(seconds):
        return await continued(work, waiting)


@awaitable_generator
def continued(work: Coroutine[Any, Any, T], waiting: Any) -> Generator[Any, Any, T]:
    """The rest of a coroutine that was begun by hand, and is now `waiting` for something."""
    try:
        while True:
            try:
                sent = yield waiting
            except GeneratorExit:
                work.close()
                raise
            except BaseException as exc:  # noqa: BLE001 - it is the coroutine's
                waiting = work.throw(exc)
            else:
                waiting = work.send(sent)
    except StopIteration as stop:
        result: T = stop.value
        return result
