"""The seams between the turns of one stream: blank lines in its text, and the indices of its `reasoning_details`.

Text: one blank line between two turns, whatever their texts begin and end with. A stream cannot take back what was
shown. So of the newlines at the end of a text only two are shown at once, the end of its line and a blank line; the
others wait for more text of that turn, and are dropped where another turn follows.

`reasoning_details`, in which OpenRouter and Vercel's gateway send the model's thoughts, encrypted ones among them: SDKs
join the entries of a stream that have the same index, and every turn counts from 0. In a stream of several turns each
one therefore gets indices of its own: two encrypted entries joined are unreadable.
"""

import re
from typing import Any

from msgspec import Struct

from proxy.loop.chat import Json

DETAILS = "reasoning_details"

_NEWLINES = 2
_BLANK_LINES = re.compile(r"(?:[^\S\n]*\n)+")


def separator_after(text: str) -> str | None:
    """The newlines that make one blank line between a turn's text and the next turn's; None after a blank text."""
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
    """The end of a turn's text so far. The text shown does not depend on how the text is cut.

    Attributes:
        newlines: shown since the last word; 0 means that nothing is buffered either.
    """

    newlines: int = 0
    _buffer: list[str] = []

    def feed(self, text: str) -> str:
        """The part of the text, and of the buffer before it, that may be shown now."""
        if not self.newlines and text[-1:] > " ":  # most pieces end within a word
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
        """The newlines that are buffered; the buffer is empty afterwards."""
        rest = "".join(self._buffer)
        self._buffer.clear()
        return rest


def shifted(details: Any, by: int) -> Any:
    """The entries of one turn with their indices raised."""
    if not by or not isinstance(details, list):
        return details
    return [detail if _index(detail) is None else {**detail, "index": detail["index"] + by} for detail in details]


def count_indices(message: Json) -> int:
    """How many indices the entries of a message take."""
    details = message.get(DETAILS)
    if not isinstance(details, list):
        return 0
    return max([index for detail in details if (index := _index(detail)) is not None], default=-1) + 1


def _index(detail: Any) -> int | None:
    index = detail.get("index") if isinstance(detail, dict) else None
    return index if isinstance(index, int) else None
