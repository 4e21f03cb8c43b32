"""The bounds of a request's JSON: how many values a body may hold before it is parsed, and how many blocks afterwards.

A value takes up to a microsecond to parse and to check, whatever its size, so the bytes of a body alone bound nothing.
"""

from collections.abc import Iterable
from typing import Any, Final

MOST_VALUES: Final = 250_000
# OpenAI takes 2,048 messages; long agent runs have had more.
MOST_MESSAGES: Final = 10_000
MOST_BLOCKS: Final = 50_000
"""The most content blocks, parts and calls of all messages or items of a request together."""

_LISTS: Final = frozenset({"content", "tool_calls", "output", "summary", "source"})


def blocks_in(messages: Iterable[Any], most: int = MOST_BLOCKS) -> int:
    """How many blocks, parts and calls messages or items hold, also within blocks; the count ends above `most`."""
    found, waiting = 0, [*messages]
    while waiting and found <= most:
        holder = waiting.pop()
        if isinstance(holder, dict):
            for name, inner in holder.items():
                if isinstance(inner, str) or name not in _LISTS:  # most are texts
                    continue
                if isinstance(inner, list):
                    found += len(inner)
                    waiting += inner[: most + 1]
                elif isinstance(inner, dict):
                    waiting.append(inner)
    return found
