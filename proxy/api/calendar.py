"""The periods of budgets: days and months of the calendar, in UTC."""

import math
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeAlias

from msgspec import Struct

Per: TypeAlias = Literal["day", "month"]


class Period(Struct, frozen=True):
    """The day or month that contains a moment.

    Attributes:
        name: as the stores write it: "2026-11-23", or "2026-11".
        ends: the first moment after the period.
        seconds_left: the seconds from the moment to the end of the period, rounded up.
    """

    name: str
    ends: datetime
    seconds_left: int


def day_of(seconds: float) -> str:
    """The day, such as "2026-11-23", of a time in seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC).date().isoformat()


def last_days(seconds: float, count: int) -> list[str]:
    """The last `count` days up to a time in seconds since 1970, the latest first."""
    today = datetime.fromtimestamp(seconds, UTC).date()
    return [(today - timedelta(days=back)).isoformat() for back in range(count)]


def period_of(seconds: float, per: Per) -> Period:
    """The day or month of a time in seconds since 1970."""
    now = datetime.fromtimestamp(seconds, UTC)
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if per == "day":
        name, ends = midnight.date().isoformat(), midnight + timedelta(days=1)
    else:
        first = midnight.replace(day=1)
        name, ends = f"{first:%Y-%m}", (first + timedelta(days=31)).replace(day=1)
    return Period(name, ends, math.ceil(ends.timestamp() - seconds))
