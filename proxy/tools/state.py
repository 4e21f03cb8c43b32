"""The state of a tool that outlives a call, and a reload of the configuration."""

import asyncio
import math
from contextlib import nullcontext
from copy import copy

from proxy.kit.breaker import Breaker, BreakerState
from proxy.kit.counted import counted
from proxy.loop.results import Cause, ToolUnavailable
from proxy.ports import Caches
from proxy.tools.tool import Tool

# Seconds from the opening of the breaker to a probe, which the caller waits for. Without a fallback, each other call
# fails meanwhile; with one, it is answered.
_PROBE_SECONDS, _PROBE_SECONDS_WITH_FALLBACK = 5.0, 30.0
# Seconds for which a service that refuses its key is not called: the first time, then twice as long each time.
_KEY_SECONDS, _LONGEST_KEY_SECONDS = 60.0, 3600.0
# Seconds for which a service without credit is not called if it does not name a time.
_QUOTA_SECONDS = 900.0
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
        self.keys_refused = 0  # in a row

    def reloaded(self) -> "ToolState":
        """The state under the next configuration, in which a key that was refused is tried again at once."""
        if self.cause != "key" or self.breaker.state is BreakerState.CLOSED:
            return self
        again = copy(self)
        again.breaker, again.cause, again.keys_refused = Breaker(seconds=self.breaker.seconds), "down", 0
        return again

    def succeeded(self) -> bool:
        """Count a call that was answered; returns whether it closed the breaker."""
        if not self.breaker.succeeded():
            return False
        self.keys_refused = 0
        return True

    def failed(self, now: float, error: ToolUnavailable | None, *, client: str, spare: bool) -> bool:
        """Count a call that failed after all its retries; returns whether it opened the breaker.

        Args:
            now: as in `Breaker.allows`.
            error: the failure; None: the call has timed out.
            client: the scope of the caller, whose failures count for no more than half.
            spare: whether a fallback can answer.
        """
        blame = "request" if error is None else error.blame
        if blame == "nobody" or not self._one_service:
            return False
        cause = "down" if error is None else error.cause
        was_open = self.breaker.state is BreakerState.OPEN
        seconds = self._announced(error)
        if seconds is None:
            opened = self.breaker.failed(now, client=client if blame == "request" else None, spare=spare)
        else:
            opened = self.breaker.trip(now, seconds)
            self.keys_refused += opened and cause == "key"
        if opened:
            self.cause = cause
        return opened and not was_open

    def _announced(self, error: ToolUnavailable | None) -> float | None:
        """The seconds for which calls are useless, as the failure itself shows; None: it does not show that."""
        match error and error.cause:
            case "key":
                return min(_LONGEST_KEY_SECONDS, _KEY_SECONDS * 2.0 ** min(self.keys_refused, 10))
            case "quota":
                return (error and error.wait) or _QUOTA_SECONDS
            case "busy" if error and (error.wait or 0) > LONGEST_WAIT:
                return error.wait
            case _:
                return None

    def refusal(self, now: float) -> ToolUnavailable:
        """The error for a call that the breaker does not allow."""
        wait = self.breaker.wait(now)
        seconds = counted(math.ceil(wait) or 1, "second")
        told = f"This tool keeps failing and is not called now; it may work in {seconds}."
        return ToolUnavailable(told, why=f"skipped: {self.cause}", cause=self.cause, wait=wait)
