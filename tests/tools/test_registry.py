import asyncio
import threading

import pytest

import proxy
from proxy.loop.call_context import CallContext
from proxy.loop.results import InvalidArguments, NotUnderstood, ToolError, ToolTimeout, ToolUnavailable, UrlNotAllowed
from proxy.tools.registry import Registry
from proxy.tools.tool import Tool
from proxy.wire.chat import ToolCall
from tests.fakes import FakeClock

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def tool(run=None, *, name="t", parameters=SCHEMA, **fields):
    async def echo(arguments):
        return str(arguments)

    return Tool(name=name, description="", parameters=parameters, run=run or echo, **fields)


def registry_of(tools, *, clock=None, **options):
    return Registry(tools, clock=clock or FakeClock(), **options)


async def execute(registry, arguments='{"n":1}', name="t", default_timeout=5, scope="me", **context):
    context = CallContext(scope, default_timeout=default_timeout, **context)
    return (await registry.execute(ToolCall("id", name, arguments), context)).text


class Scripted:
    """What a tool does, call by call: it returns a text or raises an error, the last one again and again.

    With a gate, each call waits for it.
    """

    def __init__(self, *outcomes, gate=None):
        self.outcomes, self.gate = [*outcomes], gate
        self.runs, self.running, self.most = [], 0, 0

    async def __call__(self, arguments):
        self.runs.append(arguments)
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if self.gate:
            self.running += 1
            self.most = max(self.most, self.running)
            await self.gate.wait()
            self.running -= 1
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


async def hang(_):
    await asyncio.Event().wait()


BROKEN = ToolError("its key was refused")
DOWN = ToolUnavailable("down")
REFUSED = ToolUnavailable("its key was refused", cause="key")


class Heard(list):
    """An observer: the events, each with its fields."""

    def __call__(self, event, /, **fields):
        self.append((event, fields))


async def all_of(calls, gate):
    """The outcomes of calls that all wait for the gate."""
    calls = [asyncio.ensure_future(call) for call in calls]
    await asyncio.sleep(0)
    gate.set()
    return await asyncio.gather(*calls, return_exceptions=True)


async def test_a_call_runs_the_tool_of_its_name_with_its_arguments():
    assert await execute(registry_of([tool()])) == "{'n': 1}"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("{broken", "not valid JSON"),
        ('{"n":1}{"n":2}', "not valid JSON"),
        ("[1]", "one JSON object"),
        ("null", '"n" is a required property'),
        ("{}", '"n" is a required property'),
        ('{"n":"one"}', "n: "),
        ("[" * 2000, "not valid JSON"),
    ],
)
async def test_arguments_that_do_not_fit_are_told_and_nothing_is_run(arguments, why):
    with pytest.raises(InvalidArguments, match=why):
        await execute(registry_of([tool(run := Scripted("found"))]), arguments)
    assert run.runs == []


async def test_a_tools_own_repair_comes_before_the_check():
    registry = registry_of([tool(repair=lambda arguments: {"n": int(arguments["n"])})])
    assert await execute(registry, '{"n":"7"}') == "{'n': 7}"


async def test_a_name_that_is_not_on_the_whitelist_is_never_run():
    with pytest.raises(ToolError, match="no tool named 'rm'"):
        await execute(registry_of([tool()]), name="rm")


@pytest.mark.parametrize(
    ("own", "default_timeout", "max_timeout"),
    [(None, 0.01, 60), (0.01, 60, 60), (0.01, 0.001, 60), (60, 60, 0.01), (None, 60, 0.01)],
)
async def test_a_tool_that_hangs_is_stopped_after_its_own_timeout_or_the_requests(own, default_timeout, max_timeout):
    with pytest.raises(ToolTimeout, match=r"0\.01 seconds"):
        await execute(registry_of([tool(hang, timeout=own)]), default_timeout=default_timeout, max_timeout=max_timeout)


async def test_a_fallback_has_its_own_timeout():
    tools = [tool(hang, timeout=0.01, fallback="other"), tool(hang, name="other", timeout=0.02)]
    with pytest.raises(ToolTimeout, match=r"0\.02 seconds"):
        await execute(registry_of(tools))


