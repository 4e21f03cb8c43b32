"""Sends spans to an OTLP receiver, in batches and from a thread.

OpenTelemetry's environment variables are obeyed: https://opentelemetry.io/docs/specs/otel/protocol/exporter/ for the
requests, https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/ for batches and resource.
Its SDK is not used: with the SDK, traces double the instructions of a small request.
"""

import gzip
import logging
import os
import ssl
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

import httpx
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from proxy.http.connect import client_context, reason
from proxy.http.forward_proxy import environment_proxies

SpanFields: TypeAlias = dict[str, Any]
"""The fields of a span by their names in OTLP; messages in it are mappings too, until their batch is encoded."""

_PATH: Final = "/v1/traces"
_CLOSING_SECONDS: Final = 5.0  # for all spans that are waiting when the proxy stops
_RETRIED_STATUSES: Final = frozenset({429, 502, 503, 504})  # as OTLP has it
_FIRST_PAUSE: Final = 1.0  # seconds before the second attempt; doubled each time
_SHORTEST_TIMEOUT: Final = 0.1  # seconds; a socket takes no negative number, and the time may just be over

_log = logging.getLogger("toolproxy.traces")


class SpanSender:
    """Sends spans in batches. Spans are dropped while the receiver does not keep up.

    Args:
        endpoint: the receiver's base URL; `/v1/traces` is appended unless it ends with that.
        resource: attributes of all spans; those of the environment are added and take precedence.
    """

    def __init__(self, endpoint: str, resource: Mapping[str, str]) -> None:
        self._url = endpoint.rstrip("/").removesuffix(_PATH) + _PATH
        self._compressed = _variable("COMPRESSION") == "gzip"
        self._client = _client_for(self._url, compressed=self._compressed)
        attributes = _with_environment(resource)
        self._resource = {
            "attributes": [{"key": key, "value": {"string_value": attributes[key]}} for key in attributes]
        }
        self._timeout = _positive(_variable("TIMEOUT"), 10)
        self._most_waiting = _positive(os.environ.get("OTEL_BSP_MAX_QUEUE_SIZE"), 2048)
        self._batch_size = int(_positive(os.environ.get("OTEL_BSP_MAX_EXPORT_BATCH_SIZE"), 512))
        self._delay = _positive(os.environ.get("OTEL_BSP_SCHEDULE_DELAY"), 5000) / 1000
        self._waiting: deque[SpanFields] = deque()
        self._dropped = 0
        self._is_due, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def add(self, spans: Sequence[SpanFields]) -> None:
        """Send the spans of a request with the next batch."""
        if len(self._waiting) >= self._most_waiting:
            self._dropped += len(spans)
            return
        self._waiting.extend(spans)
        if len(self._waiting) >= self._batch_size and not self._is_due.is_set():
            self._is_due.set()

    def close(self) -> None:
        """Send the spans that are waiting; those that the receiver does not take within five seconds are lost."""
        self._closing.set()
        self._is_due.set()
        self._thread.join(_CLOSING_SECONDS)
        if self._thread.is_alive():
            self._waiting = deque()
            _log.error("the receiver of traces has not taken all of them before the end")

    def _run(self) -> None:
        """Send a batch whenever it is full, or has waited for the delay."""
        while self._waiting or not self._closing.is_set():
            if len(self._waiting) < self._batch_size and not self._closing.is_set():
                self._is_due.wait(self._delay)
                self._is_due.clear()
            waiting = self._waiting
            if batch := [waiting.popleft() for _ in range(min(self._batch_size, len(waiting)))]:
                try:
                    self._send(self._encoded(batch))
                except Exception:  # noqa: BLE001 - a span that cannot be encoded must not end the thread
                    _log.exception("a batch of spans could not be sent")
        self._client.close()

    def _encoded(self, batch: Sequence[SpanFields]) -> bytes:
        request = ExportTraceServiceRequest()
        of_resource = request.resource_spans.add(resource=self._resource)
        spans = of_resource.scope_spans.add(scope={"name": "toolproxy"}).spans
        for fields in batch:
            spans.add(**fields)
        body = request.SerializeToString()
        return gzip.compress(body) if self._compressed else body

    def _send(self, body: bytes) -> None:
        """Send a batch, if need be several times within the timeout; what the receiver does not take is lost."""
        if self._dropped:
            _log.warning("%d spans were dropped: the receiver of traces does not keep up", self._dropped)
            self._dropped = 0
        until, pause = time.monotonic() + self._timeout, _FIRST_PAUSE
        while True:
            failure, may_pass = self._post(body, max(until - time.monotonic(), _SHORTEST_TIMEOUT))
            if not failure:
                return
            if not may_pass or time.monotonic() + pause > until or self._closing.wait(pause):
                _log.error("the receiver of traces has not taken a batch: %s", failure)
                return
            pause *= 2

    def _post(self, body: bytes, timeout: float) -> tuple[str, bool]:
        """Why the receiver has not taken a batch, empty if it has; and whether it may take it later."""
        try:
            response = self._client.post(self._url, content=body, timeout=timeout)
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            return reason(exc), True
        failure = "" if response.is_success else f"HTTP {response.status_code}"
        return failure, response.status_code in _RETRIED_STATUSES


def _client_for(url: str, *, compressed: bool) -> httpx.Client:
    """A client that goes the way of all requests: it trusts the same certificates, and uses the same forward proxy."""
    headers = httpx.Headers(_pairs(_variable("HEADERS")), encoding="utf-8")
    headers["content-type"] = "application/x-protobuf"
    if compressed:
        headers["content-encoding"] = "gzip"
    proxy = environment_proxies().proxy_for(url)
    through = httpx.Proxy(**proxy.options) if proxy else None
    return httpx.Client(headers=headers, verify=_tls_context(), trust_env=False, proxy=through)


def _tls_context() -> ssl.SSLContext:
    """Trusts the certificates of upstreams, or those named for traces; shows the receiver our own, if there is one."""
    named, own = _variable("CERTIFICATE"), _variable("CLIENT_CERTIFICATE")
    context = ssl.create_default_context(cafile=named) if named else client_context.__wrapped__()
    if own:
        context.load_cert_chain(own, _variable("CLIENT_KEY") or None)
    return context


def _with_environment(resource: Mapping[str, str]) -> dict[str, str]:
    """The attributes of a resource, and those that the environment gives it."""
    joined = {**resource, **_pairs(os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))}
    if name := os.environ.get("OTEL_SERVICE_NAME"):
        joined["service.name"] = name
    return joined


def _variable(name: str) -> str:
    """A variable of OpenTelemetry's exporters: the one for traces, or the one for all signals."""
    return os.environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}") or os.environ.get(f"OTEL_EXPORTER_OTLP_{name}", "")


def _pairs(text: str) -> dict[str, str]:
    """The pairs of a text such as `name=value,other=with%20blank`."""
    parts = (pair.partition("=") for pair in text.split(","))
    return {name.strip(): unquote(value.strip()) for name, equals, value in parts if equals}


def _positive(text: str | None, default: float) -> float:
    """The number of a variable; the default if the variable has no positive number."""
    try:
        number = float(text or default)
    except ValueError:
        return default
    return number if number > 0 else default
