"""`toolproxy spend`: what each client has used today or this month, by model, and what is left of its budget."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from proxy.api.calendar import last_days, period_of
from proxy.config.model import Config, StateConfig
from proxy.kit.terminal import printable
from proxy.loop.tally import DAYS_KEPT
from proxy.pages.client_use import budgets_of, sum_of, use_of_client, written
from proxy.pages.debug.usage import AMOUNTS
from proxy.ports import Clock, NoObserver
from proxy.stores import State, open_state
from proxy.stores.sqlite.database import SCHEME, path_of
from proxy.tools.result_cache import local_caches
from proxy.wire.chat import Json
from proxy.wire.errors import ConfigurationError

_IN_MEMORY: Final = (
    "state.url: memory:// keeps what clients use in the process that serves them, and only until it stops, so no other "
    "process can read it: see /debug/usage there, or set state.url to sqlite:///PATH or redis://HOST"
)


async def spend_of(config: Config, clock: Clock, *, month: bool, client: str | None = None) -> Json:
    """The use of clients in the present day or month, in UTC, read from the state store.

    Without `client`, all clients are reported that are configured or have used something.

    Raises:
        ConfigurationError: the store cannot be read, or there is no such client.
    """
    state, now = _open(config.state, clock), clock.time()
    period = period_of(now, "month" if month else "day")
    days = [day for day in last_days(now, DAYS_KEPT) if day.startswith(period.name)]
    budget_of = budgets_of(config)
    clients: list[Json] = []
    async with state.running():
        why_not = state.readiness().why_not
        if why_not is None:
            names = dict.fromkeys([*budget_of, *await state.budgets.clients(days)])
            chosen = [name for name in names if client in (None, name)]
            used = [await use_of_client(one, budget_of.get(one), state.budgets, days=days, now=now) for one in chosen]
            clients = [_by_model(one) for one in used]
    if why_not is not None:
        raise ConfigurationError([f"state.url: {why_not}"])
    if not clients:
        raise ConfigurationError([f"there is no client {client!r}, and none has used anything in {period.name}"])
    return {"period": period.name, "ends_at": period.ends.isoformat(), "clients": clients}


def _open(config: StateConfig, clock: Clock) -> State:
    if not config.is_shared:
        raise ConfigurationError([_IN_MEMORY])
    if config.url.startswith(SCHEME) and not (path := path_of(config.url)).exists():
        there = "nothing has been counted there"
        if not path.is_absolute():
            there += (
                "; the path is relative to the working directory, so start this where `toolproxy serve` was started"
            )
        raise ConfigurationError([f"state.url: there is no file {path.absolute()}: {there}"])
    return open_state(config, clock=clock, observe=NoObserver(), caches=local_caches(clock), memory=0)


def _by_model(used: Json) -> Json:
    """The use of a client over its days together, by model."""
    models: dict[str, list[Json]] = {}
    for day in used["days"]:
        for model, use in day["models"].items():
            models.setdefault(model, []).append(use)
    summed = {model: sum_of(uses) for model, uses in sorted(models.items())}
    return {"client": used["client"], "models": summed, "total": sum_of([*summed.values()]), "budget": used["budget"]}


def report(spend: Json) -> Iterator[str]:
    """The lines of `toolproxy spend`: a table of clients and models, and one of budgets."""
    rows = [["client", "model", *AMOUNTS.values()]]
    for client in spend["clients"]:
        models = client["models"]
        rows += [[client["client"], model, *_amounts(use)] for model, use in models.items()]
        if len(models) != 1:
            rows.append([client["client"], "all models" if models else "nothing used", *_amounts(client["total"])])
    yield f"{spend['period']} (UTC)"
    yield from _table(rows, names=2)
    budgets = [["client", "budget", "used", "limit", "left", "renewed (UTC)"]]
    for client in spend["clients"]:
        budget = client["budget"] or {}
        for kind, held in budget.items():
            if isinstance(held, dict):
                amounts = [written(held[name]) for name in ("used", "limit", "left")]
                what = f"{kind.replace('_', ' ')} per {budget['per']}"
                budgets.append([client["client"], what, *amounts, budget["renewed_at"][:10]])
    if len(budgets) > 1:
        yield ""
        yield from _table(budgets, names=2)


def _amounts(use: Mapping[str, Any]) -> list[str]:
    return [written(use[name]) for name in AMOUNTS]


def _table(rows: Sequence[Sequence[str]], *, names: int) -> Iterator[str]:
    """Aligned columns: the first `names` of them to the left, numbers to the right."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if at < names else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
