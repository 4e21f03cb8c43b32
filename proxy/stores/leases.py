"""How many requests each client has open, counted in this process."""

from collections import defaultdict
from secrets import token_hex


class LocalLeases:
    """Implements `ports.Leases` for one process."""

    def __init__(self) -> None:
        self._held: defaultdict[str, set[str]] = defaultdict(set)

    async def acquire(self, client: str, most: int) -> str | None:
        """A lease, or None where `client` has `most` of them."""
        held = self._held[client]
        if len(held) >= most:
            return None
        lease = token_hex(16)
        held.add(lease)
        return lease

    async def release(self, client: str, lease: str) -> None:
        """That request is done."""
        self._held[client].discard(lease)
