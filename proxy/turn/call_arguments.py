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
        waiting: the end of an empty object, or the text behind a complete object, until it is clear what it is.
    """

    budget: ScanBudget = field(default_factory=ScanBudget)
    is_plain: bool = False
    is_whole: bool = False
    size: int = 0
    waiting: list[str] = []
    _shown: list[str] = []
    _scanner: ObjectScanner | None = None
    _is_second: bool = False  # whether an empty object was taken back

    @property
    def text(self) -> str:
        """The arguments so far, without the text that is taken back."""
        return "".join([*self._shown, self._rest()])

    def feed(self, piece: str) -> str:
        """Take the next piece; the text that a client may see now."""
        self.size += len(piece) if piece.isascii() else len(piece.encode("utf-8", "replace"))
        begin = len(self._shown)
        self._take(piece)
        return "".join(self._shown[begin:])

    def repeats(self, text: str) -> bool:
        """Whether a text is the object that these arguments are, once more."""
        known = json_object("".join(self._shown))
        return bool(known) and _sorted(known) == _sorted(json_object(text))

    def end(self) -> str:
        """End the call as far as it has arrived; the text that waited and is not taken back."""
        rest = self._rest()
        self.waiting.clear()
        if rest:
            self._shown.append(rest)
            self.is_plain, self.is_whole = True, False
        return rest

    def _rest(self) -> str:
        rest = "".join(self.waiting)
        return "" if rest and self.is_whole and self.repeats(rest) else rest

    def _take(self, piece: str) -> None:
        if self.is_whole:
            self._follow_object(piece)
        elif self.waiting:
            self._follow_empty_object(piece)
        else:
            self._scanner = self._scanner or ObjectScanner(self.budget)
            end = None if self.is_plain else self._scanner.feed(piece)
            self._shown.append(piece[:end])
            if end is not None:
                self._end_object(piece[end:])

    def _end_object(self, rest: str) -> None:
        value = json_object("".join(self._shown))
        if value:
            self.is_whole = True
            self._follow_object(rest)
        elif value is None or self._is_second:
            self.is_plain = True
            self._shown.append(rest)
        else:
            self._shown[-1] = self._shown[-1][:-1]
            self.waiting.append("}")
            self._follow_empty_object(rest)

    def _follow_empty_object(self, piece: str) -> None:
        self.waiting.append(piece)
        begun = piece.lstrip()
        if begun[:1] == "{":  # the client has the brace of the empty object, which becomes that of the second object
            self._is_second, self._scanner = True, ObjectScanner(self.budget)
            self._scanner.feed("{")
            self.waiting.clear()
            self._take(begun[1:])
        elif begun:
            self.end()

    def _follow_object(self, piece: str) -> None:
        begun = piece.lstrip()
        if self.waiting or begun[:1] == "{":
            self.waiting.append(piece)
            return
        self._shown.append(piece)
        if begun:
            self.is_plain, self.is_whole = True, False


def holds_objects(text: str) -> bool:
    """Whether a text may hold an object directly behind another one."""
    return _BETWEEN_OBJECTS.search(text) is not None


def _sorted(value: Json | None) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
