"""One tool's results in Redis: a key for the result, and one for the lock of the call that is under way."""

from typing import Final

from proxy.ports import Clock, Results
from proxy.stores.redis import SharedRedis, key
from proxy.stores.shared_results import WAIT_SECONDS, Call, SharedResults

_CLAIM: Final = """
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


class RedisResults(SharedResults):
    """Implements `ports.Results`.

    Args:
        shared: where results are kept.
        tool: whose results.
        seconds: how long they live.
        local: this process's own cache.
        clock: for the waits.
    """

    def __init__(self, shared: SharedRedis, *, tool: str, seconds: float, local: Results, clock: Clock) -> None:
        super().__init__(local=local, clock=clock)
        self._shared = shared
        self._tool = tool
        self._lifetime = int(seconds * 1000)
        self._claim = shared.client.register_script(_CLAIM)
        self._keep = shared.client.register_script(_KEEP)

    async def claim(self, call: Call) -> bytes | bool:
        """The kept result, or else whether the lock is now ours."""
        async with self._shared.reached():
            answer = await self._claim(keys=self._keys(call), args=[call.token, int(WAIT_SECONDS * 1000)])
        return answer if isinstance(answer, bytes) else bool(answer)

    async def keep(self, call: Call, data: bytes) -> None:
        """Keep a result, if there is one, and let go of the lock if it is ours."""
        async with self._shared.reached():
            await self._keep(keys=self._keys(call), args=[call.token, data, self._lifetime])

    def _keys(self, call: Call) -> tuple[str, str]:
        return key("result", self._tool, call.digest), key("running", self._tool, call.digest)
