"""The budget of one run, and the sentence in which a model is told of it."""

from msgspec import Struct

from proxy.loop.actions import Stop, Tally


class Limits(Struct, frozen=True, kw_only=True):
    """What one client request may use.

    max_turns           upstream calls, the final answer included: with 2, one round of tools and then an answer
    max_tool_calls      tool calls that are really run, over all turns
    max_total_tokens    over all turns, by the upstream's own count; None: no limit
    max_output_tokens   that the model writes, over all turns, by the same count; None: no limit but a turn's own
    guidance            tell the model its budget in the system message

    Time is not in here: the loop has no clock. Whoever drives a run tells it with `Run.expire` that its time is up.
    """

    max_turns: int = 5
    max_tool_calls: int = 8
    max_total_tokens: int | None = None
    max_output_tokens: int | None = None
    guidance: bool = True

    def spent(self, used: Tally) -> Stop | None:
        """The limit that permits no further round of tools, if one has been reached.

        The last permitted turn is kept for the answer: a run that ends in one more tool call leaves the client with
        nothing.
        """
        if used.turns >= self.max_turns - 1:
            return Stop.MAX_TURNS
        if used.total_tool_calls >= self.max_tool_calls:
            return Stop.MAX_TOOL_CALLS
        if self.max_total_tokens is not None and used.total_tokens >= self.max_total_tokens:
            return Stop.MAX_TOTAL_TOKENS
        return None

    def output_left(self, used: Tally) -> int | None:
        """How many tokens the model may still write; None: any number."""
        return None if self.max_output_tokens is None else max(0, self.max_output_tokens - used.output_tokens)

    @property
    def allow_tools(self) -> bool:
        """Whether there can be any round of tools at all."""
        return self.max_turns > 1 and self.max_tool_calls > 0
