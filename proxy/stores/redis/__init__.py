"""`state: redis://`: a Redis server for many processes and machines: connection, and one file for each store."""

from proxy.config.model import StateConfig
from proxy.ports import Results
from proxy.stores.redis.budgets import RedisBudgets
from proxy.stores.redis.connection import SharedRedis
from proxy.stores.redis.continuations import RedisContinuations
from proxy.stores.redis.quota import RedisLeases, RedisRates
from proxy.stores.redis.results import RedisResults
from proxy.stores.shared import Backend, Stores


def _stores(shared: SharedRedis, config: StateConfig, local: Stores) -> Stores:
    leases, budgets = RedisLeases(shared, clock=shared.clock), RedisBudgets(shared, local=local.budgets)

    def cache(tool: str, seconds: float) -> Results:
        own = local.caches(tool, seconds)
        return RedisResults(shared, tool=tool, seconds=seconds, local=own, clock=shared.clock)

    return Stores(
        continuations=RedisContinuations(shared, config, local=local.continuations),
        rates=RedisRates(shared, local=local.rates),
        leases=leases,
        budgets=budgets,
        caches=cache,
        works=(leases.keep, budgets.keep),
    )


BACKEND = Backend(SharedRedis, _stores)
