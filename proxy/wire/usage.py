"""The counts of tokens in an upstream's `usage`: which are believed, and their sums."""

from typing import Any, Final

from proxy.wire.chat import Json

_NUMBER = (int, float)
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


def credible(usage: Json | None) -> Json | None:
    """An upstream's usage without the numbers that cannot be true; None: nothing is left of it.

    A count of tokens is a whole number from 0 to 2^53, any other number from 0 to 2^53: sums of these stay numbers that
    every store and every client can read.
    """
    if not usage:
        return None
    kept = _credible_fields(usage)
    for name, value in kept.items():
        if isinstance(value, dict):
            kept[name] = _credible_fields(value)
    return kept or None


def _credible_fields(fields: Json) -> Json:
    """The fields of a usage, or of one of its details, without the numbers that cannot be true."""
    kept: Json = {}
    for name, value in fields.items():
        if type(value) is int and 0 <= value <= MOST_TOKENS:  # as most are, whatever they count
            kept[name] = value
        elif name.endswith("tokens"):
            if (count := token_count(fields, name)) is not None:
                kept[name] = count
        elif not isinstance(value, _NUMBER) or isinstance(value, bool) or credible_amount(value) is not None:
            kept[name] = value
    return kept


def credible_amount(value: Any) -> float | None:
    """A number from 0 to 2^53, neither NaN nor true nor false."""
    is_number = isinstance(value, _NUMBER) and not isinstance(value, bool)
    return value if is_number and 0 <= value <= MOST_TOKENS else None


def add_usage(total: Json | None, usage: Json | None, *, with_details: bool = True) -> Json | None:
    """The sum of two counts, field by field, details included; None: the upstream sent no count."""
    if total is None or usage is None:
        return total or usage
    added = {**total}
    for name, count in usage.items():
        known = total.get(name)
        if known is None:
            added[name] = count
        elif type(known) in _NUMBER and type(count) in _NUMBER:  # true and false are of neither type
            added[name] = known + count
        elif with_details and isinstance(known, dict) and isinstance(count, dict):
            added[name] = add_usage(known, count, with_details=False)  # details have no details
    return added
