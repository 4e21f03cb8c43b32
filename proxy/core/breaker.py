"""A circuit breaker, pure: whoever asks tells it the time.

                 `failures` in a row               `seconds` later, for one call
      CLOSED ------------------------> OPEN ------------------------------------> HALF_OPEN
        ^                               ^                                          |    |
        |                               +----------------- failed -----------------+    |
        +--------------------------------- succeeded -----------------------------------+

What is no sign of either, such as a call that its client gave up or a refusal that is the request's own fault, is not
told to it. A probe of which nothing is heard again is therefore followed by the next one after another `seconds`.
"""

import enum

from msgspec import Struct


class State(enum.StrEnum):
    """Where a breaker stands."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


_CLOSED = State.CLOSED  # to look a member up takes four times as long as a name, and this is asked at each call


class Breaker(Struct, kw_only=True):
    """Keeps calls from what has failed too often, and lets one through now and then to see whether it has recovered.

        if not breaker.allows(now):
            ...  # fail at once; `breaker.wait(now)` is an honest Retry-After
        breaker.succeeded()  # or breaker.failed(now)

    threshold   failures in a row that open it; 5 is Envoy's `consecutive_5xx`
    seconds     from its opening to the first probe, and between two; 30 is Envoy's `base_ejection_time`
    """

    threshold: int = 5
    seconds: float = 30.0
    _failures: int = 0
    _shut_until: float = 0.0
    _state: State = _CLOSED

    @property
    def state(self) -> State:
        """Where it stands; an open one becomes half open only when it is asked."""
        return self._state

    def allows(self, now: float) -> bool:
        """Whether a call may be made now; to be asked once for each call, for a True may be the one probe."""
        if self._state is _CLOSED:
            return True
        if now < self._shut_until:
            return False
        self._state = State.HALF_OPEN
        self._shut_until = now + self.seconds
        return True

    def wait(self, now: float) -> float:
        """Seconds until a call may be allowed; 0 where one is now."""
        return 0.0 if self._state is _CLOSED else max(0.0, self._shut_until - now)

    def succeeded(self) -> bool:
        """A call did what it should, whenever it began; whether this closed the breaker."""
        self._failures = 0
        if self._state is _CLOSED:
            return False
        self._state = _CLOSED
        return True

    def failed(self, now: float) -> bool:
        """A call did not; whether this opened the breaker. One that began before that does not keep it open longer."""
        self._failures += 1
        if self._state is State.OPEN or (self._state is _CLOSED and self._failures < self.threshold):
            return False
        self._state = State.OPEN
        self._shut_until = now + self.seconds
        return True
