"""The calls, tokens and cost of runs."""

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from proxy.loop.chat import Json, ToolSpec
from proxy.loop.results import ToolResult

_NUMBER = (int, float)
MOST_TOKENS: Final = 2**53
"""The largest count of tokens that is believed, which is also the largest integer that every JSON parser reads."""

_NO_TOKENS = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


class Tally(Struct):
    """The calls, tokens and cost of a run so far.

    Attributes:
        turns: the number of upstream calls.
        tool_calls: the tool's own name -> the number of its calls.
        total_tool_calls: the number of all tool calls.
        usage: the sum of the upstream's counts of tokens; None: it has sent none.
        web_searches: the number of calls of tools that search the web.
        failed_tool_calls: the number of tool calls that failed.
        tool_cost: the cost of the tool calls; None: none of them has a price.
        dropped: the tool's own name -> the number of its calls that were started early for a turn that came to nothing.
            They are used and paid for, but no limit of a request counts them.
    """

    turns: int = 0
    tool_calls: dict[str, int] = {}
    total_tool_calls: int = 0
    usage: Json | None = None
    web_searches: int = 0
    failed_tool_calls: int = 0
    tool_cost: float | None = None
    dropped: dict[str, int] = {}

    def calls_of(self, name: str) -> int:
        """The number of calls of a tool, by its own name, that count for the limits of the request."""
        return self.tool_calls.get(name, 0) - self.dropped.get(name, 0)

    @property
    def calls(self) -> int:
        """The number of all tool calls that count for the limits of the request."""
        return self.total_tool_calls - (sum(self.dropped.values()) if self.dropped else 0)

    @property
    def total_tokens(self) -> int:
        """The tokens of all turns; 0 while the upstream has sent no count."""
        return token_count(self.usage, "total_tokens") or 0

    @property
    def output_tokens(self) -> int:
        """The tokens that the model has written in all turns; 0 while the upstream has sent no count."""
        return token_count(self.usage, "completion_tokens") or 0

    @property
    def total_cost(self) -> float | None:
        """The cost of tools and models; None: no cost is known. Some upstreams, such as OpenRouter, send a cost."""
        sent = self.usage.get("cost") if self.usage else None
        models = None if sent is None else _amount(sent)
        if self.tool_cost is None and models is None:
            return None
        return round((self.tool_cost or 0) + (models or 0), 9)

    def count_call(self, tool: ToolSpec, *, dropped: bool = False) -> None:
        """Count a call of a tool; `dropped`: it was started early for a turn that came to nothing."""
        if dropped:
            self.dropped[tool.name] = self.dropped.get(tool.name, 0) + 1
        self.tool_calls[tool.name] = self.tool_calls.get(tool.name, 0) + 1
        self.total_tool_calls += 1
        self.web_searches += tool.searches

    def add_cost(self, result: ToolResult) -> None:
        """Add the cost of a call, if it has one."""
        if result.cost is not None:
            self.tool_cost = (self.tool_cost or 0) + result.cost

    def as_usage(self) -> Json:
        """OpenAI's `usage` with the additional field `server_tool_use`."""
        use = {"turns": self.turns, "tool_calls": self.total_tool_calls, "web_search_requests": self.web_searches}
        usage = {**_NO_TOKENS, **(self.usage or {}), "server_tool_use": {**self.tool_calls, **use}}
        if (cost := self.total_cost) is not None:
            usage["cost"] = cost
        return usage


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
    amount = _amount(count)
    return int(amount) if amount is not None and amount == int(amount) else None


def credible(usage: Json | None) -> Json | None:
    """An upstream's usage without the numbers that cannot be true; None: nothing is left of it.

    A count of tokens is a whole number from 0 to 2^53, any other number from 0 to 2^53: sums of these stay numbers that
    every store and every client can read.
    """
    if not usage:
        return None
    if _holds_counts_only(usage):  # as most usages do, which need not be copied then
        return usage
    kept = _credible_fields(usage)
    details = {name: _credible_fields(value) for name, value in kept.items() if isinstance(value, dict)}
    return {**kept, **details} or None


def _holds_counts_only(usage: Json) -> bool:
    """Whether all numbers of a usage, and of its details, are whole ones that may be counts."""
    values = [*usage.values()]
    for value in values:
        if type(value) is int:
            if not 0 <= value <= MOST_TOKENS:
                return False
        elif type(value) is dict:
            values += value.values()
        else:
            return False
    return True


def _credible_fields(fields: Json) -> Json:
    """The fields of a usage, or of one of its details, without the numbers that cannot be true."""
    kept: Json = {}
    for name, value in fields.items():
        if name.endswith("tokens"):
            if (count := token_count(fields, name)) is not None:
                kept[name] = count
        elif not isinstance(value, _NUMBER) or isinstance(value, bool) or _amount(value) is not None:
            kept[name] = value
    return kept


def _amount(value: Any) -> float | None:
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


def sum_of(tallies: Sequence[Tally]) -> Tally:
    """The sum of the tallies of several runs."""
    if len(tallies) == 1:
        return tallies[0]
    total = Tally()
    for tally in tallies:
        total.turns += tally.turns
        total.total_tool_calls += tally.total_tool_calls
        total.web_searches += tally.web_searches
        total.failed_tool_calls += tally.failed_tool_calls
        total.usage = add_usage(total.usage, tally.usage)
        if tally.tool_cost is not None:
            total.tool_cost = (total.tool_cost or 0) + tally.tool_cost
        for tool, number in tally.tool_calls.items():
            total.tool_calls[tool] = total.tool_calls.get(tool, 0) + number
    return total


class Use(Struct):
    """The use of one or more requests. `input_tokens` include `cached_tokens`."""

    requests: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    tool_calls: int = 0
    cost: float = 0.0

    @property
    def tokens(self) -> int:
        """All tokens, as budgets count them."""
        return self.input_tokens + self.output_tokens

    def add(self, other: "Use") -> None:
        """Add the tokens, calls and cost of another use to these; no sum exceeds 2^53, which every store can hold."""
        for name in self.__struct_fields__:
            setattr(self, name, min(getattr(self, name) + getattr(other, name), MOST_TOKENS))


DAYS_KEPT = 31
"""The number of days for which a client's use is kept by model."""
