"""The beginnings of calls whose first marks were lost, so that they are plain words up to the next mark.

Such words wait for what follows them, and ordinary prose must not: "to", "a" and "we" begin `to=`, `assistant` and
`web_search` too. So a word waits only where such a call begins, or if it is no ordinary word (`web_`, `to=f`).
"""

import re
from bisect import bisect_left
from collections.abc import Iterable
from enum import Enum, auto

from proxy.turn.leaks import WORD_AT_END, bare_name, last_word, name_length, suffixes
from proxy.turn.leaks.harmony import COMMENTARY, LONGEST_LOST, LOST_MARKS, RECIPIENT, ROLE

# Words that may begin a header, beside the names of the tools.
_WORDS = (ROLE + COMMENTARY, COMMENTARY, "functions.", "to=")
_WHOLE_WORDS = (ROLE, COMMENTARY, ROLE + COMMENTARY)
_RECIPIENT_BEGUN = re.compile(rf"{LOST_MARKS}(?:{RECIPIENT})?\Z", re.ASCII)
# Such a header up to its `to=`. It may be glued to the sentence before it, so that its word is not `last_word`.
_BEGUN = "|".join(word[:end] for word in (ROLE + COMMENTARY, COMMENTARY) for end in range(len(word), 0, -1))
_HEADER_BEGUN = re.compile(rf"(?<!\w)(?:(?:assistant)?commentary\s{{1,8}}(?:to?)?|{_BEGUN}|to?)\Z", re.ASCII)
_LONGEST_BEGUN = 36

_SENTENCE_END = ".!?:\u2026\u3002\uff01\uff1f\uff1a"
_PART_OF_ADDRESS = re.compile("[.:/@]")
_FIRST_WORD = 4  # the longest first word after which a header may begin, with its blank


class Place(Enum):
    """A place in a text, by how likely it is that a call begins there whose first marks were lost."""

    START = (
        auto()
    )  # of the text or a line; or glued to the sentence before it, as in `tool.commentary to=`, or to Chinese
    SENTENCE = auto()  # after a sentence and a blank
    FIRST_WORD = auto()  # after the text's first word, if that is short, as in `So to=`
    INSIDE = auto()  # of a sentence, or of an indented line


class Openings:
    """The words with which a call may begin, for one set of tools.

    Attributes:
        initials: the first characters of all these words.
    """

    def __init__(self, tools: Iterable[str]) -> None:
        self._names = frozenset(tools)
        self._sorted = sorted({*self._names, *_WORDS} - {""})
        self.initials = frozenset(name[0] for name in self._sorted)

    def may_end(self, word: str) -> bool:
        """Whether a call may begin at the end of a text with this last word; fast, and often true without need."""
        if word.isalnum() and word.isascii():
            return self._may_begin(word)
        match = WORD_AT_END.search(word)
        return match is not None and (any(map(self._may_begin, suffixes(match[0]))) or bool(_HEADER_BEGUN.search(word)))

    def length_at_end(self, text: str) -> int:
        """How many characters at the end of a text may belong to a call whose next mark is still to come."""
        window = text[-LONGEST_LOST:]
        if "to=" in window and (match := _RECIPIENT_BEGUN.search(window)):
            return len(match[0])
        word = last_word(text)
        if word[-1:].isspace():
            length = name_length(text, self._names) or name_length(text, _WHOLE_WORDS)
        else:
            length = next((len(one) for one in suffixes(word) if one and self._may_begin(one)), 0)
        match = _HEADER_BEGUN.search(text[-_LONGEST_BEGUN:])
        return max(length, len(match[0]) if match else 0)

    def _may_begin(self, word: str) -> bool:
        return word[0] in self.initials and (self._begins(word) or self._begins(bare_name(word)))

    def _begins(self, word: str) -> bool:
        at = bisect_left(self._sorted, word)
        return at < len(self._sorted) and self._sorted[at].startswith(word)


def is_ordinary(opening: str) -> bool:
    """Whether a beginning of a call could as well be a word of prose: letters alone, a capital at most as the first."""
    word = opening.strip()
    return word.isalpha() and word[1:] == word[1:].lower()


def is_inside(before: str, piece: str, word: str) -> bool:
    """Whether a piece is an ordinary word within a sentence, or continues one: for most pieces, the place in short."""
    is_word = piece == word or (len(piece) == len(word) + 1 and piece[0] == " ")
    return is_word and len(before) > _FIRST_WORD and before[-1].isalnum() and before.isascii() and is_ordinary(word)


def place_after(before: str) -> Place:
    """The place of what follows a text.

    Args:
        before: the text, or its end from the last word on; if it begins with a blank, it is only the end.
    """
    words = before.rstrip(" ")
    if not words or words[-1] == "\n":
        return Place.START if not words or words == before else Place.INSIDE
    last = words[-1]
    if words == before:  # glued to it
        is_sentence = last in _SENTENCE_END and not _PART_OF_ADDRESS.search(words.split()[-1][:-1])
        is_chinese = not last.isascii() and last.isalpha() and last.lower() == last.upper()
        return Place.START if is_sentence or is_chinese else Place.INSIDE
    if last in _SENTENCE_END:
        return Place.SENTENCE
    return Place.FIRST_WORD if len(before) <= _FIRST_WORD and not before[0].isspace() else Place.INSIDE
