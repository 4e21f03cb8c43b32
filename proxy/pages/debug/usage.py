"""`GET /debug/usage`: how much of their budgets clients have used, and the use of each by day and model."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from starlette.types import Receive, Scope, Send

from proxy.api.calendar import last_days
from proxy.api.ports import Ports
from proxy.loop.tally import DAYS_KEPT
from proxy.pages.chat import serves_chat
from proxy.pages.client_use import budgets_of, use_of_client, written
from proxy.pages.debug.endpoint import may_read, respond
from proxy.pages.debug.frame import page
from proxy.pages.html import Html, tag
from proxy.wire.chat import Json
from proxy.wire.errors import AdminOnly

_COLUMNS = ("day", "model")
AMOUNTS = {
    "requests": "requests",
    "input_tokens": "input",
    "cached_tokens": "cached",
    "output_tokens": "output",
    "tool_calls": "tool calls",
    "cost": "cost",
}
_OFF = "Use is counted if state.url names a file or Redis, a client has a budget, or a model or tool has a price."


class UsageEndpoint:
    """The page as HTML, or as JSON if the client asks for it."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._budget_of = budgets_of(ports.config)

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if not may_read(scope, self._ports):
            raise AdminOnly
        now, budgets = self._ports.clock.time(), self._ports.budgets
        days = last_days(now, DAYS_KEPT)
        clients = [
            await use_of_client(name, budget, budgets, days=days, now=now) for name, budget in self._budget_of.items()
        ]
        use = {"counted": self._ports.config.counts_use, "clients": clients}
        await respond(scope, send, use, lambda: _page(use, has_chat=serves_chat(scope, self._ports)))


def _page(use: Json, *, has_chat: bool) -> Html:
    """The page for `use`, which is the page as JSON."""
    clients = [part for client in use["clients"] for part in _client(client)]
    off = None if use["counted"] else tag("p", _OFF, class_="empty")
    title = "Usage by client"
    return page(title, tag("h1", title), off, *clients, current="/debug/usage", has_chat=has_chat)


def _client(client: Json) -> Iterator[Html]:
    yield tag("h2", client["client"])
    if (budget := client["budget"]) is not None:
        ends = datetime.fromisoformat(budget["renewed_at"])
        yield tag("p", f"Budget per {budget['per']}, renewed on {ends:%Y-%m-%d at %H:%M} UTC", class_="quiet")
        rows = [_budget_row(kind, held) for kind, held in budget.items() if isinstance(held, dict)]
        yield _table(_head(("budget",), ("used", "limit"), "share"), rows)
    if client["days"]:
        yield _table(_head(_COLUMNS, (*AMOUNTS.values(),), "tokens"), list(_day_rows(client["days"])))
    else:
        yield tag("p", "Nothing used yet.", class_="quiet")


def _table(head: Html, rows: list[Html]) -> Html:
    return tag("table", head, tag("tbody", *rows), class_="use")


def _head(names: tuple[str, ...], amounts: tuple[str, ...], bar: str) -> Html:
    words = [tag("th", name, scope="col") for name in names]
    numbers = [tag("th", name, scope="col", class_="n") for name in amounts]
    return tag("thead", tag("tr", *words, *numbers, tag("th", bar, scope="col", class_="bar")))


def _budget_row(kind: str, held: Json) -> Html:
    used, limit = held["used"], held["limit"]
    is_used_up = used >= limit
    return tag(
        "tr",
        tag("td", kind.replace("_", " ")),
        _amount(used, "used", class_="n bad" if is_used_up else "n"),
        _amount(limit, "limit"),
        _bar(used, limit, class_="failed" if is_used_up else "turn"),
    )


def _day_rows(days: list[Json]) -> Iterator[Html]:
    """A row for each day and model, with a bar for its tokens."""
    uses = [(day["day"], model, use) for day in days for model, use in day["models"].items()]
    most = max(use["tokens"] for _, _, use in uses)
    for day, model, use in uses:
        amounts = [_amount(use[field], name) for field, name in AMOUNTS.items()]
        yield tag("tr", tag("td", day, class_="day"), tag("td", model), *amounts, _bar(use["tokens"], most))


def _amount(amount: Any, name: str, *, class_: str = "n") -> Html:
    """A number with its name, which is shown on narrow screens only, because columns have no heads there."""
    return tag("td", tag("span", f"{name} ", class_="unit quiet"), written(amount), class_=class_)


def _bar(amount: float, most: float, *, class_: str = "turn") -> Html:
    share = 100 * min(amount / most, 1) if most else 0
    rect = tag("rect", width=f"{share:.4g}%", height="100%", class_=class_)
    return tag("td", tag("svg", rect, role="img", aria_label=f"{share:.0f} %"), class_="bar")
