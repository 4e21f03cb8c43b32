"""When to try an upstream call again, and after how long. Never once a byte of its answer was shown."""

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime

from proxy.loop.errors import Overloaded, ProxyError, UpstreamDown, UpstreamError, UpstreamRefused, UpstreamTimeout

_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
_TOO_MANY_REQUESTS = 429
_REQUEST_TIMEOUT = 408
# What OpenAI's SDKs try again, besides 5xx.
_MAY_PASS = frozenset({_REQUEST_TIMEOUT, 409, _TOO_MANY_REQUESTS})
# No key, no balance, not permitted, no such model there, too slow, too much.
_OUR_ACCOUNT = frozenset({401, 402, 403, 404, _REQUEST_TIMEOUT, _TOO_MANY_REQUESTS})


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays that double from `first` to `longest` seconds, each spread by half (AWS: "equal jitter")."""

    retries: int
    first: float = 0.5
    longest: float = 8.0
    jitter: Callable[[], float] = random.random

    def delays(self) -> Iterator[float]:
        """The wait before each retry."""
        for attempt in range(self.retries):
            delay = min(self.longest, self.first * 2**attempt)
            yield delay * (0.5 + self.jitter() / 2)


def is_transient(failure: ProxyError) -> bool:
    """Whether the same call may well succeed a moment later."""
    if failure.headers.get("x-should-retry") == "false" or isinstance(failure, UpstreamTimeout | UpstreamDown):
        return False
    if isinstance(failure, UpstreamRefused):
        return failure.status in _MAY_PASS
    return isinstance(failure, UpstreamError)


def is_outage(failure: ProxyError) -> bool:
    """Whether a failure counts against the upstream's health: what it refuses, it is well enough to refuse."""
    return isinstance(failure, UpstreamError) and not isinstance(failure, UpstreamRefused)


def may_work_elsewhere(failure: ProxyError) -> bool:
    """Whether another upstream may do what this one would not: it is down, slow, full, or refuses our account.

    What the request itself is at fault for, it is at fault for everywhere.
    """
    if isinstance(failure, UpstreamRefused):
        return failure.of_account is not None or failure.status in _OUR_ACCOUNT
    return isinstance(failure, UpstreamError | Overloaded)


def asked_delay(failure: ProxyError, now: float) -> float:
    """How many seconds from `now`, a wall clock's, a failure asks to wait; 0 where it does not say, or it is over.

    `retry-after-ms` is OpenAI's, and finer than Retry-After: seconds, or a date (RFC 9110, section 10.2.3).
    """
    milliseconds = failure.headers.get("retry-after-ms", "")
    if _NUMBER.fullmatch(milliseconds):
        return float(milliseconds) / 1000
    value = failure.headers.get("retry-after", "")
    if _NUMBER.fullmatch(value):
        return float(value)
    return max(0.0, _timestamp(value, otherwise=now) - now)


def _timestamp(date: str, *, otherwise: float) -> float:
    try:
        when = parsedate_to_datetime(date)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return otherwise
