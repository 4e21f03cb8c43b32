"""Commas before a closing bracket, which models write and JSON forbids, taken out of an input while it is streamed.

Anthropic's SDKs raise at the end of an input that is not JSON. Other faults can only be repaired once the input is
complete; this one can be seen when the next character after the comma arrives.
"""

import re

from msgspec import Struct

# An escaped character, a quotation mark, a backslash whose character is still to come, or a comma with its blanks.
_MARK = re.compile(r'\\.|["\\]|,[ \t\n\r]*', re.DOTALL)
_MOST_HELD = 1024  # characters; blanks without end are no JSON that anybody writes


class CommaFilter(Struct):
    """Takes out such commas; each character is read once, but for the blanks after a comma."""

    _held: str = ""  # a comma and blanks at the end of the text so far
    _in_string: bool = False
    _is_escaped: bool = False  # whether the next character is

    def feed(self, piece: str) -> str:
        """The part of the text that may be shown now."""
        text, self._held = self._held + piece, ""
        if not text:
            return ""
        shown: list[str] = []
        at, self._is_escaped, start = 0, False, int(self._is_escaped)
        for match in _MARK.finditer(text, start):
            mark = match[0]
            if mark == '"':
                self._in_string = not self._in_string
            elif mark == "\\":
                self._is_escaped = self._in_string
            elif mark[0] == "," and not self._in_string:
                if match.end() == len(text) and len(mark) <= _MOST_HELD:
                    shown.append(text[at : match.start()])
                    at, self._held = len(text), mark
                elif text[match.end() : match.end() + 1] in ("}", "]"):
                    shown.append(text[at : match.start()])
                    at = match.start() + 1
        shown.append(text[at:])
        return "".join(shown)

    def close(self) -> str:
        """The text that was held back, as it was written."""
        held, self._held = self._held, ""
        return held
