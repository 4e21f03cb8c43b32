"""The actions that a `Run` asks its driver for: a closed union, for `match`."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import TypeAlias, final

from msgspec import Struct
from msgspec.structs import replace

from proxy.loop.asked_json import AskedJson
from proxy.loop.chat import Json, ToolCall, Turn
from proxy.loop.citations import Cite
from proxy.loop.continuation import Continuation
from proxy.loop.forcing import AnswerStep, AnswerSteps, Forcing
from proxy.loop.results import ToolResult
from proxy.loop.tally import Tally


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
    TEXT = "text"  # the text, until the turn has ended: only the final JSON may be shown
    ALL = "all"  # everything, until the turn has ended


class TurnView(Struct, frozen=True):
    """What a run knows about the turn that it asks for: whose its calls are, and how it is shown.

    Attributes:
        client_tools: the names of the client's own functions; only calls of these may be shown.
        tools: every name that may be called -> its JSON Schema. Calls that leaked into text are recognised by it, so it
            is given even while the tools are withdrawn.
        separator: the newlines between text that the client has already seen and this turn's text; None: it has seen
            no text.
        first_detail: the index in the client's stream of the first entry of this turn's `reasoning_details`.
        buffering: how much of the turn is buffered instead of streamed to the client.
        cite: finds the page that a citation mark of gpt-oss refers to; None: the marks stay in the text.
        asked_json: tells how the client asks for JSON, so that a JSON object may be the answer.
    """

    client_tools: frozenset[str] = frozenset()
    tools: Mapping[str, Json] = MappingProxyType({})
    separator: str | None = None
    first_detail: int = 0
    buffering: Buffering = Buffering.NONE
    cite: Cite | None = None
    asked_json: Callable[[], AskedJson] = lambda: AskedJson.NO


@final
class CallUpstream(Struct, frozen=True):
    """Make one upstream call, and pass the resulting turn to `Run.receive_turn`.

    Attributes:
        body: the Chat Completions request; its `model` is still the name that the client sent.
        number: the number of this turn, from 1.
        run_id: part of the ids of the client's calls.
        forcing: the attempt at making the model answer; None: the turn need not be the answer.
        step: how the model is made to answer; set by `for_upstream`.
        view: the part that only the assembler of the turn reads.
    """

    body: Json
    number: int
    run_id: str = ""
    forcing: Forcing | None = None
    step: AnswerStep | None = None
    view: TurnView = TurnView()

    def for_upstream(self, steps: AnswerSteps) -> "CallUpstream":
        """The call with the step that an upstream with these `steps` takes, and the request shaped for that step."""
        if self.forcing is None:
            return self
        step = steps[self.forcing.attempt]
        return replace(self, step=step, body=self.forcing.shaped(self.body, step))


@final
class CallTools(Struct, frozen=True):
    """Run these calls at the same time, and pass their results to `Run.receive_results` in this order.

    Each call has its tool's own name, whatever alias the model used.
    """

    calls: tuple[ToolCall, ...]


class AnsweredCall(Struct, frozen=True):
    """A call of a turn that the server has answered, whether it was run or not.

    Attributes:
        call: the resolved call (`CallHistory.resolve`) if it was run; else the call as the model wrote it.
        tool: the tool's own name; empty: there is no such tool.
        was_run: whether the call was run.
        result: the answer to the call.
        content: the text that the model reads as the answer, notes on the budget included.
    """

    call: ToolCall
    tool: str
    was_run: bool
    result: ToolResult
    content: str


@final
class Respond(Struct, frozen=True):
    """The end of the run, with its answer.

    Attributes:
        turn: the turn that is the answer, as received.
        message: the part of that turn's message that the client may see.
        finish_reason: for the client.
        stop: why the run ended here.
        tally: the calls, tokens and cost of the run.
        sources: URL -> title of the pages that the tools of this run and of earlier ones returned; they may be cited.
        cite: finds the page that a citation mark in the text refers to; None: the marks stay.
        continuation: the hidden part of the run, if the run ends in the client's own calls.
        step: the step by which the model was made to answer; None: it was not made to.
        earlier_turns: the earlier turns that are part of the answer: those with calls, and blank ones whose thoughts
            were shown.
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
