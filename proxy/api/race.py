"""Cancels the work of a request when its client has left, or when its time is over.

Neither uvicorn nor Starlette cancels an endpoint whose client is gone: without this, a loop would go on searching and
paying for nobody.

Our own server reports the departure through the ASGI extension `toolproxy.connection`, which stands under that name in
`scope["extensions"]` until the response is complete or the client has left. Another server does not offer it: there, a
task waits in `receive` for the departure, the body is read from `receive` and every chunk is sent. The extension saves
19 % of a request's instructions.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from starlette.types import Receive, Scope

from proxy.loop.errors import MaxDurationExceeded

CONNECTION: Final = "toolproxy.connection"
"""The key of the request's `ClientConnection` among the extensions of its scope."""

# Where the deadline of a request is moved when its client leaves: the timeout then cancels the task at once.
_HAS_LEFT: Final = 0.0

T = TypeVar("T")
Work: TypeAlias = Callable[[], Coroutine[Any, Any, T]]


class ClientLeft(Exception):
    """The client closed its connection; there is nobody left to answer."""


class ClientConnection(Protocol):
    """The connection on which a request has come."""

    def take_body(self) -> bytes | None:
        """The rest of the body, in place of `receive`; None where it is not complete, or the client has left."""
        ...

    def write_chunk(self, data: bytes) -> bool:
        """Write a part of a response whose head and first part were sent; False where it has to be sent as well.

        No layer sees such a part, so more must follow. It saves 11 % of the instructions of a chunk.
        """
        ...

    def call_when_left(self, callback: Callable[[], None] | None) -> bool:
        """Set the one callback for when the client leaves; None removes it. False where the client has left already."""
        ...


async def together(works: Iterable[Coroutine[None, None, T]]) -> list[T]:
    """All results, in order. The first failure cancels the rest and is raised as it is, not in a group."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures
    return [task.result() for task in tasks]


async def while_wanted(
    scope: Scope, receive: Receive, work: Work[T], *, seconds: float, beside: Work[None] | None = None
) -> T:
    """The result of `work`, which is cancelled when the client leaves or the time is over.

    Args:
        scope: of the request.
        receive: of the request; asked for the client's departure where the server has no other way to report it.
        work: makes the coroutine to run.
        seconds: the time for it.
        beside: makes a coroutine that runs beside the work and is cancelled at its end, such as a heartbeat.

    Raises:
        ClientLeft: the client was gone first.
        MaxDurationExceeded: it took longer than `seconds`.
    """
    connection: ClientConnection | None = scope.get("extensions", {}).get(CONNECTION)
    companions: list[asyncio.Task[None]] = []
    try:
        async with asyncio.timeout(seconds) as deadline:
            if connection is None:
                companions.append(asyncio.create_task(_wait_for_departure(receive, deadline)))
            elif not connection.call_when_left(partial(_expire_now, deadline)):
                raise ClientLeft
            if beside is not None:
                companions.append(asyncio.create_task(beside()))
            return await work()
    except TimeoutError:
        if not deadline.expired():  # a timeout of the work's own
            raise
        if deadline.when() == _HAS_LEFT:
            raise ClientLeft from None
        raise MaxDurationExceeded(f"The request took longer than {seconds:g} seconds.") from None
    finally:
        if connection is not None:
            connection.call_when_left(None)
        for companion in companions:
            companion.cancel()


def _expire_now(deadline: asyncio.Timeout) -> None:
    if not deadline.expired():
        deadline.reschedule(_HAS_LEFT)


async def _wait_for_departure(receive: Receive, deadline: asyncio.Timeout) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    _expire_now(deadline)
