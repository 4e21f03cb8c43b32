"""Stops the work of a request when its client has left.

Neither uvicorn nor Starlette cancels an endpoint whose client is gone: without this, a loop would go on searching and
paying for nobody.
"""

import asyncio
from collections.abc import Awaitable, Coroutine, Iterable
from typing import TypeVar

from starlette.types import Receive

T = TypeVar("T")


class ClientLeft(Exception):
    """The client closed its connection; there is nobody left to answer."""


async def together(works: Iterable[Coroutine[None, None, T]]) -> list[T]:
    """All results, in order. The first failure cancels the rest and is raised as it is, not in a group."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures
    return [task.result() for task in tasks]


async def until_disconnect(
    receive: Receive, work: Awaitable[T], *, beside: Coroutine[None, None, None] | None = None
) -> T:
    """The result of `work`, which is cancelled when the client leaves. `beside` runs along and is cancelled at the end.

    Raises:
        ClientLeft: the client was gone first.
        Exception: whatever `work` raised, as it is, not in a group.
    """
    worker = asyncio.current_task()
    assert worker is not None  # noqa: S101 - this is a coroutine
    left = False

    async def watch() -> None:
        nonlocal left
        while (await receive())["type"] != "http.disconnect":
            pass
        left = True
        worker.cancel()

    outcome: T | Exception
    try:
        async with asyncio.TaskGroup() as group:
            companions = [group.create_task(side) for side in (watch(), beside) if side is not None]
            try:
                outcome = await work
            except Exception as exc:  # noqa: BLE001 - raised again below, outside of the group
                outcome = exc
            for companion in companions:
                companion.cancel()
        if left:  # it left in the very moment in which the work was done: take the cancellation that is on its way
            await asyncio.sleep(0)
    except asyncio.CancelledError:
        if left and worker.uncancel() == 0:
            raise ClientLeft from None
        raise
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
