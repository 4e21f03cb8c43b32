"""`state: memory://`: kept in this process, bounded in number, bytes and time; gone when it stops."""

from collections import OrderedDict

import orjson

from proxy.config import StateConfig
from proxy.core.chat import Json
from proxy.ports import Clock, Observer

# Hidden tool results are 64 KiB each at the most as shipped; a run of eight of them comes to half a megabyte.
MAX_BYTES = 256 * 1024 * 1024


class MemoryStore:
    """Implements `ports.ContinuationStore`. What is kept is serialised, so nobody can change it afterwards.

    Args:
        config: `ttl` in seconds from the last write, `max_entries`; the oldest go first.
        clock: tells how old an entry is.
        max_bytes: of all entries together.
        observe: hears how much is kept.
    """

    def __init__(
        self,
        config: StateConfig,
        *,
        clock: Clock,
        max_bytes: int = MAX_BYTES,
        observe: Observer = lambda _, /, **__: None,
    ) -> None:
        self._ttl = config.ttl
        self._max_entries = config.max_entries
        self._max_bytes = max_bytes
        self._observe = observe
        self._clock = clock
        self._entries: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    async def get(self, key: str) -> Json | None:
        """What was kept under `key`, if it has not expired or had to make room."""
        self._expire()
        entry = self._entries.get(key)
        found: Json | None = orjson.loads(entry[1]) if entry else None
        return found

    async def put(self, key: str, value: Json) -> None:
        """Keep a value; an older one of the same key is replaced."""
        data = orjson.dumps(value)
        self._drop(key)
        self._entries[key] = (self._clock.monotonic() + self._ttl, data)
        self._bytes += len(data)
        self._expire()
        while len(self._entries) > self._max_entries or self._bytes > self._max_bytes:
            self._drop(next(iter(self._entries)))
        self._observe("continuation.kept", entries=len(self._entries), bytes=self._bytes)

    async def delete(self, key: str) -> None:
        """Forget what is kept under `key`, if anything is."""
        self._drop(key)

    def _expire(self) -> None:
        """Every entry lives equally long, so the oldest expire first."""
        now = self._clock.monotonic()
        while self._entries:
            key, (expires_at, _) = next(iter(self._entries.items()))
            if expires_at > now:
                return
            self._drop(key)

    def _drop(self, key: str) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= len(entry[1])
