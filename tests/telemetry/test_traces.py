import gzip
import socket
import ssl
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import trustme
from msgspec.structs import replace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from proxy.http.forward_proxy import environment_proxies
from proxy.telemetry.records import Note, RequestRecord, Step
from proxy.telemetry.trace_context import SpanId, new_number, root
from proxy.telemetry.traces import Exporter, SpanMaker


def record(**fields):
    return RequestRecord("r", 0.0, 1_700_000_000.0, root(), root(), {"method": "POST", **fields}, seconds=1.5)


def value_of(attribute):
    kind = attribute.value.WhichOneof("value")
    value = getattr(attribute.value, kind)
    return kind, [one.string_value for one in value.values] if kind == "array_value" else value


def spans_of(made, redact=str):
    return [Span(**fields) for fields in SpanMaker(redact).spans_of(made)]


def test_a_span_has_ids_times_kind_name_and_attributes():
    made = record(path="/v1/models", status=200, first_byte=0.25)
    (span,) = spans_of(made)
    assert (span.trace_id, span.span_id) == (made.span.trace, made.span.span)
    assert span.parent_span_id == made.parent.span
    assert (span.name, span.kind, span.status.code) == (
        "POST /v1/models",
        Span.SPAN_KIND_SERVER,
        Status.STATUS_CODE_UNSET,
    )
    assert (span.start_time_unix_nano, span.end_time_unix_nano - span.start_time_unix_nano) == (17 * 10**17, 1.5e9)
    assert {one.key: value_of(one)[1] for one in span.attributes} == {
        "http.request.method": "POST", "url.path": "/v1/models", "http.response.status_code": 200,
        "toolproxy.first_byte_seconds": 0.25, "http.route": "/v1/models",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (True, ("bool_value", True)),
        (1, ("int_value", 1)),
        (-1, ("int_value", -1)),
        (2**62, ("int_value", 2**62)),
        (2**63, ("string_value", "9223372036854775808")),
        (1.0, ("double_value", 1.0)),
        ("é" * 200, ("string_value", "é" * 200)),
        ("half an emoji \ud83d", ("string_value", "half an emoji ?")),
        ("the key", ("string_value", "the ***")),
        ({"a": 1}, ("string_value", "{'a': 1}")),
    ],
)
def test_an_attribute_has_the_type_of_its_value(value, found):
    made = record()
    made.notes.append(Note(0.5, "upstream.retried", {"field": value, "empty": None}))
    ((event,),) = [span.events for span in spans_of(made, lambda text: text.replace("key", "***"))]
    assert (event.name, [value_of(one) for one in event.attributes]) == ("upstream.retried", [found])
    assert event.time_unix_nano == 17 * 10**17 + 5 * 10**8


def test_a_step_that_failed_has_the_status_error_and_the_request_has_not():
    made = record(status=200)
    made.steps.append(Step("turn", 0.5, new_number(), {"finish_reason": "stop"}, seconds=1.0, outcome="completed"))
    made.steps.append(Step("tool", 1.5, new_number(), {"tool": "t"}, seconds=1.0, outcome="timeout"))
    request, turn, tool = spans_of(made)
    assert [span.status.code for span in (request, turn, tool)] == [0, 0, Status.STATUS_CODE_ERROR]
    assert {turn.parent_span_id, tool.parent_span_id} == {request.span_id}
    assert ("array_value", ["stop"]) in [value_of(one) for one in turn.attributes]


def test_secrets_in_the_name_and_the_attributes_of_a_span_are_masked():
    made = record(path="/v1/models", client="my key")
    made.steps.append(Step("turn", 0.5, new_number(), {"upstream_model": "a key", "finish_reason": "key"}, 1.0))
    request, turn = spans_of(made, lambda text: text.replace("key", "***"))
    assert "my ***" in [value_of(one)[1] for one in request.attributes]
    assert turn.name == "chat a ***"
    assert ["***"] in [value_of(one)[1] for one in turn.attributes]


@pytest.fixture
def receiver():
    with running_receiver() as server:
        yield server


