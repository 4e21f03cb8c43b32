"""What is shared by way of Redis, put together: each part with its stand-in of this process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from proxy.config import StateConfig
from proxy.ports import Clock, Observer, Results
from proxy.stores.redis.connection import SharedRedis
from proxy.stores.redis.continuations import RedisContinuations
from proxy.stores.redis.leases import RedisLeases
from proxy.stores.redis.rates import RedisRates
from proxy.stores.redis.results import RedisResults
from proxy.stores.state import State


def shared_state(config: StateConfig, *, clock: Clock, observe: Observer, local: State) -> State:
    """`state: redis://`; `local` stands in while Redis is away."""
    shared = SharedRedis(config.url, clock=clock, observe=observe)
    leases = RedisLeases(shared, clock=clock)

    def cache(tool: str, seconds: float) -> Results:
        own = local.caches(tool, seconds)
        return RedisResults(shared, tool=tool, seconds=seconds, local=own, clock=clock)

    @asynccontextmanager
    async def running() -> AsyncIterator[None]:
        await shared.probe()
        try:
            async with asyncio.TaskGroup() as group:
                going_on = [group.create_task(shared.watch()), group.create_task(leases.keep())]
                yield
                for task in going_on:
                    task.cancel()
        finally:
            await shared.aclose()

    return State(
        continuations=RedisContinuations(shared, config, local=local.continuations),
        rates=RedisRates(shared, local=local.rates),
        leases=leases,
        caches=cache,
        readiness=shared.readiness,
        running=running,
    )
