"""Chunks that differ from the one before in nothing but a text: most of a stream. Only their text is parsed.

A parser would read id, model and choice of each chunk again, to find that they are those of the last one. Between the
same bytes as before, another string means another text and nothing else. This saves half of a chunk's instructions.
"""

import re
from collections.abc import Sequence

import orjson
from msgspec import Struct

from proxy.loop.chat import TEXT_FIELDS, Json
from proxy.loop.sse import Event

# Possessive, so that a long text is read once and without memory for ways back.
_REST_OF_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


class ChunkPattern(Struct, frozen=True):
    """The bytes of a chunk before and after its text, the quotation marks of the text included."""

    before: bytes
    after: bytes

    def text_in(self, event: Event) -> str | None:
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
    """The pattern of a chunk whose text is the value of `field`; None: it has no text, or the key more than once.

    The name of the key in a text does not count: there, its quotation marks are escaped.
    """
    places = re.findall(rb'"%b"\s*:\s*"' % field.encode(), data) if field else []
    if len(places) != 1:
        return None
    before, opening, rest = data.partition(places[0])
    string = _REST_OF_STRING.match(rest)
    return ChunkPattern(before + opening, rest[string.end() - 1 :]) if string else None


def only_text_field(chunk: Json) -> str:
    """The field of the only text that a chunk adds; empty: it adds something else, or nothing.

    Fields such as `id` do not matter here: the next chunk fits the pattern only if they are the same, byte for byte.
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