@contextmanager
def running_receiver(context=None):
    """An OTLP receiver that answers with `statuses`, the last one again and again."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            self.server.received.append((self.headers, body))
            self.send_response(self.server.statuses.pop(0) if self.server.statuses[1:] else self.server.statuses[0])
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.received, server.statuses = [], [200]
        if context:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def exported(receiver, made, scheme="http"):
    exporter = Exporter(f"{scheme}://127.0.0.1:{receiver.server_port}/", version="1")
    exporter.completed(made)
    exporter.close()


def test_a_batch_has_the_resource_and_the_headers_of_the_environment(receiver, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=secret,x-other=1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    exported(receiver, record(path="/v1/models"))
    ((headers, body),) = receiver.received
    assert (headers["api-key"], headers["x-other"], headers["content-type"]) == (
        "secret",
        "1",
        "application/x-protobuf",
    )
    (traced,) = ExportTraceServiceRequest.FromString(gzip.decompress(body)).resource_spans
    attributes = {one.key: one.value.string_value for one in traced.resource.attributes}
    assert attributes["service.name"] == "toolproxy"
    assert attributes["deployment.environment"] == "test"
    assert [(scoped.scope.name, len(scoped.spans)) for scoped in traced.scope_spans] == [("toolproxy", 1)]


def test_a_trace_that_its_caller_does_not_sample_is_not_sent(receiver):
    made = record()
    made.span = SpanId(bytes(15) + b"1", bytes(7) + b"1", sampled=False)
    exported(receiver, made)
    assert receiver.received == []


@pytest.mark.parametrize(("status", "attempts"), [(400, 1), (503, 2)])
def test_a_batch_is_sent_again_only_where_the_receiver_may_take_it_later(receiver, status, attempts, monkeypatch):
    monkeypatch.setattr("proxy.telemetry.otlp._FIRST_PAUSE", 0.01)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
    receiver.statuses = [status, 200]
    exporter = Exporter(f"http://127.0.0.1:{receiver.server_port}/", version="1")
    exporter.completed(record())
    deadline = time.monotonic() + 20
    while len(receiver.received) < attempts and time.monotonic() < deadline:
        time.sleep(0.01)
    exporter.close()
    assert len(receiver.received) == attempts


def test_a_receiver_that_never_answers_holds_up_the_end_only_once(monkeypatch, caplog):
    monkeypatch.setattr("proxy.telemetry.otlp._CLOSING_SECONDS", 0.5)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        exporter = Exporter(f"http://127.0.0.1:{silent.getsockname()[1]}", version="1")
        for _ in range(20):
            exporter.completed(record())
        began = time.monotonic()
        exporter.close()
        exporter._sender._thread.join()  # noqa: SLF001 - the end of the process would not wait for its thread
    assert time.monotonic() - began < 5  # twenty seconds, if it were asked to take each batch
    assert "has not taken all of them before the end" in caplog.text


def test_spans_are_dropped_and_counted_while_more_are_waiting_than_may(receiver, monkeypatch, caplog):
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "2")
    exporter = Exporter(f"http://127.0.0.1:{receiver.server_port}", version="1")
    for _ in range(5):
        exporter.completed(record())
    exporter.close()
    ((_, body),) = receiver.received
    assert len(ExportTraceServiceRequest.FromString(body).resource_spans[0].scope_spans[0].spans) == 2
    assert "3 spans were dropped" in caplog.text


def test_a_batch_that_cannot_be_encoded_does_not_end_the_sending(receiver, monkeypatch, caplog):
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")
    exporter = Exporter(f"http://127.0.0.1:{receiver.server_port}", version="1")
    exporter.completed(replace(record(), began_at=-1.0))
    exporter.completed(record())
    exporter.close()
    assert len(receiver.received) == 1
    assert "a batch of spans could not be sent" in caplog.text


@pytest.fixture
def environ(monkeypatch):
    """Sets the variables of proxies, for code that reads the environment once."""
    for name in ("http_proxy", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    environment_proxies.cache_clear()
    yield monkeypatch.setenv
    environment_proxies.cache_clear()


def test_traces_go_through_the_proxy_that_the_environment_names_and_to_this_machine_directly(receiver, environ):
    environ("http_proxy", f"http://user:p%40ss@127.0.0.1:{receiver.server_port}")
    exporter = Exporter("http://traces.corp:4318", version="1")
    exporter.completed(record())
    exporter.close()
    exported(receiver, record())
    (through, _), (directly, _) = receiver.received
    assert (through["host"], through["proxy-authorization"]) == ("traces.corp:4318", "Basic dXNlcjpwQHNz")
    assert directly["host"] == f"127.0.0.1:{receiver.server_port}"
    assert "proxy-authorization" not in directly


def test_a_receiver_is_trusted_as_upstreams_are_or_by_the_certificate_that_is_named_for_it(monkeypatch, tmp_path):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    for name in ("SSL_CERT_FILE", "OTEL_EXPORTER_OTLP_CERTIFICATE"):
        with monkeypatch.context() as environment, running_receiver(context) as server:
            environment.setenv(name, str(tmp_path / "ca.pem"))
            exported(server, record(), scheme="https")
            assert len(server.received) == 1, name
