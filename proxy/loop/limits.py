"""The limits of one client request: `limits:` of the configuration, as the loop and its driver apply them."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from msgspec import Meta, Struct
from msgspec.structs import asdict, replace

from proxy.loop.actions import Stop
from proxy.loop.tally import Tally
from proxy.wire.usage import token_count

Seconds: TypeAlias = Annotated[float, Meta(gt=0, le=10**9, extra_json_schema={"x-unit": "seconds"})]
Bytes: TypeAlias = Annotated[int, Meta(ge=1, extra_json_schema={"x-unit": "bytes"})]
Tokens: TypeAlias = Annotated[int, Meta(ge=1, extra_json_schema={"x-unit": "tokens"})]
Count: TypeAlias = Annotated[int, Meta(ge=1)]
CountOrZero: TypeAlias = Annotated[int, Meta(ge=0)]

LimitOverrides: TypeAlias = Mapping[str, Any]
"""The limits of one model or one client: name of the field in `LimitsConfig` -> value."""


class LimitsConfig(Struct, frozen=True, kw_only=True):
    """`limits:`, how far one request may go. A model's own limits override these, and a client's own override both."""

    max_turns: Count = 5  # Upstream calls, the final answer included. 2 permits one round of tools.
    max_tool_calls: CountOrZero = 8  # Calls of server tools, over all turns. 0: no server tool is offered.
    guidance: bool = True  # Tell the model its budget in the system message.
    deadline: Seconds = 240  # Seconds after which no tool starts and the model answers from what it has.
    max_duration: Seconds = 1200  # Seconds for the whole request. After that, it fails with 504.
    # Seconds for a call of a tool without its own timeout. Set for a model or client, it bounds every tool.
    tool_timeout: Seconds = 30
    max_parallel_tools: Count = 8  # Calls of one turn that run at the same time.
    max_result_bytes: Bytes = 65536  # Bytes of one tool result. A longer result is cut, with a note.
    max_total_result_bytes: Bytes = 524288  # Bytes of all tool results of one request together.
    max_total_tokens: Tokens | None = None  # Tokens over all turns, as the upstream counts them. None: no limit.

    def overlaid(self, *layers: LimitOverrides | None) -> "Limits":
        """The limits of a request: these limits, overridden by each layer in turn."""
        own = {name: value for layer in layers if layer for name, value in layer.items()}
        if "tool_timeout" in own:
            own["max_tool_timeout"] = own["tool_timeout"]
        return Limits(**(asdict(self) | own))


class Limits(LimitsConfig, frozen=True, kw_only=True):
    """The limits of one request, including limits that follow from the request and its client.

    Attributes:
        max_output_tokens: tokens that the model may write in all turns together; None: no limit.
        calls_stop: the reason to give when a run ends at `max_tool_calls`.
        max_tool_timeout: seconds for a call of any tool.
    """

    max_output_tokens: int | None = None
    calls_stop: Stop = Stop.MAX_TOOL_CALLS
    max_tool_timeout: float = math.inf

    def with_calls_at_most(self, most: int, stop: Stop = Stop.MAX_TOOL_CALLS) -> "Limits":
        """These limits with at most `most` tool calls; a run that reaches that number ends with the reason `stop`."""
        return self if most >= self.max_tool_calls else replace(self, max_tool_calls=most, calls_stop=stop)

    def spent(self, used: Tally, *, expired: bool) -> Stop | None:
        """The limit that permits no more rounds of tools, if one is reached. `expired`: the deadline has passed.

        The last permitted turn is reserved for the answer, because a run that ends in a tool call leaves the client
        with nothing.
        """
        if not expired and used.turns >= self.max_turns - 1:
            return Stop.MAX_TURNS
        if not expired and used.calls >= self.max_tool_calls:
            return self.calls_stop
        return self.exhausted(used, expired=expired)

    def exhausted(self, used: Tally, *, expired: bool) -> Stop | None:
        """The limit that permits no more calls, not even in the current turn, because time or tokens are used up."""
        if expired:
            return Stop.DEADLINE
        if self.max_total_tokens is None or (token_count(used.usage, "total_tokens") or 0) < self.max_total_tokens:
            return None
        return Stop.MAX_TOTAL_TOKENS

    def output_left(self, used: Tally) -> int | None:
        """How many tokens the model may still write; None: no limit."""
        if self.max_output_tokens is None:
            return None
        return max(0, self.max_output_tokens - (token_count(used.usage, "completion_tokens") or 0))

    @property
    def allow_tools(self) -> bool:
        """Whether a round of tools is possible at all."""
        return self.max_turns > 1 and self.max_tool_calls > 0
