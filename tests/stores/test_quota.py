"""Requests per minute, alike in memory, in a file and in Redis."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.stores.memory import LocalRates
from proxy.stores.redis.quota import RedisRates
from proxy.stores.sqlite.tables import SqliteRates
from tests.fakes import FakeClock


@pytest.fixture
def clock():
    return FakeClock(1000.0)


# Redis has a clock of its own, which nobody moves; so what was counted is moved into the past.
SHIFT = """
for _, key in ipairs(redis.call('KEYS', 'toolproxy:rate:*')) do
  local counted = redis.call('HGETALL', key)
  redis.call('DEL', key)
  for at = 1, #counted, 2 do redis.call('HSET', key, counted[at] - ARGV[1], counted[at + 1]) end
end
"""


@pytest.fixture(params=["memory", "sqlite", "redis"])
async def counted(request, clock):
    """Rates, and what lets whole seconds go by in them."""

    async def pass_seconds(seconds):
        clock.now += seconds

    if request.param == "memory":
        yield LocalRates(clock), pass_seconds
    elif request.param == "sqlite":
        async with request.getfixturevalue("database")(clock=clock) as shared:
            yield SqliteRates(shared, local=LocalRates(clock)), pass_seconds
    else:
        async with request.getfixturevalue("process")() as shared:
            yield RedisRates(shared, local=LocalRates(clock)), lambda seconds: shared.client.eval(SHIFT, 0, seconds)


@pytest.fixture(params=["memory", "sqlite"])
async def rates(request, clock):
    """Rates by a clock that stands still until it is moved."""
    if request.param == "memory":
        yield LocalRates(clock)
        return
    async with request.getfixturevalue("database")(clock=clock) as shared:
        yield SqliteRates(shared, local=LocalRates(clock))


async def hits(rates, count, limit, *, client="app"):
    return [await rates.hit(client, limit) for _ in range(count)]


async def test_a_burst_up_to_the_limit_is_allowed_and_not_one_more(rates):
    outcome = await hits(rates, 601, 600)
    assert [rate.allowed for rate in outcome] == [True] * 600 + [False]
    assert [rate.count for rate in outcome] == [*range(1, 601), 600]
    assert {rate.reset for rate in outcome} == {60.0}


async def test_whoever_comes_again_when_asked_to_is_allowed(rates, clock):
    await hits(rates, 1, 2)
    clock.now += 40.75
    await hits(rates, 1, 2)
    (refused,) = await hits(rates, 1, 2)
    assert (refused.allowed, refused.reset) == (False, 19.25)
    clock.now += refused.reset
    assert [rate.allowed for rate in await hits(rates, 2, 2)] == [True, False]


async def test_what_is_refused_does_not_count(counted):
    rates, pass_seconds = counted
    await hits(rates, 1, 1)
    for _ in range(3):
        await pass_seconds(19)
        assert not (await rates.hit("app", 1)).allowed
    await pass_seconds(3)
    assert (await rates.hit("app", 1)).allowed


async def test_the_window_moves_along(counted):
    rates, pass_seconds = counted
    await hits(rates, 1, 2)
    await pass_seconds(40)
    await hits(rates, 1, 2)
    (refused,) = await hits(rates, 1, 2)
    assert not refused.allowed
    assert 18 < refused.reset <= 20
    await pass_seconds(20)
    assert [rate.allowed for rate in await hits(rates, 2, 2)] == [True, False]


async def test_an_even_pace_at_the_limit_is_never_refused(rates, clock):
    for _ in range(2000):
        assert (await rates.hit("app", 480)).allowed
        clock.now += 0.125


async def test_a_limit_that_was_lowered_holds_at_once(counted):
    rates, _ = counted
    await hits(rates, 10, 10)
    lowered = await rates.hit("app", 5)
    assert (lowered.allowed, lowered.count) == (False, 10)


async def test_clients_are_counted_apart(counted):
    rates, _ = counted
    await hits(rates, 2, 1)
    assert (await rates.hit("another", 1)).allowed


async def test_what_is_kept_does_not_grow_with_the_requests(clock):
    rates = LocalRates(clock)
    for _ in range(300):
        await hits(rates, 50, 1_000_000)
        clock.now += 0.5
    (minute,) = rates._clients.values()  # noqa: SLF001 - what is kept is what is tested
    assert len(minute.seconds) <= 60


@given(st.lists(st.floats(0, 90), max_size=60), st.integers(1, 5))
async def test_no_more_than_the_limit_in_any_window_and_the_advice_is_right(pauses, limit):
    clock = FakeClock(random.random())
    rates, allowed = LocalRates(clock), []
    for pause in pauses:
        clock.now += pause
        rate = await rates.hit("app", limit)
        if rate.allowed:
            allowed.append(clock.now)
        else:
            assert 0 < rate.reset <= 60
            assert math.floor(clock.now + rate.reset) >= math.floor(allowed[-limit]) + 60
        # A request counts from the beginning of its second: 59 seconds are the least that it counts for.
        assert len([when for when in allowed if when > clock.now - 59]) <= limit
