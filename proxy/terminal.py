"""Text for a terminal: colours where they are wanted, and columns that line up."""

import os
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TextIO

# SGR parameters (ECMA-48, section 8.3.117), those that every terminal has.
_CODES: Final = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "blue": 34, "cyan": 36}


@dataclass(frozen=True, slots=True)
class Style:
    """Colours text, or leaves it as it is."""

    colors: bool

    def __call__(self, text: str, *names: str) -> str:
        """The text in these styles: `bold`, `dim` and names of colours."""
        if not self.colors or not text:
            return text
        return f"\x1b[{';'.join(str(_CODES[name]) for name in names)}m{text}\x1b[0m"


def style_of(stream: TextIO, environ: Mapping[str, str] = os.environ) -> Style:
    """Whether text on a stream is coloured: on a terminal, unless NO_COLOR is set (https://no-color.org/).

    FORCE_COLOR colours it anywhere, such as in the log of a CI run; a terminal of the kind `dumb` knows no colours.
    """
    if environ.get("NO_COLOR"):
        return Style(colors=False)
    if environ.get("FORCE_COLOR"):
        return Style(colors=True)
    return Style(colors=stream.isatty() and environ.get("TERM") != "dumb")


def shortened(text: str, width: int) -> str:
    """The text in at most so many columns, with an ellipsis where something is missing."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def wrapped(text: str, width: int, lines: int) -> list[str]:
    """The text in lines of at most so many columns, broken between words; what needs more lines is cut off."""
    return textwrap.wrap(text, width, max_lines=lines, placeholder=" …") or [""]


def printable(text: object) -> str:
    """Somebody else's text on one line, without what a terminal would obey."""
    return " ".join("".join(character if character.isprintable() else " " for character in str(text)).split())
