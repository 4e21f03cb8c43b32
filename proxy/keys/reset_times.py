"""When a quota begins anew, as far as a refusal says: in its headers, in the fields of its body, or in words.

x-ratelimit-reset-requests: 6m0s                 OpenAI, Groq: a duration, for each kind of quota
anthropic-ratelimit-unified-reset: 1772827200    Anthropic: seconds since 1970; OpenRouter: milliseconds
{"resets_in_seconds": 3600}, {"retryDelay": "35s"}                                    Codex, Gemini
Your limit will reset at 2026-03-06 22:19:54     Z.AI, whose times have no zone and are those of China
"""

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from itertools import chain
from typing import Any, Final

from msgspec import Struct

CHINA: Final = timezone(timedelta(hours=8))
"""The zone of Z.AI's times: a log in issue 33785 of openclaw has UTC beside them."""

_MOST_FIELDS, _MOST_CHARACTERS = 200, 4000
_HEADER = re.compile(r"(.*ratelimit.*)reset(.*)|ratelimit-?reset", re.IGNORECASE)
# The names of fields, in lower case and without `-` and `_`.
_FIELD = re.compile(
    r"(x?ratelimit|quota|limit)?resets?(at|in|after|time|delay)?(seconds)?|retry(delay|after)(seconds)?|nextflushtime"
)
_TIME = re.compile(
    r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?(?: ?(?:Z|UTC|GMT)\b| ?[+-]\d{2}:?\d{2})?", re.IGNORECASE
)
_UNITS: Mapping[str, float] = {
    "d": 86400, "day": 86400, "天": 86400, "h": 3600, "hr": 3600, "hour": 3600, "小时": 3600, "m": 60, "min": 60,
    "minute": 60, "分": 60, "分钟": 60, "s": 1, "sec": 1, "second": 1, "秒": 1, "秒钟": 1, "ms": 0.001,
    "millisecond": 0.001,
}  # fmt: skip
_ONE_AMOUNT = (
    r"(\d{1,9}(?:\.\d{1,9})?) ?(milliseconds?|ms|days?|d|hours?|hrs?|h|minutes?|mins?|m|seconds?|secs?|s)(?![a-z])"
)
_AMOUNT = re.compile(_ONE_AMOUNT, re.IGNORECASE)
_AMOUNTS = re.compile(rf"(?:{_ONE_AMOUNT}[ ,]*(?:and )?)+", re.IGNORECASE)
_CHINESE_AMOUNT = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?(天|小时|分钟|分|秒钟|秒)")
# Words before or behind a time that make it the one at which a quota begins anew.
_ABOUT_A_RESET = re.compile(
    r"\b(?:reset|renew|refresh|again|retry|until|available)|重置|重试|恢复|刷新|之后", re.IGNORECASE
)
_IN = re.compile(r"\b(?:in|after)\s+", re.IGNORECASE)
_CHINESE_AFTER = re.compile(r"(?:\d[\d.]{0,18} ?(?:天|小时|分钟|分|秒钟|秒) ?)+(?:之?后)")
_SINCE_1970 = re.compile(r"\|(\d{10})\b")  # Claude Code's "usage limit reached|1740000000"
_NUMBER = re.compile(r"\d{1,15}(?:\.\d{1,9})?")
_FIRST_TIME, _FIRST_IN_MILLISECONDS = 1e9, 1e12  # larger numbers are seconds, or milliseconds, since 1970


class Reset(Struct, frozen=True, order=True):
    """When a quota begins anew.

    Attributes:
        seconds: from now, or, if `is_time`, since 1970.
    """

    seconds: float
    is_time: bool = False

    def seconds_from(self, now: float) -> float:
        """The seconds from `now`, which is in seconds since 1970; below 0 for a time in the past."""
        return self.seconds - now if self.is_time else self.seconds


