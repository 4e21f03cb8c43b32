import asyncio

import orjson
import pytest
from msgspec.structs import replace

from proxy.execution.driver import Driver
from proxy.loop.call_context import CallContext
from proxy.loop.fence import unfenced
from proxy.loop.prompts import OUT_OF_TIME
from proxy.loop.results import ToolError, ToolOutput, ToolUnavailable
from proxy.loop.run_events import CallBegan, CallEnded
from proxy.upstreams.profile import OPENAI
from proxy.wire.chat import ToolSpec
from proxy.wire.errors import UpstreamError
from tests.fakes import FakeClock
from tests.playbook import call, calls, run_of, says

TOOL = ToolSpec(name="web_search", description="", parameters={"type": "object"})


class Upstream:
    """Answers with these turns in order, and lets time pass while it does."""

    name = "up"
    model = "up-model"
    traits = OPENAI

    def __init__(self, *turns, clock=None, seconds=0.0):
        self.turns = list(turns)
        self.calls = []
        self.clock = clock
        self.seconds = seconds

    async def complete(self, call, show, early):
        self.calls.append(call)
        if self.clock:
            self.clock.now += self.seconds
        turn = self.turns.pop(0)
        if isinstance(turn, Exception):
            raise turn
        return turn

    def told(self, number=1):
        """What the call of that number has as results of tools."""
        return [message["content"] for message in self.calls[number].body["messages"] if message["role"] == "tool"]


class Starting(Upstream):
    """Announces a call while it writes its first turn; `until` waits for what is to happen before each turn's end."""

    def __init__(self, until, *turns):
        super().__init__(*turns)
        self.until = until

    async def complete(self, call_, show, early):
        if not self.calls:
            await early.announce(call(id="a"), None, start=True)
        await self.until(len(self.calls))
        return await super().complete(call_, show, early)


class Toolset:
    """Runs `work(call)`, and remembers how many ran at the same time."""

    def __init__(self, work):
        self.specs = {"web_search": TOOL}
        self.work = work
        self.running = self.most = 0

    async def execute(self, call, context):
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            return ToolOutput(await self.work(call))
        finally:
            self.running -= 1


class Heard(list):
    def __call__(self, event, /, **fields):
        self.append((event, fields))

    def handles(self, event):
        return True

    @property
    def names(self):
        return [event for event, _ in self]


class Client:
    """Remembers what it is told of a run."""

    def __init__(self):
        self.heard, self.shown = [], []

    async def show(self, chunk):
        self.shown.append(chunk)

    async def show_event(self, event):
        self.heard.append(event)
        return True


async def no_tools(query, among):
    return []


async def drive(upstream, work, *, clock=None, heard=None, audience=None, **limits):
    toolset = Toolset(work)
    observe = heard if heard is not None else Heard()
    clock = clock or FakeClock()
    driver = Driver(toolset.execute, no_tools, observe=observe, clock=clock)
    run = run_of(tools=[TOOL], **limits)
    context = CallContext(ends=clock.monotonic() + run.limits.deadline)
    answer = await driver.drive(run, upstream=upstream, context=context, audience=audience)
    return answer, toolset


async def found(one):
    return f"found {one.id}"


async def hang(_):
    await asyncio.Event().wait()


async def long(_):
    return "x" * 1000


def searches(*names):
    """A turn of searches, each for something else."""
    return calls(*[call(arguments=f'{{"query":"{name}"}}', id=name) for name in names])


@pytest.mark.parametrize("heard", [True, False])
async def test_started_events_are_sent_only_to_an_observer_that_wants_them(heard):
    observer = Heard()
    observer.handles = lambda event: heard or not event.endswith(".started")
    await drive(Upstream(calls(call()), says("Done")), found, heard=observer)
    began = ["turn.started", "tool.started", "turn.started"]
    assert [name for name in observer.names if name.endswith(".started")] == (began if heard else [])
    assert observer.names.count("turn.completed") == 2
    assert "tool.completed" in observer.names


async def test_results_are_in_call_order_whatever_order_they_come_in():
    second_done = asyncio.Event()

    async def work(one):
        if one.id == "b":
            second_done.set()
        else:
            await second_done.wait()
        return one.id

    upstream = Upstream(searches("a", "b"), says("Done"))
    await drive(upstream, work)
    first, second = upstream.told()
    assert ("\na\n" in first, "\nb\n" in second) == (True, True)


async def test_a_call_that_was_started_early_and_is_refused_with_its_turn_ends_before_the_next_turn():
    started, cancelled = asyncio.Event(), []

    async def work(one):
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(one.id)

    async def until(turn):
        await (asyncio.sleep(0) if turn else started.wait())
        assert cancelled == ["a"] * turn

    upstream = Starting(until, calls(call(id="a"), tokens=20), says("Done"))
    answer, _ = await drive(upstream, work, max_total_tokens=10)
    assert (answer.message["content"], answer.stop) == ("Done", "max_total_tokens")
    assert answer.tally.total_tool_calls == 1  # it was begun


@pytest.mark.parametrize(("reason", "ends"), [("tool_calls", 1), ("length", 0)])
async def test_a_client_is_told_of_the_end_of_an_early_call_only_if_its_turn_was_not_cut_off(reason, ends):
    ended = asyncio.Event()

    async def work(one):
        ended.set()
        return one.id

    async def until(_):
        await ended.wait()
        await asyncio.sleep(0)  # the call has its result

    client = Client()
    turn = replace(calls(call(id="a"), text="Half"), finish_reason=reason)
    await drive(Starting(until, turn, says("Done")), work, audience=client)
    assert [isinstance(event, CallBegan) for event in client.heard].count(True) == 1
    assert [isinstance(event, CallEnded) for event in client.heard].count(True) == ends


