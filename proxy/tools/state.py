"""The state of a tool that outlives a call, and a reload of the configuration."""

import asyncio
import math
from contextlib import nullcontext
from copy import copy

from proxy.breaker import Breaker, BreakerState
from proxy.loop.results import Cause, ToolUnavailable
from proxy.ports import Caches
from proxy.tools.tool import Tool


class ToolState:
    """The circuit breaker, the cache of results and the slots of a tool."""

    def __init__(self, tool: Tool, caches: Caches) -> None:
        self.breaker = Breaker()
        self.cache = caches(tool.name, tool.cache_seconds) if tool.cache_seconds else None
        self.slots = asyncio.Semaphore(tool.max_concurrent) if tool.max_concurrent else nullcontext()
        self.cause: Cause = "down"  # why the breaker was opened

    def reloaded(self) -> "ToolState":
        """The state under the next configuration, in which a key that was refused is tried again."""
        if self.cause != "key" or self.breaker.state is BreakerState.CLOSED:
            return self
        again = copy(self)
        again.breaker, again.cause = Breaker(), "down"
        return again

    def refusal(self, now: float) -> ToolUnavailable:
        """The error for a call that the breaker does not allow."""
        wait = self.breaker.wait(now)
        when = f"; it may work in {wait:.0f} seconds" if wait < math.inf else ""
        told = f"This tool keeps failing and is not called now{when}."
        return ToolUnavailable(told, why=f"skipped: {self.cause}", cause=self.cause, wait=wait)
