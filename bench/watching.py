"""What it costs to be watched: the proxy with its metrics and log lines, without them, and being scraped under load."""

import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median

from bench.scenarios import Scenario, run
from bench.targets import Target, proxy

_OFF = "{metrics: false, log_level: error}"
_ROUNDS = 3
_BETWEEN = 0.2  # seconds between two scrapes


@dataclass(frozen=True, slots=True)
class Watching:
    """`on` and `off`: CPU per request, microseconds. Scrapes in seconds; sizes of the first and the last, bytes."""

    on: float
    off: float
    scrapes: tuple[float, ...]
    sizes: tuple[int, int]


def watching(behind: Target, scale: float) -> Watching:
    """Both in turn, and scrapes while requests come."""
    load = Scenario("watched", "closed", "whole", connections=32, seconds=4 * scale)
    with proxy(behind) as on, proxy(behind, telemetry=_OFF) as off:
        pairs = [(run(load, on).per_answer, run(load, off).per_answer) for _ in range(_ROUNDS)]
        with ThreadPoolExecutor(1) as beside:
            under_way = beside.submit(run, load, on)
            scrapes: list[tuple[float, int]] = []
            while not under_way.done():
                scrapes.append(_scrape(on))
                time.sleep(_BETWEEN)
    seconds, sizes = zip(*scrapes, strict=True)
    return Watching(median(a for a, _ in pairs), median(b for _, b in pairs), seconds, (sizes[0], sizes[-1]))


def _scrape(target: Target) -> tuple[float, int]:
    began = time.monotonic()
    with urllib.request.urlopen(f"http://127.0.0.1:{target.port}/metrics", timeout=30) as answer:
        size = len(answer.read())
    return time.monotonic() - began, size
