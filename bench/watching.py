"""What it costs to be watched: the proxy with its metrics and log lines, without them, with traces, and scraped."""

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
    """CPU per request in microseconds: `on` as shipped, `off`, and `traced`, as shipped with traces besides.

    Scrapes in seconds; sizes of the first and the last, bytes.
    """

    on: float
    off: float
    traced: float
    scrapes: tuple[float, ...]
    sizes: tuple[int, int]


def watching(behind: Target, scale: float) -> Watching:
    """All in turn, and scrapes while requests come. The upstream takes the traces too: it answers whatever it gets."""
    traces = f"{{otlp_endpoint: 'http://127.0.0.1:{behind.port}'}}"
    load = Scenario("watched", "closed", "whole", connections=32, seconds=4 * scale)
    with proxy(behind) as on, proxy(behind, telemetry=_OFF) as off, proxy(behind, telemetry=traces) as traced:
        costs = [[run(load, target).per_answer for target in (on, off, traced)] for _ in range(_ROUNDS)]
        with ThreadPoolExecutor(1) as beside:
            under_way = beside.submit(run, load, on)
            scrapes: list[tuple[float, int]] = []
            while not under_way.done():
                scrapes.append(_scrape(on))
                time.sleep(_BETWEEN)
    seconds, sizes = zip(*scrapes, strict=True)
    shipped, without, with_traces = (median(cost) for cost in zip(*costs, strict=True))
    return Watching(shipped, without, with_traces, seconds, (sizes[0], sizes[-1]))


def _scrape(target: Target) -> tuple[float, int]:
    began = time.monotonic()
    with urllib.request.urlopen(f"http://127.0.0.1:{target.port}/metrics", timeout=30) as answer:
        size = len(answer.read())
    return time.monotonic() - began, size
