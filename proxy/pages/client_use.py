"""What one client has used, by day and model, and what is left of its budget."""

from collections.abc import Mapping, Sequence
from typing import Any

from proxy.api.calendar import period_of
from proxy.api.middleware.use import ANYONE, kinds_of
from proxy.config.model import BudgetConfig, Config
from proxy.loop.tally import Use
from proxy.ports import Budgets
from proxy.wire.chat import Json


def budgets_of(config: Config) -> Mapping[str, BudgetConfig | None]:
    """The budget of each client; without clients, all requests count as those of one, which has no budget."""
    return {client.name: client.budget for client in config.clients} or {ANYONE: None}


async def use_of_client(
    client: str, budget: BudgetConfig | None, budgets: Budgets, *, days: Sequence[str], now: float
) -> Json:
    """The use of a client in these days, and its budget at the time `now`, in seconds since 1970."""
    history = await budgets.history(client, days)
    used: Json = {"client": client, "budget": None, "days": []}
    for day, models in zip(days, history, strict=True):
        if models:
            used["days"].append({"day": day, "models": {model: _as_json(use) for model, use in sorted(models.items())}})
    if budget is not None:
        period = period_of(now, budget.per)
        kinds = {
            kind: {"limit": limit, "used": amount, "left": max(0, round(limit - amount, 9))}
            for kind, limit, amount in kinds_of(budget, await budgets.used(client, period.name))
        }
        used["budget"] = {"per": budget.per, "renewed_at": period.ends.isoformat(), **kinds}
    return used


def sum_of(uses: Sequence[Json]) -> Json:
    """The sum of uses, each as in `use_of_client`."""
    return {name: round(sum(use[name] for use in uses), 9) for name in (*Use.__struct_fields__, "tokens")}


def written(amount: Any) -> str:
    """A number for people."""
    return f"{amount:,}" if isinstance(amount, int) else f"{amount:,.6g}"


def _as_json(use: Use) -> Json:
    return {**{name: round(getattr(use, name), 9) for name in use.__struct_fields__}, "tokens": use.tokens}
