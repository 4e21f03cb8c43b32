"""One tool's results in a shared state: equal calls are run once, whichever process they come to.

    claim --> kept result                  somebody has been here
          --> the lock is ours             run, keep, unlock
          --> the lock is another's        ask again in a moment; after a while, run without it

Keys are digests of the whole of who calls and with what: nothing of a query stands in a key.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from secrets import token_hex
from typing import Final

import msgspec

from proxy.loop.results import ToolOutput
from proxy.ports import Clock, Results
from proxy.stores.shared import StateUnavailable

# A model is shown 64 KiB of a result as shipped. A larger one than this is not kept.
MAX_BYTES: Final = 1024 * 1024
# So long others wait for a call that is under way, and so long a killed process holds them up. A search takes 1 to 3 s.
WAIT_SECONDS: Final = 10.0
NOTHING: Final = b""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.16  # seconds between two looks


@dataclass(frozen=True, slots=True)
class Call:
    """A call: the digest of its arguments, and the token by which it knows its own lock."""

    digest: str
    token: str


class SharedResults(ABC):
    """Implements `ports.Results`. While the shared state is unavailable, `local` is used.

    Args:
        local: this process's own cache.
        clock: for the waits.
    """

    def __init__(self, *, local: Results, clock: Clock) -> None:
        self._local = local
        self._clock = clock

    @abstractmethod
    async def claim(self, call: Call) -> bytes | bool:
        """The kept result, or else whether the lock is now ours. Raises `StateUnavailable`."""

    @abstractmethod
    async def keep(self, call: Call, data: bytes) -> None:
        """Keep a result unless it is `NOTHING`, and let go of the lock if it is ours. Raises `StateUnavailable`."""

    async def get_or_run(self, key: str, run: Callable[[], Awaitable[ToolOutput]]) -> ToolOutput:
        """The result that is kept under `key`, or that of `run`."""
        call = Call(sha256(key.encode("utf-8", "surrogatepass")).hexdigest(), token_hex(16))
        try:
            kept = await self._kept(call)
        except StateUnavailable:
            return await self._local.get_or_run(key, run)
        if kept is not None:
            return kept
        data = NOTHING
        try:
            output = await run()
            data = _encoded(output)
            return output
        finally:
            with suppress(StateUnavailable):
                await self.keep(call, data)

    async def _kept(self, call: Call) -> ToolOutput | None:
        """The result, once it is there; None: it is for us to run the call. Raises `StateUnavailable`."""
        give_up_at, pause = self._clock.monotonic() + WAIT_SECONDS, _FIRST_PAUSE
        while True:
            answer = await self.claim(call)
            if isinstance(answer, bytes):
                return _decoded(answer)
            if answer or self._clock.monotonic() >= give_up_at:
                return None
            await self._clock.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


def _encoded(output: ToolOutput) -> bytes:
    try:
        data = msgspec.json.encode(output, enc_hook=dict)  # sources may be any mapping
    except (TypeError, ValueError):  # half a surrogate pair, or a title that is no text: nothing that could be kept
        return NOTHING
    return data if len(data) <= MAX_BYTES else NOTHING


def _decoded(data: bytes) -> ToolOutput | None:
    try:
        return msgspec.json.decode(data, type=ToolOutput)
    except msgspec.MsgspecError:  # another version of the proxy has written it
        return None
