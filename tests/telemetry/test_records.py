import asyncio

from proxy.kit import request_context
from proxy.telemetry.events import Content, FanOut
from proxy.telemetry.recent import Recent
from proxy.telemetry.records import MOST_NOTES, MOST_STEPS, RequestRecorder, trace_headers
from proxy.telemetry.trace_context import parent, parse
from tests.fakes import FakeClock


class Told:
    """A storyteller with a clock that is moved by hand, and what it has told."""

    def __init__(self):
        self.clock = FakeClock()
        self.recent = Recent()
        self.tell = FanOut([RequestRecorder([self.recent], clock=self.clock)], content=True)
        request_context.fields.set({"request_id": "r"})
        request_context.add({"model": "m"})

    def begin(self):
        self.tell("request.started", method="POST", path="/v1/chat/completions")

    def end(self):
        self.tell("request.completed", status=200, seconds=1.0)
        return self.recent.find("r")


def current_span():
    """The trace and the span that a request would be sent within."""
    _, trace, span, _ = trace_headers().split(b"-")
    return trace.decode(), span.decode()


async def test_steps_stand_at_their_time_with_what_befell_them():
    told = Told()
    told.begin()
    told.clock.now += 1
    told.tell("turn.started", turn=1, upstream="up", rung=None)
    told.clock.now += 1
    told.tell("upstream.retried", code="upstream_error", wait=0.5)
    told.clock.now += 2
    told.tell("turn.completed", turn=1, upstream="up", seconds=3, finish_reason="stop")
    (step,) = told.end()["steps"]
    assert (step["kind"], step["at"], step["seconds"], step["outcome"]) == ("turn", 1, 3, "completed")
    assert step["finish_reason"] == "stop"
    assert step["notes"] == [
        {"at": 2, "event": "upstream.retried", "level": "warning", "code": "upstream_error", "wait": 0.5}
    ]


async def test_calls_that_run_at_the_same_time_keep_their_notes_apart():
    told = Told()
    told.begin()

    async def call(name):
        told.tell("tool.started", tool=name)
        await asyncio.sleep(0)
        told.tell("tool.cache_hit", tool=name)
        await asyncio.sleep(0)
        told.tell("tool.completed", tool=name, seconds=0)

    async with asyncio.TaskGroup() as group:
        for name in "ab":
            group.create_task(call(name))
    steps = told.end()["steps"]
    assert [(step["tool"], [note["tool"] for note in step["notes"]]) for step in steps] == [("a", ["a"]), ("b", ["b"])]


async def test_what_is_called_within_a_step_is_told_its_span_and_afterwards_the_requests():
    told = Told()
    assert trace_headers() == b""
    told.begin()
    outer = current_span()
    told.tell("turn.started", turn=1)
    inner = current_span()
    told.tell("turn.completed", turn=1)
    assert current_span() == outer
    story = told.end()
    assert inner == (story["trace_id"], story["steps"][0]["span_id"])
    assert outer[0] == inner[0]
    assert outer[1] != inner[1]
    assert trace_headers() == b""


async def test_a_caller_that_has_a_trace_gets_the_request_as_a_part_of_it():
    told = Told()
    caller = parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    token = parent.set(caller)
    told.begin()
    parent.reset(token)
    assert told.end()["trace_id"] == caller.trace.hex()


async def test_what_was_still_going_on_when_the_request_ended_was_abandoned():
    told = Told()
    told.begin()
    told.tell("tool.started", tool="t")
    told.clock.now += 5
    (step,) = told.end()["steps"]
    assert (step["outcome"], step["seconds"]) == ("abandoned", 5)


async def test_a_crash_leaves_its_traceback_in_the_log():
    told = Told()
    told.begin()
    told.tell("tool.started", tool="t")
    told.tell("tool.crashed", tool="t", seconds=1, exc_info=True)
    told.tell("request.crashed", exc_info=True)
    story = told.end()
    assert story["steps"][0]["outcome"] == "crashed"
    assert "exc_info" not in str(story)


async def test_a_story_is_bounded_in_every_direction():
    told = Told()
    told.begin()
    for _ in range(MOST_NOTES + 5):
        told.tell("upstream.retried", code="x" * 9999)
    for number in range(MOST_STEPS + 5):
        told.tell("tool.started", tool="t", arguments=Content("a" * 99999), number=number)
        told.tell("tool.completed", tool="t", seconds=0)
    story = told.end()
    assert (len(story["notes"]), len(story["steps"]), story["left_out"]) == (MOST_NOTES, MOST_STEPS, 5)
    assert len(story["notes"][0]["code"]) < 400
    assert len(story["steps"][0]["arguments"]) < 20000


async def test_events_outside_of_a_request_belong_to_no_story():
    told = Told()
    told.tell("turn.completed", turn=1)
    told.tell("configuration.disabled", where="tools.x")
    told.begin()
    told.tell("turn.completed", turn=1)  # of which no beginning was told
    assert told.end()["steps"] == []
    assert trace_headers() == b""


class Ignoring:
    """A sink that has no use for notes of some events."""

    def __init__(self, *ignored):
        self.ignored = frozenset(ignored)


def test_an_event_that_all_sinks_ignore_is_not_handled():
    sinks = [Ignoring("response.started", "tool.retried"), Ignoring("response.started")]
    recorder = RequestRecorder(sinks, clock=FakeClock())
    assert recorder.handler("response.started") is None
    assert recorder.handler("tool.retried") is not None
    sinks.append(Ignoring())
    assert recorder.handler("response.started") is not None
