"""Requests per minute in Redis: one window for all processes."""

from limits.aio.storage import RedisStorage

from proxy.core.errors import StateUnavailable
from proxy.ports import Rate, Rates
from proxy.stores.rates import MovingWindows
from proxy.stores.redis.connection import SharedRedis, key


class RedisRates:
    """Implements `ports.Rates`. While Redis is away each process has a window of its own, `local`."""

    def __init__(self, shared: SharedRedis, *, local: Rates) -> None:
        self._shared = shared
        self._local = local
        # The address stands in the pool; the library only wants to know the kind of URL.
        storage = RedisStorage(
            "async+redis://",
            implementation="redispy",
            key_prefix=key("rate"),
            connection_pool=shared.pool,  # type: ignore[arg-type] # documented, and left out of its annotation
        )
        self._windows = MovingWindows(storage)

    async def hit(self, client: str, limit: int) -> Rate:
        """Count one request, unless it is beyond `limit`."""
        try:
            async with self._shared.reached():
                return await self._windows.hit(client, limit)
        except StateUnavailable:
            return await self._local.hit(client, limit)
