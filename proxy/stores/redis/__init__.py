"""`state: redis://`: a Redis server for many processes and machines: connection, and one file for each store."""

from proxy.stores.redis.budgets import RedisBudgets
from proxy.stores.redis.connection import SharedRedis
from proxy.stores.redis.continuations import RedisContinuations
from proxy.stores.redis.quota import RedisLeases, RedisRates
from proxy.stores.redis.results import RedisResults
from proxy.stores.shared import SharedBackend

BACKEND = SharedBackend(
    connect=SharedRedis,
    continuations=RedisContinuations,
    rates=RedisRates,
    leases=RedisLeases,
    budgets=RedisBudgets,
    results=RedisResults,
)
