"""When to try an upstream call again, and after how long. Never once a byte of its answer was shown."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from proxy.core.errors import ProxyError, UpstreamError, UpstreamRefused, UpstreamTimeout

_TOO_MANY_REQUESTS = 429
_REQUEST_TIMEOUT = 408


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
    if failure.headers.get("x-should-retry") == "false" or isinstance(failure, UpstreamTimeout):
        return False
    if isinstance(failure, UpstreamRefused):
        return failure.status in (_REQUEST_TIMEOUT, _TOO_MANY_REQUESTS)
    return isinstance(failure, UpstreamError)


def asked_delay(failure: ProxyError, *, longest: float) -> float | None:
    """The `Retry-After` of a failure in seconds, if it gave one that is worth waiting for."""
    value = failure.headers.get("retry-after", "")
    return float(value) if value.isdigit() and float(value) <= longest else None
