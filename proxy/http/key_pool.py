"""The keys of one provider: which of them a call uses, while some rest and others are full.

    KeyTurn(pool, ...) --take--> a key --refused--> take --> another key --answered-->
                         |                            |
                         +-- KeysBusy: all are full   +-- KeysSpent: each rests, or was tried in this turn

A conversation keeps its key without a table of conversations: each key has a score for it, by rendezvous hashing
(Thaler and Ravishankar, 1998), and of the keys that can be used the one with the highest score wins. So every process
makes the same choice, and a key that comes or goes takes or leaves only the conversations of its own. Calls that belong
to no conversation take turns, by nginx's smooth weighted round robin.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from hashlib import blake2b
from typing import Final, TypeVar
from weakref import WeakValueDictionary

from msgspec import Struct

from proxy.config.model import ApiKey, keys_of
from proxy.kit.rests import KeyRests, KeyState, Refusal, Rest
from proxy.ports import Clock, Leases, Observer

T = TypeVar("T")

# A rest up to so long is waited for, because another key has to read the whole conversation anew.
WORTH_WAITING: Final = 2.0
# Between two looks whether another process has given back a place, or a rest is over.
_LOOK_SECONDS: Final = 0.2
_MOST_ORDERS: Final = 4096  # of conversations, of a hundred bytes each
_DIGEST_BYTES: Final = 8
_SPACE: Final = 2.0 ** (8 * _DIGEST_BYTES)


class KeysBusy(Exception):
    """Every key that could be used was answering as many calls as it may, for as long as the call could wait."""


class KeysSpent(Exception):
    """No key can be used: each rests, or was tried in this turn.

    Attributes:
        refusal: the last refusal.
        seconds: until the first key may be used again.
    """

    def __init__(self, refusal: Exception, seconds: float) -> None:
        super().__init__("no key can be used")
        self.refusal = refusal
        self.seconds = seconds


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


class Line:
    """The calls that wait for a place at a key, in order of their arrival."""

    def __init__(self) -> None:
        self._waiting: list[_Waiting] = []

    def join(self, turn: "KeyTurn") -> "_Waiting":
        """Stand at the end of the line."""
        self._waiting.append(waiting := _Waiting(turn))
        return waiting

    def leave(self, waiting: "_Waiting") -> None:
        """Leave the line. The call that is now the first one may have been waiting for this one only."""
        self._waiting.remove(waiting)
        if self._waiting:
            self._waiting[0].wake()

    def is_wanted(self, key: PoolKey, *, before: "_Waiting | None") -> bool:
        """Whether a call that came `before` another one waits for the key; None: any call."""
        for waiting in self._waiting:
            if waiting is before:
                return False
            if waiting.turn.may_use(key):
                return True
        return False

    def freed(self, key: PoolKey) -> None:
        """Wake the first call that waits for a key, since a place at it is free."""
        for waiting in self._waiting:
            if waiting.turn.may_use(key):
                waiting.wake()
                return


class _Waiting:
    """A call in a line."""

    def __init__(self, turn: "KeyTurn") -> None:
        self.turn = turn
        self._event = asyncio.Event()

    def wake(self) -> None:
        """Let the call look whether a place is free."""
        self._event.set()

    async def look_again(self) -> None:
        """Wait until it is worth looking again: another process, or the end of a rest, wakes nobody."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_SECONDS):
                await self._event.wait()
        self._event.clear()


class Stay(Struct):
    """What keeps a request at one key.

    Attributes:
        conversation: the conversation's name, hashed; None: it belongs to none, and the keys take turns.
        key: the key that has answered the request so far.
    """

    conversation: bytes | None = None
    key: PoolKey | None = None


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
        line: the calls that wait for a place at one.
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
        self.line = state.line
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


