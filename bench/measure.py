"""The plan of a benchmark: what is run, in which order, how often."""

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from statistics import median

from bench.agents import Agent, agents
from bench.bursts import CONNECTIONS, late_in_a_burst
from bench.neighbour import Seen, neighbours, played
from bench.processes import cores
from bench.scenarios import Sample, Scenario, bytes_per_stream, run
from bench.targets import Target, all_targets, nginx, proxy, start_up, upstream
from bench.watching import Watching, watching

_PACE = 20  # milliseconds between two chunks of a stream


@dataclass(frozen=True, slots=True)
class Plan:
    """How thoroughly: how many rounds, and by how much each run is shortened."""

    rounds: int
    scale: float = 1.0
    peers: bool = False


@dataclass(slots=True)
class Results:
    """Everything that was seen: samples by scenario and target, and the figures that are no samples."""

    samples: dict[tuple[str, str], list[Sample]] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)
    start_seconds: float = 0.0
    bursts: dict[tuple[str, int], tuple[float, float]] = field(default_factory=dict)
    many: Sample | None = None
    many_asked: int = 0
    curves: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    workers: dict[int, tuple[float, float]] = field(default_factory=dict)
    watching: Watching | None = None
    agents: Sequence[Agent] = ()
    neighbours: Sequence[Seen] = ()
    targets: Sequence[str] = ()

    def middle(self, scenario: str, target: str, figure: str) -> float | None:
        """The median of a figure over the rounds; None where it was not measured."""
        found = self.samples.get((scenario, target))
        return median(_figure(sample, figure) for sample in found) if found else None

    def ratio(self, run: tuple[str, str], beside: tuple[str, str], figure: str) -> float | None:
        """The median over the rounds of what a figure of one scenario and target is to another's in the same round.

        A neighbour on the machine may be loud for minutes; the two runs of one round are seconds apart.
        """
        pairs = zip(self.samples.get(run, ()), self.samples.get(beside, ()), strict=False)
        figures = [(_figure(one, figure), _figure(other, figure)) for one, other in pairs]
        ratios = [one / other for one, other in figures if other]
        return median(ratios) if ratios else None


def _figure(sample: Sample, name: str) -> float:
    value: float = getattr(sample if hasattr(sample, name) else sample.figures, name)
    return value


REQUEST_1, REQUEST_32, REQUEST_256 = "request, 1 connection", "request, 32 connections", "request, 256 connections"
AT_RATE = "request, 500 a second"
CHUNK, LOOP_CHUNK = "chunk, 100 streams", "chunk of a tool loop, 100 streams"
LOOP_1, LOOP_32 = "tool loop, 1 connection", "tool loop, 32 connections"


def scenarios(scale: float) -> list[Scenario]:
    """Those of a round, in such an order that what is divided by each other runs one after the other."""
    seconds = 2 * scale
    chunks = int(200 * max(scale, 0.5))
    request = Scenario(REQUEST_32, "closed", "whole", connections=32, seconds=seconds)
    looping = replace(request, name=LOOP_32, model="tool-0-0", tools=True)
    streams = Scenario(CHUNK, "streams", f"paced-{chunks}-{_PACE}", connections=100, seconds=_PACE / 1000, stream=True)
    return [
        replace(request, name=REQUEST_1, connections=1),
        replace(looping, name=LOOP_1, connections=1),
        replace(request, name=AT_RATE, kind="open", rate=500),
        replace(request, name=REQUEST_256, connections=256),
        request,
        looping,
        streams,
        replace(streams, name=LOOP_CHUNK, model=f"tool-{chunks}-{_PACE}", tools=True),
    ]


