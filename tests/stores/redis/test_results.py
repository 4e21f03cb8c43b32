import asyncio
from types import MappingProxyType

import pytest

from proxy.loop.results import ToolError, ToolOutput
from proxy.stores.redis.results import RedisResults
from proxy.stores.shared.results import MAX_BYTES, WAIT_SECONDS
from proxy.tools.result_cache import ResultCache
from tests.fakes import FakeClock


def results(shared, *, tool="t", seconds=60, clock=None):
    shared.clock = clock or shared.clock
    own = ResultCache(seconds, timer=shared.clock.monotonic)
    return RedisResults(shared, tool=tool, seconds=seconds, local=own)


class Tool:
    """Counts its runs; with a gate it waits there."""

    def __init__(self, *, gate=None, text="found"):
        self.runs = 0
        self.gate = gate
        self.text = text
        self.started = asyncio.Event()

    async def __call__(self):
        self.runs += 1
        self.started.set()
        if self.gate:
            await self.gate.wait()
        return ToolOutput(f"{self.text} {self.runs}", {"https://a.example/": "A"})


@pytest.mark.parametrize("output", [ToolOutput("no page's"), ToolOutput("a page's", MappingProxyType({"u": "A"}))])
async def test_whatever_mapping_the_sources_are_another_process_has_them(process, output):
    async def run():
        return output

    async def run_again():
        raise AssertionError("it was kept")

    async with process() as one, process() as other:
        assert await results(one).get_or_run("k", run) == output
        kept = await results(other).get_or_run("k", run_again)
        assert (kept.text, dict(kept.sources)) == (output.text, dict(output.sources))


async def test_what_cannot_be_written_is_given_and_not_kept(process):
    odd = ToolOutput("found", {"https://a.example/": object()})

    async def run():
        return odd

    async with process() as one:
        assert await results(one).get_or_run("k", run) is odd


async def test_what_one_process_found_another_has(process):
    tool = Tool()
    async with process() as one, process() as other:
        first = await results(one).get_or_run("k", tool)
        assert await results(other).get_or_run("k", tool) == first == ToolOutput("found 1", {"https://a.example/": "A"})
        assert await results(other).get_or_run("other", tool) == await tool_said(2)
        assert (await results(other, tool="other").get_or_run("k", tool)).text == "found 3"


async def tool_said(number):
    return ToolOutput(f"found {number}", {"https://a.example/": "A"})


async def test_two_equal_calls_at_the_same_moment_are_one_whichever_process_they_come_to(process):
    tool = Tool(gate=asyncio.Event())
    async with process() as one, process() as other, asyncio.TaskGroup() as group:
        caches = [results(one), results(other)]
        calls = [group.create_task(cache.get_or_run("k", tool)) for cache in caches * 5]
        await tool.started.wait()
        await asyncio.sleep(0.05)
        tool.gate.set()
        assert {call.text for call in await asyncio.gather(*calls)} == {"found 1"}
    assert tool.runs == 1


@pytest.mark.parametrize("ending", ["fails", "leaves"])
async def test_when_the_first_of_them_gives_nothing_the_next_takes_over_at_once(process, ending):
    gate, tool = asyncio.Event(), Tool()

    async def fails():
        tool.started.set()
        await gate.wait()
        raise ToolError("busy")

    async with process() as one, process() as other, asyncio.timeout(WAIT_SECONDS / 2):
        first = asyncio.ensure_future(results(one).get_or_run("k", fails))
        await tool.started.wait()
        second = asyncio.ensure_future(results(other).get_or_run("k", tool))
        await asyncio.sleep(0.02)
        if ending == "fails":
            gate.set()
        else:
            first.cancel()
        with pytest.raises((ToolError, asyncio.CancelledError)):
            await first
        assert (await second).text == "found 1"


async def test_a_process_that_was_killed_holds_nobody_up_for_ever(process):
    """The lock is another's and stays: after a while the call is run without it."""
    tool, clock = Tool(), FakeClock()
    async with process() as one, process() as other:
        cache = results(other, clock=clock)
        theirs = Tool(gate=asyncio.Event())
        dead = asyncio.ensure_future(results(one).get_or_run("k", theirs))
        await theirs.started.wait()
        began = clock.now
        assert (await cache.get_or_run("k", tool)).text == "found 1"
        assert WAIT_SECONDS <= clock.now - began < WAIT_SECONDS + 1
        (lock,) = await one.client.keys("toolproxy:running:*")  # not ours to take away
        assert 0 < await one.client.pttl(lock) <= WAIT_SECONDS * 1000
        dead.cancel()
        await asyncio.gather(dead, return_exceptions=True)


async def test_results_expire_and_their_keys_say_nothing_of_the_query(process):
    tool = Tool()
    async with process() as shared:
        cache = results(shared, seconds=0.05)
        await cache.get_or_run("client:app\n{query: canary}", tool)
        (key,) = await shared.client.keys("*")
        assert key.startswith(b"toolproxy:result:t:")
        assert b"canary" not in key
        assert 0 < await shared.client.pttl(key) <= 50
        await asyncio.sleep(0.06)  # the clock is the server's
        assert (await cache.get_or_run("client:app\n{query: canary}", tool)).text == "found 2"


@pytest.mark.parametrize("text", ["x" * MAX_BYTES, "\ud800"], ids=["too large", "half a character"])
async def test_what_cannot_be_kept_is_returned_all_the_same(process, text):
    tool = Tool(text=text)
    async with process() as shared:
        for number in (1, 2):
            assert (await results(shared).get_or_run("k", tool)).text == f"{text} {number}"
        assert await shared.client.keys("*") == []


async def test_what_another_version_has_kept_is_replaced(process):
    tool = Tool()
    async with process() as shared:
        await results(shared).get_or_run("k", tool)
        (key,) = await shared.client.keys("*")
        await shared.client.set(key, b'{"words": 1}')
        assert [(await results(shared).get_or_run("k", tool)).text for _ in range(2)] == ["found 2"] * 2


async def test_while_redis_is_away_each_process_has_its_own(process, redis_server):
    tool = Tool()
    async with process() as one, process() as other:
        mine, theirs = results(one), results(other)
        redis_server.stop()
        assert [(await cache.get_or_run("k", tool)).text for cache in (mine, mine, theirs)] == [
            "found 1",
            "found 1",
            "found 2",
        ]


async def test_a_call_that_is_under_way_when_redis_goes_is_run_once_and_answered(process, redis_server):
    tool = Tool(gate=asyncio.Event())
    async with process() as shared:
        call = asyncio.ensure_future(results(shared).get_or_run("k", tool))
        await tool.started.wait()
        redis_server.stop()
        tool.gate.set()
        assert (await call).text == "found 1"
