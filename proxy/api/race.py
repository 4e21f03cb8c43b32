"""Stops the work of a request when its client has left, or when its time is over.

Neither uvicorn nor Starlette cancels an endpoint whose client is gone: without this, a loop would go on searching and
paying for nobody.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, TypeAlias, TypeVar

from starlette.types import Receive, Scope

from proxy.api.peer import peer_of
from proxy.loop.errors import MaxDurationExceeded

T = TypeVar("T")
Work: TypeAlias = Callable[[], Coroutine[Any, Any, T]]


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


async def alongside(beside: Work[None], work: Work[T]) -> T:
    """The result of `work`, or its exception as it is; `beside` runs along and is cancelled at the end."""
    outcome: T | Exception
    async with asyncio.TaskGroup() as group:
        companion = group.create_task(beside())
        try:
            outcome = await work()
        except Exception as exc:  # noqa: BLE001 - raised again below, outside of the group
            outcome = exc
        companion.cancel()
    if isinstance(outcome, Exception):
        try:
            raise outcome
        finally:
            del outcome  # its traceback leads back to this frame
    return outcome


async def while_wanted(scope: Scope, receive: Receive, work: Work[T], *, seconds: float) -> T:
    """The result of `work`, which is cancelled when the client leaves or the time is over.

    Raises:
        ClientLeft: the client was gone first.
        MaxDurationExceeded: it took longer than `seconds`.
    """
    peer = peer_of(scope)
    loop = asyncio.get_running_loop() if peer is None else peer.loop
    stopper = _Stopper(loop)
    if peer is None:  # a server that does not tell when a client leaves has to be asked all the time
        work = partial(alongside, partial(_until_left, receive, stopper), work)
    elif not peer.call_when_left(stopper.client_left):
        raise ClientLeft
    timer = loop.call_later(seconds, stopper.stop, MaxDurationExceeded)
    try:
        return await work()
    except asyncio.CancelledError:
        if stopper.why is not None and stopper.task.uncancel() == 0:
            if stopper.why is ClientLeft:
                raise ClientLeft from None
            raise MaxDurationExceeded(f"The request took longer than {seconds:g} seconds.") from None
        raise
    finally:
        timer.cancel()
        if peer is not None:
            peer.call_when_left(None)


class _Stopper:
    """Cancels the task that made it, once, and remembers why."""

    __slots__ = ("task", "why")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        task = asyncio.current_task(loop)
        assert task is not None  # noqa: S101 - this is called in a coroutine
        self.task = task
        self.why: type[Exception] | None = None

    def stop(self, why: type[Exception]) -> None:
        if self.why is None:
            self.why = why
            self.task.cancel()

    def client_left(self) -> None:
        self.stop(ClientLeft)


async def _until_left(receive: Receive, stopper: _Stopper) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    stopper.client_left()
