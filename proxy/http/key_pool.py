"""The keys of one provider: which of them a conversation uses, how they take turns, and which calls wait for one.

A conversation keeps its key without a table of conversations: each key has a score for it, by rendezvous hashing
(Thaler and Ravishankar, 1998), and of the keys that can be used the one with the highest score wins. So every process
makes the same choice, and a key that comes or goes takes or leaves only the conversations of its own. Calls that belong
to no conversation take turns, by nginx's smooth weighted round robin. `key_turn` is one call's way through the keys.
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Final
from weakref import WeakValueDictionary

from msgspec import Struct

from proxy.config.model import ApiKey, keys_of
from proxy.kit.rests import KeyRests, KeyState, Refusal
from proxy.ports import Clock, Leases, Observer

# Between two looks whether another process has given back a place, or a rest is over.
_LOOK_SECONDS: Final = 0.2
_MOST_ORDERS: Final = 4096  # of conversations, of a hundred bytes each
_DIGEST_BYTES: Final = 8
_SPACE: Final = 2.0 ** (8 * _DIGEST_BYTES)


class PoolKey:
    """One key of a pool.

    Attributes:
        number: its place in the configuration, from 1, by which people know it.
        key: the key itself.
        max_concurrent: the calls that it may be answering at the same time; None: any number.
        slot: the name under which these calls are counted.
        rests: when it cannot be used.
    """

    __slots__ = ("_hash", "key", "max_concurrent", "number", "rests", "slot", "turns", "weight")

    def __init__(self, number: int, entry: ApiKey, state: "PoolState") -> None:
        self.number = number
        self.key = entry.key
        self.max_concurrent = entry.max_concurrent
        self.weight = entry.weight
        self.turns = 0.0  # of the round robin
        digest = blake2b(entry.key.encode(), digest_size=16, person=b"toolproxy key").digest()
        self.slot = f"key {digest.hex()}"
        self.rests = state.rests_of(digest)
        self._hash = blake2b(digest, digest_size=_DIGEST_BYTES)

    def score(self, conversation: bytes) -> float:
        """The score for a conversation: below 0, and evenly distributed among keys in proportion to their weights."""
        hashed = self._hash.copy()
        hashed.update(conversation)
        # -ln(u) / weight is exponentially distributed, and the smallest of several such times is a key's with a
        # probability in proportion to its weight.
        return math.log((int.from_bytes(hashed.digest()) + 1) / _SPACE) / self.weight


class KeyQueue:
    """The calls that wait for a place at a key, in order of their arrival."""

    def __init__(self) -> None:
        self._calls: list[QueuedCall] = []

    def join(self, may_use: Callable[[PoolKey], bool]) -> "QueuedCall":
        """Put a call at the end of the queue; `may_use`: whether it would use a key."""
        self._calls.append(call := QueuedCall(may_use))
        return call

    def leave(self, call: "QueuedCall") -> None:
        """Take a call out of the queue. The one that is now the first may have been waiting for this one only."""
        self._calls.remove(call)
        if self._calls:
            self._calls[0].wake()

    def is_wanted(self, key: PoolKey, *, before: "QueuedCall | None") -> bool:
        """Whether a call that came `before` another one waits for the key; None: any call."""
        for call in self._calls:
            if call is before:
                return False
            if call.may_use(key):
                return True
        return False

    def freed(self, key: PoolKey) -> None:
        """Wake the first call that waits for a key, since a place at it is free."""
        for call in self._calls:
            if call.may_use(key):
                call.wake()
                return


class QueuedCall:
    """A call in a queue; `may_use` says whether it would use a key."""

    def __init__(self, may_use: Callable[[PoolKey], bool]) -> None:
        self.may_use = may_use
        self._event = asyncio.Event()

    def wake(self) -> None:
        """Let the call look whether a place is free."""
        self._event.set()

    async def wait(self) -> None:
        """Wait for `wake`, at most for the time after which another process may have given back a place."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_SECONDS):
                await self._event.wait()
        self._event.clear()


class _Events(Struct, frozen=True):
    """The names of the events of keys."""

    used: str
    rests: str
    works: str


_EVENTS: Final = {
    "upstream": _Events("upstream.key_used", "upstream.key_rests", "upstream.key_works"),
    "tool": _Events("tool.key_used", "tool.key_rests", "tool.key_works"),
}


