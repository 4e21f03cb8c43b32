"""One tool's results in Redis: equal calls are run once, whichever process they come to.

    claim --> kept result                  somebody has been here
          --> the lock is ours             run, keep, unlock
          --> the lock is another's        ask again in a moment; after a while, run without it

Keys are digests of the whole of who calls and with what: nothing of a query stands in a key.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from secrets import token_hex
from typing import Final

import msgspec

from proxy.loop.results import ToolOutput
from proxy.ports import Clock, Results
from proxy.stores.redis import SharedRedis, StateUnavailable, key

# A model is shown 64 KiB of a result as shipped. A larger one than this is not kept.
MAX_BYTES = 1024 * 1024
# So long others wait for a call that is under way, and so long a killed process holds them up. A search takes 1 to 3 s.
WAIT_SECONDS = 10.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.16  # seconds between two looks

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
_NOTHING: Final = b""


@dataclass(frozen=True, slots=True)
class _Call:
    """One call: the keys of its result and of its lock, and the token that says that the lock is ours."""

    keys: tuple[str, str]
    token: str


class RedisResults:
    """Implements `ports.Results`. While Redis is away, `local` does it for this process.

    Args:
        shared: where results are kept.
        tool: whose results.
        seconds: how long they live.
        local: this process's own cache.
        clock: for the waits.
    """

    def __init__(
        self,
        shared: SharedRedis,
        *,
        tool: str,
        seconds: float,
        local: Results,
        clock: Clock,
    ) -> None:
        self._shared = shared
        self._tool = tool
        self._lifetime = int(seconds * 1000)
        self._local = local
        self._clock = clock
        self._claim = shared.client.register_script(_CLAIM)
        self._keep = shared.client.register_script(_KEEP)

    async def get_or_run(self, key: str, run: Callable[[], Awaitable[ToolOutput]]) -> ToolOutput:
        """The result that is kept under `key`, or that of `run`."""
        call = _Call(_keys(self._tool, key), token_hex(16))
        try:
            kept = await self._kept(call)
        except StateUnavailable:
            return await self._local.get_or_run(key, run)
        if kept is not None:
            return kept
        data = _NOTHING
        try:
            output = await run()
            data = _encoded(output)
            return output
        finally:
            await self._settle(call, data)

    async def _kept(self, call: _Call) -> ToolOutput | None:
        """The result, once it is there; None: it is for us to run the call.

        Raises:
            StateUnavailable: Redis does not say.
        """
        patience, pause = self._clock.monotonic() + WAIT_SECONDS, _FIRST_PAUSE
        while True:
            async with self._shared.reached():
                answer = await self._claim(keys=call.keys, args=[call.token, int(WAIT_SECONDS * 1000)])
            if isinstance(answer, bytes):
                return _decoded(answer)
            if answer or self._clock.monotonic() >= patience:
                return None
            await self._clock.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _settle(self, call: _Call, data: bytes) -> None:
        """Keep the result, if there is one, and let the next in line go on."""
        with suppress(StateUnavailable):
            async with self._shared.reached():
                await self._keep(keys=call.keys, args=[call.token, data, self._lifetime])


def _encoded(output: ToolOutput) -> bytes:
    try:
        data = msgspec.json.encode(output, enc_hook=dict)  # sources may be any mapping
    except (TypeError, ValueError):  # half a surrogate pair, or a title that is no text: nothing that could be kept
        return _NOTHING
    return data if len(data) <= MAX_BYTES else _NOTHING


def _decoded(data: bytes) -> ToolOutput | None:
    try:
        return msgspec.json.decode(data, type=ToolOutput)
    except msgspec.MsgspecError:  # another version of the proxy has written it
        return None


def _keys(tool: str, name: str) -> tuple[str, str]:
    digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return key("result", tool, digest), key("running", tool, digest)
