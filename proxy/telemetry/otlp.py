"""Encodes spans: the few protobuf messages of OTLP that a trace needs, written directly.

Field numbers are from https://github.com/open-telemetry/opentelemetry-proto (trace/v1/trace.proto). A message is a
sequence of fields; a field is a tag (its number and its wire type in one byte) and a value, which has its length before
it unless it is a number.

Nearly everything in a span has one of few values: names, models, statuses. So its bytes are made once, with gaps for
what differs from span to span, as a template; after that, a span costs the search for its template and one
`struct.pack`. The key of a template has everything that its bytes were made of, and the sizes of its gaps.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

from proxy.redact import Redact
from proxy.telemetry import conventions
from proxy.telemetry.conventions import IN_ATTRIBUTES, Shape, Values
from proxy.telemetry.records import Note, RequestRecord, Step
from proxy.telemetry.trace_context import SpanId

RESOURCE_ATTRIBUTE: Final = b"\x0a"
_SPAN_ATTRIBUTE, _EVENT_ATTRIBUTE = b"\x4a", b"\x1a"

_KINDS: Final = {"request": b"\x30\x02", "tool": b"\x30\x01"}  # Span.kind: SERVER, INTERNAL
_CLIENT: Final = b"\x30\x03"
_FAILED: Final = b"\x7a\x02\x18\x02"  # Span.status {code: ERROR}
_TEXT, _BOOL, _INT, _DOUBLE, _ARRAY = b"\x0a", b"\x10", b"\x18", b"\x21", b"\x2a"  # AnyValue

_MOST_KEPT: Final = 2048
_LONGEST_KEPT: Final = 128  # characters, or bytes; clients choose some of the texts

Gap: TypeAlias = bytes | int | float
"""What is put into a gap: an id, a text or a varint; nanoseconds; a floating-point number."""
Key: TypeAlias = tuple[Any, ...]
"""A span's shape, whether it has no parent, and the values, or the sizes of the gaps, of the rest."""
Part: TypeAlias = bytes | str
"""A part of a template: constant bytes, or a gap as a format of `struct`."""


class _Template:
    """A message with gaps: a constant, a gap, and so on; it ends with a gap."""

    def __init__(self, parts: Iterable[Part]) -> None:
        constants, gaps = [b""], []
        for part in parts:
            if isinstance(part, bytes):
                constants[-1] += part
            else:
                gaps.append(part)
                constants.append(b"")
        pairs = list(zip(constants, gaps, strict=False))  # nothing stands behind the last gap
        self._pack = struct.Struct("<" + "".join([f"{len(constant)}s{gap}" for constant, gap in pairs])).pack
        self._parts: list[Gap] = [part for constant, _ in pairs for part in (constant, 0)]

    def fill(self, gaps: Sequence[Gap]) -> bytes:
        """The message with these gaps."""
        parts = self._parts.copy()
        parts[1::2] = gaps
        return self._pack(*parts)


