"""The arguments of one call, which a stream brings in pieces.

Two things that servers do are taken back here. Some begin every call with an empty object, which the arguments follow;
others send the arguments in pieces, or whole, and then once more as a whole:

    {}{"query": "x"}                 {"query": "x"}
    {"query": "x"}{"query": "x"}     {"query": "x"}

So the end of an empty object, and all that begins like another object behind a complete one, wait until more follows or
the call ends. Two different objects stay as they are: nobody knows which of them was meant.
"""

import re
from itertools import islice

import orjson
from msgspec import Struct, field

from proxy.wire.chat import Json
from proxy.wire.json_text import json_object

# An escaped character, a backslash whose character is still to come, a quotation mark or a bracket.
_MARK = re.compile(r'\\.|\\|["{}\[\]]', re.DOTALL)
_BETWEEN_OBJECTS = re.compile(r"\}[ \t\n\r]*\{")
# They take the scanner about 15 milliseconds; a file of 1 MiB in a programming language has fewer.
_MOST_MARKS = 128 * 1024


class ScanBudget(Struct):
    """How many more brackets and quotation marks scanners may look at; all calls of a turn share one budget."""

    left: int = _MOST_MARKS


class ObjectScanner(Struct):
    """Finds the end of a JSON object that arrives in pieces, reading each character once.

    Brackets are counted and nothing is parsed: a text that is found need not be valid JSON. No object is missed until
    the budget is used up; then no end is found any more.
    """

    budget: ScanBudget = field(default_factory=ScanBudget)
    _depth: int = 0
    _in_string: bool = False
    _backslash: str = ""  # at the end of the last piece
    _done: bool = False  # the object is complete, or the text is not an object, or the budget is used up

    def feed(self, piece: str) -> int | None:
        """Take the next piece; the index in it at which the object ends, or None."""
        if self._depth == 0 and (begun := piece.lstrip()):
            self._done = self._done or begun[0] != "{"
        if self._done:
            return None
        text, carried = self._backslash + piece, len(self._backslash)
        self._backslash = ""
        for match in islice(_MARK.finditer(text), self.budget.left):
            self.budget.left -= 1
            mark = match.group()
            if mark == "\\":
                self._backslash = mark
            elif mark == '"':
                self._in_string = not self._in_string
            elif not self._in_string and len(mark) == 1:
                self._depth += 1 if mark in "{[" else -1
                if self._depth == 0:
                    self._done = True
                    return match.end() - carried
        self._done = self.budget.left == 0
        return None


class Arguments(Struct):
    """The arguments of one call, as far as they have arrived.

    Attributes:
        budget: the budget of the scanner.
        is_plain: whether the text stays as it came: the input of a custom tool need not be JSON, and what follows an
            object and cannot be the same object belongs to the arguments.
        is_whole: whether the arguments are a complete object that is not empty.
        size: the number of bytes so far, those that were taken back included.
    """

    budget: ScanBudget = field(default_factory=ScanBudget)
    is_plain: bool = False
    is_whole: bool = False
    size: int = 0
    _pieces: list[str] = []
    _scanner: ObjectScanner | None = None  # None: nothing has arrived yet
    _ending: str = ""  # the end of an empty object, which waits
    _is_second: bool = False  # whether an empty object was taken back
    _behind: list[str] = []  # what waits behind a complete object

    @classmethod
    def of_whole(cls, text: str, *, is_plain: bool) -> "Arguments":
        """The arguments of a call that has come whole, and that no more text follows."""
        return cls(is_plain=is_plain, size=_bytes_in(text), _pieces=[text])

    def feed(self, piece: str) -> str:
        """Take the next piece; the text that a client may see now."""
        self.size += _bytes_in(piece)
        return self._add(piece)

    @property
    def is_settled(self) -> bool:
        """Whether the arguments are a complete object, and nothing waits behind it."""
        return self.is_whole and not self._behind

    @property
    def text(self) -> str:
        """The arguments so far, without what is taken back."""
        written = "".join(self._pieces)
        return written if self.is_plain else without_repetition(written)

    def repeats(self, text: str) -> bool:
        """Whether a text is the object that these arguments are, once more."""
        written = self.text
        return without_repetition(written + text).strip() == written.strip()

    def end(self) -> str:
        """End the call as far as it has arrived; the text that waited and is not taken back."""
        rest, self._ending = self._ending + "".join(self._behind), ""
        if self._behind:
            self._behind.clear()
            if self.text != "".join(self._pieces):
                return ""
            self.is_plain, self.is_whole = True, False
        return rest

    def _add(self, piece: str) -> str:
        self._pieces.append(piece)
        if self.is_whole:
            return self._follow_object(piece)
        if self._ending:
            return self._follow_empty_object(piece)
        if self._scanner is None:
            self._scanner = ObjectScanner(self.budget)
        end = None if self.is_plain else self._scanner.feed(piece)
        return piece if end is None else self._end_object(piece, end)

    def _end_object(self, piece: str, end: int) -> str:
        written, rest = "".join(self._pieces), piece[end:]
        value = json_object(written[: len(written) - len(rest)])
        if value:
            self.is_whole = True
            return piece[:end] + self._follow_object(rest)
        if value is None or self._is_second:
            self.is_plain = True
            return piece
        self._ending = piece[end - 1 : end]
        return piece[: end - 1] + self._follow_empty_object(rest)

    def _follow_empty_object(self, piece: str) -> str:
        if not (begun := piece.lstrip()):
            return ""
        ending, self._ending = self._ending, ""
        if begun[0] != "{":
            self.is_plain = True
            return ending + piece
        self._pieces, self._scanner, self._is_second = [], ObjectScanner(self.budget), True
        return self._add(begun)[1:]  # the client has the brace of the empty object

    def _follow_object(self, piece: str) -> str:
        begun = piece.lstrip()
        if not (begun or self._behind):
            return piece
        if self._behind or begun[0] == "{":
            self._behind.append(piece)
            return ""
        self.is_plain, self.is_whole = True, False
        return piece


def _bytes_in(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def without_repetition(text: str) -> str:
    """Arguments without an empty object in front of another one, and without the same object once more behind them."""
    if not _BETWEEN_OBJECTS.search(text):
        return text
    first, second = _split_behind_value(text)
    if second.startswith("{") and json_object(first) == {}:
        text = second
        first, second = _split_behind_value(text)
    if not second:
        return text
    given, repeated = json_object(first), json_object(second)
    is_same = given and repeated and (first.strip() == second.strip() or _are_equal(given, repeated))
    return first if is_same else text


def _split_behind_value(text: str) -> tuple[str, str]:
    """A text split behind the JSON value that it begins with; empty behind: there is no such value, or no more."""
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as exc:
        return text[: exc.pos], text[exc.pos :]
    return text, ""


def _are_equal(one: Json, other: Json) -> bool:
    return orjson.dumps(one, option=orjson.OPT_SORT_KEYS) == orjson.dumps(other, option=orjson.OPT_SORT_KEYS)
