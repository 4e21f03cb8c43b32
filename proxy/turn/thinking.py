"""Thoughts that a model has written at the beginning of its text, between `<think>` and `</think>`.

Servers of GLM without a parser for thoughts send them so, and some send the end mark alone, because their template has
written the first one. A thought without its first mark looks like an answer until its end, so only the first piece of a
stream waits for a lone end mark, and only where no thoughts came before the text. A whole answer is one piece.

    BEGINNING --<think>--> THOUGHTS --</think>--> AFTER --a word--> DONE
        |----</think> in the first two pieces-------^                 ^
        '----anything else--------------------------------------------'
"""

from enum import Enum, auto

from msgspec import Struct

from proxy.wire.chat import Json

_BEGIN, _END = "<think>", "</think>"
_QUOTES = ("`", "'", '"')  # a mark behind one of these is what the text is about


class _State(Enum):
    BEGINNING = auto()
    THOUGHTS = auto()
    AFTER = auto()
    DONE = auto()


class ThoughtsInText(Struct):
    """The text of one turn, split into thoughts and answer while it arrives."""

    _state: _State = _State.BEGINNING
    _held: str = ""
    _is_first: bool = True  # whether the next piece is the first one

    @property
    def is_done(self) -> bool:
        """Whether everything that follows is the answer."""
        return self._state is _State.DONE

    def split(self, delta: Json, *, has_thoughts: bool) -> None:
        """Move the thoughts in a delta's `content` to its `reasoning_content`; hold back the text that may be a mark.

        `has_thoughts` tells whether the server has sent thoughts of this turn as such.
        """
        text = delta.get("content")
        if not isinstance(text, str) or not text:
            return
        text, self._held = self._held + text, ""
        thoughts = ""
        if self._state is _State.BEGINNING:
            text = self._begin(text, has_thoughts=has_thoughts)
        if self._state is _State.THOUGHTS:
            thoughts, text = self._think(text)
        if self._state is _State.AFTER:
            text = text.lstrip("\r\n")
            self._state = _State.DONE if text else _State.AFTER
        delta["content"] = text
        if thoughts:
            delta["reasoning_content"] = (delta.get("reasoning_content") or "") + thoughts

    def close(self) -> Json:
        """The text that is held back, as a delta; there is nothing to split afterwards."""
        held, self._held = self._held, ""
        field = "reasoning_content" if self._state is _State.THOUGHTS else "content"
        self._state = _State.DONE
        return {field: held} if held else {}

    def _begin(self, text: str, *, has_thoughts: bool) -> str:
        """The text behind a first mark; the text as it is if it has none, and empty if it waits."""
        words = text.lstrip()
        is_first, self._is_first = self._is_first, False
        thoughts, mark, _ = words.partition(_END)
        is_closed = mark and not (thoughts and has_thoughts) and _BEGIN not in thoughts
        if words.startswith(_BEGIN) or (is_closed and thoughts[-1:] not in _QUOTES):
            self._state = _State.THOUGHTS
            return words.removeprefix(_BEGIN)
        at = _end_begun(words)
        waits = (is_first and not has_thoughts) or (at < len(words) and not (at and has_thoughts))
        if not mark and (waits or _BEGIN.startswith(words)):
            self._held = text
            return ""
        self._state = _State.DONE
        return text

    def _think(self, text: str) -> tuple[str, str]:
        """The thoughts in a text, and the answer behind them."""
        thoughts, mark, answer = text.partition(_END)
        if mark:
            self._state = _State.AFTER
            return thoughts, answer
        at = _end_begun(text)
        self._held = text[at:]
        return text[:at], ""


def _end_begun(text: str) -> int:
    """The index at which the end of a text is the beginning of an end mark; the text's length if it is none."""
    at = text.rfind("<")
    return at if at >= 0 and _END.startswith(text[at:]) else len(text)
