"""Secrets are masked in whatever leaves the process for people: log lines, traces, debug pages, what `check` prints."""

from collections.abc import Callable, Iterable
from typing import TypeAlias
from urllib.parse import quote

import orjson

Redact: TypeAlias = Callable[[str], str]

_MASK = "***"
# A shorter one is a placeholder; taking it out would only garble the text.
_SHORTEST_SECRET = 8
_ESCAPES: tuple[Callable[[str], str], ...] = (
    lambda text: repr(text)[1:-1],
    lambda text: orjson.dumps(text).decode()[1:-1],
    lambda text: quote(text, safe=""),
)


def redactor(secrets: Iterable[str]) -> Redact:
    """A function that masks every secret in a text, in whatever way it may be written there."""
    written = {secret for secret in secrets if len(secret) >= _SHORTEST_SECRET}
    for _ in range(2):  # inside of another text, which the line quotes in its turn
        written |= {escaped(form) for form in written for escaped in _ESCAPES}
    longest_first = sorted(written, key=len, reverse=True)

    def redact(text: str) -> str:
        for form in longest_first:
            if form in text:
                text = text.replace(form, _MASK)
        return text

    return redact
