"""The actions that a `Run` asks for: a closed union, for `match`."""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import TypeAlias, final

from msgspec import Struct
from msgspec.structs import replace

from proxy.loop.chat import Json, ToolCall, ToolSpec, Turn, text_of
from proxy.loop.citations import Cite
from proxy.loop.continuation import Continuation
from proxy.loop.forcing import AnswerStep, AnswerSteps, Forcing
from proxy.loop.results import ToolResult

_ASKING = frozenset({"system", "developer", "user"})  # the roles whose messages may ask for JSON
_NO_TOKENS = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


class Stop(StrEnum):
    """The reason for which a run ended; the value of the header `x-tool-stop`."""

    ANSWER = "answer"
    CLIENT_TOOL_CALLS = "client_tool_calls"
    MAX_TURNS = "max_turns"
    MAX_TOOL_CALLS = "max_tool_calls"
    BUDGET = "budget"  # of the client
    MAX_TOTAL_TOKENS = "max_total_tokens"
    DEADLINE = "deadline"
    REPEATED_CALL = "repeated_call"


class Buffering(StrEnum):
    """How much of a turn is buffered instead of streamed to the client."""

    NONE = "none"
    START = "start"  # until the turn is long enough to be the answer
    ALL = "all"  # until the turn has ended: only the final JSON may be shown


@final
class CallUpstream(Struct, frozen=True):
    """Make one upstream call and hand its turn to `Run.receive_turn`.

    Attributes:
        body: the Chat Completions request; its `model` is still the client's.
        number: which turn this is, from 1.
        client_tools: the names of the functions that are the client's own; only calls of these may be shown.
        client_messages: the messages of the client's request.
        run_id: what the ids of the client's calls are made of.
        separator: what sets this turn's text apart from text that the client has already seen; None: it has seen none.
        first_detail: the index in the client's stream of the first entry of this turn's `reasoning_details`.
        forcing: the attempt at making the model answer, where the turn has to be the answer; None: it need not be.
        step: how the model is made to answer; set by `for_upstream`.
        buffering: how much of the turn is buffered instead of streamed to the client.
        tools: every name that may be called -> its JSON Schema, also while the tools are withdrawn: calls of them that
            leaked into text are recognised by it.
        renamed: names in the upstream's request that stand for others -> those names in `tools`.
        cite: the page that a mark of gpt-oss's means, so that marks in the text become citations; None: they stay.
    """

    body: Json
    number: int
    client_tools: frozenset[str] = frozenset()
    client_messages: Sequence[Json] = ()
    run_id: str = ""
    separator: str | None = None
    first_detail: int = 0
    forcing: Forcing | None = None
    step: AnswerStep | None = None
    buffering: Buffering = Buffering.NONE
    tools: Mapping[str, Json] = MappingProxyType({})
    renamed: Mapping[str, str] = MappingProxyType({})
    cite: Cite | None = None

    def step_among(self, steps: AnswerSteps) -> AnswerStep | None:
        """The step of this call at an upstream with these `steps`; None: the turn need not be the answer."""
        return None if self.forcing is None else self.forcing.step_among(steps)

    def for_upstream(self, steps: AnswerSteps) -> "CallUpstream":
        """The call as an upstream with these `steps` makes it."""
        if self.forcing is None:
            return self
        step = self.forcing.step_among(steps)
        return replace(self, step=step, body=self.forcing.shaped(self.body, step))

    def expects_json(self) -> bool:
        """Whether the client asks for JSON, so that a JSON object is an answer."""
        return expects_json(self.body, self.client_messages)


def expects_json(request: Json, messages: Iterable[Json]) -> bool:
    """Whether a client asks for JSON, by its `response_format` or in words.

    This searches the whole conversation, for the rare text that is one JSON object. OpenAI's own JSON mode demands that
    messages mention JSON.
    """
    return demands_json(request) or any(
        message.get("role") in _ASKING and "json" in text_of(message).lower() for message in messages
    )


def demands_json(request: Json) -> bool:
    """Whether a request's `response_format` permits nothing but JSON."""
    response_format = request.get("response_format")
    return isinstance(response_format, dict) and response_format.get("type") in ("json_object", "json_schema")


@final
class CallTools(Struct, frozen=True):
    """Run these calls at the same time and hand their results, in this order, to `Run.receive_results`.

    The calls carry the tools' own names, whatever alias the model used.
    """

    calls: tuple[ToolCall, ...]
    turn: int


class AnsweredCall(Struct, frozen=True):
    """A call of a turn that the server has answered, whether it was run or not.

    Attributes:
        call: as the model wrote it; under its tool's own name and in the tool's own terms if it was run.
        tool: the tool's own name; empty: there is no such tool.
        was_run: whether it was run.
        result: the answer to it.
        content: all that the model reads of it, notes on the budget included.
    """

    call: ToolCall
    tool: str
    was_run: bool
    result: ToolResult
    content: str


