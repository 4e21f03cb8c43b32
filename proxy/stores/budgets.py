"""The use of clients, counted in this process: by day and model, and by month."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import Final

from proxy.loop.tally import DAYS_KEPT, Use

_MONTH_LENGTH: Final = len("2026-11")  # the name of a day begins with the name of its month
ALL_MODELS: Final = ""  # used as the name of the model for a month, which is not counted by model


class LocalBudgets:
    """Implements `ports.Budgets` for one process."""

    def __init__(self) -> None:
        self._used: dict[str, dict[str, dict[str, Use]]] = {}  # period -> client -> model

    async def book(self, client: str, model: str, day: str, use: Use) -> None:
        """Add the use of a request."""
        self.book_later(client, model, day, use)

    def book_later(self, client: str, model: str, day: str, use: Use) -> None:
        """Add the use of a request, here at once."""
        if day not in self._used:
            first = first_day_kept(day)
            # The names of periods sort by date. The month that contains the first kept day is kept as well.
            self._used = {period: used for period, used in self._used.items() if period >= first[: len(period)]}
        for period, name in periods_of(day, model):
            self._used.setdefault(period, {}).setdefault(client, {}).setdefault(name, Use()).add(use)

    async def used(self, client: str, period: str) -> Use:
        """The use of a client in a day or month."""
        return total(self._of(client, period))

    async def history(self, client: str, days: Sequence[str]) -> Sequence[Mapping[str, Use]]:
        """The use of a client on each of the days, by model."""
        return [self._of(client, day) for day in days]

    async def clients(self, days: Sequence[str]) -> Sequence[str]:
        """The clients with any use on one of the days."""
        return sorted({client for day in days for client in self._used.get(day, ())})

    def _of(self, client: str, period: str) -> Mapping[str, Use]:
        return self._used.get(period, {}).get(client, {})


def periods_of(day: str, model: str) -> Iterator[tuple[str, str]]:
    """The periods in which the use of a request is counted, each with the model's name under which it is counted."""
    yield day, model
    yield day[:_MONTH_LENGTH], ALL_MODELS


def first_day_kept(day: str) -> str:
    """The oldest day whose use is still kept on `day`."""
    return (date.fromisoformat(day) - timedelta(days=DAYS_KEPT - 1)).isoformat()


def total(by_model: Mapping[str, Use]) -> Use:
    """The sum over all models."""
    whole = Use()
    for use in by_model.values():
        whole.add(use)
    return whole
