"""What each client may use, counted in Redis for all processes: requests per minute, and requests that are open.

Requests per minute are a hash with a field for each second that had requests. An open request is a member of its
client's sorted set, with the end of its lease as score: the process that holds the lease extends it while the request
is open, and the leases of a process that was killed expire.
"""

from collections import defaultdict
from contextlib import suppress
from secrets import token_hex
from typing import Final

from proxy.ports import Clock, Rate, Rates
from proxy.stores.memory import WINDOW_SECONDS, rate_of
from proxy.stores.redis import SharedRedis, StateUnavailable, key

SECONDS = 15.0  # how long the leases of a dead process count
RENEWAL_SECONDS = 5.0  # a lease survives two missed renewals

# The time is the server's, since the clocks of several machines differ. `reset` is in microseconds: Redis returns
# whole numbers.
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


class RedisRates:
    """Implements `ports.Rates`. While Redis is away, each process counts by itself, in `local`."""

    def __init__(self, shared: SharedRedis, *, local: Rates) -> None:
        self._shared = shared
        self._local = local
        self._hit = shared.client.register_script(_HIT)

    async def hit(self, client: str, limit: int) -> Rate:
        """Count one request unless it is beyond `limit`."""
        try:
            async with self._shared.reached():
                allowed, total, reset = await self._hit(keys=[key("rate", client)], args=[limit, WINDOW_SECONDS])
        except StateUnavailable:
            return await self._local.hit(client, limit)
        return rate_of(limit, total, allowed=bool(allowed), reset=reset / 1e6)


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


class RedisLeases:
    """Implements `ports.Leases`. While Redis is away, each process counts its own.

    Args:
        shared: the connection to Redis.
        clock: times the renewals.
        seconds: how long a lease lasts without renewal.
    """

    def __init__(self, shared: SharedRedis, *, clock: Clock, seconds: float = SECONDS) -> None:
        self._shared = shared
        self._clock = clock
        self._lifetime = int(seconds * 1000)
        self._held: defaultdict[str, set[str]] = defaultdict(set)
        self._acquire = shared.client.register_script(_ACQUIRE)
        self._renew = shared.client.register_script(_RENEW)

    async def acquire(self, client: str, most: int) -> str | None:
        """A lease; None where `client` has `most` of them."""
        lease = token_hex(16)
        try:
            async with self._shared.reached():
                granted = await self._acquire(keys=[_open_key(client)], args=[lease, self._lifetime, most])
        except StateUnavailable:
            granted = len(self._held[client]) < most
        if not granted:
            return None
        self._held[client].add(lease)
        return lease

    async def release(self, client: str, lease: str) -> None:
        """Return the lease of a request that has ended. Where Redis cannot be reached, the lease expires."""
        self._held[client].discard(lease)
        await self._forget(client, {lease})

    async def keep(self) -> None:
        """Renew the leases of this process periodically, until cancelled."""
        while True:
            await self._clock.sleep(RENEWAL_SECONDS)
            await self.renew()

    async def renew(self) -> None:
        """Extend every lease; those that Redis has lost, or has not received, are added again."""
        for client, held in list(self._held.items()):
            if not held:
                continue
            leases = set(held)
            try:
                async with self._shared.reached():
                    await self._renew(keys=[_open_key(client)], args=[self._lifetime, *leases])
            except StateUnavailable:
                return
            # A lease that was returned during the renewal may have been added again.
            await self._forget(client, leases - held)

    async def _forget(self, client: str, leases: set[str]) -> None:
        if not leases:
            return
        with suppress(StateUnavailable):
            async with self._shared.reached() as redis:
                await redis.zrem(_open_key(client), *leases)


def _open_key(client: str) -> str:
    return key("open", client)