def reset_of(
    headers: Mapping[str, str],
    body: Mapping[str, Any],
    message: str,
    *,
    zone: timezone = UTC,
    is_quoted: Callable[[str], bool] = lambda _: False,
) -> Reset | None:
    """The time at which the quota begins anew; None: the response does not tell.

    Args:
        headers: of the response, with names in lower case.
        body: the error in its body.
        message: its words.
        zone: of the times that name none.
        is_quoted: whether a text of the body stands in the request, so that the response may only repeat it.
    """
    said = chain(_in_fields(body, zone), _in_words(message, zone))
    return next(chain(_in_headers(headers, zone), (reset for text, reset in said if not is_quoted(text))), None)


def _in_headers(headers: Mapping[str, str], zone: timezone) -> Iterator[Reset]:
    """The reset in the headers; of several quotas, that of the used-up one that begins anew last."""
    found: list[tuple[bool, Reset]] = []
    for name, value in headers.items():
        if _HEADER.fullmatch(name) and (reset := _reset(value, zone)) is not None:
            left = headers.get(re.sub("reset", "remaining", name, flags=re.IGNORECASE), "")
            found.append((left.strip() in ("0", "0.0"), reset))
    used_up = [reset for is_used_up, reset in found if is_used_up]
    if used_up or len(found) == 1:
        yield max(used_up or [found[0][1]])


def _in_fields(body: Mapping[str, Any], zone: timezone) -> Iterator[tuple[str, Reset]]:
    """The resets in the fields of an error, at any depth, each with its field as text."""
    waiting: list[Any] = [body]
    for value in waiting:
        if isinstance(value, dict):
            for name, inner in value.items():
                if _FIELD.fullmatch(re.sub("[-_]", "", str(name).lower())):
                    reset = _reset(inner, zone)
                    if reset is not None:
                        yield f"{name} {inner}", reset
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        waiting += [inner for inner in inside if isinstance(inner, (dict, list))][: _MOST_FIELDS - len(waiting)]


def _in_words(message: str, zone: timezone) -> Iterator[tuple[str, Reset]]:
    """The resets in the words of a message, English or Chinese, each with these words."""
    message = message[:_MOST_CHARACTERS]
    if (since_1970 := _SINCE_1970.search(message)) is not None:
        yield since_1970[0], Reset(float(since_1970[1]), is_time=True)
    if not _ABOUT_A_RESET.search(message):
        return
    for time in _TIME.findall(message)[-1:]:
        if (reset := _reset(time, zone)) is not None:
            yield time, reset
    for before in _IN.finditer(message):
        if (amounts := _AMOUNTS.match(message, before.end())) is not None:
            yield amounts[0], Reset(_sum_of(_AMOUNT.findall(amounts[0])))
    if (after := _CHINESE_AFTER.search(message)) is not None:
        yield after[0], Reset(_sum_of(_CHINESE_AMOUNT.findall(after[0])))


def _reset(value: Any, zone: timezone) -> Reset | None:
    """A number, a duration such as `6m0s` or a time as a reset; None: the value is none of these."""
    text = str(value).strip() if isinstance(value, (str, int, float)) and not isinstance(value, bool) else ""
    if _NUMBER.fullmatch(text):
        number = float(text)
        seconds = number / 1000 if number >= _FIRST_IN_MILLISECONDS else number
        return Reset(seconds, is_time=number >= _FIRST_TIME)
    if _AMOUNTS.fullmatch(text):
        return Reset(_sum_of(_AMOUNT.findall(text)))
    try:
        if (written := _TIME.fullmatch(text)) is not None:
            time = datetime.fromisoformat(re.sub(" ?(?:UTC|GMT)$", "Z", written[0], flags=re.IGNORECASE))
        else:
            time = parsedate_to_datetime(text)
        return Reset((time if time.tzinfo else time.replace(tzinfo=zone)).timestamp(), is_time=True)
    except (ValueError, OverflowError):
        return None


def _sum_of(amounts: list[tuple[str, str]]) -> float:
    return sum(float(number) * _unit(name.lower()) for number, name in amounts)


def _unit(name: str) -> float:
    """The seconds of a unit, which may be in the plural."""
    return _UNITS[name if name in _UNITS else name.removesuffix("s")]
