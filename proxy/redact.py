"""Masks secrets in texts that leave the process: log lines, traces, debug pages, errors, results of tools."""

from collections.abc import Callable, Iterable
from typing import TypeAlias
from urllib.parse import quote, quote_plus

import orjson

Redact: TypeAlias = Callable[[str], str]

# A shorter one is a placeholder; masking it would only garble the text.
_SHORTEST_SECRET = 8
_ESCAPES: tuple[Callable[[str], str], ...] = (
    lambda text: repr(text)[1:-1],
    lambda text: orjson.dumps(text).decode()[1:-1],
    quote,
    lambda text: quote(text, safe=""),
    quote_plus,
)


def redactor(secrets: Iterable[str], *, mask: str = "***", shortest: int = _SHORTEST_SECRET) -> Redact:
    """A function that masks every secret of at least `shortest` characters in a text, however it is escaped there."""
    written = {secret for secret in secrets if len(secret) >= shortest}
    for _ in range(2):  # inside of another text, which the line quotes in its turn
        written |= {escaped(form) for form in written for escaped in _ESCAPES}
    longest_first = sorted(written, key=len, reverse=True)

    def redact(text: str) -> str:
        for form in longest_first:
            if form in text:
                text = text.replace(form, mask)
        return text

    return redact
