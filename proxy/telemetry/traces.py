"""Stories as OpenTelemetry traces: a SERVER span for the request, a CLIENT one per turn, an INTERNAL one per tool call.

Spans are made when their request is over, out of the story that the debug pages show too; their ids are known from the
beginning, so that whoever is called meanwhile can be told them. They are sent in the background, and dropped when their
receiver does not keep up.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState
from starlette.types import ASGIApp, Receive, Scope, Send

from proxy import request_context
from proxy.ports import Content
from proxy.redact import Redact
from proxy.telemetry import conventions as names
from proxy.telemetry import story as stories
from proxy.telemetry.labels import route_of
from proxy.telemetry.story import Fields, Note, Step, Story
from proxy.telemetry.traceparent import HEADER, STATE_HEADER, SpanId, parse

Attributes: TypeAlias = dict[str, Any]

_PATH: Final = "/v1/traces"
_TIMEOUT = 5.0  # of one export in seconds, and so of the last one when the proxy stops
_SCOPE = InstrumentationScope("toolproxy")
_FIRST_SERVER_ERROR = 500
_TRACE_HEADERS: Final = frozenset({HEADER, STATE_HEADER})


class Incoming:
    """ASGI middleware: takes the caller's `traceparent` and `tracestate` out of the request.

    They are not passed on as they are: what is called from here is told the span of ours that calls it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "http":
            sent = {name: value.decode("latin-1") for name, value in scope["headers"] if name in _TRACE_HEADERS}
            if sent:
                scope["headers"] = [header for header in scope["headers"] if header[0] not in _TRACE_HEADERS]
            header = sent.get(HEADER)
            stories.parent.set(parse(header, sent.get(STATE_HEADER, "")) if header else None)
        await self._app(scope, receive, send)


def trace_headers() -> Sequence[tuple[bytes, bytes]]:
    """The span in which a request is sent, as headers of that request."""
    span = stories.current_span()
    if span is None:
        return ()
    parent = (HEADER, span.header().encode("ascii"))
    return (parent, (STATE_HEADER, span.state.encode("latin-1"))) if span.state else (parent,)


class Exporter:
    """Sends stories to an OTLP receiver. Implements `story.Reader`.

    Args:
        endpoint: its base URL; `/v1/traces` is appended where it is not there. `OTEL_EXPORTER_OTLP_HEADERS`,
            `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` mean what they mean everywhere.
        version: the proxy's own.
        redact: masks secrets in a text.
    """

    def __init__(self, endpoint: str, *, version: str, redact: Redact = str) -> None:
        self._redact = redact
        url = endpoint.rstrip("/")
        exporter = OTLPSpanExporter(url if url.endswith(_PATH) else url + _PATH, timeout=_TIMEOUT)
        self._processor = BatchSpanProcessor(exporter)
        own = {"service.name": "toolproxy", "service.version": version}
        self._resource = Resource.create(own).merge(OTELResourceDetector().detect())

    def begun(self, story: Story) -> None:
        """From now on the log says which trace it belongs to."""
        request_context.add({"trace_id": story.span.trace_hex})

    def ended(self, story: Story) -> None:
        """It is sent, unless its caller keeps no traces."""
        if story.span.sampled:
            for span in spans_of(story, self._resource, redact=self._redact):
                self._processor.on_end(span)

    def close(self) -> None:
        """Send what is left."""
        self._processor.shutdown()  # type: ignore[no-untyped-call]


