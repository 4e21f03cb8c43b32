"""What was first seen of things that others can change, in Redis: a hash for each owner, which does not expire."""

from collections.abc import Mapping
from typing import Any

from proxy.stores.redis.connection import SharedRedis, key
from proxy.stores.shared.pins import SharedPins


class RedisPins(SharedPins):
    """Implements `ports.Pins`."""

    def __init__(self, shared: SharedRedis) -> None:
        super().__init__()
        self._shared = shared

    async def load(self, owner: str) -> Mapping[str, bytes]:
        """All that the hash has."""
        async with self._shared.reached() as client:
            return _read(await client.hgetall(_key(owner)))

    async def insert(self, owner: str, pins: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Add those whose names the hash does not have; returns all that it has."""
        async with self._shared.reached() as client:
            commands = client.pipeline(transaction=True)
            for name, pin in pins.items():
                commands.hsetnx(_key(owner), name, pin)
            commands.hgetall(_key(owner))
            *_, kept = await commands.execute()
        return _read(kept)

    async def overwrite(self, owner: str, pins: Mapping[str, bytes]) -> None:
        """Put these in place of all that the hash has."""
        async with self._shared.reached() as client:
            commands = client.pipeline(transaction=True)
            commands.delete(_key(owner))
            for name, pin in pins.items():
                commands.hset(_key(owner), name, pin)
            await commands.execute()


def _key(owner: str) -> str:
    return key("pins", owner)


def _read(kept: Mapping[Any, Any]) -> dict[str, bytes]:
    return {name.decode(): pin for name, pin in kept.items()}
