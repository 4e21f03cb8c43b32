r"""Whether words of a server's refusal stand in the request that it refuses.

A server may quote the request: the name of a field that it does not know, a value, the path. Nobody must be able to
put the operator's keys to rest by words in a request, so such words do not count. The server may quote them decoded
(`\u0041`, `%41`, `&amp;`, arguments of tools, which are JSON within JSON), in other letters, or in pieces. So both
sides are compared without case, blanks and punctuation, and the request in each form in which it can be read.
"""

import html
import re
from collections.abc import Callable, Iterator
from typing import Any, Final
from unicodedata import normalize
from urllib.parse import unquote

import orjson

_MOST_BYTES: Final = 1024 * 1024
"""A larger request counts as containing any words: to read one of this size in all its forms takes some 0.3 s."""

_MOST_FORMS: Final = 8
_ESCAPE = re.compile(r"\\+(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_BLANKS: Final = {"n": " ", "t": " ", "r": " ", "b": " ", "f": " "}
_NO_LETTERS = re.compile(r"[\W_]+")
_ASCII_ONLY_LETTERS: Final = {code: None for code in range(128) if not chr(code).isalnum()}


class Sent:
    """The parts of a request to a server that a client has chosen: the body, the path, values of headers."""

    def __init__(self, *parts: bytes) -> None:
        self._parts = parts
        self.size = sum(map(len, parts))
        self._forms: list[str] | None = None

    def says(self, words: str) -> bool:
        """Whether the request contains the words."""
        if self.size > _MOST_BYTES:
            return True
        if self._forms is None:
            self._forms = [_letters(form) for form in _forms(" ".join(filter(None, map(_text_of, self._parts))))]
        wanted = _letters(words)
        return any(wanted in form for form in self._forms)


def _text_of(part: bytes) -> str:
    """The strings in JSON, its names as well; anything else as it is."""
    try:
        return " ".join(_strings(orjson.loads(part)))
    except orjson.JSONDecodeError:
        return part.decode("utf-8", "replace")


def _strings(value: Any) -> Iterator[str]:
    """The names and values in a JSON value, in the order in which they stand there."""
    waiting = [value]
    while waiting:
        match waiting.pop():
            case str(text):
                yield text
            case dict(fields):
                waiting += [one for name, inner in reversed(fields.items()) for one in (inner, name)]
            case list(items):
                waiting += reversed(items)
            case None:
                pass
            case number:
                yield str(number)


def _forms(text: str) -> list[str]:
    """A text, and what it becomes when its escapes are decoded, in any order."""
    forms = [text]
    for form in forms:
        for decode in _DECODERS:
            if len(forms) < _MOST_FORMS and (decoded := decode(form)) not in forms:
                forms.append(decoded)
    return forms


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(_character, text) if "\\" in text else text


def _character(escape: re.Match[str]) -> str:
    return chr(int(escape[1], 16)) if escape[1] else _BLANKS.get(escape[2], escape[2])


_DECODERS: Final[tuple[Callable[[str], str], ...]] = (_unescaped, unquote, html.unescape)


def _letters(text: str) -> str:
    """The letters and digits of a text, in lower case."""
    if text.isascii():
        return text.lower().translate(_ASCII_ONLY_LETTERS)
    return _NO_LETTERS.sub("", normalize("NFKC", text).casefold())


NOTHING: Final = Sent()
"""A request that says nothing."""
