"""The text of one turn as a stream shows it: set apart from the turn before, and without gpt-oss's citation marks.

One blank line separates the texts of two turns, and a stream cannot take back what it has shown. So only two of the
newlines at the end of a text are shown at once; the others wait for more text of that turn, or are dropped before
another turn.
"""

import re
from typing import Final

from msgspec import Struct, field

from proxy.turn.citations import CITATIONS, OPENING, MarkFilter
from proxy.wire.chat import Json

_NEWLINES: Final = 2
_BLANK_LINES: Final = re.compile(r"(?:[^\S\n]*\n)+")


class TrailingNewlines(Struct):
    """The newlines at the end of a turn's text so far. The text shown does not depend on how the text is cut.

    Attributes:
        newlines: how many were shown since the last word; if 0, nothing is held back either.
    """

    newlines: int = 0
    _buffer: list[str] = []

    def feed(self, text: str) -> str:
        """The part of the buffer and of the text that may be shown now."""
        if not self.newlines and not text[-1:].isspace():  # most pieces end within a word
            return text
        shown, blanks = "", text
        if words := text.rstrip():
            shown, blanks = (self.close() if self._buffer else "") + words, text[len(words) :]
            self.newlines = 0
        room = _NEWLINES - self.newlines
        lines = blanks.split("\n", room)
        rest = lines[-1] if len(lines) > room else ""
        self.newlines += len(lines) - 1
        if rest:
            self._buffer.append(rest)
        return shown + blanks[: len(blanks) - len(rest)]

    def close(self) -> str:
        """The newlines that were held back; the buffer is empty afterwards."""
        rest = "".join(self._buffer)
        self._buffer.clear()
        return rest


class ShownText(Struct):
    """The text of a turn as its stream shows it: set apart from the turn before, and without gpt-oss's marks.

    Attributes:
        separator: the newlines between text that the client has already and this text; None: it has no text.
        marks: takes gpt-oss's citation marks out of the text.
        length: how many characters `show` was given, without the blanks around each piece.
        needs_look: whether even a plain piece must go through `show`: before any word, after a line end, in a mark.
    """

    separator: str | None
    marks: MarkFilter
    length: int = 0
    needs_look: bool = True
    _ending: TrailingNewlines = field(default_factory=TrailingNewlines)
    _begun: bool = False
    _blanks: list[str] = []  # the pieces before the first word

    def show(self, delta: Json) -> None:
        """Leave in the delta the part of its text that may be shown; blank text is held back until a word follows."""
        if not isinstance(text := delta.get("content"), str) or not text:
            return
        self.length += len(text.strip())
        if not self._begun:
            self._blanks.append(text)
            if text.isspace():
                del delta["content"]
                return
            self._begun, text = True, "".join(self._blanks)
            if self.separator is not None:
                text = self.separator + without_blank_lines_before(text)
        delta["content"] = text = self._ending.feed(text)
        if OPENING in text or self.marks.buffer:
            delta["content"], citations = self.marks.feed(text)
            if citations:
                delta[CITATIONS] = citations
        self.needs_look = bool(self._ending.newlines or self.marks.buffer)

    def close(self, delta: Json, *, is_followed: bool) -> None:
        """Put the rest of the text into the delta; before another turn, it ends with at most one blank line."""
        rest, self.marks.buffer = self.marks.buffer, ""
        if self._ending.newlines and not is_followed:
            rest += self._ending.close()
        if rest:
            delta["content"] = (delta.get("content") or "") + rest


def separator_after(text: str) -> str | None:
    """The newlines that make one blank line between a turn's text and the next turn's; None: the text is blank."""
    words = text.rstrip()
    return "\n" * max(0, _NEWLINES - text.count("\n", len(words))) if words else None


def without_blank_lines_before(text: str) -> str:
    """The text without blank lines at its beginning; the first line keeps its indentation."""
    return text[match.end() :] if (match := _BLANK_LINES.match(text)) else text
