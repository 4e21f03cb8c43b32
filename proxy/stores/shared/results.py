"""One tool's results in a shared state: equal calls are run once, whichever processes receive them.

    look_up_or_lock --> a result is kept             return it
                    --> this call has the lock       run the tool, keep the result, unlock
                    --> another call has the lock    look again in a moment; after a while, run without the lock

A key is a digest of the caller and the arguments together, so no key contains a query.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from secrets import token_hex
from typing import Final, Generic

import msgspec

from proxy.loop.results import ToolOutput
from proxy.ports import Results
from proxy.stores.shared.state import Shared, StateUnavailable

# A result that is larger is not kept. As shipped, a model is shown 64 KiB of one.
MAX_BYTES: Final = 1024 * 1024
# How long equal calls wait for the one that is under way, also if its process was killed. A search takes 1 to 3 s.
WAIT_SECONDS: Final = 10.0
NOTHING: Final = b""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.16  # seconds between two looks


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim of a call to its result: the digest of caller and arguments, and a token that marks the call's lock."""

    digest: str
    token: str


class SharedResults(ABC, Generic[Shared]):
    """Implements `ports.Results` for one tool, whose results live for some seconds.

    While the shared state is unavailable, `local` is used.
    """

    def __init__(self, shared: Shared, *, tool: str, seconds: float, local: Results) -> None:
        self._shared = shared
        self._tool = tool
        self._seconds = seconds
        self._local = local
        self._clock = shared.clock

    @abstractmethod
    async def look_up_or_lock(self, claim: Claim) -> bytes | bool:
        """The kept result; where there is none, whether this call now has the lock. Raises `StateUnavailable`."""

    @abstractmethod
    async def keep(self, claim: Claim, data: bytes) -> None:
        """Keep a result unless it is `NOTHING`, and release the call's lock. Raises `StateUnavailable`."""

    async def get_or_run(self, key: str, run: Callable[[], Awaitable[ToolOutput]]) -> ToolOutput:
        """The result that is kept under `key`, or else the result of `run`."""
        claim = Claim(sha256(key.encode("utf-8", "surrogatepass")).hexdigest(), token_hex(16))
        try:
            kept = await self._kept(claim)
        except StateUnavailable:
            return await self._local.get_or_run(key, run)
        if kept is not None:
            return kept
        data = NOTHING
        try:
            output = await run()
            data = NOTHING if output.failed_queries else _encoded(output)
            return output
        finally:
            with suppress(StateUnavailable):
                await self.keep(claim, data)

    async def _kept(self, claim: Claim) -> ToolOutput | None:
        """The kept result, waited for if need be; None: this call must be run. Raises `StateUnavailable`."""
        give_up_at, pause = self._clock.monotonic() + WAIT_SECONDS, _FIRST_PAUSE
        while True:
            answer = await self.look_up_or_lock(claim)
            if isinstance(answer, bytes):
                return _decoded(answer)
            if answer or self._clock.monotonic() >= give_up_at:
                return None
            await self._clock.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


def _encoded(output: ToolOutput) -> bytes:
    try:
        data = msgspec.json.encode(output, enc_hook=dict)  # sources may be any mapping
    except (TypeError, ValueError):  # half a surrogate pair, or a title that is not text, cannot be kept
        return NOTHING
    return data if len(data) <= MAX_BYTES else NOTHING


def _decoded(data: bytes) -> ToolOutput | None:
    try:
        return msgspec.json.decode(data, type=ToolOutput)
    except msgspec.MsgspecError:  # another version of the proxy has written it
        return None
