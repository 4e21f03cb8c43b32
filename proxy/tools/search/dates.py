"""Dates of search results: converts a dozen formats of providers into the day for model and client. Pure."""

import re
from datetime import UTC, date, datetime, timedelta
from email.utils import parsedate_to_datetime

_AGO = re.compile(r"(?:(\d{1,3})|an?)\s+(minute|min|hour|day|week|month|year)s?\s+ago", re.IGNORECASE)
_DAYS = {"minute": 0, "min": 0, "hour": 0, "day": 1, "week": 7, "month": 30, "year": 365}
# `2026-11-03`, `2026年11月3日`, `11/3/2026`, `Nov 3, 2026`, `3 November 2026`. Python's strptime, called for each
# format, takes 4 to 40 times as long.
_YEAR_FIRST = re.compile(
    r"(?P<year>\d{4})(?:[-/.]|\s*年\s*)(?P<month>\d{1,2})(?:[-/.]|\s*月\s*)(?P<day>\d{1,2})(?:\D.*)?", re.DOTALL
)
_AMERICAN = re.compile(r"(?P<month>\d{1,2})/(?P<day>\d{1,2})/(?P<year>\d{4})")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|"
    r"oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"
)
_MONTH_FIRST = re.compile(rf"{_MONTH}\s+(?P<day>\d{{1,2}}),\s+(?P<year>\d{{4}})", re.IGNORECASE)
_DAY_FIRST = re.compile(rf"(?P<day>\d{{1,2}})\s+{_MONTH}\s+(?P<year>\d{{4}})", re.IGNORECASE)
# Seconds and milliseconds since 1970 for the years from 1990 on.
_SECONDS, _MILLISECONDS = range(631_152_000, 10**10), range(631_152_000_000, 10**13)
_EARLIEST = 1990  # the web is not older; with a smaller year, a provider means an unknown date


def day_of(value: object, today: date) -> str | None:
    """The day of a provider's date, `YYYY-MM-DD`; None: the value is not a date, or is in the future."""
    if value is None:
        return None
    try:
        match value.strip() if isinstance(value, str) else value:
            case bool():
                return None
            case int() | float() as number:
                seconds = number / 1000 if int(number) in _MILLISECONDS else number
                if int(seconds) not in _SECONDS:
                    return None
                day = datetime.fromtimestamp(seconds, UTC).date()
            case str() as text if ago := _AGO.fullmatch(text):
                day = today - timedelta(days=int(ago[1] or 1) * _DAYS[ago[2].lower()])
            case str() as text if (
                found := _YEAR_FIRST.fullmatch(text)
                or _MONTH_FIRST.fullmatch(text)
                or _DAY_FIRST.fullmatch(text)
                or _AMERICAN.fullmatch(text)
            ):
                month = found["month"][:3].lower()
                number = _MONTHS.index(month) + 1 if month in _MONTHS else int(month)
                day = date(int(found["year"]), number, int(found["day"]))
            case str() as text if text.lower() in ("today", "yesterday"):
                day = today - timedelta(days=text.lower() == "yesterday")
            case str() as text:
                day = parsedate_to_datetime(text).date()
            case _:
                return None
    except (ValueError, OverflowError):
        return None
    is_possible = day.year >= _EARLIEST and day <= today + timedelta(days=1)  # a day ahead: other time zones
    return day.isoformat() if is_possible else None


def days_before(today: date, recency: str) -> date:
    """The first day of the past hour, day, week, month or year, in whole days."""
    return today - timedelta(days={"hour": 1, "day": 1, "week": 7, "month": 31, "year": 365}[recency])