class KeyTurn:
    """One call's turn at the keys: each is used at most once, but for a short rest that was waited for.

    Args:
        pool: the keys.
        stay: keeps its request at one key.
        model: the model that it asks; "": any.
        seconds: how long it may wait for a place at a key; None: without an end.

    Attributes:
        key: the key that was taken last.
        lease: of its place, if it has a limited number of them.
    """

    key: PoolKey

    def __init__(self, pool: KeyPool, stay: Stay, model: str, seconds: float | None) -> None:
        self._pool = pool
        self._stay = stay
        self._model = model
        self._seconds = seconds
        self._tried: set[str] = set()
        self._waited: set[str] = set()  # the keys whose rest was waited for
        self._rests_until: float | None = None  # the key that is to be asked again
        self._refusal: Exception | None = None
        self.lease: str | None = None
        self._began = 0.0

    def may_use(self, key: PoolKey) -> bool:
        """Whether the call has not tried the key."""
        return key.slot not in self._tried

    async def run(
        self,
        work: Callable[[PoolKey], Awaitable[T]],
        refusal_of: Callable[[Exception], Refusal | None],
        may_go_on: Callable[[], bool] = lambda: True,
    ) -> T:
        """The result of `work` with the first key that is not refused; its place is given back afterwards.

        Args:
            work: makes the call with a key. It is repeated only after such a refusal, and while `may_go_on`.
            refusal_of: what an exception of `work` says of the key; None: nothing.
            may_go_on: whether another key may be tried.

        Raises:
            KeysBusy, KeysSpent: as `take`.
            Exception: anything else that `work` raises.
        """
        try:
            return await self.begin(work, refusal_of, may_go_on)
        finally:
            if self.lease is not None:
                await self.release()

    async def begin(
        self,
        work: Callable[[PoolKey], Awaitable[T]],
        refusal_of: Callable[[Exception], Refusal | None],
        may_go_on: Callable[[], bool] = lambda: True,
    ) -> T:
        """Begin a call that goes on after `work` has returned, until `release`; otherwise as `run`."""
        while True:
            key = await self.take()
            try:
                result = await work(key)
            except Exception as exc:
                refusal = refusal_of(exc)
                if refusal is None or not self.refused(refusal, exc) or not may_go_on():
                    raise
            else:
                if self._pool.state.rest_until:  # some key has rested
                    self.answered()
                return result
            await self.release()

    async def take(self) -> PoolKey:
        """The key for the next attempt, with a place at it, which `release` gives back.

        Raises:
            KeysSpent: each key rests, or was tried in this turn.
            KeysBusy: no place became free in time.
        """
        if self._rests_until is not None:
            await self._sleep_until(self._rests_until)
            self._rests_until = None
        keys = self._usable()
        if not keys and (rest := self._short_rest()) is not None:
            await self._sleep_until(rest.until)
            keys = self._usable()
        key = keys[0] if keys else None
        if key is None or key.max_concurrent is not None:
            key = await self._with_place(keys) or await self._stand_in_line()
        self.key = self._stay.key = key
        self._began = self._pool.clock.monotonic()
        self._pool.used(key)
        return key

    def go_on_from(self, key: PoolKey, began: float) -> None:
        """Take over from a call with a key that was had `at_once`, and began then."""
        self.key = self._stay.key = key
        self._began = began

    def refused(self, refusal: Refusal, error: Exception) -> bool:
        """Put the key to rest because the provider has refused it; whether the call may go on with `take`.

        An only key never rests: it cannot be replaced, and whoever needs it finds out as soon as it works again.
        """
        key, pool = self.key, self._pool
        if len(pool.keys) == 1:
            return False
        # A copy, because the error that was raised has a traceback, whose frames hold the conversation.
        self._refusal = copy(error)
        pool.refused(key, refusal, self._refusal, began=self._began, model=self._model)
        rest = key.rests.at(pool.clock.monotonic(), self._model)
        if rest is not None and self._is_worth_waiting(key, rest):
            self._waited.add(key.slot)
            self._rests_until = rest.until
        else:
            self._tried.add(key.slot)
        return True

    def answered(self) -> None:
        """Count the answer to the call."""
        self._pool.answered(self.key, began=self._began, model=self._model)

    async def release(self) -> None:
        """Give back the place at the key, where it has a limited number of them."""
        lease, self.lease = self.lease, None
        if lease is not None:
            await self._pool.leases.release(self.key.slot, lease)
            self._pool.line.freed(self.key)

    def _usable(self) -> Sequence[PoolKey]:
        """The keys that can be used now, in the order in which the call should use them."""
        pool, stay, now = self._pool, self._stay, self._pool.clock.monotonic()
        conversation = stay.conversation
        keys: Sequence[PoolKey] = pool.keys
        if conversation is not None:
            keys = pool.orders.get(conversation) or pool.order_for(conversation)
        if self._tried or now < pool.state.rest_until:
            keys = [key for key in keys if self.may_use(key) and key.rests.at(now, self._model) is None]
        if stay.key is not None and stay.key in keys:
            return [stay.key, *(key for key in keys if key is not stay.key)]
        return keys if conversation is not None else pool.take_turns(keys)

    def _short_rest(self) -> Rest | None:
        """The rest that is over first, if it is worth waiting for; None: there is none."""
        now, untried = self._pool.clock.monotonic(), filter(self.may_use, self._pool.keys)
        rests = [(key, rest) for key in untried if (rest := key.rests.at(now, self._model)) is not None]
        if not rests:
            return None
        key, rest = min(rests, key=lambda one: one[1].until)
        if not self._is_worth_waiting(key, rest):
            return None
        self._waited.add(key.slot)
        return rest

    def _is_worth_waiting(self, key: PoolKey, rest: Rest) -> bool:
        """Whether a rest is so short that its key is waited for, once in a turn."""
        left = rest.until - self._pool.clock.monotonic()
        return rest.cause == "rate" and left <= WORTH_WAITING and key.slot not in self._waited

    async def _sleep_until(self, end: float) -> None:
        clock = self._pool.clock
        while (left := end - clock.monotonic()) > 0:  # with uvloop, a timer may fire 1.5 ms early
            await clock.sleep(left)

    async def _with_place(self, keys: Sequence[PoolKey], waiting: "_Waiting | None" = None) -> PoolKey | None:
        """The first of the keys with a free place, which the call now has; None: all are full, or others came first."""
        pool = self._pool
        for key in keys:
            if key.max_concurrent is None:
                return key
            if not pool.line.is_wanted(key, before=waiting):
                self.lease = await pool.leases.acquire(key.slot, key.max_concurrent)
                if self.lease is not None:
                    return key
        return None

    async def _stand_in_line(self) -> PoolKey:
        """The key at which a place becomes free for the call, in order of arrival."""
        line = self._pool.line
        waiting = line.join(self)
        try:
            async with asyncio.timeout(self._seconds):
                while True:
                    if not (keys := self._usable()):
                        raise self._spent()
                    if (key := await self._with_place(keys, waiting)) is not None:
                        return key
                    await waiting.look_again()
        except TimeoutError as exc:
            raise KeysBusy from exc
        finally:
            line.leave(waiting)

    def _spent(self) -> KeysSpent:
        """The error where no key can be used: this turn's last refusal, otherwise the latest one of any call."""
        now = self._pool.clock.monotonic()
        rests = [rest for key in self._pool.keys if (rest := key.rests.at(now, self._model)) is not None]
        refusal = self._refusal or max(rests, key=lambda rest: rest.began).error
        left = min((rest.until - now for rest in rests), default=0.0) if len(rests) == len(self._pool.keys) else 0.0
        return KeysSpent(refusal, left)


class PoolState:
    """The part of a pool that outlives a reload: the rests of its keys, by the digest of each, and its wait queue."""

    def __init__(self) -> None:
        self.line = Line()
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
