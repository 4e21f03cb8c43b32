"""Records as OpenTelemetry traces: a SERVER span per request, a CLIENT span per turn, an INTERNAL span per tool call.

Span ids exist from the start, so requests to upstreams and tools can name them; the spans are encoded when the request
has ended and sent in the background. They are dropped when their receiver does not keep up.

The SDK gives the queue, the batches and the resource. Its span objects and its encoder are not used: with those, traces
cost 1.6 times as much as the request itself. This encoder writes the few protobuf messages of OTLP directly
(https://github.com/open-telemetry/opentelemetry-proto, trace/v1/trace.proto); field numbers are from there.
"""

import gzip
import logging
import os
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

import httpx
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext, TraceFlags
from opentelemetry.util.re import parse_env_headers

from proxy import request_context
from proxy.http.connect import client_context
from proxy.redact import Redact
from proxy.telemetry.conventions import request_span, step_span
from proxy.telemetry.records import RequestRecord, Step
from proxy.telemetry.trace_context import SpanId

_PATH: Final = "/v1/traces"
_TIMEOUT: Final = 5.0  # seconds for one batch, retries included, and so for the last one when the proxy stops
_RETRIED_STATUSES: Final = frozenset({429, 502, 503, 504})  # as OTLP has it
_FIRST_RETRY: Final = 1.0  # seconds, doubled each time
_FIRST_SERVER_ERROR: Final = 500
_INTERNAL, _SERVER, _CLIENT = b"\x30\x01", b"\x30\x02", b"\x30\x03"  # Span.kind
_FAILED: Final = b"\x7a\x02\x18\x02"  # Span.status {code: ERROR}
_EMPTY: Final = Resource({})
_SAMPLED: Final = SpanContext(1, 1, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
_MOST_CACHED: Final = 4096
_LONGEST_CACHED: Final = 128  # characters; longer texts are seldom equal

_fixed64 = struct.Struct("<Q").pack
_double = struct.Struct("<d").pack
_log = logging.getLogger("toolproxy.traces")


class Exporter:
    """Sends records to an OTLP receiver. Implements `records.RecordSink`.

    Args:
        endpoint: the receiver's base URL; `/v1/traces` is appended unless it ends with that. The environment variables
            `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` are obeyed.
        version: the version of the proxy.
        redact: masks secrets in a text.
    """

    def __init__(self, endpoint: str, *, version: str, redact: Redact = str) -> None:
        url = endpoint.rstrip("/")
        own = {"service.name": "toolproxy", "service.version": version}
        resource = Resource.create(own).merge(OTELResourceDetector().detect())
        self._encoder = SpanEncoder(redact)
        self._processor = BatchSpanProcessor(_Sender(url if url.endswith(_PATH) else url + _PATH, resource))

    def started(self, record: RequestRecord) -> None:
        """Add the trace's id to the log lines of the request."""
        request_context.add({"trace_id": record.span.trace_hex})

    def completed(self, record: RequestRecord) -> None:
        """Export the trace if it is sampled."""
        if record.span.sampled:
            self._processor.on_end(_EncodedSpans(self._encoder.encode(record)))

    def close(self) -> None:
        """Send the spans that are waiting."""
        self._processor.shutdown()  # type: ignore[no-untyped-call]


class _EncodedSpans(ReadableSpan):
    """The spans of one record, as the SDK's queue takes them."""

    def __init__(self, encoded: bytes) -> None:
        super().__init__("", _SAMPLED, resource=_EMPTY)
        self.encoded = encoded


class SpanEncoder:
    """Encodes records, without secrets, as a sequence of `ScopeSpans.spans`.

    Most attributes have one of few values, such as a model's name or a status: encoded ones are cached.
    """

    def __init__(self, redact: Redact = str) -> None:
        self._redact = redact
        self._cached_attribute = lru_cache(_MOST_CACHED, typed=True)(self._attribute)
        self._name = lru_cache(_MOST_CACHED)(lambda name: _text(b"\x2a", redact(name)))

    def encode(self, record: RequestRecord) -> bytes:
        """The spans of a request, its own first."""
        began, status = int(record.began_at * 1e9), record.fields.get("status")
        name, attributes = request_span(record)
        kind = _SERVER + _FAILED if isinstance(status, int) and status >= _FIRST_SERVER_ERROR else _SERVER
        span = [*_ids(record.span, record.parent), kind, self._name(name), *self._attributes(b"\x4a", attributes)]
        encoded = [_delimited(b"\x12", b"".join([*span, *self._times(record, began, began)]))]
        for step in record.steps:
            name, attributes = step_span(step)
            kind = _INTERNAL if step.kind == "tool" else _CLIENT
            if step.outcome != "completed":
                kind += _FAILED
            span = [*_ids(step.span, record.span), kind, self._name(name), *self._attributes(b"\x4a", attributes)]
            times = self._times(step, began, began + int(step.at * 1e9))
            encoded.append(_delimited(b"\x12", b"".join([*span, *times])))
        return b"".join(encoded)

    def _times(self, timed: RequestRecord | Step, began: int, start: int) -> Iterator[bytes]:
        """Start, end and events of a span; `began` is the start of the request; in nanoseconds since 1970."""
        yield b"\x39" + _fixed64(start) + b"\x41" + _fixed64(start + int((timed.seconds or 0) * 1e9))
        for note in timed.notes:
            fields = {name: value for name, value in note.fields.items() if value}
            head = b"\x09" + _fixed64(began + int(note.at * 1e9)) + _text(b"\x12", note.event)
            yield _delimited(b"\x5a", head + b"".join(self._attributes(b"\x1a", fields)))

    def _attributes(self, tag: bytes, attributes: Mapping[str, Any]) -> list[bytes]:
        encoded = []
        for name, value in attributes.items():
            if isinstance(value, float):
                encoded.append(_double_prefix(tag, name) + _double(value))
            elif isinstance(value, (int, tuple)) or (isinstance(value, str) and len(value) <= _LONGEST_CACHED):
                encoded.append(self._cached_attribute(tag, name, value))
            else:
                encoded.append(self._attribute(tag, name, str(value)))
        return encoded

    def _attribute(self, tag: bytes, name: str, value: str | int | tuple[str, ...]) -> bytes:
        """A key and a value, as the field `tag` of a message."""
        match value:
            case bool():
                any_value = b"\x10\x01" if value else b"\x10\x00"
            case int():
                any_value = b"\x18" + _varint(value % (1 << 64))
            case tuple():
                texts = [_delimited(b"\x0a", _text(b"\x0a", self._redact(text))) for text in value]
                any_value = _delimited(b"\x2a", b"".join(texts))
            case _:
                any_value = _text(b"\x0a", self._redact(value))
        return _delimited(tag, _text(b"\x0a", name) + _delimited(b"\x12", any_value))


@lru_cache(_MOST_CACHED)
def _double_prefix(tag: bytes, name: str) -> bytes:
    """All of a floating-point attribute but its last eight bytes, the number."""
    key = _text(b"\x0a", name)
    return tag + _varint(len(key) + 11) + key + b"\x12\x09\x21"


def _ids(span: SpanId, parent: SpanId | None) -> tuple[bytes, ...]:
    own = b"\x0a\x10", span.trace.to_bytes(16, "big"), b"\x12\x08", span.span.to_bytes(8, "big")
    return own if parent is None else (*own, b"\x22\x08", parent.span.to_bytes(8, "big"))


def _text(tag: bytes, text: str) -> bytes:
    return _delimited(tag, text.encode("utf-8", "replace"))


def _delimited(tag: bytes, data: bytes) -> bytes:
    return tag + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    if number < 0x80:  # noqa: PLR2004 - seven bits to a byte
        return bytes((number,))
    return bytes((number & 0x7F | 0x80,)) + _varint(number >> 7)


class _Sender(SpanExporter):
    """Sends batches by HTTP, in the thread of the SDK's queue."""

    def __init__(self, url: str, resource: Resource) -> None:
        self._url = url
        given = [_environ("HEADERS"), "content-type=application/x-protobuf"]
        self._compressed = _environ("COMPRESSION") == "gzip"
        if self._compressed:
            given.append("content-encoding=gzip")
        headers = parse_env_headers(",".join(filter(None, given)), liberal=True)
        self._client = httpx.Client(headers=headers, timeout=_TIMEOUT, verify=_trust())
        attributes = SpanEncoder()._attributes(b"\x0a", resource.attributes)  # noqa: SLF001 - in this module
        self._resource = _delimited(b"\x0a", b"".join(attributes))
        self._scope = _delimited(b"\x0a", _text(b"\x0a", "toolproxy"))
        self._stopping = threading.Event()

    def export(self, spans: Iterable[ReadableSpan]) -> SpanExportResult:
        """Send a batch; what the receiver does not take within the timeout is lost."""
        encoded = b"".join([span.encoded for span in spans if isinstance(span, _EncodedSpans)])
        scope_spans = _delimited(b"\x12", self._scope + encoded)
        body = _delimited(b"\x0a", self._resource + scope_spans)
        if self._compressed:
            body = gzip.compress(body)
        until, pause = time.monotonic() + _TIMEOUT, _FIRST_RETRY
        while (failure := self._post(body)) is not None:
            retried, why = failure
            if not retried or time.monotonic() + pause > until or self._stopping.wait(pause):
                _log.error("%s takes no traces: %s", self._url, why)
                return SpanExportResult.FAILURE
            pause *= 2
        return SpanExportResult.SUCCESS

    def _post(self, body: bytes) -> tuple[bool, str] | None:
        """Why the receiver has not taken the batch, and whether to try again; None: it has."""
        try:
            response = self._client.post(self._url, content=body)
        except httpx.HTTPError as exc:
            return True, type(exc).__name__
        if response.is_success:
            return None
        return response.status_code in _RETRIED_STATUSES, f"HTTP {response.status_code}"

    def shutdown(self) -> None:
        """Stop waiting for a receiver, and close the connection."""
        self._stopping.set()
        self._client.close()


def _environ(name: str) -> str:
    """A variable of OpenTelemetry's exporters: that for traces, or that for all signals."""
    return os.environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}") or os.environ.get(f"OTEL_EXPORTER_OTLP_{name}") or ""


def _trust() -> Any:
    certificate, own = _environ("CERTIFICATE"), _environ("CLIENT_CERTIFICATE")
    context = client_context()
    if certificate or own:
        context = httpx.create_ssl_context(verify=certificate or True)
        if own:
            context.load_cert_chain(own, _environ("CLIENT_KEY") or None)
    return context