def measure(plan: Plan) -> Results:
    """Everything."""
    results = Results()
    with all_targets(peers=plan.peers) as targets:
        results.targets = [target.name for target in targets]
        _warm_up(targets)
        for number in range(plan.rounds):
            _tell(f"round {number + 1} of {plan.rounds}")
            _round(plan, targets, results)
        _tell("streams in a burst")
        results.bursts = {
            (target.name, connections): late_in_a_burst(target, connections, plan.scale)
            for connections in CONNECTIONS
            for target in targets
        }
    _tell("agents")
    results.agents = list(agents(rounds=max(1, plan.rounds // 3), seconds=plan.scale, peers=plan.peers))
    _tell("a hostile neighbour")
    inputs = played() if plan.scale == 1.0 else played()[::6]
    results.neighbours = list(neighbours(inputs, 2 * plan.scale))
    with upstream() as behind:
        _tell("memory of open streams")
        streams = int(1000 * min(1.0, plan.scale * 2))
        starts: tuple[Callable[[Target], AbstractContextManager[Target | None]], ...] = (nginx, proxy)
        for start in starts:
            with start(behind) as target:
                if target is not None:
                    results.memory[target.name] = bytes_per_stream(target, streams=streams)
        _tell("start-up")
        results.start_seconds = median(start_up(behind) for _ in range(plan.rounds))
        with proxy(behind) as ours:
            _tell("many streams")
            results.many_asked = int(5000 * min(1.0, plan.scale * 2))
            many = Scenario("many", "streams", "paced-10-1000", results.many_asked, stream=True, seconds=5.0)
            results.many = run(many, ours)
        _tell("curves")
        results.curves = _curves(behind, plan.scale)
        _tell("being watched")
        results.watching = watching(behind, plan.scale)
        _tell("workers")
        results.workers = {workers: _with_workers(behind, workers, plan.scale) for workers in (1, 2)}
    return results


def _warm_up(targets: Iterable[Target]) -> None:
    """What is imported or connected at the first request is no part of what any costs."""
    for target in targets:
        run(Scenario("warm-up", "closed", "whole", connections=32, seconds=0.5), target)
        run(Scenario("warm-up", "streams", "burst-10", connections=10, seconds=0.1, stream=True), target)


def _round(plan: Plan, targets: Iterable[Target], results: Results) -> None:
    for scenario in scenarios(plan.scale):
        for target in targets:
            if target.name == "proxy" or not scenario.tools:  # nobody else runs any
                results.samples.setdefault((scenario.name, target.name), []).append(run(scenario, target))


def _curves(behind: Target, scale: float) -> dict[str, list[tuple[int, float]]]:
    """Cost over size: what grows faster than its size would show here."""
    base = Scenario("curve", "closed", "whole", connections=8, seconds=2 * scale)
    looping = replace(base, model="tool-0-0", tools=True)
    burst = replace(base, kind="streams", stream=True, connections=20, seconds=0.1)
    with proxy(behind) as target:
        return {
            "history, messages; CPU us per request": [
                (size, run(replace(base, messages=size), target).per_answer) for size in (2, 10, 100, 1000)
            ],
            "history, messages; CPU us per request of a tool loop": [
                (size, run(replace(looping, messages=size), target).per_answer) for size in (2, 10, 100, 1000)
            ],
            "client tools; CPU us per request of a tool loop": [
                (size, run(replace(looping, client_tools=size), target).per_answer) for size in (1, 10, 100)
            ],
            "chunks of a stream, sent at once; CPU us per chunk": [
                (size, run(replace(burst, model=f"burst-{size}"), target).per_chunk) for size in (10, 100, 1000, 10000)
            ],
            "connections; CPU us per request": [
                (size, run(replace(base, connections=size), target).per_answer) for size in (1, 10, 100, 1000)
            ],
        }


def _with_workers(behind: Target, workers: int, scale: float) -> tuple[float, float]:
    """Requests per second and CPU per request, on all cores."""
    with proxy(behind, workers=workers, pinned=False) as target:
        sample = run(Scenario("workers", "closed", "whole", connections=64, seconds=4 * scale), target)
        return sample.rate, sample.per_answer


def _tell(what: str) -> None:
    pinned = "" if cores()[0] else " (one core only: nothing is pinned)"
    sys.stderr.write(f"bench: {what}{pinned}\n")
