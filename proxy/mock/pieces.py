"""Texts in pieces: a piece is what the scripted model writes at once, and counts as one token.

A text is cut as tokenizers cut it before they look anything up: a word of up to 16 letters with the blank in front of
it, up to three digits, a run of signs. A made-up text is of short common words, each of which is one token to the usual
tokenizers too.
"""

import re
from collections.abc import Iterable
from random import Random
from typing import Final

_PIECE: Final = re.compile(r"\s?[^\W\d_]{1,16}|\s?\d{1,3}|\s?(?:[^\w\s]|_)+|\s+")
_WORDS: Final = """
the of and to in is that for it as was with be by on not he his but at are this have from or had an they
which one you were all her she there would their we him been has when who will no more if out so up said
what its about than into them can only other time new some could these two may first then do any like my now
over such our man me even most made after also did many off before must well back through years where much
your way down should because long each just state people those too how little good make world still see own
work life being under last same
""".split()  # noqa: SIM905 - a list would be a page long


def pieces_of(text: str) -> list[str]:
    """The pieces of a text; joined they are the text."""
    return _PIECE.findall(text)


def count(texts: Iterable[str]) -> int:
    """The number of pieces in all of the texts."""
    return sum(len(_PIECE.findall(text)) for text in texts)


def made_up(length: int, dice: Random) -> list[str]:
    """A text of `length` pieces, the same for equal dice."""
    words = dice.choices(_WORDS, k=length)
    return [*words[:1], *(f" {word}" for word in words[1:])]
