"""What may stand in the head of an HTTP message (RFC 9110, section 5): in responses that we read, and that we write."""

import re
from functools import lru_cache

TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_NAME = re.compile(TOKEN)
_HARMLESS = bytes({ord("\t"), *range(0x20, 0x7F), *range(0x80, 0x100)})


@lru_cache(128)  # few are used; and one may be as long as a head
def field_name(name: bytes) -> bytes | None:
    """The name of a field in lower case; None: it is none."""
    return name.lower() if _NAME.fullmatch(name) else None


def is_clean(block: bytes, *, line_ends: int) -> bool:
    """Whether a block has so many CRLFs, and no other character that controls anything."""
    return block.count(b"\r\n") == line_ends and block.translate(None, _HARMLESS) == b"\r\n" * line_ends
