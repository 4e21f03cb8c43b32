"""Tells whether a SIGHUP means that the server's terminal is gone, which stops the server, or asks for a reload.

    SIGHUP, and the terminal goes within two seconds of it        --> the server drains and stops
    any other SIGHUP: with a living terminal, without a terminal,
    or long after it has gone (the server was disowned)           --> the configuration is read again

When a terminal goes, the kernel and the shell send the signal at about the same time, in either order.
"""

import os
from collections.abc import Callable
from typing import Final

_TOGETHER_SECONDS: Final = 2.0


def has_terminal() -> bool:
    """Whether this process has a controlling terminal that still exists."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


class Hangup:
    """Notices the end of the terminal that the process was started on.

    Args:
        now: the time in seconds.
        is_ignored: whether SIGHUP was ignored when the process started, as with `nohup`. Then nothing is noticed.
        has_terminal: whether the process has a terminal now.
    """

    def __init__(
        self, *, now: Callable[[], float], is_ignored: bool = False, has_terminal: Callable[[], bool] = has_terminal
    ) -> None:
        self._now = now
        self._has_terminal = has_terminal
        self._seen_at = now() if not is_ignored and has_terminal() else None
        self._gone_at: float | None = None
        self._signal_at: float | None = None

    def signal(self) -> None:
        """Note that SIGHUP has arrived."""
        self._signal_at = self._now()
        self._observe()

    def look(self) -> bool:
        """Whether the terminal has gone with the signal. Call this several times a second; it returns True once."""
        self._observe()
        if self._seen_at is None or self._gone_at is None:
            return False
        # It went since the last look, which may be long ago if the process was busy.
        first, last = self._seen_at - _TOGETHER_SECONDS, self._gone_at + _TOGETHER_SECONDS
        has_hung_up = self._signal_at is not None and first <= self._signal_at <= last
        if has_hung_up or self._now() > last:
            self._seen_at = None  # told, or gone unnoticed
        return has_hung_up

    def _observe(self) -> None:
        if self._seen_at is None or self._gone_at is not None:
            return
        if self._has_terminal():
            self._seen_at = self._now()
        else:
            self._gone_at = self._now()
