"""Text for a terminal: optional colours, and aligned columns."""

import os
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TextIO

# SGR parameters (ECMA-48, section 8.3.117) that every terminal supports.
_CODES: Final = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "blue": 34, "cyan": 36}


@dataclass(frozen=True, slots=True)
class Style:
    """Colours text, or returns it unchanged."""

    colors: bool

    def __call__(self, text: str, *names: str) -> str:
        """The text in these styles: `bold`, `dim` and names of colours."""
        if not self.colors or not text:
            return text
        return f"\x1b[{';'.join(str(_CODES[name]) for name in names)}m{text}\x1b[0m"


def style_of(stream: TextIO, environ: Mapping[str, str] = os.environ) -> Style:
    """The style for a stream: coloured on a terminal, unless NO_COLOR is set (https://no-color.org/).

    FORCE_COLOR colours any stream, such as the log of a CI run. A terminal of the type `dumb` has no colours.
    """
    if environ.get("NO_COLOR"):
        return Style(colors=False)
    if environ.get("FORCE_COLOR"):
        return Style(colors=True)
    return Style(colors=stream.isatty() and environ.get("TERM") != "dumb")


def shortened(text: str, width: int) -> str:
    """The text in at most `width` columns, with an ellipsis if it was cut."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def wrapped(text: str, width: int, lines: int) -> list[str]:
    """The text in at most `lines` lines of at most `width` columns, broken between words; the rest is cut off."""
    return textwrap.wrap(text, width, max_lines=lines, placeholder=" …") or [""]


def printable(text: object) -> str:
    """Foreign text on one line, without characters that a terminal would interpret."""
    return " ".join("".join(character if character.isprintable() else " " for character in str(text)).split())
