import asyncio

from proxy.config import StateConfig
from proxy.stores.memory import MemoryStore
from proxy.stores.redis.continuations import RedisContinuations
from tests.fakes import FakeClock


def store(shared, *, max_bytes=10_000, **config):
    config = StateConfig(**config)
    return RedisContinuations(shared, config, local=MemoryStore(config, clock=FakeClock()), max_bytes=max_bytes)


async def test_what_one_process_keeps_another_finds(process):
    async with process() as one, process() as other:
        await store(one).put("a:b", {"text": "ä", "list": [1, None]})
        assert await store(other).get("a:b") == {"text": "ä", "list": [1, None]}
        assert await store(other).get("a:c") is None


async def test_what_one_process_deletes_is_gone_for_all(process):
    async with process() as one, process() as other:
        mine, theirs = store(one), store(other)
        await mine.put("k", {})
        await theirs.delete("k")
        await theirs.delete("never kept")
        assert await mine.get("k") is None
        assert await one.client.keys("*") == []


async def test_every_key_has_our_prefix_and_expires(process):
    async with process() as shared:
        await store(shared, ttl=100).put("k", {})
        keys = await shared.client.keys("*")
        assert sorted(keys) == [b"toolproxy:kept", b"toolproxy:kept:k"]
        assert all([99_000 < await shared.client.pttl(key) <= 100_000 for key in keys])


async def test_entries_expire(process):
    async with process() as shared:
        kept = store(shared, ttl=0.02)
        await kept.put("k", {})
        await asyncio.sleep(0.05)  # the clock is the server's
        assert await kept.get("k") is None


async def test_the_oldest_of_all_processes_make_room_when_there_are_too_many(process):
    async with process() as one, process() as other:
        first, second = store(one, max_entries=3), store(other, max_entries=3)
        for number, kept in enumerate((first, second, first, second, first)):
            await kept.put(f"k{number}", {})
            await asyncio.sleep(0.002)  # the order is that of the server's milliseconds
        assert [await first.get(f"k{number}") for number in range(5)] == [None, None, {}, {}, {}]
        assert await one.client.zcard("toolproxy:kept") == 3


async def test_a_key_that_is_kept_again_holds_the_newer_value_and_counts_once(process):
    async with process() as shared:
        kept = store(shared, max_entries=2)
        await kept.put("other", {})
        for number in range(5):
            await kept.put("k", {"number": number})
        assert (await kept.get("k"), await kept.get("other")) == ({"number": 4}, {})


async def test_while_redis_is_away_this_process_remembers_by_itself_and_afterwards_too(process, redis_server):
    async with process() as shared:
        kept = store(shared)
        await kept.put("before", {})
        redis_server.stop()
        await kept.put("during", {"n": 1})
        assert (await kept.get("before"), await kept.get("during")) == (None, {"n": 1})
        redis_server.start()
        await shared.probe()
        assert await kept.get("during") == {"n": 1}
        await kept.put("during", {"n": 2})
        redis_server.stop()
        assert await kept.get("during") is None  # no older value comes back
        await kept.delete("during")


async def test_what_is_too_large_for_redis_stays_in_this_process(process):
    async with process() as one, process() as other:
        mine = store(one, max_bytes=100)
        await mine.put("k", {"x": "y" * 200})
        assert await mine.get("k") == {"x": "y" * 200}
        assert await store(other).get("k") is None
