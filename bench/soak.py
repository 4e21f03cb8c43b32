"""Everything that can go wrong, for minutes on end: does anything grow, and is every answer one that may be given?

    python -m bench.soak [--minutes 3] [--seed N] [--visitors 100]

    warm-up -> rest: the baseline -> load -> rest: is all as it was?

Exit code 1: something has grown, an answer was not allowed, or the log has an error in it.
"""

import argparse
import asyncio
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import orjson

from bench.faulty import FAULTS
from bench.processes import PYTHON, cores, first_line, memory, running
from bench.targets import ROOT, Target, serving
from bench.visits import HASTY_KEY, KEY, MAX_BODY, Visitors

# What each visit may leave behind, by the slope of memory over the last two thirds of the load. One that is never let
# go of leaves more than ten times as much.
MOST_BYTES_PER_VISIT = 2048
# Idle connections: a few may be there, or not.
_SLACK_DESCRIPTORS = 8
_WARM_UP = 0.2  # of the time
_REST_SECONDS = 60.0
_SAMPLE_SECONDS = 1.0
_LEVELS = re.compile(rb'"level": ?"(error|critical)"')

# As shipped but for its times, which are short, so that in minutes each of them is over many times.
_CONFIG = """
server: {{port: 0, max_body_bytes: {max_body}, keepalive_seconds: 1, header_timeout_seconds: 3, body_timeout_seconds: 3,
         send_timeout_seconds: 10, idle_timeout_seconds: 5}}
clients:
  - {{name: soak, key: {key}, admin: true}}
  - {{name: hasty, key: {hasty_key}, requests_per_minute: 120, max_concurrent_requests: 2}}
upstreams:
  steady: {{base_url: "http://127.0.0.1:{upstream}/v1", api_key: steady-upstream-key}}
  faulty: {{base_url: "http://127.0.0.1:{upstream}/v1", api_key: faulty-upstream-key, timeouts: {{read: 2}},
           breaker: {{failures: 10, seconds: 1}}}}
  gone: {{base_url: "http://127.0.0.1:9/v1", api_key: gone-upstream-key}}
models: {models}
tools:
  current_time: {{type: clock}}
  lookup: {{type: http, description: Looks a word up., url: "http://127.0.0.1:{upstream}/lookup/{{word}}", timeout: 1,
           cache_seconds: 5, parameters: {{type: object, properties: {{word: {{type: string}}}}, required: [word]}}}}
state: {{ttl: 15, max_entries: 300}}
limits: {{deadline: 10, max_duration: 120}}
"""


@dataclass(frozen=True, slots=True)
class Sample:
    """The proxy from outside, at one moment."""

    at: float
    visits: int
    memory: int
    descriptors: int
    sockets: int
    tasks: int
    open_requests: int
    state_entries: int


class Watcher:
    """Takes samples."""

    def __init__(self, target: Target, visitors: Visitors) -> None:
        self._target = target
        self._visitors = visitors
        self._client = httpx.AsyncClient(headers={"connection": "close"}, timeout=30, trust_env=False)

    async def aclose(self) -> None:
        """Close what it has open."""
        await self._client.aclose()

    async def sample(self) -> Sample:
        """Now."""
        scraped = (await self._client.get(f"http://127.0.0.1:{self._target.port}/metrics")).text
        links = _links(self._target.pid)
        return Sample(
            at=time.monotonic(),
            visits=self._visitors.seen.total(),
            memory=memory(self._target.pid),
            descriptors=len(links),
            sockets=sum(link.startswith("socket:") for link in links),
            tasks=_gauge(scraped, "asyncio_tasks"),
            open_requests=_gauge(scraped, "open_requests"),
            state_entries=_gauge(scraped, "state_entries"),
        )

    async def until(self, stop: asyncio.Event) -> list[Sample]:
        """One each second."""
        samples = []
        while not stop.is_set():
            samples.append(await self.sample())
            await asyncio.sleep(_SAMPLE_SECONDS)
        return samples

    async def rested(self, baseline: Sample | None = None) -> Sample:
        """When nothing is open any more and all is as in `baseline`, or as it will be, for nothing changes any more."""
        ends, before = time.monotonic() + _REST_SECONDS, None
        while True:
            now = await self.sample()
            calm = not now.open_requests and (not grown(baseline, now) if baseline else _same(before, now))
            if calm or now.at > ends:
                return now
            before = now
            await asyncio.sleep(_SAMPLE_SECONDS * (1 if baseline else 10))


def _links(pid: int) -> list[str]:
    """What the descriptors of a process stand for."""
    links = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            links.append(str(path.readlink()))
    return links


def _gauge(scraped: str, name: str) -> int:
    found = re.search(rf"^toolproxy_{name} ([0-9.e+]+)$", scraped, re.MULTILINE)
    return int(float(found[1])) if found else 0


def _same(one: Sample | None, other: Sample) -> bool:
    return one is not None and (one.descriptors, one.tasks) == (other.descriptors, other.tasks)


