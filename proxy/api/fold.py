"""Decides what a client is shown of a run, once for every API, streamed or whole.

    chunks and events of a run  -->  Fold  -->  the API's items, and the events that build them

A stream writes the events of each step. A whole answer is folded by the same steps, without their events
(`reply.Unstreamed`). The rules of this module do not depend on the shape of an API:

    text            each turn's text is its own item, without the blank lines that set two turns of a chat apart
    blanks          begin no text: they wait until text follows them
    thoughts        come before the text and calls of their turn; later thoughts have no place of their own
    server calls    begin at their place in the turn; a call without a result at the end of the run has failed
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from proxy.api.reply import Events
from proxy.api.stops import StopFilter
from proxy.loop.actions import AnsweredCall
from proxy.loop.results import ToolResult
from proxy.loop.run_events import CallBegan, CallEnded, CallsAnswered, RunEvent, TurnBegan
from proxy.turn.citations import CITATIONS, Citation, moved_back
from proxy.turn.shown_text import without_blank_lines_before
from proxy.wire.chat import Json, ToolCall

ServerCallT = TypeVar("ServerCallT")

ANNOTATIONS = "annotations"
"""The key of the upstream's own annotations in a message or a delta."""


class Fold(ABC, Generic[ServerCallT]):
    """Folds a run into an answer; each method gives the events for what it adds.

        ( take | take_event )*   finish

    A subclass has the items of one API, and writes what it is given where it is told to. `ServerCallT` is its item for
    a call of a server tool.

    Args:
        stops: the sequences at which the text ends.
    """

    has_enough: bool

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._stop = StopFilter(stops) if stops else None
        self._blanks = ""  # text that waits for more
        self._position = 0  # the length of the text of the open item
        self._has_text = self._has_calls = False  # of this turn
        self._server_calls: dict[ToolCall, ServerCallT] = {}  # the items of this turn's server calls

    def grow(self, chunk: Json) -> bytes | None:
        """Add a chunk that only adds text to what is open; its encoded event. None: the chunk has to be taken."""
        choices = chunk["choices"]
        if len(choices) != 1:
            return None
        delta: Json = choices[0]["delta"]
        text: Any = delta.get("content")
        if not text or len(delta) != 1 or not isinstance(text, str) or choices[0].get("logprobs"):
            return None
        event = self.text_event(text)
        if event is not None:
            self._position += len(text)
        return event

    def take(self, chunk: Json) -> Events:
        """Add a chunk of the only choice."""
        if not chunk["choices"]:
            return []
        delta: Json = chunk["choices"][0]["delta"]
        events: Events = []
        if thoughts := _string(delta, "reasoning_content") or _string(delta, "reasoning"):
            events += self.write_thoughts(thoughts, is_late=self._has_text or self._has_calls)
        text, citations = _string(delta, "content"), delta.get(CITATIONS) or ()
        if text or citations:
            events += self._add_text(text, citations, chunk["choices"][0].get("logprobs"))
        if refusal := _string(delta, "refusal"):
            events += self.write_refusal(refusal)
        if isinstance(given := delta.get(ANNOTATIONS), list):
            self.annotate([one for one in given if isinstance(one, dict)])
        for fragment in delta.get("tool_calls") or ():
            if fragment.get("id"):
                self._has_calls = True
                events += self._end_text()
            events += self.write_client_call(fragment)
        return events

    def take_event(self, event: RunEvent) -> Events:
        """Add an event of the run."""
        match event:
            case TurnBegan():
                events = self._end_text()
                self._has_text = self._has_calls = False
                self._server_calls = {}
                return events
            case CallBegan(_, call):
                if (item := self.server_call(call)) is None:
                    return []
                self._has_calls = True
                self._server_calls[call] = item
                return self._end_text() + self.write_server_call(item)
            case CallEnded(_, call, result):
                return self.end_server_call(self._server_calls.get(call), result)
            case CallsAnswered(calls):
                return self._end_text() + self.answer_calls(calls)

    def _add_text(self, text: str, citations: Sequence[Citation], logprobs: Any) -> Events:
        if not self._has_text:
            whole, text = text, without_blank_lines_before(text)
            citations = moved_back(citations, len(whole) - len(text))
            self._has_text = bool(text.strip())
        citations = moved_back(citations, -self._position)
        self._position += len(text)
        if self._stop is not None:
            text = self._stop.feed(text)
        text, self._blanks = self._blanks + text, ""
        if not self.is_writing_text and (not text or text.isspace()):
            self._blanks = text
            text = ""
        return self.write_text(text, citations, logprobs) if text or citations else []

    def _end_text(self) -> Events:
        events = self._write_rest() + self.close_text()
        self._position = 0
        return events

    def _write_rest(self) -> Events:
        held = "" if self._stop is None else self._stop.close()  # which did not become a stop sequence
        rest, self._blanks = self._blanks + held, ""
        return self.write_text(rest, (), None) if rest.strip() or (rest and self.is_writing_text) else []

    # -- what a subclass says and does --

    @property
    @abstractmethod
    def is_writing_text(self) -> bool:
        """Whether an item with text is open."""

    @abstractmethod
    def write_thoughts(self, text: str, *, is_late: bool) -> Events:
        """Add thoughts; `is_late`: text or calls of their turn came before them."""

    @abstractmethod
    def write_text(self, text: str, citations: Sequence[Citation], logprobs: Any) -> Events:
        """Add text to the open item, or to a new one; the citations have their places in the whole text of the item."""

    @abstractmethod
    def write_refusal(self, text: str) -> Events:
        """Add the text of a refusal."""

    def annotate(self, given: Sequence[Json]) -> None:
        """Add the upstream's own annotations to the open text."""

    @abstractmethod
    def text_event(self, text: str) -> bytes | None:
        """Add to the open text, and give the encoded event; None, and nothing is added, if no text is open for it."""

    @abstractmethod
    def close_text(self) -> Events:
        """End the open text, if there is any; something else follows."""

    @abstractmethod
    def write_client_call(self, fragment: Json) -> Events:
        """Add a fragment of a call of the client's, with its index and the client's id."""

    @abstractmethod
    def server_call(self, call: ToolCall) -> ServerCallT | None:
        """The item of a call of a server tool; None: the client is not shown it."""

    @abstractmethod
    def write_server_call(self, item: ServerCallT) -> Events:
        """Add the call of a server tool, before its result."""

    def end_server_call(self, item: ServerCallT | None, result: ToolResult) -> Events:
        """Add the result of a call where it comes as soon as it is there; `item`: None: the call is not shown."""
        del item, result
        return []

    def answer_calls(self, calls: Sequence[AnsweredCall]) -> Events:
        """Add the results of a turn, for an API that shows them after all calls."""
        del calls
        return []


def _string(delta: Json, key: str) -> str:
    text = delta.get(key)
    return text if isinstance(text, str) else ""
