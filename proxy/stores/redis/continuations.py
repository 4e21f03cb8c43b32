"""Continuations in Redis: whichever process a client comes back to finds them."""

from contextlib import suppress
from typing import Final

import orjson

from proxy.config import StateConfig
from proxy.core.chat import Json
from proxy.core.errors import StateUnavailable
from proxy.ports import ContinuationStore
from proxy.stores.redis.connection import SharedRedis, key

# As large as a request may be as shipped. A larger value is kept by this process alone.
MAX_BYTES = 32 * 1024 * 1024

# The index has every entry's key by the time of its end, so that the oldest can make room, whoever has put them there.
_INDEX: Final = key("kept")
_PUT: Final = """
local value, index, ttl = KEYS[1], KEYS[2], tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('SET', value, ARGV[1], 'PX', ttl)
redis.call('ZADD', index, now + ttl, value)
redis.call('PEXPIRE', index, ttl)
redis.call('ZREMRANGEBYSCORE', index, '-inf', now)
local too_many = redis.call('ZCARD', index) - tonumber(ARGV[3])
if too_many > 0 then
  local oldest = redis.call('ZPOPMIN', index, too_many)
  for at = 1, #oldest, 2 do
    redis.call('UNLINK', oldest[at])
  end
end
"""


class RedisContinuations:
    """Implements `ports.ContinuationStore`.

    Args:
        shared: where they are kept.
        config: `ttl` in seconds from the last write; `max_entries` of all processes together.
        local: keeps what Redis cannot take at the moment; this process finds it again.
    """

    def __init__(
        self, shared: SharedRedis, config: StateConfig, *, local: ContinuationStore, max_bytes: int = MAX_BYTES
    ) -> None:
        self._shared = shared
        self._local = local
        self._max_bytes = max_bytes
        self._limits = (int(config.ttl * 1000), config.max_entries)
        self._put = shared.client.register_script(_PUT)

    async def get(self, key: str) -> Json | None:
        """What was kept under `key`; where Redis cannot say, what this process knows of it."""
        try:
            async with self._shared.reached() as redis:
                data = await redis.get(_of(key))
        except StateUnavailable:
            data = None
        if data is None:
            return await self._local.get(key)
        found: Json = orjson.loads(data)
        return found

    async def put(self, key: str, value: Json) -> None:
        """Keep a value; an older one of the same key is replaced."""
        data = orjson.dumps(value)
        if len(data) <= self._max_bytes and await self._share(key, data):
            await self._local.delete(key)
        else:
            await self._local.put(key, value)

    async def _share(self, key: str, data: bytes) -> bool:
        try:
            async with self._shared.reached():
                await self._put(keys=[_of(key), _INDEX], args=[data, *self._limits])
        except StateUnavailable:
            return False
        return True

    async def delete(self, key: str) -> None:
        """Forget what is kept under `key`, if anything is. While Redis is away, its copy lives on until it expires."""
        await self._local.delete(key)
        with suppress(StateUnavailable):
            async with self._shared.reached() as redis:
                await redis.unlink(_of(key))
                await redis.zrem(_INDEX, _of(key))


def _of(name: str) -> str:
    return key("kept", name)
