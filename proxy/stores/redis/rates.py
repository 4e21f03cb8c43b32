"""Requests per minute in Redis, one count for all processes: a hash with a field for each second that had requests."""

from typing import Final

from proxy.ports import Rate, Rates
from proxy.stores.rates import WINDOW_SECONDS, rate_of
from proxy.stores.redis.connection import SharedRedis, StateUnavailable, key

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
    """Implements `ports.Rates`. While Redis is away each process counts for itself, in `local`."""

    def __init__(self, shared: SharedRedis, *, local: Rates) -> None:
        self._shared = shared
        self._local = local
        self._hit = shared.client.register_script(_HIT)

    async def hit(self, client: str, limit: int) -> Rate:
        """Count one request, unless it is beyond `limit`."""
        try:
            async with self._shared.reached():
                allowed, total, reset = await self._hit(keys=[key("rate", client)], args=[limit, WINDOW_SECONDS])
        except StateUnavailable:
            return await self._local.hit(client, limit)
        return rate_of(limit, total, allowed=bool(allowed), reset=reset / 1e6)
