"""Requests per minute and open requests of each client, counted by all processes that share a state.

While the state is unavailable, each process counts its own.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress
from secrets import token_hex
from typing import Final, Generic

from proxy.loop.tally import Rate
from proxy.ports import Rates
from proxy.stores.shared.state import Shared, StateUnavailable

LEASE_SECONDS: Final = 15.0  # how long the leases of a dead process still count
RENEWAL_SECONDS: Final = 5.0  # a lease survives two missed renewals


class SharedRates(ABC, Generic[Shared]):
    """Implements `ports.Rates`."""

    def __init__(self, shared: Shared, *, local: Rates) -> None:
        self._shared = shared
        self._local = local

    @abstractmethod
    async def count(self, client: str, limit: int) -> Rate:
        """Count one request unless it is beyond `limit`. Raises `StateUnavailable`."""

    async def hit(self, client: str, limit: int) -> Rate:
        """Count one request unless it is beyond `limit`."""
        try:
            return await self.count(client, limit)
        except StateUnavailable:
            return await self._local.hit(client, limit)


class SharedLeases(ABC, Generic[Shared]):
    """Implements `ports.Leases`.

    The process that holds a lease extends it as long as the request is open. The leases of a killed process expire.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._held: defaultdict[str, set[str]] = defaultdict(set)

    @abstractmethod
    async def grant(self, client: str, lease: str, most: int) -> bool:
        """Add a lease unless the client has `most` of them. Raises `StateUnavailable`."""

    @abstractmethod
    async def extend(self, client: str, leases: Collection[str]) -> None:
        """Extend leases; leases that were lost are added again. Raises `StateUnavailable`."""

    @abstractmethod
    async def forget(self, client: str, leases: Collection[str]) -> None:
        """Remove leases. Raises `StateUnavailable`."""

    async def acquire(self, client: str, most: int) -> str | None:
        """A lease; None if `client` has `most` of them."""
        lease = token_hex(16)
        try:
            granted = await self.grant(client, lease, most)
        except StateUnavailable:
            granted = len(self._held[client]) < most
        if not granted:
            return None
        self._held[client].add(lease)
        return lease

    async def release(self, client: str, lease: str) -> None:
        """Return the lease of a request that has ended. If the state is unavailable, the lease expires by itself."""
        self._held[client].discard(lease)
        await self._forget(client, {lease})

    async def keep(self) -> None:
        """Renew the leases of this process periodically, until cancelled."""
        while True:
            await self._shared.clock.sleep(RENEWAL_SECONDS)
            await self.renew()

    async def renew(self) -> None:
        """Extend every lease of this process."""
        for client, held in list(self._held.items()):
            if not held:
                continue
            leases = set(held)
            try:
                await self.extend(client, leases)
            except StateUnavailable:
                return
            # The renewal may have added leases again that were returned meanwhile.
            await self._forget(client, leases - held)

    async def _forget(self, client: str, leases: set[str]) -> None:
        if leases:
            with suppress(StateUnavailable):
                await self.forget(client, leases)
