"""The cache of a tool's results in this process."""

import asyncio
from collections.abc import Awaitable, Callable

from cachetools import TTLCache

from proxy.loop.results import ToolOutput
from proxy.ports import Caches, Clock


class ResultCache:
    """Caches the results of one tool for a while. Implements `ports.Results` in this process.

    Equal calls are run once, even if they arrive at the same time: the others wait for the first, and if that fails or
    is cancelled, the next one runs. Failures are not cached. If there is no more room, the least recently used result
    is dropped.

    Args:
        seconds: how long a result is kept.
        timer: a monotonic clock, in seconds.
        max_characters: the size limit of all results together.
    """

    def __init__(self, seconds: float, *, timer: Callable[[], float], max_characters: int = 16 * 1024 * 1024) -> None:
        self._outputs: TTLCache[str, ToolOutput] = TTLCache(max_characters, seconds, timer, getsizeof=_size)
        self._running: dict[str, asyncio.Event] = {}

    async def get_or_run(self, key: str, run: Callable[[], Awaitable[ToolOutput]]) -> ToolOutput:
        """The cached result for `key`, or the result of `run`."""
        while (output := self._outputs.get(key)) is None:
            if running := self._running.get(key):
                await running.wait()
                continue
            done = self._running[key] = asyncio.Event()
            try:
                output = await run()
                if _size(output) <= self._outputs.maxsize and not output.failed_queries:
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