def spans_of(story: Story, resource: Resource, *, redact: Redact = str) -> Iterator[ReadableSpan]:
    """The spans of one request without secrets, its own first."""
    began = int(story.began_at * 1e9)

    def at(seconds: float) -> int:
        return began + int(seconds * 1e9)

    def span(name: str, own: SpanId, parent: SpanId | None, attributes: Attributes, **rest: Any) -> ReadableSpan:
        context, above = _context(own), _context(parent) if parent else None
        return ReadableSpan(
            redact(name),
            context,
            above,
            resource,
            attributes=_redacted(attributes, redact),
            instrumentation_scope=_SCOPE,
            **rest,
        )

    def events(notes: list[Note]) -> list[Event]:
        return [Event(note.event, _redacted(_plain(note.fields), redact), at(note.at)) for note in notes]

    route = route_of(str(story.fields.get("path")))
    yield span(
        f"{story.fields.get('method')} {route}",
        story.span,
        story.parent,
        {**_named(story.fields, names.REQUEST), names.ROUTE: route},
        kind=SpanKind.SERVER,
        status=_status(failed=_number(story.fields.get("status")) >= _FIRST_SERVER_ERROR),
        events=events(story.notes),
        start_time=began,
        end_time=at(story.seconds or 0),
    )
    for step in story.steps:
        name, attributes = _described(step)
        yield span(
            name,
            step.span,
            story.span,
            attributes,
            kind=SpanKind.INTERNAL if step.kind == "tool" else SpanKind.CLIENT,
            status=_status(failed=step.outcome != "completed"),
            events=events(step.notes),
            start_time=at(step.at),
            end_time=at(step.at + (step.seconds or 0)),
        )


def _redacted(attributes: Attributes, redact: Redact) -> Attributes:
    return {name: redact(value) if isinstance(value, str) else value for name, value in attributes.items()}


def _described(step: Step) -> tuple[str, Attributes]:
    """A step's name and attributes."""
    if step.kind == "tool":
        return f"{names.EXECUTE_TOOL} {step.fields.get('tool')}", _of_tool(step)
    path = step.fields.get("path")
    operation = names.CHAT if path is None else names.OPERATIONS.get(str(path))
    attributes = _of_call(step)
    if operation is None:
        return f"relay {step.fields.get('upstream')}", attributes
    return f"{operation} {step.fields.get('upstream_model')}", {**attributes, names.OPERATION: operation}


def _of_tool(step: Step) -> Attributes:
    attributes = _named(step.fields, names.TOOL)
    attributes |= {names.OPERATION: names.EXECUTE_TOOL, names.TOOL_TYPE: names.EXTENSION}
    if step.outcome != "completed":
        attributes[names.ERROR] = str(step.outcome)
    for field, attribute in (("arguments", names.ARGUMENTS), ("result", names.RESULT)):
        if isinstance(said := step.fields.get(field), Content):
            attributes[attribute] = said.text()
    return attributes


def _of_call(step: Step) -> Attributes:
    fields: Fields = dict(step.fields)
    answers = [note.fields for note in step.notes if note.event == "upstream.answered"]
    if answers:
        fields["first"] = answers[-1].get("first")
    attributes = _named(fields, names.CALL) | names.usage(fields.get("usage"))
    if step.outcome == "abandoned":
        attributes[names.ERROR] = "abandoned"
    reason = fields.get("finish_reason")
    if reason:
        attributes[names.FINISH_REASONS] = [str(reason)]
    if isinstance(asked := fields.get("messages"), Content):
        attributes[names.INPUT_MESSAGES] = Content(names.messages(asked.value)).text()
    if isinstance(answer := fields.get("message"), Content):
        attributes[names.OUTPUT_MESSAGES] = names.messages([answer.value], finish_reason=str(reason))
    return attributes


def _named(fields: Mapping[str, object], table: Mapping[str, str]) -> Attributes:
    """Those fields that have a name, under it."""
    return {
        name: value if isinstance(value, int | float) else stories.short(str(value))
        for field, name in table.items()
        if (value := fields.get(field)) is not None
    }


def _plain(fields: Fields) -> Attributes:
    return {name: value if isinstance(value, int | float) else str(value) for name, value in fields.items() if value}


def _status(*, failed: bool) -> Status:
    return Status(StatusCode.ERROR if failed else StatusCode.UNSET)


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _context(span: SpanId) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if span.sampled else TraceFlags.DEFAULT)
    return SpanContext(span.trace, span.span, is_remote=False, trace_flags=flags, trace_state=TraceState())
