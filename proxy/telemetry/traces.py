"""Records as OpenTelemetry traces: a SERVER span per request, a CLIENT span per turn, an INTERNAL span per tool call.

Span ids exist from the start, so requests to upstreams and tools can name them; the spans are encoded when the request
has ended and sent in the background. They are dropped when their receiver does not keep up.

The SDK gives the queue, the batches and the resource. Its span objects and its encoder are not used: with those, traces
cost 1.6 times as much as the request itself. `otlp` encodes instead.
"""

import gzip
import logging
import os
import threading
import time
from collections.abc import Iterable
from typing import Any, Final

import httpx
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext, TraceFlags
from opentelemetry.util.re import parse_env_headers

from proxy.config.redaction import Redact
from proxy.http.connect import client_context
from proxy.http.forward_proxy import environment_proxies
from proxy.kit import request_context
from proxy.telemetry.conventions import EVENTS_IN_ATTRIBUTES
from proxy.telemetry.otlp import RESOURCE_ATTRIBUTE, SpanEncoder, delimited, text
from proxy.telemetry.records import RequestRecord

_PATH: Final = "/v1/traces"
_TIMEOUT: Final = 5.0  # seconds for one batch, retries included, and for all that are waiting when the proxy stops
_RETRIED_STATUSES: Final = frozenset({429, 502, 503, 504})  # as OTLP has it
_FIRST_RETRY: Final = 1.0  # seconds, doubled each time

_log = logging.getLogger("toolproxy.traces")


class Exporter:
    """Sends records to an OTLP receiver. Implements `records.RecordSink`.

    Args:
        endpoint: the receiver's base URL; `/v1/traces` is appended unless it ends with that. The environment variables
            `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` are obeyed.
        version: the version of the proxy.
        redact: masks secrets in a text.
    """

    ignored: Final = EVENTS_IN_ATTRIBUTES

    def __init__(self, endpoint: str, *, version: str, redact: Redact = str) -> None:
        url = endpoint.rstrip("/")
        own = {"service.name": "toolproxy", "service.version": version}
        resource = Resource.create(own).merge(OTELResourceDetector().detect())
        self._encoder = SpanEncoder(redact)
        self._sender = _Sender(url if url.endswith(_PATH) else url + _PATH, resource)
        self._processor = BatchSpanProcessor(self._sender)

    def started(self, record: RequestRecord) -> None:
        """Add the trace's id to the log lines of the request."""
        request_context.add({"trace_id": record.span.trace.hex()})

    def completed(self, record: RequestRecord) -> None:
        """Export the trace if it is sampled."""
        if record.span.sampled:
            self._processor.on_end(_EncodedSpans(self._encoder.encode(record)))

    def close(self) -> None:
        """Send the spans that are waiting; those that the receiver does not take within the timeout are lost."""
        # The SDK would wait for half a minute. Its own thread does not hold up the end of the process either.
        closing = threading.Thread(target=self._processor.shutdown, daemon=True)
        closing.start()
        closing.join(_TIMEOUT)
        if closing.is_alive():
            self._sender.give_up()


class _EncodedSpans(ReadableSpan):
    """The spans of one record, as the SDK's queue takes them.

    The queue asks only whether a span is sampled. The constructor of the SDK is left out, for it costs as much as half
    of the encoding.
    """

    context: Final = SpanContext(1, 1, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

    def __init__(self, encoded: bytes) -> None:
        self.encoded = encoded


class _Sender(SpanExporter):
    """Sends batches by HTTP, in the thread of the SDK's queue."""

    def __init__(self, url: str, resource: Resource) -> None:
        self._url = url
        given = [_environ("HEADERS"), "content-type=application/x-protobuf"]
        self._compressed = _environ("COMPRESSION") == "gzip"
        if self._compressed:
            given.append("content-encoding=gzip")
        headers = parse_env_headers(",".join(filter(None, given)), liberal=True)
        proxy = environment_proxies().proxy_for(url)
        through = httpx.Proxy(**proxy.options) if proxy else None
        self._client = httpx.Client(
            headers=headers, timeout=_TIMEOUT, verify=_tls_context(), trust_env=False, proxy=through
        )
        self._resource = delimited(b"\x0a", SpanEncoder().attributes(RESOURCE_ATTRIBUTE, resource.attributes))
        self._scope = delimited(b"\x0a", text(b"\x0a", "toolproxy"))
        self._stopping = threading.Event()

    def export(self, spans: Iterable[ReadableSpan]) -> SpanExportResult:
        """Send a batch; what the receiver does not take within the timeout is lost."""
        if self._stopping.is_set():
            return SpanExportResult.FAILURE
        encoded = b"".join([span.encoded for span in spans if isinstance(span, _EncodedSpans)])
        scope_spans = delimited(b"\x12", self._scope + encoded)
        body = delimited(b"\x0a", self._resource + scope_spans)
        if self._compressed:
            body = gzip.compress(body)
        until, pause = time.monotonic() + _TIMEOUT, _FIRST_RETRY
        while (failure := self._post(body)) is not None:
            retried, why = failure
            if not retried or time.monotonic() + pause > until or self._stopping.wait(pause):
                _log.error("%s does not accept traces: %s", self._url, why)
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

    def give_up(self) -> None:
        """Wait no longer for the receiver, and send no further batch."""
        self._stopping.set()
        _log.error("%s has not taken all traces before the end", self._url)

    def shutdown(self) -> None:
        """Send nothing more, and close the connection."""
        self._stopping.set()
        self._client.close()


def _environ(name: str) -> str:
    """A variable of OpenTelemetry's exporters: that for traces, or that for all signals."""
    return os.environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}") or os.environ.get(f"OTEL_EXPORTER_OTLP_{name}") or ""


def _tls_context() -> Any:
    certificate, own = _environ("CERTIFICATE"), _environ("CLIENT_CERTIFICATE")
    context = client_context()
    if certificate or own:
        context = httpx.create_ssl_context(verify=certificate or True)
        if own:
            context.load_cert_chain(own, _environ("CLIENT_KEY") or None)
    return context
