"""What is kept of a tool between its calls: breaker, slots, and the cache of its results."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from copy import copy

from cachetools import TTLCache

from proxy.breaker import Breaker, BreakerState
from proxy.loop.results import Cause, ToolOutput, ToolUnavailable
from proxy.ports import Caches, Clock
from proxy.tools.tool import Tool


class Service:
    """The breaker, cache and slots of a tool, kept between calls and when the configuration is reloaded."""

    def __init__(self, tool: Tool, caches: Caches) -> None:
        self.breaker = Breaker()
        self.cache = caches(tool.name, tool.cache_seconds) if tool.cache_seconds else None
        self.slots = asyncio.Semaphore(tool.max_concurrent) if tool.max_concurrent else nullcontext()
        self.cause: Cause = "down"  # why the breaker was opened

    def reloaded(self) -> "Service":
        """This service under the next configuration, in which a key that was refused is tried again."""
        if self.cause != "key" or self.breaker.state is BreakerState.CLOSED:
            return self
        again = copy(self)
        again.breaker, again.cause = Breaker(), "down"
        return again

    def refusal(self, now: float) -> ToolUnavailable:
        """The error of a call that the breaker does not allow."""
        wait = self.breaker.wait(now)
        when = f"; it may work in {wait:.0f} seconds" if wait < math.inf else ""
        told = f"This tool keeps failing and is not called now{when}."
        return ToolUnavailable(told, why=f"skipped: {self.cause}", cause=self.cause, wait=wait)


class ResultCache:
    """The results of one tool for a while. Implements `ports.Results` in this process.

    Equal calls are run once, also when they come at the same moment: the others wait for the first; if it fails or is
    given up, the next in line runs it. Failures are not kept. Where there is no more room, the least recently used
    result is dropped.

    Args:
        seconds: how long a result is kept.
        timer: seconds that never go back.
        max_characters: of all results together.
    """

    def __init__(self, seconds: float, *, timer: Callable[[], float], max_characters: int = 16 * 1024 * 1024) -> None:
        self._outputs: TTLCache[str, ToolOutput] = TTLCache(max_characters, seconds, timer, getsizeof=_size)
        self._running: dict[str, asyncio.Event] = {}

    async def get_or_run(self, key: str, run: Callable[[], Awaitable[ToolOutput]]) -> ToolOutput:
        """The result that is kept under `key`, or that of `run`."""
        while (output := self._outputs.get(key)) is None:
            if running := self._running.get(key):
                await running.wait()
                continue
            done = self._running[key] = asyncio.Event()
            try:
                output = await run()
                if _size(output) <= self._outputs.maxsize:
                    self._outputs[key] = output
                break
            finally:
                del self._running[key]
                done.set()
        return output


def local_caches(clock: Clock) -> Caches:
    """Makes a cache in this process for each tool."""
    return lambda _, seconds: ResultCache(seconds, timer=clock.monotonic)


def _size(output: ToolOutput) -> int:
    return len(output.text) + 1
