"""What clients use: counted when a request ends, by client and model, and compared with budgets when one begins.

The layer is there where use is counted (`Config.counts_use`). Requests that can use nothing pass it by.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import partial
from typing import Any

from msgspec import Struct
from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.api.access import BUDGET_REFUSAL, CALLER, TOOL_CALLS_LEFT, Caller
from proxy.api.calendar import Period, day_of, period_of
from proxy.api.ports import Ports
from proxy.api.response import RESPONSE, OutgoingResponse
from proxy.config.model import BudgetConfig
from proxy.kit import request_context
from proxy.kit.counted import counted
from proxy.loop.tally import Use
from proxy.paths import MCP_PATH, OPEN_PATHS, UNCOUNTED_PATHS
from proxy.ports import Observer
from proxy.wire.errors import BudgetExceeded

ANYONE = "anyone"
"""The client whose use is counted where none are configured."""
OTHER = "other"
"""The model under which all those count that only a pattern of the configuration serves: clients choose their names."""
NO_MODEL = "none"
"""The model under which calls of tools count that a client makes itself; metrics call it so too."""

_FREE_PATHS = UNCOUNTED_PATHS | OPEN_PATHS
_FREE_METHODS = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})


class UseMeter:
    """Counts what each client uses, and refuses a request of one whose budget is used up.

    A request that begins within the budget is finished, so open requests may exceed a budget that is used up meanwhile.
    Only tool calls end with the budget, at the number that was left when the request began.
    """

    def __init__(self, app: ASGIApp, *, ports: Ports) -> None:
        self._app = app
        self._ports = ports
        self._budget_of = {client.name: client.budget for client in ports.config.clients if client.budget}
        self._models = frozenset(name for name in ports.config.models if "*" not in name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["method"] not in _FREE_METHODS and scope["path"] not in _FREE_PATHS:
            await self._begin(scope)
        await self._app(scope, receive, send)

    async def _begin(self, scope: Scope) -> None:
        """Compare the use of the client with its budget, and have the request booked. Raises `BudgetExceeded`."""
        caller: Caller = scope[CALLER]
        client = caller.name or ANYONE
        if (budget := self._budget_of.get(client)) is not None:
            try:
                used = await self._require_left(client, budget)
            except BudgetExceeded as refusal:
                if scope["path"] != MCP_PATH:
                    raise
                scope[BUDGET_REFUSAL] = refusal
            else:
                if budget.tool_calls is not None:
                    scope[TOOL_CALLS_LEFT] = budget.tool_calls - used.tool_calls
        response: OutgoingResponse = scope[RESPONSE]
        book = partial(self._book, client, has_budget=budget is not None)
        response.before_end.append(_Booking(book, self._ports.observe).settle)

    async def _require_left(self, client: str, budget: BudgetConfig) -> Use:
        """The use of a client in the period of its budget. Raises `BudgetExceeded` if the budget is used up."""
        period = period_of(self._ports.clock.time(), budget.per)
        used = await self._ports.budgets.used(client, period.name)
        kinds = {kind: (limit, amount) for kind, limit, amount in kinds_of(budget, used)}
        self._ports.observe("budget.checked", client=client, kinds=kinds)
        for kind, (limit, amount) in kinds.items():
            if amount >= limit:
                what = f"{limit:g} (cost)" if kind == "cost" else counted(limit, _NOUNS[kind])
                raise _refusal(f"{what} per {budget.per}", period)
        return used

    def _book(self, client: str, *, has_budget: bool) -> Coroutine[Any, Any, None] | None:
        """Count the use of this context's request, if it has used a model or a tool.

        For a client with a budget, the coroutine ends when the use is counted.
        """
        fields: Mapping[str, Any] = request_context.fields.get({})
        model = fields.get("model")
        if model is None and not fields.get("tool_calls"):
            return None
        names = ("prompt_tokens", "cached_tokens", "completion_tokens", "tool_calls", "cost")
        read, cached, wrote, calls, cost = (max(0, fields.get(name) or 0) for name in names)
        use = Use(1, read, min(read, cached), wrote, calls, float(cost))
        name = NO_MODEL if model is None else model if model in self._models else OTHER
        day = day_of(self._ports.clock.time())
        if has_budget:
            return self._ports.budgets.book(client, name, day, use)
        self._ports.budgets.book_later(client, name, day, use)
        return None


_NOUNS: Mapping[str, str] = {"tokens": "token", "tool_calls": "tool call"}


def kinds_of(budget: BudgetConfig, used: Use) -> Iterator[tuple[str, float, float]]:
    """The kinds of use that a budget limits: name, limit, and how much is used."""
    amounts = (("tokens", used.tokens), ("tool_calls", used.tool_calls), ("cost", round(used.cost, 9)))
    for kind, amount in amounts:
        if (limit := getattr(budget, kind)) is not None:
            yield kind, limit, amount


def _refusal(what: str, period: Period) -> BudgetExceeded:
    renewal = f"{period.ends:%Y-%m-%d} at {period.ends:%H:%M} UTC"
    return BudgetExceeded(
        f"The budget of this key, {what}, is used up. It is renewed on {renewal}.",
        retry_after=period.seconds_left,
        headers={"x-should-retry": "false"},
    )


class _Booking(Struct, eq=False):
    """The booking of one request, before the last byte of its response, or at its end without one.

    So a client that waits for its response before it asks again is refused as soon as its budget is used up.

    Attributes:
        book: books; if it returns a coroutine, the booking ends with that.
        observe: notes a fault of the count, which fails no answer.
        task: the coroutine's task, once it has begun.
    """

    book: Callable[[], Coroutine[Any, Any, None] | None]
    observe: Observer
    task: asyncio.Task[None] | None = None

    async def settle(self) -> None:
        """Book, unless that has begun; a request that is cancelled meanwhile is booked all the same."""
        try:
            if self.task is None and (booking := self.book()) is not None:
                self.task = asyncio.create_task(booking)  # noqa: TID251 - awaited here, and at the request's end
            if self.task is not None:
                await asyncio.shield(self.task)
        except Exception:  # noqa: BLE001 - the answer is complete, and a use that could not be counted costs it nothing
            self.observe("use.not_counted", exc_info=True)
