"""Dates of search results: providers write them in a dozen ways; a model and a client get the day. Pure."""

import re
from datetime import UTC, date, datetime, timedelta
from email.utils import parsedate_to_datetime

_AGO = re.compile(r"(?:(\d{1,3})|an?)\s+(minute|min|hour|day|week|month|year)s?\s+ago", re.IGNORECASE)
_DAYS = {"minute": 0, "min": 0, "hour": 0, "day": 1, "week": 7, "month": 30, "year": 365}
_ISO = re.compile(r"(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})(?:\D.*)?", re.DOTALL)
_CHINESE = re.compile(r"(\d{4})\s*年\s*(\d{1,2})\s*月\s*(\d{1,2})\s*日.*", re.DOTALL)
# `Nov 3, 2026`, `3 November 2026`, `11/3/2026`. Python's strptime takes 4 to 40 times as long, form by form.
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = (
    r"(jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|"
    r"nov(?:ember)?|dec(?:ember)?)\.?"
)
_MONTH_FIRST = re.compile(rf"{_MONTH}\s+(\d{{1,2}}),\s+(\d{{4}})", re.IGNORECASE)
_DAY_FIRST = re.compile(rf"(\d{{1,2}})\s+{_MONTH}\s+(\d{{4}})", re.IGNORECASE)
_AMERICAN = re.compile(r"(\d{1,2})/(\d{1,2})/(\d{4})")
# Seconds and milliseconds since 1970 of the years from 1990 on.
_SECONDS, _MILLISECONDS = range(631_152_000, 10**10), range(631_152_000_000, 10**13)
_EARLIEST = 1990  # the web is not older; a smaller year is a provider's way to say that it does not know


def day_of(value: object, today: date) -> str | None:
    """The day that a provider's date means, `YYYY-MM-DD`; None: it means none, or one that is still to come."""
    found = None if value is None else _parsed(value.strip() if isinstance(value, str) else value, today)
    if found is None or found.year < _EARLIEST or found > today + timedelta(days=1):  # a day ahead: other time zones
        return None
    return found.isoformat()


def days_before(today: date, recency: str) -> date:
    """The first day of the past hour, day, week, month or year; nothing is finer than a day."""
    return today - timedelta(days={"hour": 1, "day": 1, "week": 7, "month": 31, "year": 365}[recency])


def _parsed(value: object, today: date) -> date | None:
    try:
        match value:
            case bool() | None:
                return None
            case int() | float():
                seconds = value / 1000 if int(value) in _MILLISECONDS else value
                return datetime.fromtimestamp(seconds, UTC).date() if int(seconds) in _SECONDS else None
            case str() if ago := _AGO.fullmatch(value):
                return today - timedelta(days=int(ago[1] or 1) * _DAYS[ago[2].lower()])
            case str() if iso := _ISO.fullmatch(value) or _CHINESE.fullmatch(value):
                return date(int(iso[1]), int(iso[2]), int(iso[3]))
            case str():
                return _in_words(value, today)
    except (ValueError, OverflowError):
        pass
    return None


def _in_words(value: str, today: date) -> date | None:
    if value.lower() in ("today", "yesterday"):
        return today - timedelta(days=value.lower() == "yesterday")
    if found := _MONTH_FIRST.fullmatch(value):
        month, day, year = found.groups()
        return date(int(year), _MONTHS.index(month[:3].lower()) + 1, int(day))
    if found := _DAY_FIRST.fullmatch(value):
        day, month, year = found.groups()
        return date(int(year), _MONTHS.index(month[:3].lower()) + 1, int(day))
    if found := _AMERICAN.fullmatch(value):
        month, day, year = found.groups()
        return date(int(year), int(month), int(day))
    return parsedate_to_datetime(value).date()
