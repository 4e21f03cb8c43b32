"""A circuit breaker, pure: its caller passes the time.

                 `threshold` failures in a row     `seconds` later, for one call
      CLOSED ------------------------> OPEN ------------------------------------> HALF_OPEN
        ^                               ^                                          |    |
        |                               +----------------- failed -----------------+    |
        +--------------------------------- succeeded -----------------------------------+

A failure may be the fault of the client whose request it was. It opens the breaker for everybody only where clients
agree: no client's failures count for more than half of `threshold`. Failures that no request can have caused count in
full. A request that something else can answer (a *spare*, such as a fallback model) need not wait for that agreement:
any failures in a row open the breaker for it, and for it alone.

A call that its client gave up, or that was refused for what it asked, is neither a success nor a failure. A probe whose
outcome is never reported is therefore followed by the next one after another `seconds`.
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
    _weight: int = 0  # of the failures, with no more than its share for any client
    _of_clients: dict[str, int] = {}
    _shut_until: float = 0.0
    _state: State = _CLOSED

    @property
    def state(self) -> State:
        """Where it stands; an open one becomes half open only when it is asked."""
        return self._state

    def allows(self, now: float, *, spare: bool = False) -> bool:
        """Whether a call may be made now; to be asked once for each call, for a True may be the one probe.

        Args:
            now: in seconds, on a clock that never goes back.
            spare: whether something else can answer in its place.
        """
        if self._state is _CLOSED or not (spare or self._is_agreed):
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
        self._failures = self._weight = 0
        self._of_clients.clear()
        if self._state is _CLOSED:
            return False
        self._state = _CLOSED
        return True

    def failed(self, now: float, *, client: str | None = None, spare: bool = False) -> bool:
        """A call did not; whether this opened the breaker. One that began before that does not keep it open longer.

        Args:
            now: as in `allows`.
            client: whose request it was; None: no request can have caused the failure.
            spare: as in `allows`.
        """
        self._failures += 1
        self._weigh(client)
        opens = self._failures >= self.threshold and (spare or self._is_agreed)
        if self._state is State.OPEN or (self._state is _CLOSED and not opens):
            return False
        self._state = State.OPEN
        self._shut_until = now + self.seconds
        return True

    @property
    def _is_agreed(self) -> bool:
        return self._weight >= self.threshold

    def _weigh(self, client: str | None) -> None:
        if self._is_agreed:
            return
        if client is not None:
            share = min((self.threshold + 1) // 2, self.threshold - 1)
            counted = self._of_clients.get(client, 0)
            if counted >= share:
                return
            self._of_clients[client] = counted + 1
        self._weight += 1
