"""One call's way through the keys of a pool, until a key is not refused.

KeyAttempts(pool, ...) --take--> a key --refused--> take --> another key --answered-->
|                            |
|                            +-- KeysSpent: each rests, or was tried already
+-- every key rests: KeysSpent, or one of the keys, if the pool is treated like a single key
"""

from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from typing import TypeVar

from msgspec import Struct

from proxy.keys.cooldowns import Cooldown, KeyRefusal
from proxy.keys.pool import KeyPool, PoolKey

T = TypeVar("T")


class KeysSpent(Exception):
    """No key can be used: each key rests, or was tried already.

    Attributes:
        refusal: the last refusal.
        seconds: seconds until the first key may be used again.
    """

    def __init__(self, refusal: Exception, seconds: float) -> None:
        super().__init__("no key can be used")
        self.refusal = refusal
        self.seconds = seconds


class KeyAffinity(Struct):
    """Keeps the calls of one request at one key.

    Attributes:
        conversation: the hashed name of the conversation; None if there is none, and the keys take turns.
        key: the key that has answered the request so far.
    """

    conversation: bytes | None = None
    key: PoolKey | None = None


class KeyAttempts:
    """The attempts of one call with the keys of a pool, at most one with each key.

    Args:
        pool: the keys.
        affinity: keeps the request at one key.
        model: the model of the call; "": any.
        never_gives_up: whether a call is made even if every key rests, as with a single key, which never rests.

    Attributes:
        key: the key that was taken last.
    """

    key: PoolKey

    def __init__(self, pool: KeyPool, affinity: KeyAffinity, model: str = "", *, never_gives_up: bool = False) -> None:
        self._pool = pool
        self._affinity = affinity
        self._model = model
        self._never_gives_up = never_gives_up
        self._tried: set[PoolKey] = set()
        self._refusal: Exception | None = None
        self._began = 0.0
        self._has_rested = False  # the key, when the call began

    async def run(
        self,
        work: Callable[[PoolKey], Awaitable[T]],
        refusal_of: Callable[[Exception], KeyRefusal | None],
        may_go_on: Callable[[], bool] = lambda: True,
    ) -> T:
        """The result of `work` with the first key that is not refused.

        Args:
            work: makes the call with a key. It is repeated only after a refusal of the key, and while `may_go_on`.
            refusal_of: the refusal of the key that an exception of `work` means; None if it means none.
            may_go_on: whether another key may be tried.

        Raises:
            KeysSpent: as `take`.
            Exception: any other exception of `work`.
        """
        while True:
            key = self.take()
            try:
                result = await work(key)
            except Exception as exc:
                refusal = refusal_of(exc)
                if refusal is None:
                    raise
                self.refused(refusal, exc)
                if not may_go_on():
                    raise
            else:
                self._pool.answered(key, began=self._began, model=self._model)
                return result

    def take(self) -> PoolKey:
        """The key for the next attempt.

        Raises:
            KeysSpent: each key rests, or was tried already.
        """
        pool, affinity, now = self._pool, self._affinity, self._pool.clock.monotonic()
        keys = self._usable(now)
        if not keys and self._never_gives_up and not self._tried:
            keys = [min(self._cooldowns(now), key=lambda one: one[1].until)[0]]  # the rest that ends first
        if not keys:
            raise self._spent(now)
        self.key = keys[0]
        self._has_rested = self.key.cooldowns.at(now, self._model) is not None
        affinity.key, self._began = self.key, now
        pool.used(self.key)
        return self.key

    def refused(self, refusal: KeyRefusal, error: Exception) -> None:
        """Put the key to rest because the provider refused it, unless it rests already or the refusal is uncertain."""
        # A copy, because the traceback of a raised error has frames that keep the conversation.
        self._refusal = copy(error)
        self._tried.add(self.key)
        if refusal.is_certain and not self._has_rested:
            self._pool.refused(self.key, refusal, self._refusal, began=self._began, model=self._model)

    def _usable(self, now: float) -> Sequence[PoolKey]:
        """The keys that can be used now, in the order in which the call should use them."""
        pool, affinity, conversation = self._pool, self._affinity, self._affinity.conversation
        keys: Sequence[PoolKey] = pool.keys if conversation is None else pool.order_for(conversation)
        if self._tried or now < pool.state.cooldowns_until:
            keys = [key for key in keys if key not in self._tried and key.cooldowns.at(now, self._model) is None]
        if affinity.key is not None and affinity.key in keys:
            return [affinity.key, *(key for key in keys if key is not affinity.key)]
        return keys if conversation is not None else pool.take_turns(keys)

    def _cooldowns(self, now: float) -> list[tuple[PoolKey, Cooldown]]:
        """The keys that rest now, with their rests."""
        return [(key, rest) for key in self._pool.keys if (rest := key.cooldowns.at(now, self._model)) is not None]

    def _spent(self, now: float) -> KeysSpent:
        """The error if no key can be used: this call's last refusal, or the latest refusal of any call."""
        cooldowns = [cooldown for _, cooldown in self._cooldowns(now)]
        refusal = self._refusal or max(cooldowns, key=lambda cooldown: cooldown.began).error
        all_rest = len(cooldowns) == len(self._pool.keys)
        return KeysSpent(refusal, min(cooldown.until for cooldown in cooldowns) - now if all_rest else 0.0)
