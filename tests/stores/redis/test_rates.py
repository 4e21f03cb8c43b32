from proxy.app import SystemClock
from proxy.stores.memory import LocalRates
from proxy.stores.redis.quota import RedisRates

KEY = "toolproxy:rate:app"


def rates(shared):
    return RedisRates(shared, local=LocalRates(SystemClock()))


async def grow_older(shared, seconds):
    """What was counted so far was so many seconds earlier: the clock is the server's, and cannot be moved."""
    counted = await shared.client.hgetall(KEY)
    await shared.client.delete(KEY)
    await shared.client.hset(KEY, mapping={int(second) - seconds: count for second, count in counted.items()})


async def test_all_processes_count_together(process):
    async with process() as one, process() as other:
        mine, theirs = rates(one), rates(other)
        assert [(await r.hit("app", 2)).count for r in (mine, theirs)] == [1, 2]
        refused = await mine.hit("app", 2)
        assert (refused.allowed, refused.count) == (False, 2)
        assert 58 < refused.reset <= 60
        assert (await theirs.hit("somebody else", 2)).allowed
        await grow_older(one, 60)
        assert (await theirs.hit("app", 2)).count == 1


async def test_what_is_kept_does_not_grow_with_the_requests(process):
    async with process() as shared:
        for _ in range(70):
            for _ in range(3):
                await rates(shared).hit("app", 1000)
            await grow_older(shared, 1)
        await rates(shared).hit("app", 1000)
        assert await shared.client.hlen(KEY) <= 60


async def test_every_key_has_our_prefix_and_expires(process):
    async with process() as shared:
        await rates(shared).hit("app", 2)
        assert await shared.client.keys("*") == [KEY.encode()]
        assert 0 < await shared.client.ttl(KEY) <= 60


async def test_while_redis_is_away_each_process_counts_for_itself(process, redis_server):
    async with process() as one, process() as other:
        mine, theirs = rates(one), rates(other)
        assert (await mine.hit("app", 1)).allowed
        redis_server.stop()
        assert [(await r.hit("app", 1)).allowed for r in (mine, theirs, mine, theirs)] == [True, True, False, False]
        redis_server.start()
        await one.probe()
        assert (await mine.hit("app", 1)).allowed  # what was started again is empty
        assert not (await mine.hit("app", 1)).allowed
