"""What is kept between requests, alike in memory, in a file and in Redis."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from proxy.config.model import StateConfig
from proxy.stores.memory import MemoryStore
from proxy.stores.redis.continuations import RedisContinuations
from proxy.stores.sqlite.tables import SqliteContinuations
from tests.fakes import FakeClock

ME, OTHER = "client:me", "client:other"
LARGE = 100_000  # bytes, beside which what an entry takes besides its value is little


# Redis has a clock of its own, which nobody moves; so everything that is in it is moved towards its end.
SHIFT = """
for _, key in ipairs(redis.call('KEYS', '*')) do
  redis.call('PEXPIRE', key, redis.call('PTTL', key) - ARGV[1])
  if key == 'toolproxy:kept' or string.find(key, 'toolproxy:kept-of', 1, true) then
    for _, name in ipairs(redis.call('ZRANGE', key, 0, -1)) do redis.call('ZINCRBY', key, -ARGV[1], name) end
  end
end
"""


@pytest.fixture(params=["memory", "sqlite", "redis"])
def kept_in(request):
    """Makes a store, and what lets seconds go by in it."""
    process = request.getfixturevalue("process") if request.param == "redis" else None

    @asynccontextmanager
    async def in_memory(**config):
        clock = FakeClock()
        config = StateConfig(**config)

        async def pass_seconds(seconds):
            clock.now += seconds

        yield MemoryStore(config, clock=clock, max_bytes=config.max_bytes), pass_seconds

    @asynccontextmanager
    async def in_redis(**config):
        config = StateConfig(**config)
        async with process() as shared:
            local = MemoryStore(config, clock=FakeClock(), max_bytes=config.max_bytes)

            async def pass_seconds(seconds):
                await shared.client.eval(SHIFT, 0, seconds * 1000)

            yield RedisContinuations(shared, config, local=local), pass_seconds

    @asynccontextmanager
    async def in_file(**config):
        config, clock = StateConfig(**config), FakeClock()
        async with request.getfixturevalue("database")(clock=clock) as shared:
            local = MemoryStore(config, clock=clock, max_bytes=config.max_bytes)

            async def pass_seconds(seconds):
                clock.now += seconds

            yield SqliteContinuations(shared, config, local=local), pass_seconds

    return {"memory": in_memory, "sqlite": in_file, "redis": in_redis}[request.param]


async def put(store, owner, *keys, size=10):
    for key in keys:
        await store.put(owner, key, key.encode() + b"x" * size)
        await asyncio.sleep(0.002)  # the order is that of the server's milliseconds


async def found(store, owner, *keys):
    """Those of the keys that are still there."""
    return [key for key in keys if await store.get(owner, key) is not None]


async def test_what_is_kept_is_found_by_its_owner_alone(kept_in):
    async with kept_in() as (store, _):
        value = '{"text": "ä"}'.encode()
        await store.put(ME, "a", value)
        assert await store.get(ME, "a") == value
        assert [await store.get(*name) for name in ((ME, "b"), (OTHER, "a"), (f"{ME}:a", "a"), ("", "a"))] == [None] * 4


async def test_a_key_that_is_kept_again_holds_the_newer_value_and_counts_once(kept_in):
    async with kept_in(max_entries=2, max_bytes=3 * LARGE) as (store, _):
        await put(store, ME, "other")
        for number in range(5):
            await store.put(ME, "k", b"%d" % number + b"x" * LARGE)
        assert (await store.get(ME, "k"))[:1] == b"4"
        assert await found(store, ME, "other") == ["other"]


async def test_entries_expire(kept_in):
    async with kept_in(ttl=100) as (store, pass_seconds):
        await put(store, ME, "old")
        await pass_seconds(60)
        await put(store, ME, "new")
        await pass_seconds(50)
        assert await found(store, ME, "old", "new") == ["new"]


async def test_what_is_renewed_lives_on_and_is_not_the_oldest_any_more(kept_in):
    async with kept_in(ttl=100, max_entries=3) as (store, pass_seconds):
        await put(store, ME, "a", "b")
        await pass_seconds(60)
        await store.renew(ME, ["a", "never kept"])
        await store.renew(OTHER, ["b"])
        await pass_seconds(50)
        assert await found(store, ME, "a", "b", "never kept") == ["a"]
        await put(store, ME, "c")
        await store.renew(ME, ["a"])
        await put(store, ME, "d", "e")
        assert await found(store, ME, "a", "c", "d", "e") == ["a", "d", "e"]


async def test_what_is_deleted_is_gone_and_leaves_its_room_to_others(kept_in):
    async with kept_in(max_entries=2, max_bytes=3 * LARGE) as (store, _):
        await put(store, ME, "a", "b", size=LARGE)
        await store.delete(ME, "a")
        await store.delete(ME, "never kept")
        await store.delete(OTHER, "b")
        await put(store, ME, "c", size=LARGE)
        assert await found(store, ME, "a", "b", "c") == ["b", "c"]


async def test_what_has_expired_leaves_its_room_to_others(kept_in):
    async with kept_in(ttl=100, max_bytes=3 * LARGE) as (store, pass_seconds):
        await put(store, OTHER, "a", "b", size=LARGE)
        await pass_seconds(120)
        await put(store, ME, "c", "d", size=LARGE)
        assert await found(store, ME, "c", "d") == ["c", "d"]


async def test_the_oldest_make_room_when_there_are_too_many(kept_in):
    async with kept_in(max_entries=2) as (store, _):
        await put(store, ME, "a", "b", "c")
        assert await found(store, ME, "a", "b", "c") == ["b", "c"]


async def test_the_oldest_make_room_when_they_are_too_large(kept_in):
    async with kept_in(max_bytes=3 * LARGE) as (store, _):
        await put(store, ME, "a", "b", "c", size=LARGE)
        assert await found(store, ME, "a", "b", "c") == ["b", "c"]
        await put(store, ME, "huge", size=3 * LARGE)
        assert await found(store, ME, "b", "c", "huge") == []


async def test_many_entries_of_one_owner_push_out_none_of_anothers(kept_in):
    async with kept_in(max_entries=5) as (store, _):
        await put(store, ME, "mine")
        await put(store, OTHER, *"abcdefgh")
        assert await found(store, ME, "mine") == ["mine"]
        assert await found(store, OTHER, *"abcdefgh") == [*"efgh"]


async def test_large_entries_of_one_owner_push_out_none_of_anothers(kept_in):
    async with kept_in(max_bytes=4 * LARGE) as (store, _):
        await put(store, ME, "mine", "mine too")
        await put(store, OTHER, *"abcdefgh", size=LARGE)
        assert await found(store, ME, "mine", "mine too") == ["mine", "mine too"]
        assert await found(store, OTHER, *"abcdefgh") == [*"fgh"]


async def test_who_has_most_makes_room_for_who_has_less(kept_in):
    async with kept_in(max_bytes=7 * LARGE) as (store, _):
        await put(store, OTHER, *"abcdef", size=LARGE)
        await put(store, ME, *"1234", size=LARGE)
        assert await found(store, OTHER, *"abcdef") == [*"def"]
        assert await found(store, ME, *"1234") == [*"234"]  # as much as the other has: the oldest of their own


async def test_an_owner_whose_name_is_odd_is_like_any_other(kept_in):
    owners = ("client:1:2", "client:1:\n", "client:ä %d")
    async with kept_in(max_entries=3) as (store, _):
        for owner in owners:
            await put(store, owner, "a", "b")
        assert [await found(store, owner, "a", "b") for owner in owners] == [["b"]] * 3