async def test_no_more_calls_run_at_a_time_than_permitted():
    async def work(_):
        await asyncio.sleep(0)
        return ""

    _, toolset = await drive(Upstream(searches(*"012345"), says("Done")), work, max_parallel_tools=2)
    assert toolset.most == 2


async def test_a_call_that_waits_for_a_slot_is_not_begun_when_the_run_is_cancelled():
    began, first = [], asyncio.Event()

    async def work(one):
        began.append(one.id)
        first.set()
        await asyncio.Event().wait()

    run = asyncio.create_task(drive(Upstream(searches(*"012")), work, max_parallel_tools=1))
    await first.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert began == ["0"]


async def test_one_failing_call_does_not_touch_another():
    async def work(one):
        if one.id == "a":
            raise ToolError("no such page")
        if one.id == "b":
            raise ZeroDivisionError("internal")
        return "fine"

    heard = Heard()
    upstream = Upstream(searches(*"abc"), says("Done"))
    await drive(upstream, work, heard=heard)
    told = upstream.told()
    assert unfenced(orjson.loads(told[0])["error"]) == "no such page"
    assert told[1] == '{"error":"The tool failed."}'
    assert "fine" in told[2]
    ends = sorted(name for name in heard.names if name.startswith("tool.") and name != "tool.started")
    assert ends == ["tool.completed", "tool.crashed", "tool.failed"]


async def test_a_call_is_not_begun_after_the_deadline():
    clock = FakeClock()
    upstream = Upstream(calls(call()), says("Done"), clock=clock, seconds=100)
    answer, toolset = await drive(upstream, found, clock=clock, deadline=50)
    assert (answer.stop, toolset.most) == ("deadline", 0)


async def test_a_call_that_waits_for_its_turn_beyond_the_deadline_is_not_begun():
    clock = FakeClock()

    async def work(_):
        clock.now += 100
        return "late"

    upstream = Upstream(searches(*"01"), says("Done"))
    answer, _ = await drive(upstream, work, clock=clock, deadline=50, max_parallel_tools=1)
    first, second = upstream.told()
    assert ("late" in first, OUT_OF_TIME in second) == (True, True)
    assert answer.stop == "deadline"


async def test_a_running_call_is_cut_short_at_the_deadline():
    upstream = Upstream(calls(call()), says("Done"))
    await drive(upstream, hang, deadline=0.01)
    assert OUT_OF_TIME in upstream.calls[1].body["messages"][-1]["content"]


async def test_a_call_that_was_cut_short_ends_the_time_of_its_run_whatever_the_clock_says():
    standing_still = FakeClock()  # a timer of uvloop may fire a millisecond before its time
    upstream = Upstream(calls(call()), says("Done"))
    answer, _ = await drive(upstream, hang, clock=standing_still, deadline=0.01)
    assert (answer.stop, upstream.calls[1].forcing.attempt) == ("deadline", 0)


async def test_a_long_result_is_cut():
    upstream = Upstream(calls(call()), says("Done"))
    await drive(upstream, long, max_result_bytes=100)
    assert "cut: 1000 characters in all, 100 shown" in upstream.calls[1].body["messages"][-1]["content"]


async def test_all_results_of_a_run_together_are_cut_too():
    upstream = Upstream(*map(searches, "012"), says("Done"))
    await drive(upstream, long, max_total_result_bytes=1500)
    shown = [content.count("x") for content in upstream.told(3)]
    assert shown[0] == 1000
    assert 0 < shown[1] < 500
    assert shown[2] == 0


async def test_what_was_held_back_is_shown_once_the_run_accepts_it():
    upstream = Upstream(calls(call()), says("Done", buffered=({"held": 1},)))
    await drive(upstream, found, audience=(client := Client()), max_turns=2)
    assert client.shown == [{"held": 1}]


async def test_observers_hear_every_turn_and_every_call():
    heard = Heard()
    await drive(Upstream(calls(call(), tokens=5), says("Done")), found, heard=heard)
    assert heard.names == [
        "turn.started",
        "turn.completed",
        "tool.started",
        "tool.completed",
        "turn.started",
        "turn.completed",
    ]
    assert heard[1][1]["usage"]["total_tokens"] == 5


async def test_observers_hear_of_a_turn_that_fails():
    heard = Heard()
    failure = UpstreamError("gone")
    failure.why = "ConnectError: refused"
    with pytest.raises(UpstreamError):
        await drive(Upstream(failure), found, heard=heard)
    assert heard.names == ["turn.started", "turn.failed"]
    assert heard[1][1]["why"] == "ConnectError: refused"


async def test_why_a_tool_could_not_be_asked_is_for_observers_and_not_for_the_model():
    async def away(_):
        raise ToolUnavailable("It is away.", why="ConnectError: 10.0.0.7 refused")

    heard = Heard()
    upstream = Upstream(calls(call()), says("Done"))
    await drive(upstream, away, heard=heard)
    [failed] = [fields for event, fields in heard if event == "tool.failed"]
    assert (failed["outcome"], failed["why"]) == ("unavailable", "ConnectError: 10.0.0.7 refused")
    assert "10.0.0.7" not in str(upstream.calls[1].body)
