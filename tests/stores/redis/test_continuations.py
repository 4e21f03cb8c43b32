"""What is particular about Redis; everything else is in tests/stores/test_continuations.py."""

import asyncio

from proxy.config.model import StateConfig
from proxy.stores.memory import MemoryStore
from proxy.stores.redis.continuations import RedisContinuations
from tests.fakes import FakeClock

ME = "client:me"


def store(shared, *, max_bytes=10_000, **config):
    config = StateConfig(**config)
    local = MemoryStore(config, clock=FakeClock(), max_bytes=10**6)
    kept = RedisContinuations(shared, config, local=local)
    kept.max_value_bytes = max_bytes
    return kept


async def test_what_one_process_keeps_another_finds(process):
    async with process() as one, process() as other:
        await store(one).put(ME, "a", b"value")
        assert await store(other).get(ME, "a") == b"value"
        assert await store(other).get(ME, "b") is None


async def test_what_one_process_deletes_is_gone_for_all(process):
    async with process() as one, process() as other:
        mine, theirs = store(one), store(other)
        await mine.put(ME, "k", b"")
        await theirs.delete(ME, "k")
        await theirs.delete(ME, "never kept")
        assert await mine.get(ME, "k") is None
        assert await one.client.keys("*") == [b"toolproxy:kept-total"]


async def test_every_key_has_our_prefix_and_expires(process):
    async with process() as shared:
        kept = store(shared, ttl=100)
        await kept.put(ME, "k", b"")
        await kept.renew(ME, ["k"])
        keys = await shared.client.keys("*")
        tables = ("", f"-of:{ME}", "-sizes", "-bytes", "-counts", "-total", f":k:{ME}")
        assert sorted(keys) == sorted(f"toolproxy:kept{table}".encode() for table in tables)
        assert all([99_000 < await shared.client.pttl(key) <= 100_000 for key in keys])


async def test_a_value_takes_as_much_memory_as_is_counted_for_it(process):
    async with process() as shared:
        before = (await shared.client.info("memory"))["used_memory"]
        kept = store(shared)
        for number in range(2000):
            await kept.put(ME, f"resp_{number:032x}", b"x" * 1000)
        taken = (await shared.client.info("memory"))["used_memory"] - before
        assert 0.75 < taken / int(await shared.client.get("toolproxy:kept-total")) < 1.25


async def test_the_oldest_of_all_processes_make_room_when_there_are_too_many(process):
    async with process() as one, process() as other:
        first, second = store(one, max_entries=3), store(other, max_entries=3)
        for number, kept in enumerate((first, second, first, second, first)):
            await kept.put(ME, f"k{number}", b"")
            await asyncio.sleep(0.002)  # the order is that of the server's milliseconds
        assert [await first.get(ME, f"k{number}") for number in range(5)] == [None, None, b"", b"", b""]
        assert await one.client.zcard("toolproxy:kept") == 3


async def test_limits_hold_also_after_redis_has_dropped_any_of_its_tables_to_make_room(process):
    async with process() as shared:
        kept = store(shared, max_entries=3)
        for number in range(3):
            await kept.put(ME, f"k{number}", b"")
        # Values of the same millisecond are dropped in the order of their names, so later ones have later names.
        for turn, table in enumerate(await shared.client.keys("toolproxy:kept*")):
            await shared.client.delete(table)
            for number in range(5):
                await kept.put(ME, f"n{turn}{number}", b"")
            assert await shared.client.zcard("toolproxy:kept") <= 3
            assert await kept.get(ME, f"n{turn}4") == b""


async def test_while_redis_is_away_this_process_remembers_by_itself_and_afterwards_too(process, redis_server):
    async with process() as shared:
        kept = store(shared)
        await kept.put(ME, "before", b"")
        redis_server.stop()
        await kept.put(ME, "during", b"1")
        await kept.renew(ME, ["during"])
        assert (await kept.get(ME, "before"), await kept.get(ME, "during")) == (None, b"1")
        redis_server.start()
        await shared.probe()
        assert await kept.get(ME, "during") == b"1"
        await kept.put(ME, "during", b"2")
        redis_server.stop()
        assert await kept.get(ME, "during") is None  # no older value comes back
        await kept.delete(ME, "during")


async def test_what_is_too_large_for_redis_stays_in_this_process(process):
    async with process() as one, process() as other:
        mine = store(one, max_bytes=100)
        await mine.put(ME, "k", b"x" * 200)
        assert await mine.get(ME, "k") == b"x" * 200
        assert await store(other).get(ME, "k") is None