async def test_an_equal_call_of_the_same_caller_is_answered_from_the_first_result_for_a_while():
    clock, run = FakeClock(), Scripted("result 1", "result 2", "result 3", "result 4")
    registry = registry_of([tool(run, cache_seconds=60)], clock=clock)
    assert [await execute(registry), await execute(registry, ' { "n" : 1 } ')] == ["result 1", "result 1"]
    assert await execute(registry, '{"n":2}') == "result 2"
    assert await execute(registry, scope="somebody else") == "result 3"
    clock.now += 61
    assert await execute(registry) == "result 4"
    assert len(run.runs) == 4


async def test_without_cache_seconds_every_call_is_run():
    registry = registry_of([tool(Scripted("result 1", "result 2"))])
    assert [await execute(registry), await execute(registry)] == ["result 1", "result 2"]


async def test_equal_calls_at_the_same_moment_are_run_once():
    run = Scripted("found", gate=asyncio.Event())
    registry = registry_of([tool(run, cache_seconds=60)])
    assert await all_of((execute(registry) for _ in range(5)), run.gate) == ["found"] * 5
    assert len(run.runs) == 1


async def test_when_the_first_of_them_gives_up_the_next_takes_over():
    started, runs = asyncio.Event(), []

    async def run(arguments):
        runs.append(arguments)
        if len(runs) == 1:
            started.set()
            await asyncio.Event().wait()
        return "found"

    registry = registry_of([tool(run, cache_seconds=60)])
    first, second = (asyncio.ensure_future(execute(registry)) for _ in range(2))
    await started.wait()
    first.cancel()
    assert await second == "found"
    assert len(runs) == 2


async def test_a_failure_is_not_kept():
    registry = registry_of([tool(Scripted(ToolError("busy"), "found"), cache_seconds=60)])
    with pytest.raises(ToolError):
        await execute(registry)
    assert await execute(registry) == "found"


async def test_when_a_tool_fails_its_fallback_is_tried_with_the_same_arguments():
    registry = registry_of([tool(Scripted(BROKEN), fallback="other"), tool(name="other")], observe=(heard := Heard()))
    assert await execute(registry) == "{'n': 1}"
    assert [(event, fields["to"]) for event, fields in heard] == [("tool.fell_back", "other")]


async def test_a_fallback_is_not_tried_for_arguments_that_do_not_fit_and_has_none_of_its_own():
    registry = registry_of(
        [tool(Scripted(BROKEN), fallback="other"), tool(Scripted(BROKEN), name="other", fallback="t")]
    )
    with pytest.raises(InvalidArguments):
        await execute(registry, "{}")
    with pytest.raises(ToolError, match="key was refused"):
        await execute(registry)


def test_tools_that_came_as_a_group_are_replaced_together_and_known_by_its_name():
    registry = registry_of([tool()])
    assert registry.put_group("wiki", [tool(name="a"), tool(name="t"), tool(name="b")]) == [
        "there are two tools named 't'"
    ]
    assert {name: spec.group for name, spec in registry.specs.items()} == {"t": None, "a": "wiki", "b": "wiki"}
    assert registry.put_group("wiki", [tool(name="b")]) == []
    assert list(registry.specs) == ["t", "b"]


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(ValueError, match="two tools named 't'"):
        registry_of([tool(), tool()])


def test_a_schema_that_refers_to_another_server_is_refused_without_asking_it():
    with pytest.raises(Exception, match="remote references are not followed"):
        registry_of([tool(parameters={"$ref": "http://127.0.0.1:1/schema.json"})])


async def test_what_may_succeed_on_another_try_is_tried_again_after_growing_waits():
    heard, clock, run = Heard(), FakeClock(now=0), Scripted(DOWN, DOWN, "found")
    assert await execute(registry_of([tool(run, retries=2)], clock=clock, observe=heard)) == "found"
    assert [(event, fields["attempt"]) for event, fields in heard] == [("tool.retried", 1), ("tool.retried", 2)]
    assert (len(run.runs), clock.now) == (3, 0.75)


