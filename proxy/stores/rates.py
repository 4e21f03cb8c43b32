"""Requests per minute: a window that moves along, by the `limits` library, in this process or in Redis."""

import time
from collections.abc import Callable

from limits import RateLimitItemPerMinute
from limits.aio.storage import Storage
from limits.aio.strategies import MovingWindowRateLimiter

from proxy.ports import Rate


class MovingWindows:
    """Implements `ports.Rates`. A request that is refused does not count.

    Args:
        storage: one of the library's that knows moving windows.
        now: seconds since 1970, the clock of the library's windows.
    """

    def __init__(self, storage: Storage, *, now: Callable[[], float] = time.time) -> None:
        self._windows = MovingWindowRateLimiter(storage)
        self._now = now

    async def hit(self, client: str, limit: int) -> Rate:
        """Count one request, unless it is beyond `limit`."""
        window = RateLimitItemPerMinute(limit)
        allowed = await self._windows.hit(window, client)
        left = await self._windows.get_window_stats(window, client)
        return Rate(allowed, limit, max(0, left.remaining), max(0.0, left.reset_time - self._now()))
