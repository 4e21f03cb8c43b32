"""The keys of one provider: which key a conversation uses, and how keys take turns.

A conversation keeps its key without a table of conversations. Each key has a score for the conversation, by rendezvous
hashing (Thaler and Ravishankar, 1998), and the usable key with the highest score wins. Every process therefore makes
the same choice, and adding or removing a key moves only the conversations of that key. Calls without a conversation use
the keys in turn. `attempts` has one call's way through the keys.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Final
from weakref import WeakValueDictionary

from cachetools import LRUCache

from proxy.config.model import keys_of
from proxy.keys.cooldowns import KeyCooldowns, KeyRefusal
from proxy.kit.readiness import KeyState
from proxy.ports import Clock, Observer

_MOST_ORDERS: Final = 4096  # of conversations, of a hundred bytes each
_DIGEST_BYTES: Final = 8


class PoolKey:
    """One key of a pool.

    Attributes:
        number: the position in the configuration, from 1, which logs show.
        key: the key itself.
        cooldowns: the times when the key cannot be used.
        turn: the turn in which the key was last used.
    """

    def __init__(self, number: int, key: str, state: "PoolState") -> None:
        self.number = number
        self.key = key
        self.turn = 0
        digest = blake2b(key.encode(), digest_size=16, person=b"toolproxy key").digest()
        self.cooldowns = state.cooldowns_of(digest)
        self._hash = blake2b(digest, digest_size=_DIGEST_BYTES)

    def score(self, conversation: bytes) -> bytes:
        """The score of the key for a conversation. Scores are evenly distributed."""
        hashed = self._hash.copy()
        hashed.update(conversation)
        return hashed.digest()


_EVENTS: Final[Mapping[str, Mapping[str, str]]] = {
    "upstream": {"used": "upstream.key_used", "rests": "upstream.key_rests", "works": "upstream.key_works"},
    "tool": {"used": "tool.key_used", "rests": "tool.key_rests", "works": "tool.key_works"},
}
"""Whose key it is -> what has happened to it -> the name of the event."""


class KeyPool:
    """The keys of an upstream or of a tool. `KeyPools` makes it.

    Attributes:
        keys: the keys, in the order of the configuration.
        clock: measures their rests.
        state: the part that is shared with the pool of the previous configuration.
        orders: see `order_for`.
    """

    def __init__(
        self, keys: Mapping[int, str], state: "PoolState", process: "KeyPools", owner: tuple[str, str]
    ) -> None:
        self.keys = tuple([PoolKey(number, key, state) for number, key in keys.items()])
        self.clock, self._observe = process.clock, process.observe
        self._turn = 0
        self._kind, self._name = owner
        self.state = state  # lives as long as a pool that uses it
        self.orders: LRUCache[bytes, tuple[PoolKey, ...]] = LRUCache(_MOST_ORDERS)

    def states(self) -> list[KeyState]:
        """The state of each key, in the order of the configuration."""
        now = self.clock.monotonic()
        return [key.cooldowns.state(now) for key in self.keys]

    def order_for(self, conversation: bytes) -> tuple[PoolKey, ...]:
        """The keys in a conversation's order, its own key first. The order is computed once per conversation."""
        if (order := self.orders.get(conversation)) is None:
            order = tuple(sorted(self.keys, key=lambda key: key.score(conversation), reverse=True))
            self.orders[conversation] = order
        return order

    def take_turns(self, keys: Sequence[PoolKey]) -> Sequence[PoolKey]:
        """The given keys in turn: the key that was used the longest time ago comes first."""
        order = sorted(keys, key=lambda key: key.turn)
        if order:
            self._turn += 1
            order[0].turn = self._turn
        return order

    def used(self, key: PoolKey) -> None:
        """Report that a call is made with a key."""
        self._tell("used", key)

    def _tell(self, what: str, key: PoolKey, **fields: object) -> None:
        """Emit an event with the name of the upstream or tool."""
        self._observe(_EVENTS[self._kind][what], **{self._kind: self._name}, key=key.number, **fields)

    def refused(self, key: PoolKey, refusal: KeyRefusal, error: Exception, *, began: float, model: str) -> None:
        """Put a key to rest because of a call that began at `began`. `error` is kept, without its traceback."""
        now = self.clock.monotonic()
        if key.cooldowns.refused(refusal, error, began=began, now=now, model=model):
            rest = key.cooldowns.at(now, model)
            until = now if rest is None else rest.until
            self.state.cooldowns_until = max(self.state.cooldowns_until, until)
            seconds = round(until - now, 3)
            fields = {"cause": refusal.cause, "seconds": seconds, "why": refusal.why}
            if refusal.cause == "model":
                fields["upstream_model"] = model
            self._tell("rests", key, **fields)

    def answered(self, key: PoolKey, *, began: float, model: str) -> None:
        """Count an answer to a call that began at `began`."""
        if key.cooldowns.answered(began=began, model=model):
            self._tell("works", key)
            if all(one.cooldowns.is_over for one in self.keys):
                self.state.cooldowns_until = 0.0


class PoolState:
    """The part of a pool that outlives a reload: the rests of its keys, by the digest of each."""

    def __init__(self) -> None:
        self.cooldowns_until = 0.0  # no key rests any more
        self._cooldowns: WeakValueDictionary[bytes, KeyCooldowns] = WeakValueDictionary()

    def cooldowns_of(self, digest: bytes) -> KeyCooldowns:
        """The rests of the key with this digest."""
        if (cooldowns := self._cooldowns.get(digest)) is None:
            cooldowns = self._cooldowns[digest] = KeyCooldowns()
        return cooldowns


class KeyPools:
    """Makes the pools of one process.

    The rests of keys outlive a reload: a key that is still configured for the same address keeps its rest. A key that
    is removed and added again later has no rest.

    Args:
        clock: measures the rests.
        observe: takes the events of keys.
    """

    def __init__(self, *, clock: Clock, observe: Observer) -> None:
        self.clock = clock
        self.observe = observe
        self._states: WeakValueDictionary[tuple[str, ...], PoolState] = WeakValueDictionary()

    def pool_of(self, owner: tuple[str, str], api_key: str | tuple[str, ...] | None, base_url: str) -> KeyPool | None:
        """The pool of an `api_key` for the server at `base_url`; None if it is a single key.

        The `owner` is `upstream` or `tool`, and the name.
        """
        keys = keys_of(api_key)
        if len(keys) <= 1:
            return None
        where = (*owner, base_url)
        if (state := self._states.get(where)) is None:
            state = self._states[where] = PoolState()
        return KeyPool(keys, state, self, owner)
