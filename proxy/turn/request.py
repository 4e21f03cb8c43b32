"""The request of one turn, as far as the assembly of the answer reads it."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType

from msgspec import Struct

from proxy.turn.citations import Cite
from proxy.turn.json_mode import JsonMode
from proxy.wire.chat import Json


class Buffering(StrEnum):
    """How much of a turn is buffered instead of streamed to the client."""

    NONE = "none"
    START = "start"  # until the turn is long enough to be the answer
    TEXT = "text"  # the text, until the turn has ended: only the final JSON may be shown
    ALL = "all"  # everything, until the turn has ended


class TurnView(Struct, frozen=True):
    """The run's instructions for reading a turn: which calls are the client's, and how the turn is shown.

    Attributes:
        client_tools: the names of the client's own functions; only calls of these may be shown.
        tools: every name that may be called -> its JSON Schema. Calls that leaked into text are recognised by it, so it
            is given even while the tools are withdrawn.
        separator: the newlines between text that the client has already seen and this turn's text; None: it has seen
            no text.
        first_detail: the index in the client's stream of the first entry of this turn's `reasoning_details`.
        buffering: how much of the turn is buffered instead of streamed to the client.
        cite: finds the page that a citation mark of gpt-oss refers to; None: the marks stay in the text.
        json_mode: tells how the client asks for JSON, so that a JSON object may be the answer.
    """

    client_tools: frozenset[str] = frozenset()
    tools: Mapping[str, Json] = MappingProxyType({})
    separator: str | None = None
    first_detail: int = 0
    buffering: Buffering = Buffering.NONE
    cite: Cite | None = None
    json_mode: Callable[[], JsonMode] = lambda: JsonMode.NO


class TurnRequest(Struct, frozen=True):
    """The request that a turn answers.

    Attributes:
        body: the Chat Completions request; its `model` is still the name that the client sent.
        number: the number of this turn, from 1.
        run_id: part of the ids of the client's calls.
        step: how the model is made to answer; None: it is not made to.
        view: what the run knows about the turn.
    """

    body: Json
    number: int
    run_id: str = ""
    step: str | None = None
    view: TurnView = TurnView()
