"""The actions that a `Run` requests from its driver: a closed union, for `match`."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import TypeAlias, final

from msgspec import Struct
from msgspec.structs import replace

from proxy.loop.continuation import Continuation
from proxy.loop.forcing import AnswerSteps, Forcing
from proxy.loop.results import ToolResult
from proxy.loop.tally import Tally
from proxy.turn.citations import Cite
from proxy.turn.request import TurnRequest
from proxy.wire.chat import Json, ToolCall, Turn


class Stop(StrEnum):
    """Why a run ended: the value of the header `x-tool-stop`."""

    ANSWER = "answer"
    CLIENT_TOOL_CALLS = "client_tool_calls"
    MAX_TURNS = "max_turns"
    MAX_TOOL_CALLS = "max_tool_calls"
    BUDGET = "budget"  # of the client
    MAX_TOTAL_TOKENS = "max_total_tokens"
    DEADLINE = "deadline"
    REPEATED_CALL = "repeated_call"


@final
class CallUpstream(TurnRequest, frozen=True):
    """Make one upstream call, and pass the resulting turn to `Run.receive_turn`.

    Attributes:
        forcing: the attempt at making the model answer; None if the turn need not be the answer.
    """

    forcing: Forcing | None = None

    def for_upstream(self, steps: AnswerSteps) -> "CallUpstream":
        """The call as an upstream with these `steps` sends it: with its step, and the request shaped for that step."""
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
        call: the resolved call (`CallHistory.resolve`) if it was run, otherwise the call as the model wrote it.
        tool: the tool's own name; empty if there is no such tool.
        counts: the number of calls that it counts as. A search counts once per query. A call that was not run, or a
            call of `find_tools`, counts 0.
        result: the answer to the call.
        content: the text that the model reads as the answer, notes on the budget included.
    """

    call: ToolCall
    tool: str
    counts: int
    result: ToolResult
    content: str

    @property
    def resolved(self) -> ToolCall:
        """The call with the tool's own name, as `CallBegan` has it."""
        return replace(self.call, name=self.tool or self.call.name)


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
        cite: finds the page that a citation mark in the text refers to; None if marks stay in the text.
        continuation: the hidden part of the run, if the run ends in the client's own calls.
        step: the step by which the model was made to answer; None: it was not made to.
        earlier_turns: the earlier turns that are part of the answer: turns with calls, and blank turns with shown
            thoughts.
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
