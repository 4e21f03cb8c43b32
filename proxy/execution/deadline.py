"""The deadline of a run."""

import math
from collections.abc import Callable

from msgspec import Struct

from proxy.recording.recording import note_timed


class Deadline(Struct):
    """The end of a run's time, by a timer in seconds that never goes back."""

    timer: Callable[[], float]
    at: float

    def seconds_left(self) -> float:
        """Seconds until the deadline; 0 once it has passed."""
        left = max(0.0, self.at - self.timer())
        if not left:
            note_timed("the deadline of the request passed")
        return left

    def end(self) -> None:
        """Mark the deadline as passed: its timer has fired, with uvloop up to 1.5 ms before the clock gets there."""
        self.at = -math.inf
