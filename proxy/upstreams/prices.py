"""What an answer costs, by the prices of the model that gave it."""

from typing import Any

from proxy.config import PriceConfig
from proxy.loop.chat import Json

_MILLION = 1_000_000


def with_cost(usage: Json, price: PriceConfig) -> Json:
    """An upstream's count of tokens with what they cost beside it, in place of a `cost` of the upstream's own."""
    details = usage.get("prompt_tokens_details")
    read, wrote = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    cached = min(read, _count(details, "cached_tokens")) if isinstance(details, dict) else 0
    cached_price = price.input if price.cached is None else price.cached
    cost = (read - cached) * price.input + cached * cached_price + wrote * price.output
    return {**usage, "cost": round(cost / _MILLION, 9)}


def _count(counts: Json, name: str) -> int:
    count: Any = counts.get(name)
    return max(0, count) if isinstance(count, int) else 0
