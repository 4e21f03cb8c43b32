"""The actions that a `Run` asks for: a closed union, for `match`."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import TypeAlias, final

from msgspec import Struct
from msgspec.structs import replace

from proxy.loop.asked_json import AskedJson, asked_json
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

    def for_upstream(self, steps: AnswerSteps) -> "CallUpstream":
        """The call as an upstream with these `steps` makes it: with its step, and the request in that step's form."""
        if self.forcing is None:
            return self
        step = steps[self.forcing.attempt]
        return replace(self, step=step, body=self.forcing.shaped(self.body, step))

    def asked_json(self) -> AskedJson:
        """How the client asks for JSON, so that a JSON object may be the answer."""
        return asked_json(self.body, self.client_messages)


@final
class CallTools(Struct, frozen=True):
    """Run these calls at the same time and hand their results, in this order, to `Run.receive_results`.

    The calls carry the tools' own names, whatever alias the model used.
    """

    calls: tuple[ToolCall, ...]


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


@final
class Respond(Struct, frozen=True):
    """The run is over: this is the answer.

    Attributes:
        turn: the turn that answers, as it came.
        message: the part of its message that the client may see.
        finish_reason: for the client.
        stop: why the run ended here.
        tally: what the run has used.
        sources: URL -> title of the pages that its tools and those of earlier runs returned, which may be cited.
        cite: the page that a mark of gpt-oss's in its text means; None: its marks stay.
        continuation: the part of the run that is hidden from a client whose own calls it ends with.
        step: by which the model was made to answer, if it had to be.
        earlier_turns: the turns before that one that are part of the answer: those with calls, and blank ones, whose
            thoughts were shown.
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
