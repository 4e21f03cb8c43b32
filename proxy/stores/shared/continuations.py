"""Continuations and responses in a shared state, where any process can find them.

What the state cannot take is kept in this process.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Generic

from proxy.config.model import StateConfig
from proxy.ports import ClientStore
from proxy.stores.shared.state import Shared, StateUnavailable


class SharedContinuations(ABC, Generic[Shared]):
    """Implements `ports.ClientStore`.

    Args:
        shared: the state.
        config: `ttl` in seconds from the last write or renewal; `max_entries`, `max_bytes` of all processes together.
        local: keeps the values that the state cannot take, for this process.

    Attributes:
        max_value_bytes: the largest size of a value in the state.
    """

    max_value_bytes: float = math.inf

    def __init__(self, shared: Shared, config: StateConfig, *, local: ClientStore) -> None:
        self._shared = shared
        self._config = config
        self._local = local

    @abstractmethod
    async def find(self, owner: str, key: str) -> bytes | None:
        """The value of `key`. Raises `StateUnavailable`."""

    @abstractmethod
    async def store(self, owner: str, key: str, value: bytes) -> None:
        """Store a value, in place of an older one of the same key. Raises `StateUnavailable`."""

    @abstractmethod
    async def extend(self, owner: str, keys: Sequence[str]) -> None:
        """Let the values of `keys` live as long as if they had been stored now. Raises `StateUnavailable`."""

    @abstractmethod
    async def remove(self, owner: str, key: str) -> None:
        """Delete the value of `key`, if there is one. Raises `StateUnavailable`."""

    async def get(self, owner: str, key: str) -> bytes | None:
        """The value of `key`, from the state or else from this process."""
        try:
            found = await self.find(owner, key)
        except StateUnavailable:
            found = None
        return await self._local.get(owner, key) if found is None else found

    async def put(self, owner: str, key: str, value: bytes) -> None:
        """Store a value, in place of an older one of the same key."""
        if len(value) <= self.max_value_bytes:
            with suppress(StateUnavailable):
                await self.store(owner, key, value)
                await self._local.delete(owner, key)
                return
        await self._local.put(owner, key, value)

    async def renew(self, owner: str, keys: Iterable[str]) -> None:
        """Let the values of `keys` live as long as if they had been stored now."""
        keys = list(keys)
        await self._local.renew(owner, keys)
        with suppress(StateUnavailable):
            await self.extend(owner, keys)

    async def delete(self, owner: str, key: str) -> None:
        """Delete the value of `key`, if there is one. An unavailable state keeps it until it expires."""
        await self._local.delete(owner, key)
        with suppress(StateUnavailable):
            await self.remove(owner, key)