class KeyPool:
    """The keys of an upstream or of a tool. `KeyPools` makes it.

    Attributes:
        keys: the keys, in the order of the configuration.
        queue: the calls that wait for a place at one.
        clock: times their rests.
        leases: counts their calls.
        state: what they have in common with those of the configuration before.
        orders: see `order_for`.
    """

    def __init__(
        self,
        entries: Mapping[int, ApiKey],
        state: "PoolState",
        process: "KeyPools",
        owner: tuple[str, str],
    ) -> None:
        self.keys = tuple([PoolKey(number, entry, state) for number, entry in entries.items()])
        self.queue = state.queue
        self.clock, self.leases, self._observe = process.clock, process.leases, process.observe
        self._events, self._owner = _EVENTS[owner[0]], dict([owner])
        self.state = state  # lives as long as a pool that uses it
        self.orders: dict[bytes, tuple[PoolKey, ...]] = {}

    def states(self) -> list[KeyState]:
        """The state of each key, in the order of the configuration."""
        now = self.clock.monotonic()
        return [key.rests.state(now) for key in self.keys]

    def order_for(self, conversation: bytes) -> tuple[PoolKey, ...]:
        """The keys, the one of a conversation first. It is computed once for all turns of a conversation."""
        if (order := self.orders.get(conversation)) is None:
            if len(self.orders) >= _MOST_ORDERS:
                self.orders.clear()
            order = tuple(sorted(self.keys, key=lambda key: key.score(conversation), reverse=True))
            self.orders[conversation] = order
        return order

    def at_once(self, conversation: bytes | None) -> PoolKey | None:
        """The key of a conversation, if it has no limit and no key has rested of late; None: a `KeyTurn` decides.

        Most calls are of this kind, and a turn would take 5 % of a request.
        """
        if self.state.rest_until or conversation is None:
            return None
        key = (self.orders.get(conversation) or self.order_for(conversation))[0]
        return key if key.max_concurrent is None else None

    def take_turns(self, keys: Sequence[PoolKey]) -> Sequence[PoolKey]:
        """Some of the keys, the one whose turn it is first."""
        for key in keys:
            key.turns += key.weight
        order = sorted(keys, key=lambda key: key.turns, reverse=True)
        for first in order[:1]:
            first.turns -= sum(key.weight for key in keys)
        return order

    def used(self, key: PoolKey) -> None:
        """Report that a call is made with a key."""
        self._observe(self._events.used, **self._owner, key=key.number)

    def refused(self, key: PoolKey, refusal: Refusal, error: Exception, *, began: float, model: str) -> None:
        """Put a key to rest, on account of a call that began at `began`; `error`, without a traceback, is kept."""
        now = self.clock.monotonic()
        if key.rests.refused(refusal, error, began=began, now=now, model=model):
            rest = key.rests.at(now, model)
            until = now if rest is None else rest.until
            self.state.rest_until = max(self.state.rest_until, until)
            seconds = round(until - now, 3)
            fields = {"cause": refusal.cause, "seconds": seconds, "why": refusal.why}
            if refusal.cause == "model":
                fields["upstream_model"] = model
            self._observe(self._events.rests, **self._owner, key=key.number, **fields)

    def answered(self, key: PoolKey, *, began: float, model: str) -> None:
        """Count an answer to a call that began at `began`."""
        if key.rests.answered(began=began, model=model):
            self._observe(self._events.works, **self._owner, key=key.number)
            if all(one.rests.is_over for one in self.keys):
                self.state.rest_until = 0.0


class PoolState:
    """The part of a pool that outlives a reload: the rests of its keys, by the digest of each, and its wait queue."""

    def __init__(self) -> None:
        self.queue = KeyQueue()
        self.rest_until = 0.0  # no key rests any more
        self._rests: WeakValueDictionary[bytes, KeyRests] = WeakValueDictionary()

    def rests_of(self, digest: bytes) -> KeyRests:
        """The rests of the key with this digest."""
        if (rests := self._rests.get(digest)) is None:
            rests = self._rests[digest] = KeyRests()
        return rests


class KeyPools:
    """Makes the pools of one process.

    What a pool's keys are in the middle of outlives a reload: a key that is still there, at the same address, keeps its
    rest. A key that is taken out and put back later has none.

    Args:
        clock: times the rests.
        leases: counts the calls of keys with `max_concurrent`, over all processes that share a state.
        observe: takes the events of keys.
    """

    def __init__(self, *, clock: Clock, leases: Leases, observe: Observer) -> None:
        self.clock = clock
        self.leases = leases
        self.observe = observe
        self._states: WeakValueDictionary[tuple[str, ...], PoolState] = WeakValueDictionary()

    def pool_of(
        self, owner: tuple[str, str], api_key: str | tuple[str | ApiKey, ...] | None, base_url: str
    ) -> KeyPool | None:
        """The pool of an `api_key`; None: it is one key, whose calls are not limited.

        Args:
            owner: `upstream` or `tool`, and the name.
            api_key: the keys.
            base_url: where they are used.
        """
        entries = keys_of(api_key)
        if len(entries) <= 1 and not any(entry.max_concurrent for entry in entries.values()):
            return None
        where = (*owner, base_url)
        if (state := self._states.get(where)) is None:
            state = self._states[where] = PoolState()
        return KeyPool(entries, state, self, owner)
