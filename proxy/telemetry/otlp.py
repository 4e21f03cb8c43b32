"""Encodes spans: the few protobuf messages of OTLP that a trace needs, written directly.

Field numbers are from https://github.com/open-telemetry/opentelemetry-proto (trace/v1/trace.proto). A message is a
sequence of fields in any order; a field is a tag (its number and its wire type in one byte) and a value, which has its
length before it unless it is a number.

Nearly everything in a span has one of few values: names, models, statuses. What all spans of a shape have in common is
encoded once, and so are the beginnings of attributes.
"""

import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

from proxy.config.redaction import Redact
from proxy.telemetry import conventions
from proxy.telemetry.conventions import EVENTS_IN_ATTRIBUTES, Attributes, Shape
from proxy.telemetry.records import Note, RequestRecord

RESOURCE_ATTRIBUTE: Final = b"\x0a"
_TRACE_ID, _SPAN_ID, _PARENT = b"\x0a\x10", b"\x12\x08", b"\x22\x08"  # with their lengths
_SPAN, _SPAN_NAME, _SPAN_ATTRIBUTE, _SPAN_EVENT, _START, _END = b"\x12", b"\x2a", b"\x4a", b"\x5a", b"\x39", b"\x41"
_EVENT_NAME, _EVENT_ATTRIBUTE = b"\x12", b"\x1a"

_KINDS: Final = {"request": b"\x30\x02", "tool": b"\x30\x01", "page": b"\x30\x01"}  # Span.kind: SERVER, INTERNAL
_CLIENT: Final = b"\x30\x03"
_FAILED: Final = b"\x7a\x02\x18\x02"  # Span.status {code: ERROR}
_TEXT, _BOOL, _INT, _DOUBLE, _ARRAY = b"\x0a", b"\x10", b"\x18", b"\x21", b"\x2a"  # AnyValue

_pack_times = struct.Struct("<cQcQ").pack  # of a span
_pack_time = struct.Struct("<cQ").pack  # of an event
_pack_double = struct.Struct("<d").pack

_MOST_KEPT: Final = 2048
_LONGEST_KEPT: Final = 128  # characters; clients choose some of the texts


class SpanEncoder:
    """Encodes records, without secrets, as a sequence of `ScopeSpans.spans`."""

    def __init__(self, redact: Redact = str) -> None:
        self._redact = redact
        self._common: dict[Shape, bytes] = {}

    def encode(self, record: RequestRecord) -> bytes:
        """The spans of a request, its own first."""
        began, span, caller = int(record.began_at * 1e9), record.span, record.parent
        trace = _TRACE_ID + span.trace
        times = _pack_times(_START, began, _END, began + int((record.seconds or 0) * 1e9))
        place = [trace + _SPAN_ID + span.span, times]
        if caller is not None:
            place.append(_PARENT + caller.span)
        shape, attributes = conventions.request_shape(record), conventions.request_attributes(record)
        spans = [self._span(place, shape, attributes, record.notes, began)]
        ids = trace + _PARENT + span.span + _SPAN_ID
        for step in record.steps:
            start = began + int(step.at * 1e9)
            times = _pack_times(_START, start, _END, start + int((step.seconds or 0) * 1e9))
            shape, attributes = conventions.step_shape(step), conventions.step_attributes(step)
            spans.append(self._span([ids, step.span, times], shape, attributes, step.notes, began))
        return b"".join(spans)

    def _span(
        self, fields: list[bytes], shape: Shape, attributes: Attributes, notes: Sequence[Note], began: int
    ) -> bytes:
        """A span as a field of `ScopeSpans`.

        Args:
            fields: those with its ids and times.
            shape: of the span.
            attributes: those that are no part of the shape.
            notes: its events.
            began: the start of the request, in nanoseconds since 1970.
        """
        try:
            fields.append(self._common[shape])
        except (KeyError, TypeError):
            fields.append(self._common_fields(shape))
        fields += [self._attribute(_SPAN_ATTRIBUTE, name, value) for name, value in attributes.items()]
        if notes:
            fields += [self._event(note, began) for note in notes if note.event not in EVENTS_IN_ATTRIBUTES]
        span = b"".join(fields)
        return _SPAN + _varint(len(span)) + span

    def _common_fields(self, shape: Shape) -> bytes:
        """The fields that all spans of a shape have; kept unless there is a long text, for clients choose some."""
        described = conventions.describe(shape)
        kind = _KINDS.get(str(shape[0]), _CLIENT) + (_FAILED if described.failed else b"")
        name = text(_SPAN_NAME, self._redact(described.name))
        common = kind + name + self.attributes(_SPAN_ATTRIBUTE, described.attributes)
        if all(len(one) <= _LONGEST_KEPT for one in shape if isinstance(one, str)):
            if len(self._common) >= _MOST_KEPT:
                self._common.clear()
            with suppress(TypeError):  # an upstream gave a list or an object where a text belongs
                self._common[shape] = common
        return common

    def _event(self, note: Note, began: int) -> bytes:
        """An event of a span; fields without a value are left out."""
        fields = {name: value for name, value in note.fields.items() if value or isinstance(value, float)}
        at = _pack_time(b"\x09", began + int(note.at * 1e9))
        return delimited(_SPAN_EVENT, at + text(_EVENT_NAME, note.event) + self.attributes(_EVENT_ATTRIBUTE, fields))

    def attributes(self, tag: bytes, attributes: Mapping[str, Any]) -> bytes:
        """Attributes as the field `tag` of a message, which is repeated."""
        return b"".join([self._attribute(tag, name, value) for name, value in attributes.items()])

    def _attribute(self, tag: bytes, name: str, value: object) -> bytes:
        """An attribute; a value of a type that OTLP does not have becomes a text."""
        if isinstance(value, float):
            return _head(tag, name, _DOUBLE, 8) + _pack_double(value)
        if isinstance(value, bool):
            kind, data = _BOOL, b"\x01" if value else b"\x00"
        elif isinstance(value, int):
            kind, data = _INT, _varint(value % (1 << 64))
        elif isinstance(value, tuple):
            kind = _ARRAY
            data = b"".join([delimited(b"\x0a", text(_TEXT, self._redact(str(one)))) for one in value])
        else:
            kind, data = _TEXT, self._redact(str(value)).encode("utf-8", "replace")
        return _head(tag, name, kind, len(data)) + data


@lru_cache(4096)
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


@lru_cache(4096)
def _varint(number: int) -> bytes:
    """A number in groups of seven bits, the lowest first; all but the last have the eighth bit set."""
    groups = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - seven bits
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)
