"""The cost of an answer, by the prices of its model."""

from proxy.config.model import PriceConfig
from proxy.wire.chat import Json
from proxy.wire.usage import token_count

_MILLION = 1_000_000


def with_cost(usage: Json, price: PriceConfig | None) -> Json:
    """An upstream's usage with its cost, in place of any `cost` that the upstream sent; without a price, as it is."""
    if price is None:
        return usage
    read, wrote = token_count(usage, "prompt_tokens") or 0, token_count(usage, "completion_tokens") or 0
    cached = min(read, token_count(usage, "prompt_tokens_details", "cached_tokens") or 0)
    cached_price = price.input if price.cached is None else price.cached
    cost = (read - cached) * price.input + cached * cached_price + wrote * price.output
    return {**usage, "cost": round(cost / _MILLION, 9)}
