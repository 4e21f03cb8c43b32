"""The use of clients, counted in Redis for all processes.

Each client has a hash for every day, with a field for each kind of use and model (`cost glm-4.7`), and a hash for every
month, with a field for each kind.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from proxy.loop.tally import DAYS_KEPT, Use
from proxy.ports import Budgets
from proxy.stores.budgets import periods_of, total
from proxy.stores.redis import SharedRedis, key
from proxy.stores.shared import StateUnavailable

_DAY_SECONDS: Final = 86400
_KINDS: Final = Use.__struct_fields__

# Whole numbers are added as floats, too: Redis writes them without a point, and they are exact up to 2^53.
_BOOK: Final = """
for at = 2, #ARGV, 3 do
  redis.call('HINCRBYFLOAT', KEYS[tonumber(ARGV[at])], ARGV[at + 1], ARGV[at + 2])
end
for _, used in ipairs(KEYS) do
  redis.call('EXPIRE', used, ARGV[1])
end
"""


class RedisBudgets:
    """Implements `ports.Budgets`.

    While Redis is unavailable, each process uses its own count, which it adds to Redis with its first booking after the
    recovery.

    Args:
        shared: the connection to Redis.
        local: counts the use in this process.
    """

    def __init__(self, shared: SharedRedis, *, local: Budgets) -> None:
        self._shared = shared
        self._local = local
        self._book = shared.client.register_script(_BOOK)
        self._waiting: dict[tuple[str, str, str], Use] = {}  # for Redis, by client, model and day

    async def book(self, client: str, model: str, day: str, use: Use) -> None:
        """Add the use of a request."""
        await self._local.book(client, model, day, use)
        self._waiting.setdefault((client, model, day), Use()).add(use)
        # The waiting use is taken out before the first await, so that no other request books it as well.
        waiting, self._waiting = self._waiting, {}
        try:
            while waiting:
                whose = next(iter(waiting))
                await self._add(*whose, waiting[whose])
                del waiting[whose]
        except StateUnavailable:
            pass
        finally:
            for whose, missed in waiting.items():
                self._waiting.setdefault(whose, Use()).add(missed)

    async def _add(self, client: str, model: str, day: str, use: Use) -> None:
        keys, arguments = [], [str((DAYS_KEPT + 31) * _DAY_SECONDS)]
        for number, (period, name) in enumerate(periods_of(day, model), 1):
            keys.append(_key(client, period))
            for kind in _KINDS:
                if amount := getattr(use, kind):
                    arguments += (str(number), _field(kind, name), repr(amount))
        async with self._shared.reached():
            await self._book(keys=keys, args=arguments)

    async def used(self, client: str, period: str) -> Use:
        """The use of a client in a day or month."""
        try:
            async with self._shared.reached() as redis:
                counted = await redis.hgetall(_key(client, period))
        except StateUnavailable:
            return await self._local.used(client, period)
        return total(_by_model(counted))

    async def history(self, client: str, days: Sequence[str]) -> Sequence[Mapping[str, Use]]:
        """The use of a client on each of the days, by model."""
        try:
            async with self._shared.reached() as redis:
                commands = redis.pipeline(transaction=False)
                for day in days:
                    commands.hgetall(_key(client, day))
                counted = await commands.execute()
        except StateUnavailable:
            return await self._local.history(client, days)
        return [_by_model(one) for one in counted]


def _key(client: str, period: str) -> str:
    return key("used", period, client)


def _field(kind: str, model: str) -> str:
    return f"{kind} {model}"


def _by_model(counted: Mapping[Any, Any]) -> Mapping[str, Use]:
    """The fields of a hash as the use of each model."""
    found: dict[str, Use] = {}
    for name, amount in counted.items():
        kind, _, model = name.decode().partition(" ")
        if kind in _KINDS:  # another version of the proxy may count more kinds
            setattr(found.setdefault(model, Use()), kind, _number(kind, amount))
    return found


def _number(kind: str, amount: bytes) -> Any:
    return float(amount) if kind == "cost" else int(float(amount))
