"""Encodes spans: the few protobuf messages of OTLP that a trace needs, written directly.

Field numbers are from https://github.com/open-telemetry/opentelemetry-proto (trace/v1/trace.proto). A message is a
sequence of fields; a field is a tag (its number and its wire type in one byte) and a value, which has its length before
it unless it is a number.

Two things make this quick. The name, the kind and most attributes of a span have one of few values: what they encode to
is kept by the span's shape (`conventions`). And of an attribute that differs from span to span, everything before the
value depends on its length only, and is kept too.
"""

import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from proxy.redact import Redact
from proxy.telemetry import conventions
from proxy.telemetry.conventions import Attributes, Shape
from proxy.telemetry.records import Note, RequestRecord, Step
from proxy.telemetry.trace_context import SpanId

SPAN_ATTRIBUTE, EVENT_ATTRIBUTE, RESOURCE_ATTRIBUTE = b"\x4a", b"\x1a", b"\x0a"

_KINDS: Final = {"request": b"\x30\x02", "tool": b"\x30\x01"}  # Span.kind: SERVER, INTERNAL
_CLIENT: Final = b"\x30\x03"
_FAILED: Final = b"\x7a\x02\x18\x02"  # Span.status {code: ERROR}
_TEXT, _BOOL, _INT, _DOUBLE, _ARRAY = b"\x0a", b"\x10", b"\x18", b"\x21", b"\x2a"  # AnyValue

_MOST_SHAPES: Final = 1024
_LONGEST_CACHED: Final = 128  # characters; clients choose some of the texts
_MOST_HEADS: Final = 4096

_double = struct.Struct("<d").pack
_event_head = struct.Struct("<BQ").pack  # Event.time_unix_nano
_times = struct.Struct("<BQBQ").pack  # Span.start_time_unix_nano, .end_time_unix_nano
_root_ids = struct.Struct(">H16sHQ").pack  # Span.trace_id, .span_id
_ids = struct.Struct(">H16sHQHQ").pack  # and .parent_span_id


class SpanEncoder:
    """Encodes records, without secrets, as a sequence of `ScopeSpans.spans`."""

    def __init__(self, redact: Redact = str) -> None:
        self._redact = redact
        self._shapes: dict[Shape, bytes] = {}

    def encode(self, record: RequestRecord) -> bytes:
        """The spans of a request, its own first."""
        began = int(record.began_at * 1e9)
        shape, values = conventions.request_shape(record), conventions.request_values(record)
        spans = self._span(record.span, record.parent, shape, values) + self._times(record, began, began)
        encoded = delimited(b"\x12", spans)
        for step in record.steps:
            shape, values = conventions.step_shape(step), conventions.step_values(step)
            span = self._span(step.span, record.span, shape, values)
            encoded += delimited(b"\x12", span + self._times(step, began, began + int(step.at * 1e9)))
        return encoded

    def attributes(self, tag: bytes, attributes: Mapping[str, Any]) -> bytes:
        """Attributes as the field `tag` of a message, which is repeated."""
        encoded = b""
        for name, value in attributes.items():
            value_tag, data = self._any_value(value)
            encoded += _head(tag, name, value_tag, len(data)) + data
        return encoded

    def _span(self, own: SpanId, parent: SpanId | None, shape: Shape, values: Attributes) -> bytes:
        """A span but for its times and events."""
        trace = own.trace.to_bytes(16, "big")
        if parent is None:
            ids = _root_ids(0x0A10, trace, 0x1208, own.span)
        else:
            ids = _ids(0x0A10, trace, 0x1208, own.span, 0x2208, parent.span)
        return ids + self._shaped(shape) + self.attributes(SPAN_ATTRIBUTE, values)

    def _times(self, timed: RequestRecord | Step, began: int, start: int) -> bytes:
        """Start, end and events of a span; `began` is the start of the request; in nanoseconds since 1970."""
        encoded = _times(0x39, start, 0x41, start + int((timed.seconds or 0) * 1e9))
        for note in timed.notes:
            encoded += delimited(b"\x5a", self._event(note, began))
        return encoded

    def _event(self, note: Note, began: int) -> bytes:
        fields = {name: value for name, value in note.fields.items() if value}
        name = text(b"\x12", note.event)
        return _event_head(0x09, began + int(note.at * 1e9)) + name + self.attributes(EVENT_ATTRIBUTE, fields)

    def _shaped(self, shape: Shape) -> bytes:
        """What all spans of a shape have in common."""
        try:
            kept = self._shapes.get(shape)
        except TypeError:  # an upstream gave a list or an object where a text belongs
            return self._describe(shape)
        if kept is None:
            kept = self._describe(shape)
            if all(len(value) <= _LONGEST_CACHED for value in shape if isinstance(value, str)):
                if len(self._shapes) >= _MOST_SHAPES:
                    self._shapes.clear()
                self._shapes[shape] = kept
        return kept

    def _describe(self, shape: Shape) -> bytes:
        described = conventions.describe(shape)
        name = text(b"\x2a", self._redact(described.name))
        kind = _KINDS.get(str(shape[0]), _CLIENT) + (_FAILED if described.failed else b"")
        return kind + name + self.attributes(SPAN_ATTRIBUTE, described.attributes)

    def _any_value(self, value: object) -> tuple[bytes, bytes]:
        """The tag of a value's type, and the value; a type without a tag of its own becomes a text."""
        match value:
            case float():
                return _DOUBLE, _double(value)
            case bool():
                return _BOOL, b"\x01" if value else b"\x00"
            case int():
                return _INT, _varint(value % (1 << 64))
            case tuple():
                return _ARRAY, b"".join([delimited(b"\x0a", text(_TEXT, self._redact(str(one)))) for one in value])
        return _TEXT, self._redact(str(value)).encode("utf-8", "replace")


@lru_cache(_MOST_HEADS)
def _head(tag: bytes, name: str, value_tag: bytes, size: int) -> bytes:
    """All of an attribute that stands before the `size` bytes of its value."""
    value_head = value_tag + _varint(size) if value_tag in {_TEXT, _ARRAY} else value_tag
    head = text(b"\x0a", name) + b"\x12" + _varint(len(value_head) + size) + value_head
    return tag + _varint(len(head) + size) + head


def text(tag: bytes, value: str) -> bytes:
    """A text as a field."""
    return delimited(tag, value.encode("utf-8", "replace"))


def delimited(tag: bytes, data: bytes) -> bytes:
    """A message, or bytes, as a field."""
    return tag + _varint(len(data)) + data


@lru_cache(_MOST_HEADS)
def _varint(number: int) -> bytes:
    """A number in groups of seven bits, the lowest first; all but the last have the eighth bit set."""
    groups = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - seven bits
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)
