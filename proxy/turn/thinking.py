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
        """Move the thoughts in a delta's `content` to its `reasoning_content`; hold back what may be part of a mark.

        Args:
            delta: the delta, or a whole message.
            has_thoughts: whether the server has sent thoughts of this turn as such.
        """
        if isinstance(text := delta.get("content"), str) and text:
            self._put(delta, *self._split(text, has_thoughts=has_thoughts))

    def close(self) -> Json:
        """The text that is held back, as a delta; there is nothing to split afterwards."""
        held, self._held = self._held, ""
        field = "reasoning_content" if self._state is _State.THOUGHTS else "content"
        self._state = _State.DONE
        return {field: held} if held else {}

    def _put(self, delta: Json, thoughts: str, answer: str) -> None:
        delta["content"] = answer
        if thoughts:
            delta["reasoning_content"] = (delta.get("reasoning_content") or "") + thoughts

    def _split(self, text: str, *, has_thoughts: bool) -> tuple[str, str]:
        text, self._held = self._held + text, ""
        match self._state:
            case _State.BEGINNING:
                return self._begin(text, has_thoughts=has_thoughts)
            case _State.THOUGHTS:
                return self._think(text)
            case _State.AFTER:
                return "", self._answer(text)
            case _:  # done
                return "", text

    def _begin(self, text: str, *, has_thoughts: bool) -> tuple[str, str]:
        words = text.lstrip()
        is_first, self._is_first = self._is_first, False
        if words.startswith(_BEGIN):
            self._state = _State.THOUGHTS
            return self._think(words.removeprefix(_BEGIN))
        thoughts, mark, answer = words.partition(_END)
        if mark and not (thoughts and has_thoughts) and _BEGIN not in thoughts and thoughts[-1:] not in _QUOTES:
            return thoughts, self._answer(answer)
        waits = is_first and not has_thoughts
        if not mark and (waits or _BEGIN.startswith(words) or _ends_in_mark(words, has_thoughts=has_thoughts)):
            self._held = text
            return "", ""
        self._state = _State.DONE
        return "", text

    def _think(self, text: str) -> tuple[str, str]:
        thoughts, mark, answer = text.partition(_END)
        if mark:
            return thoughts, self._answer(answer)
        at = text.rfind("<")
        if at >= 0 and _END.startswith(text[at:]):
            text, self._held = text[:at], text[at:]
        return text, ""

    def _answer(self, text: str) -> str:
        """The answer without the blank lines behind the end mark."""
        answer = text.lstrip("\r\n")
        self._state = _State.DONE if answer else _State.AFTER
        return answer


def _ends_in_mark(words: str, *, has_thoughts: bool) -> bool:
    """Whether the words end in the beginning of an end mark that would count."""
    at = words.rfind("<")
    return at >= 0 and _END.startswith(words[at:]) and not (at and has_thoughts)
