"""Records as OpenTelemetry traces: a SERVER span per request, a CLIENT span per turn, an INTERNAL span per tool call.

Span ids exist from the start, so requests to upstreams and tools can name them. The spans are made when the request has
ended, complete as they are, and the SDK encodes and sends them in a thread of its own. They are dropped when their
receiver does not keep up.
"""

import logging
import os
import ssl
import threading
from collections.abc import Iterable, Iterator
from typing import Any, Final
from urllib.parse import quote

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
from requests.adapters import HTTPAdapter

from proxy.config.redaction import Redact
from proxy.http.connect import client_context
from proxy.http.forward_proxy import environment_proxies
from proxy.kit import request_context
from proxy.telemetry.conventions import EVENTS_IN_ATTRIBUTES, SpanDescription, describe_request, describe_step
from proxy.telemetry.records import Note, RequestRecord, Step

_PATH: Final = "/v1/traces"
_CLOSING_SECONDS: Final = 5.0  # for all spans that are waiting when the proxy stops; the SDK would take half a minute
_CERTIFICATES: Final = ("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE")

_KINDS: Final = {"tool": SpanKind.INTERNAL, "page": SpanKind.INTERNAL}
_SCOPE: Final = InstrumentationScope("toolproxy")
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_FAILED, _NOT_FAILED = Status(StatusCode.ERROR), Status(StatusCode.UNSET)
_LARGEST_INT: Final = 2**63  # OTLP has integers of 64 bits

_log = logging.getLogger("toolproxy.traces")


class Exporter:
    """Sends records to an OTLP receiver. Implements `records.RecordSink`.

    Args:
        endpoint: the receiver's base URL; `/v1/traces` is appended unless it ends with that. Variables of
            OpenTelemetry's exporter, batches and resource in the environment are obeyed.
        version: the version of the proxy.
        redact: masks secrets in a text.
    """

    ignored: Final = EVENTS_IN_ATTRIBUTES

    def __init__(self, endpoint: str, *, version: str, redact: Redact = str) -> None:
        url = endpoint.rstrip("/").removesuffix(_PATH) + _PATH
        own = {"service.name": "toolproxy", "service.version": version}
        self._maker = SpanMaker(Resource.create(own).merge(OTELResourceDetector().detect()), redact)
        self._processor = BatchSpanProcessor(OTLPSpanExporter(url, session=_session_for(url)))

    def started(self, record: RequestRecord) -> None:
        """Add the trace's id to the log lines of the request."""
        request_context.add({"trace_id": record.span.trace.hex()})

    def completed(self, record: RequestRecord) -> None:
        """Export the trace if it is sampled."""
        if record.span.sampled:
            for span in self._maker.spans_of(record):
                self._processor.on_end(span)

    def close(self) -> None:
        """Send the spans that are waiting; those that the receiver does not take within five seconds are lost."""
        closing = threading.Thread(target=self._processor.shutdown, daemon=True)
        closing.start()
        closing.join(_CLOSING_SECONDS)
        if closing.is_alive():
            _log.error("the receiver of traces has not taken all of them before the end")


class SpanMaker:
    """Makes the finished spans of records.

    Args:
        resource: what all spans belong to.
        redact: masks secrets in a text.
    """

    def __init__(self, resource: Resource, redact: Redact = str) -> None:
        self._resource = resource
        self._redact = redact

    def spans_of(self, record: RequestRecord) -> Iterator[ReadableSpan]:
        """The spans of a request, its own first."""
        trace, began = int.from_bytes(record.span.trace), int(record.began_at * 1e9)
        own = _context(trace, record.span.span)
        caller = _context(trace, record.parent.span, is_remote=True) if record.parent else None
        yield self._span(describe_request(record), SpanKind.SERVER, own, caller, record, began)
        for step in record.steps:
            kind, context = _KINDS.get(step.kind, SpanKind.CLIENT), _context(trace, step.span)
            yield self._span(describe_step(step), kind, context, own, step, began)

    def _span(  # noqa: PLR0917 - each is another part of the span
        self,
        described: SpanDescription,
        kind: SpanKind,
        context: SpanContext,
        parent: SpanContext | None,
        timed: RequestRecord | Step,
        began: int,
    ) -> ReadableSpan:
        """A span of a request that `began` so many nanoseconds after 1970."""
        start = began + int(timed.at * 1e9) if isinstance(timed, Step) else began
        return ReadableSpan(
            name=self._text(described.name),
            context=context,
            parent=parent,
            resource=self._resource,
            attributes=self._attributes(described.attributes.items()),
            events=self._events(timed.notes, began),
            kind=kind,
            status=_FAILED if described.failed else _NOT_FAILED,
            start_time=start,
            end_time=start + int((timed.seconds or 0) * 1e9),
            instrumentation_scope=_SCOPE,
        )

    def _events(self, notes: Iterable[Note], began: int) -> list[Event]:
        """The events of a span; fields without a value are left out."""
        return [
            Event(
                note.event,
                self._attributes(item for item in note.fields.items() if item[1] or isinstance(item[1], float)),
                began + int(note.at * 1e9),
            )
            for note in notes
            if note.event not in EVENTS_IN_ATTRIBUTES
        ]

    def _attributes(self, named: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        """Attributes as OTLP has them; a value of another type becomes a text."""
        return {name: self._value(value) for name, value in named}

    def _value(self, value: object) -> bool | int | float | str | tuple[str, ...]:
        match value:
            case bool() | float():
                return value
            case int() if -_LARGEST_INT <= value < _LARGEST_INT:
                return value
            case tuple():
                return tuple(self._text(str(one)) for one in value)
        return self._text(str(value))

    def _text(self, text: str) -> str:
        """A text without secrets, and without halves of characters, of which protobuf has none."""
        text = self._redact(text)
        return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _context(trace: int, span: bytes, *, is_remote: bool = False) -> SpanContext:
    return SpanContext(trace, int.from_bytes(span), is_remote, _SAMPLED)


def _session_for(url: str) -> requests.Session:
    """A session that goes the way of all requests, whatever else the environment says."""
    session = requests.Session()
    session.trust_env = False
    session.mount("https://", _Trusting())
    if (proxy := environment_proxies().proxy_for(url)) is not None:
        user = f"{quote(proxy.user, '')}:{quote(proxy.password, '')}@" if proxy.authorization else ""
        session.proxies = dict.fromkeys(("http", "https"), proxy.url.replace("//", f"//{user}", 1))
    return session


class _Trusting(HTTPAdapter):
    """Trusts the certificates of upstreams, or those named for traces, beside the ones that `requests` knows."""

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, ssl_context=_tls_context(), **options)

    def proxy_manager_for(self, *args: Any, **options: Any) -> Any:
        return super().proxy_manager_for(*args, ssl_context=_tls_context(), **options)


def _tls_context() -> ssl.SSLContext:
    """A context of its own, since `requests` adds certificates to it."""
    named = next(filter(None, map(os.environ.get, _CERTIFICATES)), None)
    return ssl.create_default_context(cafile=named) if named else client_context.__wrapped__()
