"""The seam between the texts of two turns, which a stream joins: one blank line, whatever the texts begin and end with.

A stream cannot take back what was shown. So of the newlines at the end of a text only two are shown at once, the end of
its line and a blank line; the others wait for more text of that turn, and are dropped where another turn follows.
"""

import re

from msgspec import Struct

_NEWLINES = 2
_BLANK_LINES = re.compile(r"(?:[^\S\n]*\n)+")


def separator_after(text: str) -> str | None:
    """What makes one blank line between a turn's text and the next turn's; None where nothing was said."""
    words = text.rstrip()
    return "\n" * max(0, _NEWLINES - text.count("\n", len(words))) if words else None


def without_blank_lines_before(text: str) -> str:
    """The text without blank lines at its beginning; the indentation of its first line stays."""
    match = _BLANK_LINES.match(text)
    return text[match.end() :] if match else text


def without_blank_lines_after(text: str) -> str:
    """The text with at most one blank line at its end: all that a stream shows of it before another turn."""
    return Ending().feed(text)


class Ending(Struct):
    """The end of a turn's text so far. What is shown does not depend on how the text is cut."""

    _newlines: int = 0  # since the last word, as far as they were shown
    _held: list[str] = []

    def feed(self, text: str) -> str:
        """What of the text, and of what was held before it, may be shown now."""
        if not self._newlines and text[-1:] > " ":  # most pieces end within a word
            return text
        shown, blanks = "", text
        if words := text.rstrip():
            shown, blanks = self.close() + words, text[len(words) :]
            self._newlines = 0
        room = _NEWLINES - self._newlines
        lines = blanks.split("\n", room)
        rest = lines[-1] if len(lines) > room else ""
        self._newlines += len(lines) - 1
        if rest:
            self._held.append(rest)
        return shown + blanks[: len(blanks) - len(rest)]

    def close(self) -> str:
        """What was held back."""
        held = "".join(self._held)
        self._held.clear()
        return held
