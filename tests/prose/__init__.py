"""Ten pages of ordinary text, and a cutter that cuts them as a tokenizer does: most of what models write looks so."""

import random
import re
from pathlib import Path

PAGES = {path.stem: path.read_text() for path in sorted(Path(__file__).parent.glob("*.txt"))}

# Words with the blank before them, numbers of up to three digits, punctuation with the line ends after it, blanks.
_TOKEN = re.compile(r"[^\S\r\n]?[^\W\d]+|\d{1,3}| ?[^\s\w]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+|_+")
_WORD_THAT_IS_CUT = 0.2
_LONGEST_TOKEN = 12


def tokens(text: str, seed: int) -> list[str]:
    """The pieces of a text: a long word, and one short word in five, comes in two halves."""
    dice = random.Random(seed)
    pieces: list[str] = []
    for rest in _TOKEN.findall(text):
        at = 0
        while len(rest) - at > 2 and (len(rest) - at > _LONGEST_TOKEN or dice.random() < _WORD_THAT_IS_CUT):
            end = at + dice.randrange(1, min(len(rest) - at, _LONGEST_TOKEN))
            pieces.append(rest[at:end])
            at = end
        pieces.append(rest[at:])
    assert "".join(pieces) == text
    return pieces


def joined_and_split(given: list[str], shown: list[str]) -> tuple[int, int]:
    """How many of the given pieces were joined to the next one, and how many were split."""
    assert "".join(shown) == "".join(given)
    before, after = _bounds(given), _bounds(shown)
    return len(before - after), len(after - before)


def _bounds(pieces: list[str]) -> set[int]:
    at, bounds = 0, {0}
    for piece in pieces:
        at += len(piece)
        bounds.add(at)
    return bounds
