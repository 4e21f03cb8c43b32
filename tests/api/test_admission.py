"""Places and the queue for them, and how many begin at once."""

import asyncio
from collections import Counter

import pytest

from proxy.api.middleware.admission import Admission, Capacity, ConcurrencyLimit, Lifecycle, StartThrottle
from proxy.config.model import ServerConfig
from proxy.wire.errors import Overloaded


async def waiting(limit, count, patience=60):
    tasks = [asyncio.ensure_future(limit.acquire(patience)) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def test_places_are_handed_on_in_the_order_of_the_queue():
    limit = ConcurrencyLimit(1, queue=3)
    await limit.acquire(0)
    first, second, third = await waiting(limit, 3)
    limit.release()
    await first
    assert not any(one.done() for one in (second, third))
    limit.release()
    await second
    limit.release()
    await third
    limit.release()
    await limit.acquire(0)


async def test_beyond_the_queue_there_is_no_waiting():
    limit = ConcurrencyLimit(1, queue=1)
    await limit.acquire(0)
    (task,) = await waiting(limit, 1)
    with pytest.raises(Overloaded):
        await limit.acquire(60)
    limit.release()
    await task


async def test_who_gives_up_waiting_costs_no_place():
    limit = ConcurrencyLimit(2, queue=2)
    await limit.acquire(0)
    await limit.acquire(0)
    left, impatient = (*await waiting(limit, 1), *await waiting(limit, 1, patience=0))
    left.cancel()
    with pytest.raises(Overloaded):
        await impatient
    for _ in range(2):
        limit.release()
    for _ in range(2):
        await limit.acquire(0)
    with pytest.raises(Overloaded):
        await limit.acquire(0)


async def test_a_place_that_comes_in_the_moment_of_giving_up_is_handed_on():
    limit = ConcurrencyLimit(1, queue=2)
    await limit.acquire(0)
    left, next_one = await waiting(limit, 2)
    limit.release()
    left.cancel()
    await asyncio.wait({left, next_one}, timeout=5)
    assert left.cancelled()
    assert next_one.done()


def turns_of(loop):
    """Counts the turns of the event loop from now on."""
    turns = [0]

    def next_turn():
        turns[0] += 1
        loop.call_soon(next_turn)

    next_turn()
    return turns


async def through(turnstile):
    turn = turnstile.enter()
    if turn is not None:
        await turn


async def test_so_many_pass_in_one_turn_and_the_others_follow_in_their_order():
    turns, turnstile, passed = turns_of(asyncio.get_running_loop()), StartThrottle(3), []

    async def one(number):
        await through(turnstile)
        passed.append((number, turns[0]))

    await asyncio.gather(*map(one, range(10)))
    assert [number for number, _ in passed] == list(range(10))
    at_once = Counter(turn for _, turn in passed)
    assert [count for _, count in sorted(at_once.items())] == [3, 3, 3, 1]
    assert max(at_once) - min(at_once) <= 2 * len(at_once)  # one after the other, and not after something else


async def test_who_comes_later_does_not_overtake_those_who_wait():
    turnstile = StartThrottle(1)
    first, second, third = (asyncio.ensure_future(through(turnstile)) for _ in range(3))
    await first
    await through(turnstile)
    assert second.done()
    assert third.done()


async def test_who_comes_in_a_later_turn_need_not_wait():
    turnstile = StartThrottle(2)
    for _ in range(5):
        assert turnstile.enter() is None
        assert turnstile.enter() is None
        await asyncio.sleep(0)


async def test_who_stops_waiting_takes_nobodys_turn():
    turns, turnstile = turns_of(asyncio.get_running_loop()), StartThrottle(1)
    assert turnstile.enter() is None
    left, stays = turnstile.enter(), turnstile.enter()
    left.cancel()
    before = turns[0]
    await stays
    assert turns[0] - before <= 2


async def test_all_can_be_let_through_at_once():
    turnstile = StartThrottle(1)
    assert turnstile.enter() is None
    waiting = [turnstile.enter() for _ in range(5)]
    waiting[2].cancel()
    turnstile.start_all()
    assert [turn.cancelled() for turn in waiting] == [False, False, True, False, False]
    assert all(turn.done() for turn in waiting)


async def test_nobody_keeps_a_place_waiting_when_others_want_one():
    begun, go_on = [], asyncio.Event()

    async def app(scope, _receive, _send):
        begun.append(scope["path"])
        await go_on.wait()

    server = ServerConfig(max_concurrent_requests=100, max_queued_requests=0)
    admission = Admission(
        app,
        capacity=Capacity(server, body_bytes=10**6),
        queue_timeout=server.queue_timeout_seconds,
        lifecycle=Lifecycle(),
    )
    scope = {"type": "http", "path": "/v1/chat/completions"}
    admitted = [asyncio.ensure_future(admission(scope, None, None)) for _ in range(100)]
    await asyncio.sleep(0)
    assert len(begun) == 32
    with pytest.raises(Overloaded):
        await admission(scope, None, None)
    await asyncio.sleep(0)
    assert len(begun) == 100
    go_on.set()
    await asyncio.gather(*admitted)


async def test_what_was_begun_goes_on_while_a_burst_of_requests_comes_in():
    turns, begun = turns_of(asyncio.get_running_loop()), []

    async def app(scope, _receive, _send):
        begun.append((scope["path"], turns[0]))

    admission = Admission(
        app, capacity=Capacity(ServerConfig(), body_bytes=10**6), queue_timeout=1, lifecycle=Lifecycle()
    )
    paths = ["/v1/chat/completions"] * 200 + ["/healthz"]
    await asyncio.gather(*(admission({"type": "http", "path": path}, None, None) for path in paths))
    in_each_turn = Counter(turn for path, turn in begun if path != "/healthz")
    assert sum(in_each_turn.values()) == 200
    assert max(in_each_turn.values()) == 32
    assert dict(begun)["/healthz"] == begun[0][1]  # who asks for health is not kept waiting
