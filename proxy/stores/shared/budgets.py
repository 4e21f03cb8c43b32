"""The use of clients in a shared state. Each process also counts its own, which it goes by while the state is away.

Use waits in the process until it is written: at once for a client with a budget, for all others once a second. What
could not be written waits on.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final, Generic, TypeAlias

from proxy.loop.tally import Use
from proxy.ports import Budgets
from proxy.stores.budgets import total
from proxy.stores.shared.state import Shared, StateUnavailable

Waiting: TypeAlias = dict[tuple[str, str, str], Use]
"""Use that is not written yet, by client, model and day."""

_WRITTEN_EVERY: Final = 1.0  # seconds; what a killed process loses of the use of clients without a budget


class SharedBudgets(ABC, Generic[Shared]):
    """Implements `ports.Budgets`; `local` counts the use in this process."""

    def __init__(self, shared: Shared, *, local: Budgets) -> None:
        self._shared = shared
        self._local = local
        self._waiting: Waiting = {}

    @abstractmethod
    async def write(self, waiting: Waiting) -> None:
        """Add use to the shared count, and pass to `put_back` what could not be added."""

    @abstractmethod
    async def read(self, client: str, periods: Sequence[str]) -> Sequence[Mapping[str, Use]]:
        """The use of a client in each of the periods, by model. Raises `StateUnavailable`."""

    @abstractmethod
    async def read_clients(self, days: Sequence[str]) -> Sequence[str]:
        """The clients with any use on one of the days. Raises `StateUnavailable`."""

    async def book(self, client: str, model: str, day: str, use: Use) -> None:
        """Add the use of a request."""
        self.book_later(client, model, day, use)
        await self.write_waiting()

    def book_later(self, client: str, model: str, day: str, use: Use) -> None:
        """Add the use of a request within a second."""
        self._local.book_later(client, model, day, use)
        self._waiting.setdefault((client, model, day), Use()).add(use)

    async def write_waiting(self) -> None:
        """Write the use that waits."""
        # It is taken out before the first await, so that no other request writes it as well.
        waiting, self._waiting = self._waiting, {}
        if waiting:
            await self.write(waiting)

    def put_back(self, waiting: Waiting) -> None:
        """Let use that was not written wait on."""
        for whose, use in waiting.items():
            self._waiting.setdefault(whose, Use()).add(use)

    async def keep(self) -> None:
        """Write the use that waits periodically, until cancelled, and then once more."""
        try:
            while True:
                await self._shared.clock.sleep(_WRITTEN_EVERY)
                await self._write_or_say()
        finally:
            await self._write_or_say()

    async def _write_or_say(self) -> None:
        try:
            await self.write_waiting()
        except Exception:  # noqa: BLE001 - whatever could not be counted must not end the process
            self._shared.observe("use.not_counted", exc_info=True)

    async def used(self, client: str, period: str) -> Use:
        """The use of a client in a day or month."""
        try:
            [by_model] = await self.read(client, [period])
        except StateUnavailable:
            return await self._local.used(client, period)
        return total(by_model)

    async def history(self, client: str, days: Sequence[str]) -> Sequence[Mapping[str, Use]]:
        """The use of a client on each of the days, by model."""
        await self.write_waiting()
        try:
            return await self.read(client, days)
        except StateUnavailable:
            return await self._local.history(client, days)

    async def clients(self, days: Sequence[str]) -> Sequence[str]:
        """The clients with any use on one of the days."""
        await self.write_waiting()
        try:
            return await self.read_clients(days)
        except StateUnavailable:
            return await self._local.clients(days)
