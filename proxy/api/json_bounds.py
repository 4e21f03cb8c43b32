"""The bounds of a request's JSON: how many values a body may hold before it is parsed, and how many blocks afterwards.

A value takes up to a microsecond to parse and to check, whatever its size, so the bytes of a body alone bound nothing.
"""

from collections.abc import Iterable
from typing import Any, Final

MOST_VALUES: Final = 500_000
# OpenAI takes 2,048 messages; long agent runs have had more.
MOST_MESSAGES: Final = 10_000
MOST_BLOCKS: Final = 50_000
"""The most content blocks, parts and calls of all messages or items of a request together."""

# A value has at least one byte of its own, and one that separates it from the next.
_LEAST_BYTES: Final = 2
# Strings are taken out of a part at a time, because each string of a part becomes an object.
_PART_BYTES: Final = 256 * 1024
_LISTS: Final = frozenset({"content", "tool_calls", "output", "summary", "source"})


def holds_too_many_values(body: bytes, most: int = MOST_VALUES) -> bool:
    """Whether a JSON text holds more than `most` values; the keys of objects are none.

    A list or an object holds one value more than it has commas between them, unless it is empty.
    """
    if len(body) <= most * _LEAST_BYTES or _marks(body) < most:
        return False
    marks, in_string, at = 0, False, 0
    while at < len(body) and marks < most:
        end = at + _PART_BYTES
        while body[end - 1 : end] == b"\\":  # an escape is not cut in two
            end += 1
        pieces = body[at:end].replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        marks += _marks(b"".join(pieces[in_string::2]))
        in_string ^= len(pieces) % 2 == 0
        at = end
    return marks >= most


def _marks(text: bytes) -> int:
    """How many values a text without strings holds at most, not counting the outermost one."""
    return text.count(b",") + text.count(b"[") + text.count(b"{")


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
