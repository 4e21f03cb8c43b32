"""`state: memory://`: state in this process, which is lost when it stops.

It holds continuations, bounded in number, memory and time, counts each client's requests per minute and its open
requests, and keeps what was first seen of things that others can change.
"""

import itertools
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
from msgspec import Struct, field

from proxy.config.model import StateConfig
from proxy.loop.tally import Rate
from proxy.ports import Clock, NoObserver, Observer

# The memory of an entry besides its value: its names and its places in the tables. Measured with 100,000 entries.
ENTRY_BYTES = 550
WINDOW_SECONDS = 60


class _Name(NamedTuple):
    owner: str
    key: str


class _Entry(Struct):
    expires_at: float
    value: bytes

    @property
    def size(self) -> int:
        """The entry's size in bytes of memory."""
        return len(self.value) + ENTRY_BYTES


class _OwnerEntries(Struct):
    """The entries of one owner: their bytes of memory, and their keys, the least recently written first."""

    size: int = 0
    keys: OrderedDict[str, None] = msgspec.field(default_factory=OrderedDict)


class MemoryStore:
    """Implements `ports.ClientStore`.

    When a limit is exceeded, the owner with the most entries or bytes, whichever are short, loses its oldest entry. So
    no owner loses an entry because of another that has more.

    Args:
        config: `ttl` in seconds from the last write or renewal, and `max_entries`.
        clock: times the expiry of entries.
        max_bytes: the bytes of memory for all entries together.
        observe: takes the events of this store.
    """

    def __init__(
        self,
        config: StateConfig,
        *,
        clock: Clock,
        max_bytes: int,
        observe: Observer = NoObserver(),  # noqa: B008 - it has no state
    ) -> None:
        self._ttl = config.ttl
        self._max_entries = config.max_entries
        self._max_bytes = max_bytes
        self._observe = observe
        self._clock = clock
        self._entries: OrderedDict[_Name, _Entry] = OrderedDict()  # those that expire first come first
        self._shares: dict[str, _OwnerEntries] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    async def get(self, owner: str, key: str) -> bytes | None:
        """The value of `key`; None if it has expired or was dropped."""
        self._expire()
        entry = self._entries.get(_Name(owner, key))
        return entry.value if entry else None

    async def put(self, owner: str, key: str, value: bytes) -> None:
        """Store a value, in place of an older one of the same key."""
        name = _Name(owner, key)
        self._drop(name)
        # A copy takes less memory: the bytes objects of orjson have up to 8 KiB of unused space.
        entry = self._entries[name] = _Entry(self._clock.monotonic() + self._ttl, bytes(memoryview(value)))
        share = self._shares.setdefault(owner, _OwnerEntries())
        share.keys[key] = None
        share.size += entry.size
        self._bytes += entry.size
        self._expire()
        self._make_room(owner)
        self._observe("continuation.kept", entries=len(self._entries), bytes=self._bytes)

    async def renew(self, owner: str, keys: Iterable[str]) -> None:
        """Let the values of `keys` live as long as if they had been stored now."""
        expires_at = self._clock.monotonic() + self._ttl
        for name in (_Name(owner, key) for key in keys):
            if entry := self._entries.get(name):
                entry.expires_at = expires_at
                self._entries.move_to_end(name)
                self._shares[owner].keys.move_to_end(name.key)

    async def delete(self, owner: str, key: str) -> None:
        """Delete the value of `key`, if there is one."""
        self._drop(_Name(owner, key))

    def _expire(self) -> None:
        """Drop expired entries. All entries live equally long, so the oldest come first."""
        now = self._clock.monotonic()
        while self._entries:
            name, entry = next(iter(self._entries.items()))
            if entry.expires_at > now:
                return
            self._drop(name)

    def _make_room(self, writer: str) -> None:
        """Drop entries until no limit is exceeded; among owners with equally much, the `writer` loses."""
        while self._bytes > self._max_bytes:
            self._drop_oldest(max(self._shares, key=lambda owner: (self._shares[owner].size, owner == writer)))
        while len(self._entries) > self._max_entries:
            self._drop_oldest(max(self._shares, key=lambda owner: (len(self._shares[owner].keys), owner == writer)))

    def _drop_oldest(self, owner: str) -> None:
        self._drop(_Name(owner, next(iter(self._shares[owner].keys))))

    def _drop(self, name: _Name) -> None:
        entry = self._entries.pop(name, None)
        if entry is None:
            return
        self._bytes -= entry.size
        share = self._shares[name.owner]
        share.size -= entry.size
        del share.keys[name.key]
        if not share.keys:
            del self._shares[name.owner]


class _Minute(Struct):
    """The requests of one client in the last minute: pairs of a second and its number of requests, the oldest first."""

    seconds: deque[list[int]] = field(default_factory=deque)
    total: int = 0


class LocalRates:
    """Implements `ports.Rates` for one process, with one count per second, so that time and memory are bounded.

    Args:
        clock: gives the second in which a request is counted.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._clients: defaultdict[str, _Minute] = defaultdict(_Minute)

    async def hit(self, client: str, limit: int) -> Rate:
        """Count one request unless it is beyond `limit`."""
        minute, now = self._clients[client], self._clock.monotonic()
        second, seconds = int(now), minute.seconds
        while seconds and seconds[0][0] <= second - WINDOW_SECONDS:
            minute.total -= seconds.popleft()[1]
        allowed = minute.total < limit
        if allowed:
            if not seconds or seconds[-1][0] != second:
                seconds.append([second, 0])
            seconds[-1][1] += 1
            minute.total += 1
        return Rate(allowed, minute.total, seconds[0][0] + WINDOW_SECONDS - now)


class LocalLeases:
    """Implements `ports.Leases` for one process."""

    def __init__(self) -> None:
        self._held: defaultdict[str, set[str]] = defaultdict(set)
        self._numbers = itertools.count()

    async def acquire(self, client: str, most: int) -> str | None:
        """A lease; None if `client` has `most` of them."""
        held = self._held[client]
        if len(held) >= most:
            return None
        lease = str(next(self._numbers))
        held.add(lease)
        return lease

    async def release(self, client: str, lease: str) -> None:
        """Return the lease of a request that has ended."""
        self._held[client].discard(lease)