class SpanEncoder:
    """Encodes records, without secrets, as a sequence of `ScopeSpans.spans`."""

    def __init__(self, redact: Redact = str) -> None:
        self._redact = redact
        self._templates: dict[Key, _Template] = {}

    def encode(self, record: RequestRecord) -> bytes:
        """The spans of a request, its own first."""
        began = int(record.began_at * 1e9)
        shape, values = conventions.request_shape(record), conventions.request_values(record)
        spans = self._span(record, record.parent, began, shape, values)
        for step in record.steps:
            shape, values = conventions.step_shape(step), conventions.step_values(step)
            spans += self._span(step, record.span, began, shape, values)
        return spans

    def _span(
        self, timed: RequestRecord | Step, parent: SpanId | None, began: int, shape: Shape, values: Values
    ) -> bytes:
        """One span; `began` is the start of the request, in nanoseconds since 1970.

        The gaps and the key are collected in the order in which `_parts` makes a template.
        """
        own, start = timed.span, began + int(timed.at * 1e9)
        gaps: list[Gap] = [own.trace, own.span, start, start + int((timed.seconds or 0) * 1e9)]
        key: list[Any] = [shape, parent is None]
        if parent is not None:
            gaps.append(parent.span)
        for value in values:
            if value is None:
                key.append(None)
            elif type(value) is float:
                key.append(float)
                gaps.append(value)
            else:
                data = self._data(value)[1]
                key.append(len(data))
                gaps.append(data)
        for note in timed.notes:
            if note.event not in IN_ATTRIBUTES:
                key.append(note.event)
                gaps.append(began + int(note.at * 1e9))
                for name, value in note.fields.items():
                    if type(value) is float:
                        key += (name, float)
                        gaps.append(value)
                    elif value:
                        key += (name, value)
        return self._template(tuple(key), gaps, timed, values).fill(gaps)

    def _template(self, key: Key, gaps: Iterable[Gap], timed: RequestRecord | Step, values: Values) -> _Template:
        """The template of a span; it is kept unless there is a long text, for clients choose some of the texts."""
        try:
            template = self._templates.get(key)
        except TypeError:  # an upstream gave a list or an object where a text belongs
            return _Template(self._parts(key, timed, values))
        if template is None:
            template = _Template(self._parts(key, timed, values))
            shape, *others = key
            if all(len(one) <= _LONGEST_KEPT for one in (*shape, *others, *gaps) if isinstance(one, (str, bytes))):
                if len(self._templates) >= _MOST_KEPT:
                    self._templates.clear()
                self._templates[key] = template
        return template

    def _parts(self, key: Key, timed: RequestRecord | Step, values: Values) -> list[Part]:
        """A span, with gaps in the order of `_span`."""
        shape, is_root = key[:2]
        described = conventions.describe(shape)
        kind = _KINDS.get(str(shape[0]), _CLIENT) + (_FAILED if described.failed else b"")
        span_name = text(b"\x2a", self._redact(described.name))
        parts: list[Part] = [kind, span_name, self.attributes(_SPAN_ATTRIBUTE, described.attributes)]
        parts += [b"\x0a\x10", "16s", b"\x12\x08", "8s", b"\x39", "Q", b"\x41", "Q"]
        if not is_root:
            parts += [b"\x22\x08", "8s"]
        for name, value in zip(conventions.value_names(shape), values, strict=True):
            if value is not None:
                parts += self._attribute(_SPAN_ATTRIBUTE, name, value)
        for note in timed.notes:
            if note.event not in IN_ATTRIBUTES:
                parts += self._event(note)
        return _message(b"\x12", parts)

    def _event(self, note: Note) -> list[Part]:
        """An event of a span; fields without a value are left out."""
        fixed = {name: value for name, value in note.fields.items() if value and type(value) is not float}
        parts: list[Part] = [text(b"\x12", note.event), self.attributes(_EVENT_ATTRIBUTE, fixed), b"\x09", "Q"]
        for name, value in note.fields.items():
            if type(value) is float:
                parts += self._attribute(_EVENT_ATTRIBUTE, name, value)
        return _message(b"\x5a", parts)

    def attributes(self, tag: bytes, attributes: Mapping[str, Any]) -> bytes:
        """Attributes, none of which is a floating-point number, as the field `tag` of a message, which is repeated."""
        encoded = b""
        for name, value in attributes.items():
            value_tag, data = self._data(value)
            encoded += _head(tag, name, value_tag, len(data)) + data
        return encoded

    def _attribute(self, tag: bytes, name: str, value: object) -> list[Part]:
        """One attribute with a gap for its value."""
        if type(value) is float:
            return [_head(tag, name, _DOUBLE, 8), "d"]
        value_tag, data = self._data(value)
        return [_head(tag, name, value_tag, len(data)), f"{len(data)}s"]

    def _data(self, value: object) -> tuple[bytes, bytes]:
        """The tag of a value's type, and the value; one of a type that OTLP does not have becomes a text."""
        match value:
            case str():
                return _TEXT, self._redact(value).encode("utf-8", "replace")
            case bool():
                return _BOOL, b"\x01" if value else b"\x00"
            case int():
                return _INT, _varint(value % (1 << 64))
            case tuple():
                return _ARRAY, b"".join([delimited(b"\x0a", text(_TEXT, self._redact(str(one)))) for one in value])
        return _TEXT, self._redact(str(value)).encode("utf-8", "replace")


def _head(tag: bytes, name: str, value_tag: bytes, size: int) -> bytes:
    """All of an attribute that stands before the `size` bytes of its value."""
    value_head = value_tag + _varint(size) if value_tag in {_TEXT, _ARRAY} else value_tag
    head = text(b"\x0a", name) + b"\x12" + _varint(len(value_head) + size) + value_head
    return tag + _varint(len(head) + size) + head


def _message(tag: bytes, parts: list[Part]) -> list[Part]:
    """A message with gaps as a field of another."""
    size = sum(len(part) if isinstance(part, bytes) else struct.calcsize(f"<{part}") for part in parts)
    return [tag + _varint(size), *parts]


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
