"""Who gets which connection, without a network: scripted connections, a clock that stands still."""

import asyncio

import httpx
import pytest

from proxy.http.connect import Origin
from proxy.http.connection import RequestTimeouts
from proxy.http.pool import IDLE_SECONDS, Pool

HERE, THERE = Origin("here", 80), Origin("there", 80)


class Loop:
    """The time, and the one call that is due."""

    def __init__(self):
        self.now = 0.0
        self.later = None

    def time(self):
        return self.now

    def call_later(self, seconds, call, *args):
        self.later = (self.now + seconds, lambda: call(*args))
        return self

    def cancel(self):
        self.later = None

    def pass_until(self, when):
        while self.later and self.later[0] <= when:
            (self.now, due), self.later = self.later, None
            due()
        self.now = when


class Connection:
    """Knows whether it is usable, and whose it is."""

    def __init__(self, origin, loop):
        self.origin, self.loop = origin, loop
        self.usable, self.closed, self.expires = True, False, 0.0

    def adopt(self, release, discard):
        self.discard = discard

    def is_usable(self):
        return self.usable

    def close(self):
        if not self.closed:
            self.closed = True
            self.discard(self)

    async def wait_closed(self):
        assert self.closed


class Connections:
    """A pool and what it has made."""

    def __init__(self, *, at_most=2):
        self.loop, self.made, self.refuse = Loop(), [], None
        self.pool = Pool(self.connect, max_connections=at_most)

    async def connect(self, origin, patience):
        await asyncio.sleep(0)
        if self.refuse:
            raise self.refuse
        self.made.append(Connection(origin, self.loop))
        return self.made[-1]

    async def get(self, origin=HERE, *, patience=5, fresh=False):
        return await self.pool.acquire(origin, RequestTimeouts(pool=patience), fresh=fresh)

    def wait(self, origin=HERE, **options):
        return asyncio.ensure_future(self.get(origin, **options))

    def back(self, connection, seconds=None):
        self.pool.release(connection, seconds)


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


async def crowded(waiting=1, **options):
    """A pool of one connection, which is in use, and those who wait for it."""
    some = Connections(at_most=1)
    only = await some.get()
    waiters = [some.wait(**options) for _ in range(waiting)]
    await settle()
    return some, only, *waiters


async def test_the_connection_that_came_back_last_is_given_first():
    some = Connections()
    first, second = await some.get(), await some.get()
    some.back(second)
    some.back(first)
    assert await some.get() is first
    assert await some.get() is second


async def test_whoever_waits_longest_is_served_first():
    some, only, *waiting = await crowded(3)
    for waiter in waiting:
        some.back(only)
        assert await waiter is only


async def test_a_newcomer_does_not_overtake_those_who_wait():
    some, only, first = await crowded()
    some.back(only)  # given to the first, who has not come round to take it
    second = some.wait()
    await settle()
    assert first.done()
    assert not second.done()
    second.cancel()


async def test_the_place_of_a_closed_connection_goes_to_whoever_waits():
    some, only, waiter = await crowded()
    only.close()
    assert (await waiter) is some.made[1]


async def test_an_idle_connection_gives_way_to_one_to_another_server():
    some = Connections(at_most=1)
    some.back(await some.get(HERE))
    there = await some.get(THERE)
    assert (there.origin, some.made[0].closed) == (THERE, True)


async def test_a_connection_that_comes_back_gives_way_to_whoever_waits_for_another_server():
    some, here, waiter = await crowded(origin=THERE)
    some.back(here)
    assert (await waiter).origin == THERE
    assert here.closed


async def test_a_dead_connection_is_passed_over_and_its_place_is_free():
    some = Connections(at_most=1)
    dead = await some.get()
    some.back(dead)
    dead.usable = False
    assert await some.get() is some.made[1]
    assert dead.closed


async def test_a_connection_that_died_on_its_way_to_a_waiter_is_replaced():
    some, only, waiter = await crowded()
    some.back(only)
    only.usable = False
    assert (await waiter) is some.made[1]


async def test_a_fresh_connection_is_never_one_that_was_used():
    some = Connections(at_most=1)
    some.back(await some.get())
    assert await some.get(fresh=True) is some.made[1]
    waiter = some.wait(fresh=True)
    await settle()
    some.back(some.made[1])
    assert (await waiter) is some.made[2]


async def test_a_connection_that_cannot_be_made_leaves_its_place_to_the_next():
    some = Connections(at_most=1)
    some.refuse = httpx.ConnectError("no")
    for _ in range(3):
        with pytest.raises(httpx.ConnectError):
            await some.get()
    attempts = [some.wait() for _ in range(3)]
    outcomes = await asyncio.gather(*attempts, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {httpx.ConnectError}
    some.refuse = None
    assert await some.get() is some.made[0]


async def test_whoever_is_cancelled_in_the_moment_of_being_served_hands_it_on():
    for close in (False, True):
        some, only, first, second = await crowded(2)
        only.close() if close else some.back(only)
        first.cancel()
        got = await second
        assert (got is only) is not close
        some.back(got)
        assert await some.get() is got


async def test_whoever_was_cancelled_before_is_not_served():
    some, only, first, second = await crowded(2)
    first.cancel()
    some.back(only)
    assert await second is only


async def test_waiting_ends_with_patience_and_leaves_nothing_behind():
    some, only = await crowded(0)
    with pytest.raises(httpx.PoolTimeout):
        await some.get(patience=0.001)
    some.back(only)
    assert await some.get() is only


async def test_idle_connections_expire_the_longest_idle_first():
    some = Connections(at_most=3)
    early, late, short = await some.get(), await some.get(), await some.get()
    some.back(early)
    some.back(short, seconds=8)
    some.loop.pass_until(20)
    assert [known.closed for known in (early, late, short)] == [False, False, True]
    some.back(late)
    some.loop.pass_until(IDLE_SECONDS + 8)
    assert [known.closed for known in (early, late, short)] == [True, False, True]
    some.loop.pass_until(20 + IDLE_SECONDS + 8)
    assert late.closed
    assert some.loop.later is None
    assert len({id(await some.get()) for _ in range(3)}) == 3


async def test_a_server_that_keeps_no_idle_connection_gets_none():
    some = Connections()
    connection = await some.get()
    some.back(connection, seconds=1)
    assert connection.closed


async def test_closing_ends_every_wait_and_every_connection():
    some = Connections(at_most=1)
    some.back(await some.get())
    busy = await some.get()
    waiter = some.wait()
    await settle()
    await some.pool.aclose()
    with pytest.raises(httpx.CloseError):
        await waiter
    assert busy.closed
    assert await some.get() is some.made[1]
