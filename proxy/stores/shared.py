"""What every shared state has in common: it may become unavailable, and is used again once it has recovered.

    available --(a command fails)--> unavailable --(a probe succeeds)--> available

While it is unavailable, each process uses a state of its own: no request is refused because of it. No command is tried
meanwhile: a request does not wait for a server that is known not to answer. A probe, once a second, finds out whether
it has recovered.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress
from secrets import token_hex
from typing import ClassVar, Final

from proxy.ports import Clock, Observer, Readiness

SECONDS: Final = 1.0  # for one command: a request would rather do without than wait longer
LEASE_SECONDS: Final = 15.0  # how long the leases of a dead process count
RENEWAL_SECONDS: Final = 5.0  # a lease survives two missed renewals

_PROBE_SECONDS: Final = 1.0


class StateUnavailable(Exception):
    """The shared state cannot be used. The message gives the cause, and holds no secret."""


class SharedState(ABC):
    """Whether a shared state can be used.

    Args:
        at: where it is, as the log may have it.
        clock: for the time between two probes.
        observe: told once when it is lost and once when it is found again.
    """

    name: ClassVar[str]

    def __init__(self, at: str, *, clock: Clock, observe: Observer) -> None:
        self.clock = clock
        self._at = at
        self._observe = observe
        self._why_not: str | None = None

    @abstractmethod
    async def write_something(self) -> None:
        """Find out whether it can be written to. Raises `StateUnavailable`."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close what is open."""

    def require(self) -> None:
        """Raise `StateUnavailable` while it is known to be unavailable."""
        if self._why_not is not None:
            raise StateUnavailable(self._why_not)

    def lost(self, why: str) -> StateUnavailable:
        """Note that the state is unavailable, and return the error to raise."""
        if self._why_not is None:
            self._observe("state.unavailable", at=self._at, why=why)
        self._why_not = why
        return StateUnavailable(why)

    async def probe(self) -> None:
        """Find out whether it can be reached and written to."""
        try:
            await self.write_something()
        except StateUnavailable:
            return
        if self._why_not is not None:
            self._why_not = None
            self._observe("state.recovered", at=self._at)

    async def watch(self) -> None:
        """Probe again and again. Never ends."""
        while True:
            await self.clock.sleep(_PROBE_SECONDS)
            await self.probe()

    def readiness(self) -> Readiness:
        """The state of the store for `/readyz`."""
        return Readiness(self.name, usable=self._why_not is None, why_not=self._why_not)


class SharedLeases(ABC):
    """Implements `ports.Leases` over a shared table of leases. While it is unavailable, each process counts its own.

    The process that holds a lease extends it while the request is open; the leases of a process that was killed expire.

    Args:
        clock: times the renewals.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held: defaultdict[str, set[str]] = defaultdict(set)

    @abstractmethod
    async def grant(self, client: str, lease: str, most: int) -> bool:
        """Add a lease unless the client has `most`. Raises `StateUnavailable`."""

    @abstractmethod
    async def extend(self, client: str, leases: Collection[str]) -> None:
        """Let leases last; those that were lost are added again. Raises `StateUnavailable`."""

    @abstractmethod
    async def forget(self, client: str, leases: Collection[str]) -> None:
        """Remove leases. Raises `StateUnavailable`."""

    async def acquire(self, client: str, most: int) -> str | None:
        """A lease; None where `client` has `most` of them."""
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
        """Return the lease of a request that has ended. Where the state cannot be reached, the lease expires."""
        self._held[client].discard(lease)
        await self._forget(client, {lease})

    async def keep(self) -> None:
        """Renew the leases of this process periodically, until cancelled."""
        while True:
            await self._clock.sleep(RENEWAL_SECONDS)
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
            # A lease that was returned during the renewal may have been added again.
            await self._forget(client, leases - held)

    async def _forget(self, client: str, leases: set[str]) -> None:
        if leases:
            with suppress(StateUnavailable):
                await self.forget(client, leases)
