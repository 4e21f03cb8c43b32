"""What each client may use, counted in this process: requests per minute, and requests that are open."""

from collections import defaultdict, deque
from secrets import token_hex

from proxy.ports import Clock, Rate

WINDOW_SECONDS = 60


class LocalRates:
    """Implements `ports.Rates` for one process: a number for each second, so time and memory are constant.

    Args:
        clock: gives the seconds in which requests are counted.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._clients: dict[str, _Minute] = {}

    async def hit(self, client: str, limit: int) -> Rate:
        """Count one request unless it is beyond `limit`."""
        minute = self._clients.get(client)
        if minute is None:
            minute = self._clients[client] = _Minute()
        return minute.hit(self._clock.monotonic(), limit)


class _Minute:
    """The requests of one client in the last minute: a pair of second and number for each second with requests."""

    __slots__ = ("_seconds", "_total")

    def __init__(self) -> None:
        self._seconds: deque[list[int]] = deque()  # the oldest first
        self._total = 0

    def hit(self, now: float, limit: int) -> Rate:
        """Count one request at `now` unless it is beyond `limit`."""
        second, seconds = int(now), self._seconds
        while seconds and seconds[0][0] <= second - WINDOW_SECONDS:
            self._total -= seconds.popleft()[1]
        allowed = self._total < limit
        if allowed:
            if not seconds or seconds[-1][0] != second:
                seconds.append([second, 0])
            seconds[-1][1] += 1
            self._total += 1
        return rate_of(limit, self._total, allowed=allowed, reset=seconds[0][0] + WINDOW_SECONDS - now)


def rate_of(limit: int, total: int, *, allowed: bool, reset: float) -> Rate:
    """What is left of `limit` once `total` requests are counted, this one among them if it is `allowed`."""
    return Rate(allowed, limit, max(0, limit - total), max(0.0, reset))


class LocalLeases:
    """Implements `ports.Leases` for one process."""

    def __init__(self) -> None:
        self._held: defaultdict[str, set[str]] = defaultdict(set)

    async def acquire(self, client: str, most: int) -> str | None:
        """A lease; None where `client` has `most` of them."""
        held = self._held[client]
        if len(held) >= most:
            return None
        lease = token_hex(16)
        held.add(lease)
        return lease

    async def release(self, client: str, lease: str) -> None:
        """Return the lease of a request that has ended."""
        self._held[client].discard(lease)
