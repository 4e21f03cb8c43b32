"""Records as OpenTelemetry traces: a SERVER span per request, a CLIENT span per turn, an INTERNAL span per tool call.

Span ids exist from the start, so requests to upstreams and tools can name them. The spans are made when the request has
ended, and sent in the background (`otlp`).
"""

from collections.abc import Iterable
from typing import Any, Final
from uuid import uuid4

from opentelemetry.proto.trace.v1.trace_pb2 import Span, SpanFlags, Status

from proxy.config.redaction import Redact
from proxy.kit import request_context
from proxy.telemetry.conventions import EVENTS_IN_ATTRIBUTES, SpanDescription, describe_request, describe_step
from proxy.telemetry.otlp import SpanFields, SpanSender
from proxy.telemetry.records import Note, RequestRecord, Step

_KINDS: Final = {"tool": Span.SPAN_KIND_INTERNAL, "page": Span.SPAN_KIND_INTERNAL}
_FAILED: Final = {"code": Status.STATUS_CODE_ERROR}
_LOCAL: Final = SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
_REMOTE: Final = _LOCAL | SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK  # the parent is a span of the caller
_SMALLEST_INT, _LARGEST_INT = -(2**63), 2**63 - 1  # of OTLP


class Exporter:
    """Sends records to an OTLP receiver. Implements `records.RecordSink`.

    Args:
        endpoint: the receiver's base URL; `/v1/traces` is appended unless it ends with that.
        version: the version of the proxy.
        redact: masks secrets in a text.
    """

    ignored: Final = EVENTS_IN_ATTRIBUTES

    def __init__(self, endpoint: str, *, version: str, redact: Redact = str) -> None:
        resource = {"service.name": "toolproxy", "service.version": version, "service.instance.id": str(uuid4())}
        self._sender = SpanSender(endpoint, resource)
        self._maker = SpanMaker(redact)
        self.close = self._sender.close

    def started(self, record: RequestRecord) -> None:
        """Add the trace's id to the log lines of the request."""
        request_context.add({"trace_id": record.span.trace.hex()})

    def completed(self, record: RequestRecord) -> None:
        """Export the trace if it is sampled."""
        if record.span.sampled:
            self._sender.add(self._maker.spans_of(record))


class SpanMaker:
    """Makes the spans of records, with secrets masked by `redact`."""

    def __init__(self, redact: Redact = str) -> None:
        self._redact = redact

    def spans_of(self, record: RequestRecord) -> list[SpanFields]:
        """The spans of a request, its own first."""
        trace, own, caller = record.span.trace, record.span.span, record.parent
        began = int(record.began_at * 1e9)
        spans = [self._fields(describe_request(record), record, began, began)]
        spans[0].update(trace_id=trace, span_id=own, kind=Span.SPAN_KIND_SERVER, flags=_REMOTE if caller else _LOCAL)
        if caller:
            spans[0]["parent_span_id"] = caller.span
        for step in record.steps:
            fields = self._fields(describe_step(step), step, began + int(step.at * 1e9), began)
            kind = _KINDS.get(step.kind, Span.SPAN_KIND_CLIENT)
            fields.update(trace_id=trace, span_id=step.span, parent_span_id=own, kind=kind, flags=_LOCAL)
            spans.append(fields)
        return spans

    def _fields(self, described: SpanDescription, timed: RequestRecord | Step, start: int, began: int) -> SpanFields:
        """The fields of a span without its ids; the span starts at `start`, its request at `began`, both in ns."""
        attributes = described.attributes
        texts = "\n".join([described.name, *[value for value in attributes.values() if isinstance(value, str)]])
        # Few spans have anything to mask. To look at each text by itself takes 4 % of a request.
        text = str if self._text(texts) == texts else self._text
        return {
            "name": text(described.name),
            "attributes": self._attributes(attributes.items(), text),
            "events": [self._event(note, began) for note in timed.notes if note.event not in EVENTS_IN_ATTRIBUTES],
            "status": _FAILED if described.failed else None,
            "start_time_unix_nano": start,
            "end_time_unix_nano": start + int((timed.seconds or 0) * 1e9),
        }

    def _event(self, note: Note, began: int) -> dict[str, Any]:
        """An event of a span; fields without a value are left out."""
        given = [item for item in note.fields.items() if item[1] or isinstance(item[1], float)]
        at = began + int(note.at * 1e9)
        return {"name": note.event, "time_unix_nano": at, "attributes": self._attributes(given, self._text)}

    def _attributes(self, named: Iterable[tuple[str, Any]], text: Redact) -> list[dict[str, Any]]:
        """Attributes as OTLP has them; `text` makes the values of those that are texts."""
        return [
            {"key": name, "value": {"string_value": text(value)} if isinstance(value, str) else self._value(value)}
            for name, value in named
        ]

    def _value(self, value: object) -> dict[str, Any]:
        """A value that is not a text; it becomes one if OTLP does not have its type."""
        match value:
            case bool():
                return {"bool_value": value}
            case int() if _SMALLEST_INT <= value <= _LARGEST_INT:
                return {"int_value": value}
            case float():
                return {"double_value": value}
            case tuple():
                return {"array_value": {"values": [{"string_value": self._text(str(one))} for one in value]}}
        return {"string_value": self._text(str(value))}

    def _text(self, text: str) -> str:
        """A text without secrets, and without halves of characters, of which protobuf has none."""
        text = self._redact(text)
        return text if text.isascii() else text.encode("utf-8", "replace").decode()
