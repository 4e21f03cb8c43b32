"""JSON as text: a top-level `model` replaced and no other byte, and the end of an object that comes in pieces."""

import re

import orjson
from msgspec import Struct

# Possessive: a string of twenty megabytes costs one pass and no memory.
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_TOKEN = re.compile(_STRING + rb"|[{}\[\]]", re.DOTALL)
_KEY = b'"model"'
_VALUE = re.compile(_KEY + rb"\s*+:\s*+(" + _STRING + rb")", re.DOTALL)
_COLON = re.compile(rb"\s*+:")
# A letter of the key, escaped, as nobody writes it who has nothing to hide.
_ESCAPED_LETTER = re.compile(rb"\\u006[dDfF45cC]")
# Beyond this a body with several "model"s is written anew as a whole: looking through it costs a microsecond a bracket.
_MOST_SEARCHED = 1024 * 1024


def replace_model(body: bytes, name: str) -> bytes:
    """`body` with `name` as its top-level `model`.

    `body` must be a JSON object that has the key and a string for it. Where the key stands more than once every one is
    replaced: parsers disagree on which of them counts, and the one that an upstream reads has to be ours.
    """
    value = orjson.dumps(name)
    at = body.find(_KEY)
    if at >= 0 and body.find(_KEY, at + 1) < 0 and not _has_hidden_key(body) and (match := _VALUE.match(body, at)):
        if match[1] == value:
            return body
        return body[: match.start(1)] + value + body[match.end(1) :]
    if len(body) > _MOST_SEARCHED:
        return orjson.dumps({**orjson.loads(body), "model": name})
    parts: list[bytes] = []
    kept = 0
    for start, end in _top_level_models(body):
        parts += (body[kept:start], value)
        kept = end
    return b"".join((*parts, body[kept:]))


def _has_hidden_key(body: bytes) -> bool:
    return body.find(b"\\u00") >= 0 and _ESCAPED_LETTER.search(body) is not None


def _top_level_models(body: bytes) -> list[tuple[int, int]]:
    """Where the values of top-level `model` keys begin and end."""
    spans: list[tuple[int, int]] = []
    depth = 0
    is_model = False
    for match in _TOKEN.finditer(body):
        token = match.group()
        if token in (b"{", b"["):
            depth += 1
            is_model = False
        elif token in (b"}", b"]"):
            depth -= 1
        elif depth == 1 and is_model:
            spans.append(match.span())
            is_model = False
        elif depth == 1 and _COLON.match(body, match.end()):
            is_model = orjson.loads(token) == "model"
    return spans


# An escaped character, a backslash whose character is still to come, or what opens and closes.
_MARK = re.compile(r'\\.|\\|["{}\[\]]', re.DOTALL)


class ObjectScanner(Struct):
    """Finds the end of a JSON object that comes in pieces, looking at each character once.

    It counts brackets and does not parse: what it takes for an object may be none, but every object is found.
    """

    _depth: int = 0
    _in_string: bool = False
    _backslash: str = ""  # at the end of the last piece
    _done: bool = False  # the object is whole, or the text is none

    def feed(self, piece: str) -> bool:
        """Take the next piece in; whether the object ends with it, but for blanks."""
        if self._depth == 0 and (begun := piece.lstrip()):
            self._done = self._done or begun[0] != "{"
        if self._done:
            return False
        text, self._backslash = self._backslash + piece, ""
        for match in _MARK.finditer(text):
            mark = match.group()
            if mark == "\\":
                self._backslash = mark
            elif mark == '"':
                self._in_string = not self._in_string
            elif not self._in_string and len(mark) == 1:
                self._depth += 1 if mark in "{[" else -1
                if self._depth == 0:
                    self._done = True
                    return not text[match.end() :].strip()
        return False
