from limits.aio.storage import MemoryStorage

from proxy.stores.rates import MovingWindows
from proxy.stores.redis.rates import RedisRates


def rates(shared):
    return RedisRates(shared, local=MovingWindows(MemoryStorage()))


async def test_all_processes_have_one_window(process, wall_clock):
    async with process() as one, process() as other:
        mine, theirs = rates(one), rates(other)
        assert [(await r.hit("app", 2)).remaining for r in (mine, theirs)] == [1, 0]
        refused = await mine.hit("app", 2)
        assert (refused.allowed, refused.limit, refused.remaining, refused.reset) == (False, 2, 0, 60)
        assert (await theirs.hit("somebody else", 2)).allowed
        wall_clock.shift(61)
        assert (await theirs.hit("app", 2)).remaining == 1


async def test_every_key_has_our_prefix_and_expires(process):
    async with process() as shared:
        await rates(shared).hit("app", 2)
        (key,) = await shared.client.keys("*")
        assert key.startswith(b"toolproxy:rate:")
        assert 0 < await shared.client.ttl(key) <= 60


async def test_while_redis_is_away_each_process_has_a_window_of_its_own(process, redis_server):
    async with process() as one, process() as other:
        mine, theirs = rates(one), rates(other)
        assert (await mine.hit("app", 1)).allowed
        redis_server.stop()
        assert [(await r.hit("app", 1)).allowed for r in (mine, theirs, mine, theirs)] == [True, True, False, False]
        redis_server.start()
        await one.probe()
        assert (await mine.hit("app", 1)).allowed  # what was started again is empty
        assert not (await mine.hit("app", 1)).allowed
