"""The secret that a shared state keeps for all processes, in a file and in Redis alike."""

import asyncio

import pytest

from proxy.kit.secrets import Secrets
from proxy.stores.shared.state import MadeSecret
from tests.fakes import FakeClock


@pytest.fixture
def clock():
    return FakeClock(1000.0)


async def test_the_first_process_makes_the_secret_and_all_others_use_it_for_good(opened, clock):
    async with opened(clock=clock) as one, opened(clock=clock) as other:
        assert one.secrets(()) == Secrets((), 1000.0)
        await asyncio.gather(one.probe(), other.probe())
        made = one.secrets(())
        assert other.secrets(()) == made
        assert (len(made.known), len(made.known[0]), made.since) == (1, 64, 1000.0)
    clock.now += 10**8
    async with opened(clock=clock) as later:
        await later.probe()
        assert later.secrets(()) == made
        assert later.secrets(("given", "old")) == Secrets(("given", "old", *made.known), 1000.0)


async def test_a_secret_that_the_store_has_lost_is_put_back(process, redis_server):
    async with process() as shared:
        await shared.probe()
        made = shared.secrets(())
        redis_server.stop()
        await shared.probe()
        assert shared.secrets(()) == made
        redis_server.start()
        await shared.probe()
        async with process() as other:
            await other.probe()
            assert other.secrets(()) == made


async def test_what_is_sealed_before_the_store_is_reached_opens_from_then_on_for_its_time(process, redis_server, clock):
    async with process(clock=clock) as shared:
        await shared.probe()
        made = shared.secrets(())
        redis_server.stop()
        async with process(clock=clock) as late:
            await late.probe()
            assert late.secrets(("given",)) == Secrets(("given",), 1000.0)
            redis_server.start()
            await shared.probe()
            clock.now = 5000.0
            await late.probe()
            assert late.secrets(()) == Secrets(made.known, 5000.0)


async def test_a_full_disk_still_tells_the_secret(database, clock, heard):
    async with database(clock=clock) as shared:
        await shared.probe()
        made = shared.secrets(())
    async with database(clock=clock) as shared:

        async def full(_):
            raise shared.lost("its disk is full")

        shared.keep_secret = full
        await shared.probe()
        assert shared.secrets(()) == made
        assert heard == ["state.unavailable"]


@pytest.mark.parametrize("kept", [b"a secret of the operator's own", b"{}", b'{"value": 5}'])
async def test_a_value_that_somebody_else_has_put_into_redis_is_a_secret_for_all(process, kept):
    async with process() as one, process() as other:
        async with one.reached() as redis:
            await redis.set("toolproxy:secret", kept)
        assert await one.read_secret() == await other.keep_secret(MadeSecret("mine", 1.0))
        assert await other.read_secret() != MadeSecret("mine", 1.0)


async def test_in_redis_the_secret_does_not_expire(process):
    async with process() as shared:
        await shared.probe()
        async with shared.reached() as redis:
            assert await redis.ttl("toolproxy:secret") == -1
