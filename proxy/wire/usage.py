"""The counts of tokens in an upstream's `usage`: which are believed, and their sums."""

from typing import Any, Final

from proxy.wire.chat import Json

_NUMBER = (int, float)  # true and false are of neither type
MOST_TOKENS: Final = 2**53
"""The largest count of tokens that is believed, which is also the largest integer that every JSON parser reads."""


def token_count(usage: Any, name: str, detail: str | None = None) -> int | None:
    """A count of tokens in an upstream's `usage`; None: there is none that a model can have written.

    Args:
        usage: the upstream's counts.
        name: the name of the count, or of an object of details, such as `prompt_tokens_details`.
        detail: the name of a count in that object, such as `cached_tokens`.
    """
    count = usage.get(name) if isinstance(usage, dict) else None
    if detail is not None:
        count = count.get(detail) if isinstance(count, dict) else None
    if count is None or (type(count) is int and 0 <= count <= MOST_TOKENS):
        return count
    amount = credible_amount(count)
    return int(amount) if amount is not None and amount == int(amount) else None


def other_usage(answer: Json) -> Json | None:
    """The usage of a completion or chunk without `usage`, in its server's own place; None: there is none.

    Groq sends it in `x_groq`, Moonshot in the choice.
    """
    own = answer.get("x_groq")
    usage = own.get("usage") if isinstance(own, dict) else None
    if not usage and (choices := answer.get("choices")):
        usage = choices[0].get("usage")
    return usage if isinstance(usage, dict) and usage else None


def credible(usage: Json | None, *, with_details: bool = True) -> Json | None:
    """An upstream's usage without the numbers that cannot be true; None: nothing is left of it.

    A count of tokens is a whole number from 0 to 2^53, any other number from 0 to 2^53: sums of these stay numbers that
    every store and every client can read.
    """
    kept: Json = {}
    for name, value in (usage or {}).items():
        if type(value) is int and 0 <= value <= MOST_TOKENS:  # as most are, whatever they count
            kept[name] = value
        elif name.endswith("tokens"):
            if (count := token_count(usage, name)) is not None:
                kept[name] = count
        elif isinstance(value, dict) and with_details:
            kept[name] = credible(value, with_details=False) or {}  # details have no details
        elif type(value) not in _NUMBER or credible_amount(value) is not None:
            kept[name] = value
    return kept or None


def credible_amount(value: Any) -> float | None:
    """A number from 0 to 2^53, neither NaN nor true nor false."""
    return value if type(value) in _NUMBER and 0 <= value <= MOST_TOKENS else None


def add_usage(total: Json | None, usage: Json | None, *, with_details: bool = True) -> Json | None:
    """The sum of two counts, field by field, details included; None: the upstream sent no count."""
    if total is None or usage is None:
        return total or usage
    added = {**total}
    for name, count in usage.items():
        known = total.get(name)
        if known is None:
            added[name] = count
        elif type(known) in _NUMBER and type(count) in _NUMBER:
            added[name] = known + count
        elif with_details and isinstance(known, dict) and isinstance(count, dict):
            added[name] = add_usage(known, count, with_details=False)
    return added
