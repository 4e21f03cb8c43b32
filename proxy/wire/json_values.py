"""How many values a JSON text holds, counted before it is parsed.

A value takes up to a microsecond to parse and to check, whatever its size, so the bytes of a text alone bound nothing;
and a parser written in C keeps the interpreter for as long as it takes, whichever thread calls it.
"""

from typing import Final

# A value has at least one byte of its own, and one that separates it from the next.
_LEAST_BYTES: Final = 2
# Strings are taken out of a part at a time, because each string of a part becomes an object.
_PART_BYTES: Final = 256 * 1024


def holds_too_many_values(body: bytes, most: int) -> bool:
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
