"""Chunks that differ from the chunk before only in their text, as most of a stream does. Only their text is parsed.

A parser would read id, model and choice of each chunk again, only to find the values of the last chunk. If the bytes
before and after a string are the same as before, only the text differs. This saves half of a chunk's instructions.
"""

import re
from collections.abc import Sequence

import orjson
from msgspec import Struct

from proxy.wire.chat import TEXT_FIELDS, Json
from proxy.wire.sse import SseEvent

# Bytes of a chunk; to find the pattern of a longer one takes more than parsing the next.
_LONGEST = 64 * 1024
# Possessive, so that a long text is read once, without memory for backtracking.
_REST_OF_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


class ChunkPattern(Struct, frozen=True):
    """The bytes of a chunk before and after its text, the quotation marks of the text included."""

    before: bytes
    after: bytes

    def text_in(self, event: SseEvent) -> str | None:
        """The text of a chunk that fits the pattern; None: it does not fit, has no text, or is an error."""
        data = event.data
        if not (data.startswith(self.before) and data.endswith(self.after)) or event.type == "error":
            return None
        try:
            text: str = orjson.loads(data[len(self.before) - 1 : 1 - len(self.after)])
        except orjson.JSONDecodeError:  # the string ends before the bytes that should follow it
            return None
        return text or None

    def with_text(self, text: str) -> bytes:
        """The chunk that fits the pattern and has this text."""
        return b"%b%b%b" % (self.before[:-1], orjson.dumps(text), self.after[1:])


def pattern_of(data: bytes, field: str) -> ChunkPattern | None:
    """The pattern of a chunk whose text is the value of `field`; None: it has no text, or has the key more than once.

    The key inside a text is not counted, because its quotation marks are escaped there.
    """
    is_usual = field and len(data) <= _LONGEST
    places = re.findall(rb'"%b"\s*:\s*"' % field.encode(), data) if is_usual else []
    if len(places) != 1:
        return None
    before, opening, rest = data.partition(places[0])
    string = _REST_OF_STRING.match(rest)
    return ChunkPattern(before + opening, rest[string.end() - 1 :]) if string else None


def only_text_field(chunk: Json) -> str:
    """The field of the text that is all that a chunk adds; empty: the chunk adds something else, or nothing.

    Fields such as `id` do not count: the next chunk fits the pattern only if they are the same, byte for byte.
    """
    choices: Sequence[Json] = chunk.get("choices") or ()
    choice: Json = choices[0] if len(choices) == 1 else {}
    if choice.get("index") or choice.get("finish_reason") or choice.get("logprobs") or chunk.get("usage"):
        return ""
    field = ""
    for name, value in (choice.get("delta") or {}).items():
        if value and name != "role":
            if field or name not in TEXT_FIELDS or not isinstance(value, str):
                return ""
            field = name
    return field