@pytest.mark.parametrize(("retries", "error"), [(0, ToolUnavailable), (2, ToolError)])
async def test_nothing_else_is_tried_again(retries, error):
    run = Scripted(error("down"), "found")
    with pytest.raises(error, match="down"):
        await execute(registry_of([tool(run, retries=retries)]))
    assert len(run.runs) == 1


async def test_a_tool_that_keeps_failing_is_left_alone_and_then_probed():
    heard, clock, run = Heard(), FakeClock(), Scripted(*[DOWN] * 5, "found")
    registry = registry_of([tool(run, fallback="other"), tool(name="other")], clock=clock, observe=heard)
    for _ in range(7):
        assert await execute(registry) == "{'n': 1}"
    assert (len(run.runs), [event for event, _ in heard].count("tool.breaker_opened")) == (5, 1)
    clock.now += 31
    assert await execute(registry) == "found"
    assert len(run.runs) == 6


async def test_a_tool_that_hangs_again_and_again_is_left_alone_too():
    registry = registry_of([tool(hang, timeout=0.001)])
    for scope in ("one", "one", "one", "two", "two"):
        with pytest.raises(ToolTimeout):
            await execute(registry, scope=scope)
    with pytest.raises(ToolUnavailable, match=r"keeps failing.* may work in 5 seconds"):
        await execute(registry)


async def failures(registry, clients, **call):
    for client in clients:
        with pytest.raises(ToolError):
            await execute(registry, scope=client, **call)


@pytest.mark.parametrize("fallback", [None, "other"])
async def test_one_clients_failures_keep_no_other_client_from_a_tool(fallback):
    async def run(_, call):
        if call.scope == "one":
            raise ToolUnavailable("down")
        return "found"

    first = tool(run_in_call=run, fallback=fallback)
    registry = registry_of([first, tool(Scripted(BROKEN), name="other")])
    await failures(registry, ["one"] * 20)
    assert await execute(registry, scope="two") == "found"


async def test_a_call_that_is_tried_again_counts_as_one_failure():
    run = Scripted(*[DOWN] * 8, "found")
    registry = registry_of([tool(run, retries=1)])
    await failures(registry, ["one", "two", "three", "four"])
    assert len(run.runs) == 8
    assert await execute(registry) == "found"


@pytest.mark.parametrize("error", [ToolError("There is no such page."), NotUnderstood("?"), UrlNotAllowed("no")])
async def test_what_the_request_itself_has_caused_counts_nothing(error):
    registry = registry_of([tool(Scripted(*[error] * 10, "found"))])
    await failures(registry, map(str, range(10)))
    await failures(registry, map(str, range(10)), arguments="{broken")
    assert await execute(registry) == "found"


async def test_a_tool_of_many_sites_is_never_left_alone_for_those_that_fail():
    registry = registry_of([tool(Scripted(*[DOWN] * 20, "found"), one_service=False)])
    await failures(registry, map(str, range(20)))
    assert await execute(registry) == "found"


async def test_a_service_without_a_connection_is_left_alone_whoever_asks_and_tried_every_few_seconds():
    clock, run = FakeClock(), Scripted(*[ToolUnavailable("gone", blame="service")] * 6, "found")
    registry = registry_of([tool(run)], clock=clock)
    await failures(registry, ["one"] * 9)
    assert len(run.runs) == 5
    clock.now += 5
    await failures(registry, ["one"] * 3)
    assert len(run.runs) == 6, "one of them is let through"
    clock.now += 5
    assert await execute(registry) == "found"


async def test_a_call_that_only_waits_for_a_slot_is_no_failure_of_the_service():
    gate = asyncio.Event()
    registry = registry_of([tool(Scripted("found", gate=gate), max_concurrent=1)])
    first = asyncio.ensure_future(execute(registry, default_timeout=60))
    await asyncio.sleep(0)
    await failures(registry, map(str, range(10)), default_timeout=0.001)
    gate.set()
    assert await first == await execute(registry) == "found"


