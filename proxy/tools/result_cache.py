"""One tool's results for a while: equal calls are run once, also when they come at the same moment."""

import asyncio
from collections.abc import Awaitable, Callable

from cachetools import TTLCache

from proxy.loop.chat import ToolOutput
from proxy.ports import Caches, Clock

# Characters of all results of one tool together.
MAX_CHARACTERS = 16 * 1024 * 1024


class ResultCache:
    """Implements `ports.Results` in this process: kept for `seconds`, the least recently used making room.

    Whoever comes while a call is under way waits for it; if it fails or is given up, the next in line runs it. Failures
    are not kept.
    """

    def __init__(self, seconds: float, *, timer: Callable[[], float], max_characters: int = MAX_CHARACTERS) -> None:
        self._kept: TTLCache[str, ToolOutput] = TTLCache(max_characters, seconds, timer, getsizeof=_size)
        self._under_way: dict[str, asyncio.Event] = {}

    async def get_or_run(self, key: str, run: Callable[[], Awaitable[ToolOutput]]) -> ToolOutput:
        """The result that is kept under `key`, or that of `run`."""
        while True:
            kept = self._kept.get(key)
            if kept is not None:
                return kept
            under_way = self._under_way.get(key)
            if under_way is None:
                break
            await under_way.wait()
        done = self._under_way[key] = asyncio.Event()
        try:
            output = await run()
            if _size(output) <= self._kept.maxsize:
                self._kept[key] = output
            return output
        finally:
            del self._under_way[key]
            done.set()


def local_caches(clock: Clock) -> Caches:
    """A cache of its own for each tool."""
    return lambda _, seconds: ResultCache(seconds, timer=clock.monotonic)


def _size(output: ToolOutput) -> int:
    return len(output.text) + 1
