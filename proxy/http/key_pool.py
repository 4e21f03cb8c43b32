"""The keys of one provider: which of them a conversation uses, and how they take turns.

A conversation keeps its key without a table of conversations: each key has a score for it, by rendezvous hashing
(Thaler and Ravishankar, 1998), and of the keys that can be used the one with the highest score wins. So every process
makes the same choice, and a key that comes or goes takes or leaves only the conversations of its own. Calls that belong
to no conversation take turns. `key_turn` is one call's way through the keys.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Final
from weakref import WeakValueDictionary

from cachetools import LRUCache
from msgspec import Struct

from proxy.config.model import keys_of
from proxy.kit.rests import KeyRests, KeyState, Refusal
from proxy.ports import Clock, Observer

_MOST_ORDERS: Final = 4096  # of conversations, of a hundred bytes each
_DIGEST_BYTES: Final = 8


class PoolKey:
    """One key of a pool.

    Attributes:
        number: its place in the configuration, from 1, by which people know it.
        key: the key itself.
        rests: when it cannot be used.
        turn: the turn in which it was used last.
    """

    __slots__ = ("_hash", "key", "number", "rests", "turn")

    def __init__(self, number: int, key: str, state: "PoolState") -> None:
        self.number = number
        self.key = key
        self.turn = 0
        digest = blake2b(key.encode(), digest_size=16, person=b"toolproxy key").digest()
        self.rests = state.rests_of(digest)
        self._hash = blake2b(digest, digest_size=_DIGEST_BYTES)

    def score(self, conversation: bytes) -> bytes:
        """The score for a conversation, evenly distributed among keys."""
        hashed = self._hash.copy()
        hashed.update(conversation)
        return hashed.digest()


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
        clock: times their rests.
        state: what they have in common with those of the configuration before.
        orders: see `order_for`.
    """

    def __init__(
        self,
        keys: Mapping[int, str],
        state: "PoolState",
        process: "KeyPools",
        owner: tuple[str, str],
    ) -> None:
        self.keys = tuple([PoolKey(number, key, state) for number, key in keys.items()])
        self.clock, self._observe = process.clock, process.observe
        self._turn = 0
        self._events, self._owner = _EVENTS[owner[0]], dict([owner])
        self.state = state  # lives as long as a pool that uses it
        self.orders: LRUCache[bytes, tuple[PoolKey, ...]] = LRUCache(_MOST_ORDERS)

    def states(self) -> list[KeyState]:
        """The state of each key, in the order of the configuration."""
        now = self.clock.monotonic()
        return [key.rests.state(now) for key in self.keys]

    def order_for(self, conversation: bytes) -> tuple[PoolKey, ...]:
        """The keys, the one of a conversation first. It is computed once for all turns of a conversation."""
        if (order := self.orders.get(conversation)) is None:
            order = tuple(sorted(self.keys, key=lambda key: key.score(conversation), reverse=True))
            self.orders[conversation] = order
        return order

    def take_turns(self, keys: Sequence[PoolKey]) -> Sequence[PoolKey]:
        """Some of the keys, the one whose turn it is first: that was used the longest time ago."""
        order = sorted(keys, key=lambda key: key.turn)
        for first in order[:1]:
            self._turn += 1
            first.turn = self._turn
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
    """The part of a pool that outlives a reload: the rests of its keys, by the digest of each."""

    def __init__(self) -> None:
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
        observe: takes the events of keys.
    """

    def __init__(self, *, clock: Clock, observe: Observer) -> None:
        self.clock = clock
        self.observe = observe
        self._states: WeakValueDictionary[tuple[str, ...], PoolState] = WeakValueDictionary()

    def pool_of(self, owner: tuple[str, str], api_key: str | tuple[str, ...] | None, base_url: str) -> KeyPool | None:
        """The pool of an `api_key`; None: it is one key.

        Args:
            owner: `upstream` or `tool`, and the name.
            api_key: the keys.
            base_url: where they are used.
        """
        keys = keys_of(api_key)
        if len(keys) <= 1:
            return None
        where = (*owner, base_url)
        if (state := self._states.get(where)) is None:
            state = self._states[where] = PoolState()
        return KeyPool(keys, state, self, owner)
