"""What was first seen of things that others can change, in a shared state, where all processes go by it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from proxy.stores.shared.state import StateUnavailable


class SharedPins(ABC):
    """Implements `ports.Pins` with a shared table. While that is unavailable, what was last read of it holds."""

    def __init__(self) -> None:
        self._known: dict[str, Mapping[str, bytes]] = {}

    @abstractmethod
    async def load(self, owner: str) -> Mapping[str, bytes]:
        """All that the table has. Raises `StateUnavailable`."""

    @abstractmethod
    async def insert(self, owner: str, pins: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Add those whose names the table does not have; returns all that it has. Raises `StateUnavailable`."""

    @abstractmethod
    async def overwrite(self, owner: str, pins: Mapping[str, bytes]) -> None:
        """Put these in place of all that the table has. Raises `StateUnavailable`."""

    async def read(self, owner: str) -> Mapping[str, bytes] | None:
        """All that is kept, by name; None: it is not known.

        What the table has lost, as a Redis without persistence does when it restarts, is put back.
        """
        known = self._known.get(owner)
        try:
            kept = await self.load(owner)
            self._known[owner] = await self.insert(owner, known) if known and not kept else kept
        except StateUnavailable:
            return known
        return self._known[owner]

    async def add(self, owner: str, pins: Mapping[str, bytes]) -> Mapping[str, bytes] | None:
        """Keep those under whose names nothing is kept yet; returns as `read`."""
        try:
            self._known[owner] = await self.insert(owner, pins)
        except StateUnavailable:
            return None
        return self._known[owner]

    async def replace(self, owner: str, pins: Mapping[str, bytes]) -> bool:
        """Keep these in place of all that is kept; whether that could be done."""
        try:
            await self.overwrite(owner, pins)
        except StateUnavailable:
            return False
        self._known[owner] = dict(pins)
        return True
