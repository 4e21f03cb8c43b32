"""One call's turn at the keys of a pool, until one of them is not refused.

KeyTurn(pool, ...) --take--> a key --refused--> take --> another key --answered-->
|                            |
+-- KeysBusy: all are full   +-- KeysSpent: each rests, or was tried in this turn
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from typing import Final, TypeVar

from msgspec import Struct

from proxy.http.key_pool import KeyPool, PoolKey, QueuedCall
from proxy.kit.rests import Refusal, Rest

T = TypeVar("T")

# A rest up to so long is waited for, because another key has to read the whole conversation anew.
WORTH_WAITING: Final = 2.0


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


class KeyAffinity(Struct):
    """What keeps the calls of one request at one key.

    Attributes:
        conversation: the conversation's name, hashed; None: it belongs to none, and the keys take turns.
        key: the key that has answered the request so far.
    """

    conversation: bytes | None = None
    key: PoolKey | None = None


class KeyTurn:
    """One call's turn at the keys: each is used at most once, but for a short rest that was waited for.

    Args:
        pool: the keys.
        affinity: keeps its request at one key.
        model: the model that it asks; "": any.
        seconds: how long it may wait for a place at a key; None: without an end.

    Attributes:
        key: the key that was taken last.
        lease: of its place, if it has a limited number of them.
    """

    key: PoolKey

    def __init__(self, pool: KeyPool, affinity: KeyAffinity, model: str, seconds: float | None) -> None:
        self._pool = pool
        self._affinity = affinity
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
        """As `run`, for a call that is not over when `work` returns: it keeps its place at the key until `release`."""
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
            key = await self._with_place(keys) or await self._wait_in_queue()
        self.key = self._affinity.key = key
        self._began = self._pool.clock.monotonic()
        self._pool.used(key)
        return key

    def go_on_from(self, key: PoolKey, began: float) -> None:
        """Take over from a call with a key that was had `at_once`, and began then."""
        self.key = self._affinity.key = key
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
            self._pool.queue.freed(self.key)

    def _usable(self) -> Sequence[PoolKey]:
        """The keys that can be used now, in the order in which the call should use them."""
        pool, affinity, now = self._pool, self._affinity, self._pool.clock.monotonic()
        conversation = affinity.conversation
        keys: Sequence[PoolKey] = pool.keys
        if conversation is not None:
            keys = pool.orders.get(conversation) or pool.order_for(conversation)
        if self._tried or now < pool.state.rest_until:
            keys = [key for key in keys if self.may_use(key) and key.rests.at(now, self._model) is None]
        if affinity.key is not None and affinity.key in keys:
            return [affinity.key, *(key for key in keys if key is not affinity.key)]
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

    async def _with_place(self, keys: Sequence[PoolKey], queued: QueuedCall | None = None) -> PoolKey | None:
        """The first of the keys with a free place, which the call now has; None: all are full, or others came first."""
        pool = self._pool
        for key in keys:
            if key.max_concurrent is None:
                return key
            if not pool.queue.is_wanted(key, before=queued):
                self.lease = await pool.leases.acquire(key.slot, key.max_concurrent)
                if self.lease is not None:
                    return key
        return None

    async def _wait_in_queue(self) -> PoolKey:
        """The key at which a place becomes free for the call, in order of arrival."""
        queue = self._pool.queue
        queued = queue.join(self.may_use)
        try:
            async with asyncio.timeout(self._seconds):
                while True:
                    if not (keys := self._usable()):
                        raise self._spent()
                    if (key := await self._with_place(keys, queued)) is not None:
                        return key
                    await queued.wait()
        except TimeoutError as exc:
            raise KeysBusy from exc
        finally:
            queue.leave(queued)

    def _spent(self) -> KeysSpent:
        """The error where no key can be used: this turn's last refusal, otherwise the latest one of any call."""
        now = self._pool.clock.monotonic()
        rests = [rest for key in self._pool.keys if (rest := key.rests.at(now, self._model)) is not None]
        refusal = self._refusal or max(rests, key=lambda rest: rest.began).error
        left = min((rest.until - now for rest in rests), default=0.0) if len(rests) == len(self._pool.keys) else 0.0
        return KeysSpent(refusal, left)
