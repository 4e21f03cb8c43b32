"""One tool's results in Redis: a key for each result, and a key for the lock of the call that is under way."""

from typing import Final

from proxy.stores.redis.connection import SharedRedis, key
from proxy.stores.shared.results import WAIT_SECONDS, Claim, SharedResults

_LOOK_UP_OR_LOCK: Final = """
local kept = redis.call('GET', KEYS[1])
if kept then
  return kept
end
return redis.call('SET', KEYS[2], ARGV[1], 'NX', 'PX', ARGV[2]) and 1 or 0
"""
_KEEP: Final = """
if #ARGV[2] > 0 then
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
if redis.call('GET', KEYS[2]) == ARGV[1] then
  redis.call('DEL', KEYS[2])
end
"""


class RedisResults(SharedResults[SharedRedis]):
    """Implements `ports.Results`."""

    async def look_up_or_lock(self, claim: Claim) -> bytes | bool:
        """The kept result; where there is none, whether this call now has the lock."""
        wait = int(WAIT_SECONDS * 1000)
        answer = await self._shared.run(_LOOK_UP_OR_LOCK, self._keys(claim), [claim.token, wait])
        return answer if isinstance(answer, bytes) else bool(answer)

    async def keep(self, claim: Claim, data: bytes) -> None:
        """Keep a result unless it is `NOTHING`, and release the call's lock."""
        await self._shared.run(_KEEP, self._keys(claim), [claim.token, data, int(self._seconds * 1000)])

    def _keys(self, claim: Claim) -> tuple[str, str]:
        return key("result", self._tool, claim.digest), key("running", self._tool, claim.digest)
