"""The calls, tokens and cost of runs."""

from collections.abc import Sequence

from msgspec import Struct

from proxy.loop.results import ToolResult
from proxy.wire.chat import Json, ToolSpec
from proxy.wire.usage import MOST_TOKENS, add_usage, credible_amount

_NO_TOKENS = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


class Tally(Struct):
    """The calls, tokens and cost of a run so far.

    Attributes:
        turns: the number of upstream calls.
        tool_calls: the tool's own name -> the number of its calls.
        total_tool_calls: the number of all tool calls.
        usage: the sum of the upstream's token counts; None if the upstream has sent none.
        web_searches: the number of calls of tools that search the web.
        failed_tool_calls: the number of tool calls that failed.
        tool_cost: the cost of the tool calls; None if no call has a price.
        dropped: the tool's own name -> the number of its calls that were started early for a turn that was dropped.
            These calls count as use and have a cost, but do not count for the limits of the request.
        calls: the number of all tool calls that count for the limits of the request.
    """

    turns: int = 0
    tool_calls: dict[str, int] = {}
    total_tool_calls: int = 0
    usage: Json | None = None
    web_searches: int = 0
    failed_tool_calls: int = 0
    tool_cost: float | None = None
    dropped: dict[str, int] = {}
    calls: int = 0

    def calls_of(self, name: str) -> int:
        """The number of calls of a tool, by its own name, that count for the limits of the request."""
        return self.tool_calls.get(name, 0) - self.dropped.get(name, 0)

    @property
    def total_cost(self) -> float | None:
        """The cost of tools and models; None if no cost is known. Some upstreams, such as OpenRouter, send a cost."""
        sent = self.usage.get("cost") if self.usage else None
        models = None if sent is None else credible_amount(sent)
        if self.tool_cost is None and models is None:
            return None
        return round((self.tool_cost or 0) + (models or 0), 9)

    def count_call(self, tool: ToolSpec, times: int = 1, *, dropped: bool = False) -> None:
        """Count a call of a tool.

        Args:
            tool: the tool.
            times: how often the call counts: once, or once per query of a search.
            dropped: whether the call was started early for a turn that was dropped.
        """
        if dropped:
            self.dropped[tool.name] = self.dropped.get(tool.name, 0) + times
        else:
            self.calls += times
        self.tool_calls[tool.name] = self.tool_calls.get(tool.name, 0) + times
        self.total_tool_calls += times
        self.web_searches += times * tool.searches

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


def sum_of(tallies: Sequence[Tally]) -> Tally:
    """The sum of the tallies of several runs."""
    if len(tallies) == 1:
        return tallies[0]
    total = Tally()
    for tally in tallies:
        for name in ("turns", "calls", "total_tool_calls", "web_searches", "failed_tool_calls"):
            setattr(total, name, getattr(total, name) + getattr(tally, name))
        total.usage = add_usage(total.usage, tally.usage)
        if tally.tool_cost is not None:
            total.tool_cost = (total.tool_cost or 0) + tally.tool_cost
        for tool, number in tally.tool_calls.items():
            total.tool_calls[tool] = total.tool_calls.get(tool, 0) + number
    return total


class Use(Struct):
    """The use by one or more requests. `input_tokens` include `cached_tokens`."""

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
        """Add the tokens, calls and cost of another use. No sum exceeds 2^53, which every store can hold."""
        for name in self.__struct_fields__:
            setattr(self, name, min(getattr(self, name) + getattr(other, name), MOST_TOKENS))


class Rate(Struct, frozen=True):
    """The requests of a client in the last 60 seconds, after one more request.

    Attributes:
        allowed: whether the one more request is within the limit and counted.
        count: the number of requests, each counted from the beginning of its second.
        reset: seconds until the oldest request no longer counts, so that one more is allowed.
    """

    allowed: bool
    count: int
    reset: float


DAYS_KEPT = 31
"""The number of days for which a client's use is kept by model."""
