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
from typing import Any

from proxy.api.reply import Events
from proxy.api.stops import StopFilter
from proxy.loop.run_events import RunEvent
from proxy.turn.citations import CITATIONS, Citation, moved_back
from proxy.turn.shown_text import without_blank_lines_before
from proxy.wire.chat import Json

ANNOTATIONS = "annotations"
"""The key of the upstream's own annotations in a message or a delta."""


class Fold(ABC):
    """Folds a run into an answer; each method gives the events for what it adds.

        ( take | take_event )*   finish

    A subclass has the items of one API, and writes what it is given where it is told to.

    Attributes:
        has_enough: whether the text has reached a stop sequence, so that the rest of the answer is not needed.
    """

    has_enough = False
    _stop: StopFilter | None = None  # ends the text at a stop sequence
    _blanks = ""  # text that waits for more
    _citations: Sequence[Citation] = ()  # in that text
    _position = 0  # the length of the text of the open item
    _is_writing = False  # whether an item with text is open
    _has_text = False  # whether this turn has
    _calls_client = False  # whether a call of the client's is shown, whose end is needed

    def grow(self, chunk: Json) -> bytes | None:
        """Add a chunk that only adds text to what is open; its encoded event. None: the chunk has to be taken."""
        choices = chunk["choices"]
        if len(choices) != 1 or not self._is_writing:
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
        texts = {key: value for key, value in delta.items() if isinstance(value, str)}
        events: Events = []
        if thoughts := texts.get("reasoning_content") or texts.get("reasoning"):
            events += self.write_thoughts(thoughts)
        text, citations = texts.get("content", ""), delta.get(CITATIONS) or ()
        if text or citations:
            events += self.add_text(text, citations, chunk["choices"][0].get("logprobs"))
        if refusal := texts.get("refusal"):
            events += self.write_refusal(refusal)
        if isinstance(given := delta.get(ANNOTATIONS), list):
            self.annotate([one for one in given if isinstance(one, dict)])
        for fragment in delta.get("tool_calls") or ():
            if fragment.get("id"):
                events += self.end_text()
            events += self.write_client_call(fragment)
        return events

    def add_text(
        self, text: str, citations: Sequence[Citation] = (), logprobs: Any = None, *, is_last: bool = False
    ) -> Events:
        """Add text; with `is_last`, text that was held back is written, too."""
        if not self._has_text:
            whole, text = text, without_blank_lines_before(text)
            citations = moved_back(citations, len(whole) - len(text))
            self._has_text = bool(text.strip())
        citations = [*self._citations, *moved_back(citations, -self._position)]
        self._position += len(text)
        if self._stop is not None:
            text = self._stop.feed(text) + (self._stop.close() if is_last else "")
            self.has_enough = self._stop.found is not None and not self._calls_client
        text = self._blanks + text
        if not self._is_writing and not text.strip():
            self._blanks, self._citations = text, citations
            return []
        self._blanks, self._citations, self._is_writing = "", (), True
        return self.write_text(text, citations, logprobs) if text or citations else []

    def end_text(self) -> Events:
        """End the open text, if there is any; something else follows."""
        events = self.add_text("", is_last=True)
        self._blanks, self._citations, self._position, self._is_writing = "", (), 0, False
        return events

    # -- what a subclass does --

    @abstractmethod
    def take_event(self, event: RunEvent) -> Events:
        """Add an event of the run; at the beginning of a turn, `_has_text` is set to False."""

    @abstractmethod
    def write_thoughts(self, text: str) -> Events:
        """Add a piece of the model's thoughts, and return the events that show it."""

    @abstractmethod
    def write_text(self, text: str, citations: Sequence[Citation], logprobs: Any) -> Events:
        """Add text to the open item, or to a new one; the citations have their places in the whole text of the item."""

    @abstractmethod
    def write_refusal(self, text: str) -> Events:
        """Add the text of a refusal."""

    def annotate(self, given: Sequence[Json]) -> None:
        """Add the upstream's own annotations to the open text, for an API that has a place for them."""
        del given

    @abstractmethod
    def text_event(self, text: str) -> bytes | None:
        """Add to the open text, and give the encoded event; None, and nothing is added, if it has no simple event."""

    @abstractmethod
    def write_client_call(self, fragment: Json) -> Events:
        """Add a fragment of a call of the client's, with its index and the client's id; no text is open then."""