async def test_a_refused_key_is_tried_again_after_a_minute_then_two_up_to_an_hour_until_it_is_mended():
    clock, run, told = FakeClock(), Scripted(*[REFUSED] * 8, "found", "found", REFUSED), Heard()
    registry = registry_of([tool(run)], clock=clock, observe=told)
    for rest in (60, 120, 240, 480, 960, 1920, 3600, 3600):
        await failures(registry, ["one", "two"])
        assert told[-1] == ("tool.breaker_opened", {"tool": "t", "seconds": rest, "cause": "key"})
        clock.now += rest - 1
        with pytest.raises(ToolUnavailable, match="may work in 1 second\\."):
            await execute(registry)
        clock.now += 1
    assert len(run.runs) == 8
    assert await execute(registry) == await execute(registry) == "found"
    await failures(registry, ["one"])
    assert told[-1][1]["seconds"] == 60, "a success ends the doubling"


@pytest.mark.parametrize(
    ("cause", "wait", "rests"),
    [("quota", None, (600, 1200)), ("quota", 90, (90, 90)), ("busy", 30, (30, 30)), ("busy", 18_000, (600, 600))],
)
async def test_a_service_that_refuses_its_only_key_rests_as_long_as_a_key_of_several(cause, wait, rests):
    clock, told = FakeClock(), Heard()
    run = Scripted(*[ToolUnavailable("no", cause=cause, wait=wait)] * 2)
    registry = registry_of([tool(run)], clock=clock, observe=told)
    for rest in rests:
        await failures(registry, ["one"])
        assert told[-1] == ("tool.breaker_opened", {"tool": "t", "seconds": rest, "cause": cause})
        clock.now += rest


async def test_calls_that_were_refused_at_the_same_time_rest_the_key_once():
    run, told = Scripted(REFUSED, gate=asyncio.Event()), Heard()
    registry = registry_of([tool(run)], observe=told)
    await all_of((execute(registry) for _ in range(5)), run.gate)
    assert [fields["seconds"] for _, fields in told] == [60]


async def test_no_more_calls_of_a_tool_run_at_the_same_time_than_it_can_take():
    run = Scripted("found", gate=asyncio.Event())
    registry = registry_of([tool(run, max_concurrent=2)])
    assert await all_of((execute(registry) for _ in range(5)), run.gate) == ["found"] * 5
    assert run.most == 2


async def test_a_tool_that_returns_something_else_than_text_is_told():
    with pytest.raises(ToolError, match="not text"):
        await execute(registry_of([tool(Scripted(b"\x00"))]))


async def test_the_tools_of_a_group_come_and_go_together():
    registry = registry_of([tool()])
    assert registry.put_group("mcp", [tool(name="a"), tool(name="b", aliases=("c",))]) == []
    assert await execute(registry, name="a") == "{'n': 1}"
    refused = registry.put_group("mcp", [tool(name="b"), tool(name="t"), tool(name="d", aliases=("b",))])
    assert refused == ["there are two tools named 't'", "there are two tools named 'b'"]
    assert list(registry.specs) == ["t", "b"]
    with pytest.raises(ToolError, match="no tool named 'a'"):
        await execute(registry, name="a")


def test_the_public_names_are_enough_for_a_tool_of_ones_own():
    assert proxy.Tool is Tool
    assert proxy.Tool(name="t", description="", parameters={}, run=Scripted(BROKEN)).offer == "always"


@pytest.mark.parametrize(("size", "is_beside"), [(1024, False), (100 * 1024, True)])
async def test_long_arguments_are_read_beside_the_event_loop(size, is_beside):
    threads = []

    def repair(arguments):
        threads.append(threading.current_thread())
        return arguments

    arguments = '{"n":1,"text":"%s"}' % ("a" * size)
    registry = registry_of([tool(Scripted("found"), repair=repair)])
    assert await execute(registry, arguments) == "found"
    assert (threads[0] is not threading.current_thread()) is is_beside
    assert registry.history_arguments(ToolCall("id", "t", arguments)) == arguments
    assert len(threads) == 1