class Tally(Struct):
    """What a run has used.

    Attributes:
        turns: upstream calls.
        tool_calls: tool calls by the tool's own name.
        total_tool_calls: all of them.
        usage: the upstream's counts of tokens, summed; None: it has sent none.
        web_searches: calls of tools that search the web.
        failed_tool_calls: calls that failed.
        cost: of the tool calls; None: none of them has a price.
    """

    turns: int = 0
    tool_calls: dict[str, int] = {}
    total_tool_calls: int = 0
    usage: Json | None = None
    web_searches: int = 0
    failed_tool_calls: int = 0
    cost: float | None = None

    @property
    def total_tokens(self) -> int:
        """Tokens of all turns; 0 while the upstream has sent no count."""
        return self._count("total_tokens")

    @property
    def output_tokens(self) -> int:
        """Tokens that the model has written in all turns; 0 while the upstream has sent no count."""
        return self._count("completion_tokens")

    @property
    def total_cost(self) -> float | None:
        """The cost of tools and models together; None: neither has one. Some upstreams, as OpenRouter, send it."""
        own = (self.usage or {}).get("cost")
        own = own if isinstance(own, (int, float)) else None
        return None if self.cost is own is None else round((self.cost or 0) + (own or 0), 9)

    def count_call(self, tool: ToolSpec) -> None:
        """Count a call of a tool."""
        self.tool_calls[tool.name] = self.tool_calls.get(tool.name, 0) + 1
        self.total_tool_calls += 1
        self.web_searches += tool.searches

    def add_cost(self, result: ToolResult) -> None:
        """Add the cost of a call, if it has one."""
        if result.cost is not None:
            self.cost = (self.cost or 0) + result.cost

    def _count(self, name: str) -> int:
        count = (self.usage or {}).get(name)
        return int(count) if isinstance(count, (int, float)) else 0

    def as_usage(self) -> Json:
        """OpenAI's `usage`, with `server_tool_use` beside it."""
        use = {"turns": self.turns, "tool_calls": self.total_tool_calls, "web_search_requests": self.web_searches}
        usage = {**_NO_TOKENS, **(self.usage or {}), "server_tool_use": {**self.tool_calls, **use}}
        if (cost := self.total_cost) is not None:
            usage["cost"] = cost
        return usage


def add_usage(total: Json | None, usage: Json | None, *, with_details: bool = True) -> Json | None:
    """The sum of two counts, field by field, details included; None: the upstream sent no count."""
    if total is None or usage is None:
        return total or usage
    added = {**total}
    for name, count in usage.items():
        known = total.get(name)
        if known is None:
            added[name] = count
        elif isinstance(known, (int, float)) and isinstance(count, (int, float)):
            added[name] = known + count
        elif with_details and isinstance(known, dict) and isinstance(count, dict):
            added[name] = add_usage(known, count, with_details=False)  # no count is deeper than in details
    return added


def sum_of(tallies: Sequence[Tally]) -> Tally:
    """The sum of what several runs have used."""
    if len(tallies) == 1:
        return tallies[0]
    total = Tally()
    for tally in tallies:
        total.turns += tally.turns
        total.total_tool_calls += tally.total_tool_calls
        total.web_searches += tally.web_searches
        total.failed_tool_calls += tally.failed_tool_calls
        total.usage = add_usage(total.usage, tally.usage)
        if tally.cost is not None:
            total.cost = (total.cost or 0) + tally.cost
        for tool, number in tally.tool_calls.items():
            total.tool_calls[tool] = total.tool_calls.get(tool, 0) + number
    return total


@final
class Respond(Struct, frozen=True):
    """The run is over: this is the answer.

    Attributes:
        turn: the turn that answers, as it came.
        message: the part of its message that the client may see.
        finish_reason: for the client.
        stop: why the run ended here.
        tally: what the run has used.
        sources: URL -> title of the pages that its tools returned, which may be cited.
        cite: the page that a mark of gpt-oss's in its text means; None: its marks stay.
        continuation: the part of the run that is hidden from a client whose own calls it ends with.
        step: by which the model was made to answer, if it had to be.
        earlier_turns: the turns before that one, in order, whose calls were answered; the first is turn 1.
        added: the messages that the run added to the client's before that turn; see `continuation.storable`.
    """

    turn: Turn
    message: Json
    finish_reason: str
    stop: Stop
    tally: Tally
    sources: Mapping[str, str] = MappingProxyType({})
    cite: Cite | None = None
    continuation: Continuation | None = None
    step: str | None = None
    earlier_turns: tuple[Turn, ...] = ()
    added: tuple[Json, ...] = ()


Action: TypeAlias = CallUpstream | CallTools | Respond
