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


class Redactor:
    """A callable that masks secrets in a text; the secrets can be replaced.

    Args:
        secrets: as for `redactor`.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._redact = redactor(secrets)

    def __call__(self, text: str) -> str:
        """The text with every secret masked."""
        return self._redact(text)

    def replace(self, secrets: Iterable[str]) -> None:
        """Mask these secrets, and no others, from now on."""
        self._redact = redactor(secrets)


def redactor(secrets: Iterable[str], *, mask: str = "***", shortest: int = _SHORTEST_SECRET) -> Redact:
    """A function that masks every secret of at least `shortest` characters in a text, however it is escaped there."""
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
