"""The secrets of a configuration, and their masking in all output: logs, traces, pages, results."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias, get_args
from urllib.parse import quote, quote_plus, urlsplit

import msgspec
import orjson

from proxy.config.keys import FROM_CLIENT, SHORTEST_SECRET
from proxy.config.loaded import Loaded
from proxy.config.model import Key, Keys, keys_of
from proxy.kit.header_names import SECRET_NAME

Redact: TypeAlias = Callable[[str], str]

_MASK = "***"
_PIECE = 6  # characters of a secret that are masked where they stand alone
_LONGEST_WORD = 12
_ESCAPES: tuple[Callable[[str], str], ...] = (
    lambda text: repr(text)[1:-1],
    lambda text: orjson.dumps(text).decode()[1:-1],
    quote,
    lambda text: quote(text, safe=""),
    quote_plus,
)


class Redactor:
    """A callable that masks secrets in a text, and whose secrets can be replaced."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._redact = redactor(secrets)

    def __call__(self, text: str) -> str:
        """The text with every secret masked."""
        return self._redact(text)

    def replace(self, secrets: Iterable[str]) -> None:
        """Mask only these secrets from now on."""
        self._redact = redactor(secrets)


def redactor(secrets: Iterable[str], *, mask: str = _MASK, shortest: int = SHORTEST_SECRET) -> Redact:
    """A function that masks every secret of at least `shortest` characters in a text, in any escaped form."""
    written = {secret for secret in secrets if len(secret) >= shortest}
    for _ in range(2):  # twice, because a log line may quote a text that is itself escaped
        written |= {escaped(form) for form in written for escaped in _ESCAPES}
    longest_first = sorted(written, key=len, reverse=True)

    def redact(text: str) -> str:
        for form in longest_first:
            if form in text:
                text = text.replace(form, mask)
        return text

    return redact


def without_pieces(text: str, secrets: Iterable[str]) -> str:
    """A text without its parts that are also parts of a secret: providers quote the beginning and the end of a key."""
    return piece_redactor(secrets)(text)


def piece_redactor(secrets: Iterable[str], *, spared: Iterable[str] = ()) -> Redact:
    """A function that masks all parts of secrets in a text that have at least six characters.

    A part that consists of a few small letters may be a word, and stays; so do parts of `spared`.
    """
    pieces = frozenset().union(*(_pieces_of(secret) for secret in secrets if len(secret) >= SHORTEST_SECRET))
    pieces -= frozenset().union(*map(_pieces_of, spared))

    def redact(text: str) -> str:
        if not pieces:
            return text
        spans: list[list[int]] = []
        for at in [at for at in range(len(text) - _PIECE + 1) if text[at : at + _PIECE] in pieces]:
            if spans and at < spans[-1][1]:
                spans[-1][1] = at + _PIECE
            else:
                spans.append([at, at + _PIECE])
        kept, done = [], 0
        for begin, end in spans:
            part = text[begin:end]
            is_word = part.isalpha() and part.islower() and len(part) < _LONGEST_WORD
            kept += [text[done:begin], part if is_word else _MASK]
            done = end
        return "".join([*kept, text[done:]])

    return redact


def masked(value: Any, mask: Redact, *, names: bool = True) -> Any:
    """A JSON value with every text masked, and also the names of fields unless `names` is false."""
    match value:
        case str():
            return mask(value)
        case dict():
            return {mask(name) if names else name: masked(held, mask, names=names) for name, held in value.items()}
        case list():
            return [masked(held, mask, names=names) for held in value]
    return value


def _pieces_of(secret: str) -> frozenset[str]:
    return frozenset(secret[at : at + _PIECE] for at in range(len(secret) - _PIECE + 1))


def secrets_of(loaded: Loaded) -> frozenset[str]:
    """All secret values of a configuration: keys, passwords in URLs, and headers that contain either."""
    password = urlsplit(loaded.config.state.url).password
    keys = (*_keys_in(loaded.config), *_keys_in(loaded.disabled), *([password] if password else []))
    return frozenset().union(keys, *loaded.secrets.values()) - {FROM_CLIENT, ""}


def _keys_in(value: Any) -> Iterator[str]:
    match value:
        case msgspec.Struct():
            for info in msgspec.structs.fields(value):
                held = getattr(value, info.name)
                kinds = (info.type, *get_args(info.type))
                if Keys in kinds:
                    yield from keys_of(held).values()
                elif Key in kinds:  # the field holds a key, a list of keys, or None
                    yield from (held,) if isinstance(held, str) else held or ()
                else:
                    yield from _keys_in(held)
        case dict():
            for name, held in value.items():
                if isinstance(held, str) and SECRET_NAME.search(str(name)):
                    yield from (held, held.rpartition(" ")[2])  # "Bearer KEY"
                else:
                    yield from _keys_in(held)
        case tuple() | list():
            for held in value:
                yield from _keys_in(held)
