"""The use of clients, counted in Redis for all processes.

Each client has a hash for every day, with a field for each kind of use and model (`cost glm-4.7`), and a hash for every
month, with a field for each kind.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from proxy.loop.tally import DAYS_KEPT, Use
from proxy.stores.budgets import periods_of
from proxy.stores.redis.connection import SharedRedis, key
from proxy.stores.shared.budgets import SharedBudgets, Waiting
from proxy.stores.shared.state import StateUnavailable

_DAY_SECONDS: Final = 86400
_KINDS: Final = Use.__struct_fields__
_SCANNED_AT_ONCE: Final = 1000  # keys that Redis looks at between other commands; a few tenths of a millisecond

# Whole numbers are added as floats, too: Redis writes them without a point, and they are exact up to 2^53.
_BOOK: Final = """
for at = 2, #ARGV, 3 do
  redis.call('HINCRBYFLOAT', KEYS[tonumber(ARGV[at])], ARGV[at + 1], ARGV[at + 2])
end
for _, used in ipairs(KEYS) do
  redis.call('EXPIRE', used, ARGV[1])
end
"""


class RedisBudgets(SharedBudgets[SharedRedis]):
    """Implements `ports.Budgets`."""

    async def write(self, waiting: Waiting) -> None:
        """Add use to the counts."""
        try:
            while waiting:
                whose = next(iter(waiting))
                await self._add(*whose, waiting[whose])
                del waiting[whose]
        except StateUnavailable:
            pass
        finally:
            self.put_back(waiting)

    async def _add(self, client: str, model: str, day: str, use: Use) -> None:
        keys, arguments = [], [str((DAYS_KEPT + 31) * _DAY_SECONDS)]
        for number, (period, name) in enumerate(periods_of(day, model), 1):
            keys.append(_key(client, period))
            for kind in _KINDS:
                if amount := getattr(use, kind):
                    arguments += (str(number), f"{kind} {name}", repr(amount))
        await self._shared.run(_BOOK, keys, arguments)

    async def read(self, client: str, periods: Sequence[str]) -> Sequence[Mapping[str, Use]]:
        """The use of a client in each of the periods, by model."""
        async with self._shared.reached() as redis:
            commands = redis.pipeline(transaction=False)
            for period in periods:
                commands.hgetall(_key(client, period))
            counted = await commands.execute()
        return [_by_model(one) for one in counted]

    async def read_clients(self, days: Sequence[str]) -> Sequence[str]:
        """The clients with any use on one of the days, found by the names of their keys."""
        prefix, wanted, found = key("used", ""), set(days), set()
        cursor: int | None = None
        names: Any  # a list of bytes; for the type checker, of text as well
        while cursor != 0:
            async with self._shared.reached() as redis:
                cursor, names = await redis.scan(cursor or 0, match=f"{prefix}*", count=_SCANNED_AT_ONCE)
            for name in names:
                period, _, client = bytes(name).decode().removeprefix(prefix).partition(":")
                if period in wanted:
                    found.add(client)
        return sorted(found)


def _key(client: str, period: str) -> str:
    return key("used", period, client)


def _by_model(counted: Mapping[Any, Any]) -> Mapping[str, Use]:
    """The fields of a hash as the use of each model."""
    found: dict[str, Use] = {}
    for name, amount in counted.items():
        kind, _, model = name.decode().partition(" ")
        if kind in _KINDS:  # another version of the proxy may count more kinds
            number = float(amount)
            setattr(found.setdefault(model, Use()), kind, number if kind == "cost" else int(number))
    return found