def grown(baseline: Sample, now: Sample) -> list[str]:
    """What there is more of than before."""
    return [
        f"{name}: {before}, now {after}"
        for name, slack in (("descriptors", _SLACK_DESCRIPTORS), ("tasks", 0), ("open_requests", 0))
        if (after := getattr(now, name)) > (before := getattr(baseline, name)) + slack
    ]


def bytes_per_visit(samples: list[Sample]) -> float:
    """How memory grows over the last two thirds: from the least of the one to the least of the other.

    What is between is the conversations of that moment, a megabyte and more where somebody reads slowly.
    """
    third = len(samples) // 3
    middle, last = (min(part, key=lambda sample: sample.memory) for part in (samples[third:-third], samples[-third:]))
    return (last.memory - middle.memory) / (last.visits - middle.visits)


@contextmanager
def upstream(seed: str) -> Iterator[int]:
    """The faulty upstream's port."""
    with running([PYTHON, "-m", "bench.faulty", seed], cores=cores()[1], cwd=ROOT) as process:
        yield int(first_line(process))


def configuration(port: int) -> str:
    """Of the proxy."""
    models: dict[str, object] = {name: {"upstream": "steady"} for name in ("well", "long", "tools", "mixed")}
    models |= {name: {"upstream": "faulty"} for name in FAULTS}
    models |= {"gone": {"upstream": "gone"}, "rescued": {"upstream": "gone", "model": "well", "fallbacks": ["well"]}}
    keys = {"key": KEY, "hasty_key": HASTY_KEY}
    return _CONFIG.format(upstream=port, models=orjson.dumps(models).decode(), max_body=MAX_BODY, **keys)


async def soak(target: Target, *, seconds: float, seed: str, many: int) -> list[str]:
    """All of it; what is not as it should be."""
    visitors = Visitors(target.port)
    watcher = Watcher(target, visitors)
    try:
        _tell("before", await watcher.sample())
        await _under_load(watcher, visitors, seconds * _WARM_UP, f"{seed}:warm-up", many)
        baseline = await watcher.rested()
        _tell("baseline", baseline)
        samples = await _under_load(watcher, visitors, seconds * (1 - _WARM_UP), seed, many)
        for part in (0, 1, 2, 3):
            _tell("load", samples[(len(samples) - 1) * part // 3])
        after = await watcher.rested(baseline)
        _tell("after", after)
    finally:
        await visitors.aclose()
        await watcher.aclose()
    slope = bytes_per_visit(samples)
    print(f"\nmemory: {slope:+,.0f} bytes for each visit (at the most {MOST_BYTES_PER_VISIT:,})")
    print(", ".join(f"{kind} {count:,}" for kind, count in sorted(visitors.seen.items())))
    leaking = [f"memory: {slope:,.0f} bytes for each visit"] if slope > MOST_BYTES_PER_VISIT else []
    return [*grown(baseline, after), *leaking, *visitors.broken]


async def _under_load(watcher: Watcher, visitors: Visitors, seconds: float, seed: str, many: int) -> list[Sample]:
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, stop.set)
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(watcher.until(stop))
        group.create_task(visitors.come(many, seed, stop))
    return watching.result()


def _tell(when: str, seen: Sample) -> None:
    print(
        f"{when:>9}: {seen.visits:7,} visits, {seen.memory / 1e6:6.1f} MB, {seen.descriptors:4} descriptors, "
        f"{seen.sockets:4} sockets, {seen.tasks:4} tasks, {seen.open_requests:4} open requests, "
        f"{seen.state_entries:4} kept",
        flush=True,
    )


def errors_in(log: Path) -> list[str]:
    """Lines of the log that nothing of this should bring about."""
    return [line.decode() for line in log.read_bytes().splitlines() if _LEVELS.search(line)]


def main() -> None:
    """As the module says."""
    parser = argparse.ArgumentParser(prog="bench.soak", description="Everything that can go wrong, for minutes on end.")
    parser.add_argument("--minutes", type=float, default=3.0, help="of load, the warm-up included (default 3)")
    parser.add_argument("--seed", default=str(random.SystemRandom().randrange(10**6)), help="of all dice")
    parser.add_argument("--visitors", type=int, default=100, help="at the same time")
    asked = parser.parse_args()
    print(f"seed {asked.seed}, {asked.minutes:g} minutes, {asked.visitors} visitors at a time", flush=True)
    with tempfile.TemporaryDirectory() as directory, upstream(asked.seed) as port:
        where = Path(directory)
        with serving(configuration(port), where) as target:
            if (mine := cores()[1]) is not None:
                os.sched_setaffinity(0, mine)
            wrong = asyncio.run(soak(target, seconds=asked.minutes * 60, seed=asked.seed, many=asked.visitors))
        wrong += errors_in(where / "log")
    print("\n" + ("\n".join(wrong[:50]) or "Nothing has grown, and every answer was one that may be given."))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
