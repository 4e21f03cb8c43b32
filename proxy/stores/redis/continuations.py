"""Continuations and responses in Redis, where any process can find them.

    toolproxy:kept:KEY:OWNER     a value; there is no colon in KEY, and may be in OWNER
    toolproxy:kept               the names of all values by the time of their end
    toolproxy:kept-of:OWNER      the same for one owner
    toolproxy:kept-sizes         name -> bytes and owner
    toolproxy:kept-bytes         owner -> bytes of all its values
    toolproxy:kept-counts        owner -> how many they are
    toolproxy:kept-total         bytes of all values

The other keys live as long as the newest value, so that a Redis that evicts keys (`volatile-ttl`) evicts values first.
"""

from collections.abc import Sequence
from typing import Final

from proxy.stores.redis.connection import SharedRedis, key
from proxy.stores.shared.continuations import SharedContinuations

# The largest request body as shipped. A larger value is kept in this process only.
MAX_BYTES = 32 * 1024 * 1024
# The memory that a value takes besides itself, for its name in five places. Measured with MEMORY USAGE.
ENTRY_BYTES = 700

_BASE: Final = key("kept")
# Each script gets the common prefix of all keys as its only key: it does not know beforehand which keys it needs.
_COMMON: Final = """
local base = KEYS[1]
local sizes, bytes, counts, total = base .. '-sizes', base .. '-bytes', base .. '-counts', base .. '-total'
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function forget(name)
  redis.call('UNLINK', name)
  redis.call('ZREM', base, name)
  local known = redis.call('HGET', sizes, name)
  if not known then return end
  redis.call('HDEL', sizes, name)
  local size, owner = string.match(known, '^(%d+):(.*)$')
  redis.call('ZREM', base .. '-of:' .. owner, name)
  redis.call('DECRBY', total, size)
  redis.call('ZINCRBY', bytes, -size, owner)
  if tonumber(redis.call('ZINCRBY', counts, -1, owner)) <= 0 then
    redis.call('ZREM', counts, owner)
    redis.call('ZREM', bytes, owner)
  end
end

local function live_on(owner, ttl)
  for _, name in ipairs({base, base .. '-of:' .. owner, sizes, bytes, counts, total}) do
    redis.call('PEXPIRE', name, ttl)
  end
end
"""
_PUT: Final = (
    _COMMON
    + """
local name, owner, value, ttl, size = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local max_entries, max_bytes = tonumber(ARGV[6]), tonumber(ARGV[7])
for _, expired in ipairs(redis.call('ZRANGEBYSCORE', base, '-inf', now)) do
  forget(expired)
end
local of_owner = base .. '-of:' .. owner
-- Redis may have dropped any of these tables itself, to make room: then all are begun anew.
local known, known_of_owner = redis.call('HLEN', sizes), tonumber(redis.call('ZSCORE', counts, owner) or 0)
if redis.call('ZCARD', base) ~= known or redis.call('ZCARD', of_owner) ~= known_of_owner then
  redis.call('UNLINK', base, of_owner, sizes, bytes, counts, total)
end
forget(name)
redis.call('SET', name, value, 'PX', ttl)
redis.call('ZADD', base, now + ttl, name)
redis.call('ZADD', of_owner, now + ttl, name)
redis.call('HSET', sizes, name, size .. ':' .. owner)
redis.call('INCRBY', total, size)
redis.call('ZINCRBY', bytes, size, owner)
redis.call('ZINCRBY', counts, 1, owner)
live_on(owner, ttl)

local function drop_oldest_of_largest(by)
  local largest, most = owner, tonumber(redis.call('ZSCORE', by, owner) or 0)
  local found = redis.call('ZREVRANGE', by, 0, 0, 'WITHSCORES')
  if found[1] and tonumber(found[2]) > most then largest = found[1] end
  local oldest = redis.call('ZPOPMIN', base .. '-of:' .. largest)[1] or redis.call('ZPOPMIN', base)[1]
  if oldest then forget(oldest) else redis.call('UNLINK', sizes, bytes, counts, total) end
end
while tonumber(redis.call('GET', total) or 0) > max_bytes do drop_oldest_of_largest(bytes) end
while redis.call('ZCARD', base) > max_entries do drop_oldest_of_largest(counts) end
"""
)
_RENEW: Final = (
    _COMMON
    + """
local owner, ttl = ARGV[1], tonumber(ARGV[2])
for at = 3, #ARGV do
  local name = ARGV[at]
  if redis.call('PEXPIRE', name, ttl) == 1 then
    redis.call('ZADD', base, 'XX', now + ttl, name)
    redis.call('ZADD', base .. '-of:' .. owner, 'XX', now + ttl, name)
  end
end
live_on(owner, ttl)
"""
)
_DELETE: Final = _COMMON + "forget(ARGV[1])\n"


class RedisContinuations(SharedContinuations[SharedRedis]):
    """Implements `ports.ClientStore`."""

    max_value_bytes = MAX_BYTES

    async def find(self, owner: str, key: str) -> bytes | None:
        """The value of `key`."""
        async with self._shared.reached() as redis:
            value = await redis.get(_of(owner, key))
        return value if isinstance(value, bytes) else None

    async def store(self, owner: str, key: str, value: bytes) -> None:
        """Store a value, in place of an older one of the same key."""
        size, limits = len(value) + ENTRY_BYTES, (self._config.max_entries, self._config.max_bytes)
        await self._shared.run(_PUT, [_BASE], [_of(owner, key), owner, value, self._ttl(), size, *limits])

    async def extend(self, owner: str, keys: Sequence[str]) -> None:
        """Let the values of `keys` live as long as if they had been stored now."""
        await self._shared.run(_RENEW, [_BASE], [owner, self._ttl(), *(_of(owner, key) for key in keys)])

    async def remove(self, owner: str, key: str) -> None:
        """Delete the value of `key`, if there is one."""
        await self._shared.run(_DELETE, [_BASE], [_of(owner, key)])

    def _ttl(self) -> int:
        """The lifetime of a value in milliseconds."""
        return int(self._config.ttl * 1000)


def _of(owner: str, name: str) -> str:
    return key("kept", name, owner)
