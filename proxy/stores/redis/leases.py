"""How many requests each client has open, over all processes.

A lease is a member of the client's sorted set, with the time of its end as score. The process that holds it puts that
time off as long as the request is open; the leases of a process that was killed end by themselves.
"""

from collections import defaultdict
from contextlib import suppress
from secrets import token_hex
from typing import Final

from proxy.ports import Clock
from proxy.stores.redis.connection import SharedRedis, StateUnavailable, key

SECONDS = 15.0  # how long a dead process's leases count
RENEWAL_SECONDS = 5.0  # twice missed is not yet too late

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
        shared: where they are counted.
        clock: for the time between two renewals.
        seconds: how long a lease lives that is not renewed.
    """

    def __init__(
        self,
        shared: SharedRedis,
        *,
        clock: Clock,
        seconds: float = SECONDS,
    ) -> None:
        self._shared = shared
        self._clock = clock
        self._lifetime = int(seconds * 1000)
        self._held: defaultdict[str, set[str]] = defaultdict(set)
        self._acquire = shared.client.register_script(_ACQUIRE)
        self._renew = shared.client.register_script(_RENEW)

    async def acquire(self, client: str, most: int) -> str | None:
        """A lease, or None where `client` has `most` of them."""
        lease = token_hex(16)
        try:
            async with self._shared.reached():
                granted = await self._acquire(keys=[_of(client)], args=[lease, self._lifetime, most])
        except StateUnavailable:
            granted = len(self._held[client]) < most
        if not granted:
            return None
        self._held[client].add(lease)
        return lease

    async def release(self, client: str, lease: str) -> None:
        """That request is done. If Redis cannot be told, the lease ends by itself."""
        self._held[client].discard(lease)
        await self._forget(client, {lease})

    async def keep(self) -> None:
        """Renew what is held, again and again. Never ends."""
        while True:
            await self._clock.sleep(RENEWAL_SECONDS)
            await self.renew()

    async def renew(self) -> None:
        """Put the end of every lease off; those that Redis has lost, or was never told of, are there again."""
        for client, held in list(self._held.items()):
            if not held:
                continue
            leases = set(held)
            try:
                async with self._shared.reached():
                    await self._renew(keys=[_of(client)], args=[self._lifetime, *leases])
            except StateUnavailable:
                return
            # What was given back in the meantime may have come after its own end.
            await self._forget(client, leases - held)

    async def _forget(self, client: str, leases: set[str]) -> None:
        if not leases:
            return
        with suppress(StateUnavailable):
            async with self._shared.reached() as redis:
                await redis.zrem(_of(client), *leases)


def _of(client: str) -> str:
    return key("open", client)
