import asyncio

import pytest

from proxy.kit.timeouts import within


async def quick():
    return "at once"


async def slow(seconds, result="later"):
    await asyncio.sleep(seconds)
    return result


@pytest.fixture
async def timers(monkeypatch):
    """Every time for which the event loop was asked for a timer."""
    loop, asked = asyncio.get_running_loop(), []
    call_at = loop.call_at
    monkeypatch.setattr(
        loop, "call_at", lambda when, *args, **more: (asked.append(when), call_at(when, *args, **more))[1]
    )
    return asked


async def test_what_has_nothing_to_wait_for_needs_no_timer(timers):
    assert await within(0, quick()) == "at once"
    assert timers == []


async def test_what_waits_has_its_time(timers):
    assert await within(60, slow(0.001)) == "later"
    assert len(timers) == 2, "its own, and ours"


async def test_what_takes_longer_is_cancelled():
    seen = []

    async def work():
        try:
            await slow(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    with pytest.raises(TimeoutError):
        await within(0.001, work())
    assert seen == ["cancelled"]


@pytest.mark.parametrize("wait", [0, 1])
async def test_what_it_raises_is_raised(wait):
    async def work():
        for _ in range(wait):
            await asyncio.sleep(0)
        raise LookupError

    with pytest.raises(LookupError):
        await within(60, work())


async def test_whoever_is_cancelled_meanwhile_takes_the_work_along():
    seen, begun = [], asyncio.Event()

    async def work():
        begun.set()
        try:
            await slow(60)
        finally:
            seen.append("ended")

    task = asyncio.create_task(within(60, work()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["ended"]


async def test_one_within_another_the_shorter_time_counts():
    async def inner():
        try:
            return await within(0.001, slow(60))
        except TimeoutError:
            return "the inner one"

    assert await within(60, inner()) == "the inner one"
    with pytest.raises(TimeoutError):
        await within(0.001, within(60, slow(60)))
