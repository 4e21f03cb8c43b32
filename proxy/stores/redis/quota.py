"""Requests per minute and open requests of each client, counted in Redis for all processes.

Requests per minute are in a hash, with a field for each second that had requests. An open request is a member of its
client's sorted set, with the end of its lease as the score.
"""

from collections.abc import Collection
from typing import Final

from proxy.loop.tally import Rate
from proxy.stores.memory import WINDOW_SECONDS
from proxy.stores.redis.connection import SharedRedis, key
from proxy.stores.shared.quota import LEASE_SECONDS, SharedLeases, SharedRates

# The time is that of the Redis server, because the clocks of several machines differ. `reset` is in microseconds:
# Redis returns whole numbers.
_HIT: Final = """
local time = redis.call('TIME')
local second, limit, window = tonumber(time[1]), tonumber(ARGV[1]), tonumber(ARGV[2])
local total, oldest = 0, second
local counted = redis.call('HGETALL', KEYS[1])
for at = 1, #counted, 2 do
  local when = tonumber(counted[at])
  if when <= second - window then
    redis.call('HDEL', KEYS[1], counted[at])
  else
    total = total + tonumber(counted[at + 1])
    oldest = math.min(oldest, when)
  end
end
local allowed = 0
if total < limit then
  allowed, total = 1, total + 1
  redis.call('HINCRBY', KEYS[1], second, 1)
  redis.call('EXPIRE', KEYS[1], window)
end
return {allowed, total, (oldest + window - second) * 1000000 - tonumber(time[2])}
"""


class RedisRates(SharedRates[SharedRedis]):
    """Implements `ports.Rates`."""

    async def count(self, client: str, limit: int) -> Rate:
        """Count one request unless it is beyond `limit`."""
        allowed, total, reset = await self._shared.run(_HIT, [key("rate", client)], [limit, WINDOW_SECONDS])
        return Rate(bool(allowed), total, reset / 1e6)


_LIFETIME: Final = int(LEASE_SECONDS * 1000)
_NOW: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""
_ACQUIRE: Final = (
    _NOW
    + """
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[3]) then
  return 0
end
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
"""
)
_RENEW: Final = (
    _NOW
    + """
for at = 2, #ARGV do
  redis.call('ZADD', KEYS[1], now + ARGV[1], ARGV[at])
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
"""
)


class RedisLeases(SharedLeases[SharedRedis]):
    """Implements `ports.Leases`."""

    async def grant(self, client: str, lease: str, most: int) -> bool:
        """Add a lease unless the client has `most` of them."""
        return bool(await self._shared.run(_ACQUIRE, [_open_key(client)], [lease, _LIFETIME, most]))

    async def extend(self, client: str, leases: Collection[str]) -> None:
        """Extend leases; leases that Redis has lost, or never received, are added again."""
        await self._shared.run(_RENEW, [_open_key(client)], [_LIFETIME, *leases])

    async def forget(self, client: str, leases: Collection[str]) -> None:
        """Remove leases that were not released."""
        async with self._shared.reached() as redis:
            await redis.zrem(_open_key(client), *leases)


def _open_key(client: str) -> str:
    return key("open", client)
