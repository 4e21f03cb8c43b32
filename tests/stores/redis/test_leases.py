import asyncio

from proxy.stores.redis import quota
from proxy.stores.redis.quota import RedisLeases


def leases(shared):
    return RedisLeases(shared)


async def open_now(shared, client="app"):
    return await shared.client.zcard(f"toolproxy:open:{client}")


async def test_all_processes_count_together(process):
    async with process() as one, process() as other:
        mine, theirs = leases(one), leases(other)
        first = await mine.acquire("app", 2)
        second = await theirs.acquire("app", 2)
        assert None not in (first, second)
        assert await mine.acquire("app", 2) is None
        assert await theirs.acquire("somebody else", 1) is not None
        await theirs.release("app", second)
        assert await mine.acquire("app", 2) is not None


async def test_of_many_that_come_at_once_no_more_than_permitted_get_in(process):
    async with process() as one, process() as other:
        asking = [leases(shared).acquire("app", 5) for shared in (one, other) for _ in range(20)]
        assert len([lease for lease in await asyncio.gather(*asking) if lease]) == 5


async def test_the_leases_of_a_killed_process_end_by_themselves(process, monkeypatch):
    monkeypatch.setattr(quota, "_LIFETIME", 50)  # milliseconds
    async with process() as dead, process() as alive:
        assert await leases(dead).acquire("app", 1)
        mine = leases(alive)
        assert await mine.acquire("app", 1) is None
        await asyncio.sleep(0.06)  # the clock is the server's
        assert await mine.acquire("app", 1) is not None


async def test_an_open_request_keeps_its_lease_by_renewal(process, monkeypatch):
    monkeypatch.setattr(quota, "_LIFETIME", 200)  # milliseconds
    async with process() as one, process() as other:
        mine = leases(one)
        lease = await mine.acquire("app", 1)
        for _ in range(4):
            await asyncio.sleep(0.1)
            await mine.renew()
        assert await leases(other).acquire("app", 1) is None
        await mine.release("app", lease)
        await mine.renew()
        assert await open_now(one) == 0


async def test_every_key_expires(process):
    async with process() as shared:
        await leases(shared).acquire("app", 1)
        assert 14_000 < await shared.client.pttl("toolproxy:open:app") <= 15_000


async def test_while_redis_is_away_each_process_counts_its_own(process, redis_server):
    async with process() as one, process() as other:
        mine, theirs = leases(one), leases(other)
        before = await mine.acquire("app", 2)
        redis_server.stop()
        assert await mine.acquire("app", 2) is not None
        assert await mine.acquire("app", 2) is None
        assert await theirs.acquire("app", 2) is not None
        await mine.release("app", before)
        await mine.renew()
        assert await mine.acquire("app", 2) is not None


async def test_what_redis_has_lost_is_there_again_after_the_next_renewal(process, redis_server):
    async with process() as one, process() as other:
        mine = leases(one)
        assert await mine.acquire("app", 1)
        redis_server.stop()
        redis_server.start()
        await mine.renew()
        assert await leases(other).acquire("app", 1) is None


async def test_a_lease_that_is_given_back_while_it_is_renewed_does_not_stay(process):
    async with process() as shared:
        mine = leases(shared)
        for _ in range(50):
            lease = await mine.acquire("app", 1)
            await asyncio.gather(mine.renew(), mine.release("app", lease))
            assert await open_now(shared) == 0
