"""The handling of a service that fails: the waits between attempts, and a circuit breaker. Both do no I/O.

                 `threshold` failures in a row     `seconds` later, for one call
      CLOSED ------------------------> OPEN ------------------------------------> HALF_OPEN
        ^                               ^                                          |    |
        |                               +----------------- failed -----------------+    |
        +--------------------------------- succeeded -----------------------------------+

A failure may be caused by the client's own request. So the breaker opens for all requests only if several clients have
failures: no client's failures count for more than half of `threshold`. Failures that no request can have caused count
in full. For a request that something else can answer (`has_fallback`), failures in a row open the breaker,
whichever clients they come from, and for such requests only.

A service may also say itself that calls are useless for a while, or refuse its key: then the breaker is tripped for
all calls at once.

A call that its client has cancelled, or that the service has refused, is neither a success nor a failure. Therefore a
probe without a reported outcome is followed by another one after `seconds`.
"""

import enum
import random
from collections.abc import Callable
from dataclasses import dataclass

from msgspec import Struct

_MOST_DOUBLINGS = 30  # 2.0 ** 1024 is an OverflowError


def doubled(first: float, times: int, *, longest: float) -> float:
    """A wait of `first` seconds that is doubled some `times`, up to the `longest`."""
    return min(longest, first * 2.0 ** min(max(times, 0), _MOST_DOUBLINGS))


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that double from `first` to `longest` seconds, half of each random (AWS: "equal jitter").

    `jitter` returns numbers from 0 to 1.
    """

    first: float = 0.5
    longest: float = 8.0
    jitter: Callable[[], float] = random.random

    def wait(self, attempt: int) -> float:
        """Seconds to wait after a failed attempt; the first attempt is number 0."""
        return doubled(self.first, attempt, longest=self.longest) * (0.5 + self.jitter() / 2)


class BreakerState(enum.StrEnum):
    """The states of a breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker(Struct, kw_only=True):
    """Prevents calls of a service that has failed too often, except for an occasional call as a probe.

        if not breaker.allows(now):
            ...  # fail at once; `breaker.wait(now)` is an honest Retry-After
        breaker.succeeded()  # or breaker.failed(now)

    threshold   failures in a row that open the breaker; 5 is Envoy's `consecutive_5xx`
    seconds     from the opening to the first probe, and between probes; 30 is Envoy's `base_ejection_time`
    state       an open breaker becomes half open only when `allows` permits a probe
    """

    threshold: int = 5
    seconds: float = 30.0
    state: BreakerState = BreakerState.CLOSED
    _failures: int = 0
    _weight: int = 0  # the number of failures, in which no client has more than its share
    _of_clients: dict[str, int] = {}
    _open_until: float = 0.0
    _is_tripped: bool = False

    def allows(self, now: float, *, client: str | None = None, has_fallback: bool = False) -> bool:
        """Whether a call may be made now. To be called once per call, because the one that is allowed may be the probe.

        Args:
            now: in seconds, on a clock that never goes back.
            client: the client of the request, which the failures of one other client do not keep out; None: any.
            has_fallback: whether something else can answer the request.
        """
        if self.state is BreakerState.CLOSED:
            return True
        own = self._failures if client is None else self._of_clients.get(client, 0)
        if self._weight < self.threshold and not (has_fallback and own >= self.threshold):
            return True
        if now < self._open_until:
            return False
        self.state = BreakerState.HALF_OPEN
        self._open_until = now + self.seconds
        self._is_tripped = False
        return True

    def wait(self, now: float) -> float:
        """Seconds until a call may be allowed; 0 if one is allowed now."""
        return 0.0 if self.state is BreakerState.CLOSED else max(0.0, self._open_until - now)

    def trip(self, now: float, seconds: float) -> bool:
        """Open the breaker for `seconds`, because the service has announced that calls will fail until then.

        The success of a call that began earlier does not close it. Returns False if it was tripped already, whose time
        the failure of such a call does not prolong.
        """
        if self._is_tripped:
            return False
        self._weight = self._failures = self.threshold
        self.state = BreakerState.OPEN
        self._open_until = now + seconds
        self._is_tripped = True
        return True

    def succeeded(self) -> bool:
        """Count a success, whenever its call began; returns whether it closed the breaker."""
        if self._is_tripped:
            return False
        self._failures = self._weight = 0
        self._of_clients.clear()
        was_closed = self.state is BreakerState.CLOSED
        self.state = BreakerState.CLOSED
        return not was_closed

    def failed(self, now: float, *, client: str | None = None, has_fallback: bool = False) -> bool:
        """Count a failure; returns whether it opened the breaker. It does not prolong the time of an open breaker.

        Args:
            now: as in `allows`.
            client: the client of the request; None: no request can have caused the failure.
            has_fallback: as in `allows`.
        """
        self._failures += 1
        self._weigh(client)
        opens = self._failures >= self.threshold and (has_fallback or self._weight >= self.threshold)
        if self.state is BreakerState.OPEN or (self.state is BreakerState.CLOSED and not opens):
            return False
        self.state = BreakerState.OPEN
        self._open_until = now + self.seconds
        return True

    def _weigh(self, client: str | None) -> None:
        """Add a failure to the weight, unless its client's share is used up."""
        counted, share = 0, 1
        if client is not None:
            share = min((self.threshold + 1) // 2, self.threshold - 1)
            counted = self._of_clients.get(client, 0)
            if counted or self._weight < self.threshold:  # so that there are never more clients than `threshold`
                self._of_clients[client] = counted + 1
        if counted < share and self._weight < self.threshold:
            self._weight += 1
