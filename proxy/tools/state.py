"""The state of a tool that outlives a call, and a reload of the configuration."""

import asyncio
import math
from contextlib import nullcontext
from copy import copy

from proxy.keys.cooldowns import KeyRefusal, cooldown_seconds
from proxy.kit.breaker import Breaker, BreakerState
from proxy.kit.counted import counted
from proxy.loop.results import Cause, ToolUnavailable
from proxy.ports import Caches
from proxy.tools.tool import Tool

# Seconds from the opening of the breaker to a probe, which the caller waits for. Without a fallback, each other call
# fails meanwhile; with one, it is answered.
_PROBE_SECONDS, _PROBE_SECONDS_WITH_FALLBACK = 5.0, 30.0
# Seconds; for a service that is busy for longer, no call waits, and none is made.
LONGEST_WAIT = 5.0


class ToolState:
    """The circuit breaker, the cache of results and the slots of a tool."""

    def __init__(self, tool: Tool, caches: Caches) -> None:
        self.breaker = Breaker(seconds=_PROBE_SECONDS_WITH_FALLBACK if tool.fallback else _PROBE_SECONDS)
        self.cache = caches(tool.name, tool.cache_seconds) if tool.cache_seconds else None
        self.slots = asyncio.Semaphore(tool.max_concurrent) if tool.max_concurrent else nullcontext()
        self.cause: Cause = "down"  # why the breaker was opened
        self._one_service = tool.one_service
        self.refusals = 0  # in a row, without a time of their own

    def reloaded(self) -> "ToolState":
        """The state under the next configuration, in which a key that was refused is tried again at once."""
        if self.cause != "key" or self.breaker.state is BreakerState.CLOSED:
            return self
        again = copy(self)
        again.breaker, again.cause, again.refusals = Breaker(seconds=self.breaker.seconds), "down", 0
        return again

    def failed(self, now: float, error: ToolUnavailable | None, *, client: str, has_fallback: bool) -> bool:
        """Count a call that failed after all its retries; returns whether it opened the breaker.

        Without an error, the call has timed out. The other arguments are those of `Breaker.failed`.
        """
        blame = "request" if error is None else error.blame
        if blame == "nobody" or not self._one_service:
            return False
        cause = "down" if error is None else error.cause
        was_open = self.breaker.state is BreakerState.OPEN
        refusal = refusal_in(error)
        if refusal is None or (cause == "busy" and (refusal.seconds or 0) <= LONGEST_WAIT):
            opened = self.breaker.failed(now, client=client if blame == "request" else None, has_fallback=has_fallback)
        else:
            opened = self.breaker.trip(now, cooldown_seconds(refusal, self.refusals))
            self.refusals += opened and refusal.seconds is None
        if opened:
            self.cause = cause
        return opened and not was_open

    def refusal(self, now: float) -> ToolUnavailable:
        """The error for a call that the breaker does not allow."""
        wait = self.breaker.wait(now)
        seconds = counted(math.ceil(wait) or 1, "second")
        told = f"This tool keeps failing and is not called now; it may work in {seconds}."
        return ToolUnavailable(told, why=f"skipped: {self.cause}", cause=self.cause, wait=wait)


def refusal_in(exc: Exception | None) -> KeyRefusal | None:
    """The refusal of the key, of its account or of its rate in a failure; None: the failure has another cause."""
    if not isinstance(exc, ToolUnavailable):
        return None
    why = exc.why or ""
    match exc.cause:
        case "key":
            return KeyRefusal("refused", why=why)
        case "quota":
            return KeyRefusal("credit", why=why) if exc.wait is None else KeyRefusal("window", exc.wait, why)
        case "busy":
            return KeyRefusal("rate", exc.wait, why)
        case _:
            return None
