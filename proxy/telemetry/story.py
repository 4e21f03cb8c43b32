"""One request as it went: its turns, relays and tool calls, when each began, how long it took and what befell it.

    request.started --> Story --> {turn,relay,tool}.started --> Step --> .completed | .failed | .crashed | .abandoned
                          |                                       |
                          +-- notes of the request                +-- notes: retries, fallbacks, cache hits
                          v
                    request.completed

The debug pages and the traces are both made of it, so they tell the same story. Which request and which step an event
belongs to is known by the task that it is told in: contextvars.
"""

import logging
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from proxy import request_context
from proxy.loop.chat import Json
from proxy.ports import Clock, Content
from proxy.telemetry import traceparent
from proxy.telemetry.events import level_of
from proxy.telemetry.observer import Handler
from proxy.telemetry.traceparent import SpanId

Fields: TypeAlias = dict[str, object]

KINDS: Final = frozenset({"turn", "relay", "tool"})
_ENDS: Final = frozenset({"completed", "failed", "crashed", "abandoned"})
# A request with many choices has many turns; the first of them tell enough.
MOST_STEPS: Final = 200
MOST_NOTES: Final = 50
# A text in an event may be a client's or an upstream's.
_LONGEST_TEXT: Final = 300
_NUMBERS: Final = frozenset({int, float, bool})

parent: ContextVar[SpanId | None] = ContextVar("toolproxy_parent", default=None)
"""The caller's span, where it has sent one."""

_story: ContextVar["Story | None"] = ContextVar("toolproxy_story", default=None)
_step: ContextVar["Step | None"] = ContextVar("toolproxy_step", default=None)


@dataclass(slots=True)
class Note:
    """Something that befell a step or the request, `at` seconds after the request has come."""

    at: float
    event: str
    fields: Fields


@dataclass(slots=True)
class Step:
    """A turn, a relay or a tool call; `seconds` and `outcome` are None while it goes on."""

    kind: str
    at: float
    span: SpanId
    fields: Fields
    seconds: float | None = None
    outcome: str | None = None
    notes: list[Note] = field(default_factory=list)


@dataclass(slots=True)
class Story:
    """A request. `began` is in seconds on the clock that never goes back, `began_at` in seconds since 1970."""

    request_id: str
    began: float
    began_at: float
    span: SpanId
    parent: SpanId | None
    fields: Fields
    seconds: float | None = None
    steps: list[Step] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    left_out: int = 0

    def as_json(self) -> Json:
        """For pages and for what is kept."""
        return {
            "request_id": self.request_id,
            "trace_id": self.span.trace_hex,
            "began_at": self.began_at,
            "seconds": self.seconds,
            **_plain(self.fields),
            "notes": [_note(note) for note in self.notes],
            "steps": [_step_as_json(step) for step in self.steps],
            "left_out": self.left_out,
        }


class Reader(Protocol):
    """Whoever wants to know how requests went."""

    def begun(self, story: Story) -> None:
        """A request has come."""
        ...

    def ended(self, story: Story) -> None:
        """It is answered, or given up; nothing is added to its story any more."""
        ...


class Storyteller:
    """Makes stories of events. Implements `ports.Observer`."""

    def __init__(self, readers: Sequence[Reader], *, clock: Clock) -> None:
        self._readers = readers
        self._clock = clock

    def handler(self, event: str) -> Handler:
        """Every event belongs to the story of its request."""
        if event == "request.started":
            return lambda fields: self._begin({**fields})
        return lambda fields: self._tell(event, {**fields})

    def _tell(self, event: str, fields: Fields) -> None:
        if (story := _story.get()) is not None:
            self._continue(story, event, fields)

    def _begin(self, fields: Fields) -> None:
        caller = parent.get()
        request_id = str(request_context.fields().get("request_id", ""))
        span = caller.child() if caller else traceparent.root()
        story = Story(request_id, self._clock.monotonic(), self._clock.time(), span, caller, fields)
        _story.set(story)
        for reader in self._readers:
            reader.begun(story)

    def _continue(self, story: Story, event: str, fields: Fields) -> None:
        at = round(self._clock.monotonic() - story.began, 6)
        subject, _, what = event.partition(".")
        if event == "request.completed":
            self._end(story, at, fields)
        elif subject in KINDS and what == "started":
            _step.set(_begin_step(story, subject, at, fields))
        elif subject in KINDS and what in _ENDS:
            _end_step(_step.get(), at, what, fields)
            _step.set(None)
        else:
            notes = (_step.get() or story).notes
            if len(notes) < MOST_NOTES:
                fields.pop("exc_info", None)  # tracebacks stay in the log
                notes.append(Note(at, event, fields))

    def _end(self, story: Story, at: float, fields: Fields) -> None:
        story.seconds = at
        story.fields = {**request_context.fields(), **fields}
        for step in story.steps:
            if step.outcome is None:
                _end_step(step, at, "abandoned", {})
        _story.set(None)
        for reader in self._readers:
            reader.ended(story)


def current_span() -> SpanId | None:
    """The span in which whatever is called now is called."""
    teller = _step.get() or _story.get()
    return teller.span if teller else None


def _begin_step(story: Story, kind: str, at: float, fields: Fields) -> Step:
    step = Step(kind, at, story.span.child(), fields)
    if len(story.steps) < MOST_STEPS:
        story.steps.append(step)
    else:
        story.left_out += 1
    return step


def _end_step(step: Step | None, at: float, outcome: str, fields: Fields) -> None:
    if step is not None:
        fields.pop("exc_info", None)
        step.seconds = round(at - step.at, 6)
        step.outcome = str(fields.pop("outcome", outcome))
        fields.pop("seconds", None)
        step.fields = {**step.fields, **fields}


def _step_as_json(step: Step) -> Json:
    return {
        "kind": step.kind,
        "at": step.at,
        "seconds": step.seconds,
        "outcome": step.outcome,
        "span_id": f"{step.span.span:016x}",
        **_plain(step.fields),
        "notes": [_note(note) for note in step.notes],
    }


def _note(note: Note) -> Json:
    level = logging.getLevelName(level_of(note.event)).lower()
    return {"at": note.at, "event": note.event, "level": level, **_plain(note.fields)}


def _plain(fields: Fields) -> Json:
    """Without what says nothing, and no text longer than it may be."""
    return {
        name: value if value.__class__ in _NUMBERS else _bounded(value)
        for name, value in fields.items()
        if value is not None
    }


def _bounded(value: object) -> object:
    if isinstance(value, Content):
        return value.text()
    return value if isinstance(value, dict) else short(str(value))


def short(text: str) -> str:
    """No longer than a text in an event may be."""
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."
