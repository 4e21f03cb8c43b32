"""Open streams while others ask for as much as they can get: how late their chunks come."""

import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from bench.scenarios import Scenario, run
from bench.targets import Target

CONNECTIONS = (256, 1000)
_ROUNDS = 3
_HEAD_START = 0.5  # seconds in which the burst gets going
_PACE = 20  # milliseconds between two chunks of a stream


def late_in_a_burst(target: Target, connections: int, scale: float) -> tuple[float, float]:
    """Median and worst of a few runs' p99 and longest delays of a chunk, in microseconds, 100 streams."""
    seen = [_once(target, connections, scale) for _ in range(_ROUNDS)]
    return median(p99 for p99, _ in seen), max(worst for _, worst in seen)


def _once(target: Target, connections: int, scale: float) -> tuple[float, float]:
    chunks = int(100 * scale)
    seconds = chunks * _PACE / 1000
    burst = Scenario("burst", "closed", "whole", connections, seconds=_HEAD_START + seconds * 1.25)
    streams = Scenario("streams", "streams", f"paced-{chunks}-{_PACE}", 100, stream=True, seconds=_PACE / 1000)
    with ThreadPoolExecutor(1) as beside:
        under_way = beside.submit(run, burst, target)
        time.sleep(_HEAD_START)
        figures = run(streams, target).figures
        under_way.result()
    return figures.p99, figures.worst
