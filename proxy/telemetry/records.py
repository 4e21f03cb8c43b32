"""The record of one request: its turns, relays, tool calls and pages, with their times, and what happened in each.

    request.started --> RequestRecord --> {turn,relay,tool,page}.started --> Step --> .completed | .failed | ...
                          |                                              |
                          +-- notes of the request                       +-- notes: retries, fallbacks, cache hits
                          v
                    request.completed

The debug pages and the traces are both made from it. A context variable tells which request and which step an event
belongs to.
"""

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from msgspec import Struct, field

from proxy.kit import request_context
from proxy.ports import Clock
from proxy.telemetry import trace_context
from proxy.telemetry.events import Handler
from proxy.telemetry.trace_context import SpanId

Fields: TypeAlias = dict[str, Any]

KINDS: Final = frozenset({"turn", "relay", "tool", "page"})
_OUTCOMES: Final = frozenset({"completed", "failed", "crashed", "abandoned"})
# A request with many choices has many turns.
MOST_STEPS: Final = 200
MOST_NOTES: Final = 50
# Clients and upstreams choose some of the texts in events.
_LONGEST_TEXT: Final = 300

# The record of the request that is being answered, and the step of it that is running.
_current: ContextVar["tuple[RequestRecord | None, Step | None]"] = ContextVar("toolproxy_record", default=(None, None))


class Note(Struct):
    """An event within a step or a request, `at` seconds after the start of the request."""

    at: float
    event: str
    fields: Mapping[str, Any]


class Step(Struct):
    """A turn, a relay, a tool call or a page that it reads, and the number of its span.

    `seconds` and `outcome` are None while it runs.
    """

    kind: str
    at: float
    span: bytes
    fields: Fields
    seconds: float | None = None
    outcome: str | None = None
    notes: list[Note] = field(default_factory=list)


class RequestRecord(Struct):
    """A request: `began` is on the monotonic clock, `began_at` in seconds since 1970; `left_out` counts steps."""

    request_id: str
    began: float
    began_at: float
    span: SpanId
    parent: SpanId | None
    fields: Mapping[str, Any]
    seconds: float | None = None
    steps: list[Step] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    left_out: int = 0


class RecordSink(Protocol):
    """Takes the records of requests."""

    @property
    def ignored(self) -> frozenset[str]:
        """The events whose notes it has no use for."""
        ...

    def started(self, record: RequestRecord) -> None:
        """A request has begun; its record grows until `completed`."""
        ...

    def completed(self, record: RequestRecord) -> None:
        """The request has ended, and its record is complete."""
        ...


class RequestRecorder:
    """Makes records from events. Implements `events.Subscriber`."""

    def __init__(self, sinks: Sequence[RecordSink], *, clock: Clock) -> None:
        self._sinks = sinks
        self._clock = clock

    def handler(self, event: str) -> Handler | None:
        """A function that adds events of that name to the record of their request; None: all sinks ignore them."""
        subject, _, what = event.partition(".")
        known = {
            "request.started": self._start,
            "request.completed": self._complete,
            "upstream.answered": _add_first,
            "upstream.key_used": _add_key,
            "tool.key_used": _add_key,
        }
        if event in known:
            return known[event]
        if subject in KINDS and what == "started":
            return partial(self._start_step, subject)
        if subject in KINDS and what in _OUTCOMES:
            return partial(self._end_step, what)
        return None if all(event in sink.ignored for sink in self._sinks) else partial(self._note, event)

    def _start(self, fields: Fields) -> None:
        caller = trace_context.parent.get()
        request_id = str(request_context.fields.get({}).get("request_id", ""))
        span = caller.child() if caller else trace_context.root()
        record = RequestRecord(request_id, self._clock.monotonic(), self._clock.time(), span, caller, fields)
        _current.set((record, None))
        for sink in self._sinks:
            sink.started(record)

    def _complete(self, fields: Fields) -> None:
        record, _ = _current.get()
        if record is None:
            return
        record.seconds = at = self._clock.monotonic() - record.began
        record.fields = {**request_context.fields.get({}), **fields}
        for step in record.steps:
            if step.outcome is None:
                step.outcome, step.seconds = "abandoned", at - step.at
        _current.set((None, None))
        for sink in self._sinks:
            sink.completed(record)

    def _start_step(self, kind: str, fields: Fields) -> None:
        record, _ = _current.get()
        if record is None:
            return
        step = Step(kind, self._clock.monotonic() - record.began, trace_context.new_number(), fields)
        _current.set((record, step))
        if len(record.steps) < MOST_STEPS:
            record.steps.append(step)
        else:
            record.left_out += 1

    def _end_step(self, outcome: str, fields: Fields) -> None:
        record, step = _current.get()
        if record is not None and step is not None:
            step.seconds = self._clock.monotonic() - record.began - step.at
            step.outcome = str(fields.get("outcome", outcome))
            step.fields.update(fields)
            _current.set((record, None))

    def _note(self, event: str, fields: Fields) -> None:
        record, step = _current.get()
        if record is None:
            return
        notes = (step or record).notes
        if len(notes) < MOST_NOTES:
            if "exc_info" in fields:
                fields = {name: value for name, value in fields.items() if name != "exc_info"}
            notes.append(Note(self._clock.monotonic() - record.began, event, fields))


def _add_first(fields: Fields) -> None:
    """Add the time to the first part of an upstream's answer to the step that waits for it."""
    _, step = _current.get()
    if step is not None:
        step.fields["first"] = fields["first"]


def _add_key(fields: Fields) -> None:
    """Add the number of a key, of an upstream's or a tool's several, to the step that uses it."""
    _, step = _current.get()
    if step is not None:
        step.fields.setdefault("keys", []).append(fields["key"])


def trace_headers() -> bytes:
    """The headers of a request that is sent within the current step or request; implements `ports.ExtraHeaders`."""
    record, step = _current.get()
    return record.span.headers((step or record.span).span) if record is not None else b""


def short(text: str) -> str:
    """A text of at most as many characters as a text in an event may have."""
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."
