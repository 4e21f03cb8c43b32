"""A hostile neighbour: how late the chunks of other clients' streams come while one client sends the worst inputs.

    python -m bench.neighbour [NAME ...] [--seconds N]      exit code 1: a promise of docs/security.md does not hold

A hundred streams with a chunk every 20 ms run through the proxy, and beside them one client sends an input of
`bench.inputs` again and again, at the largest size that the limits as shipped allow. Each chunk carries the time of its
sending by the upstream, on the clock that all processes of the machine share; a delay is what lies between that and the
chunk's arrival at its client, in a third process. The same streams without that client, before each ten inputs, show
what of it is the machine's. Where nginx is installed, it relays the streams and the inputs of clients in the same way.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.inputs import INPUTS
from bench.load import Figures
from bench.processes import TARGET_PRIORITY, TIMING_PRIORITY, come_first, tree
from bench.scenarios import Scenario, run
from bench.stalls import CONFIG, hostile_world, say
from bench.targets import KEY, Target, free_port, nginx, serving, upstream

# What docs/security.md promises, in microseconds.
P999, LONGEST = 25_000.0, 100_000.0
_STREAMS, _PACE = 100, 20  # milliseconds between two chunks of a stream
_CONTROL_EVERY = 10
CONTROL = ""
_LOOK_SECONDS = 0.002

_PACED = """  paced: {{base_url: "http://127.0.0.1:{port}/v1", api_key: bench-upstream-key}}"""
_ANY_MODEL = ', "*": {upstream: paced}'


@dataclass(frozen=True, slots=True)
class Seen:
    """What an input did to the streams of others; without a name it is the control, beside nobody.

    Attributes:
        target: the name of what the streams went through.
        name: the input.
        status: of its last answer.
        count: how often it was sent.
        figures: the delays of the chunks, in microseconds.
    """

    target: str
    name: str
    status: int
    count: int
    figures: Figures


def neighbours(names: Sequence[str], seconds: float) -> Iterator[Seen]:
    """The figures of the proxy beside each of these inputs, and then those of nginx beside those of clients."""
    with hostile_world() as (world, port), upstream() as behind, tempfile.TemporaryDirectory() as where:
        come_first(behind.pid, TIMING_PRIORITY)
        paced = _PACED.format(port=behind.port)
        config = CONFIG.format(key=KEY, world=port, more="", upstreams=paced, models=_ANY_MODEL)
        with serving(config, Path(where)) as ours:
            yield from _each(names, ours, ours.port, world, seconds)
        entry = free_port()
        with nginx(behind, (entry, port)) as front:
            if front is not None:
                # Only the proxy can have sealed what these send.
                clients = [name for name in names if INPUTS[name].who == "client" and "sealed" not in name]
                yield from _each(clients, front, entry, world, seconds)


def played() -> list[str]:
    """The names of all inputs but the lists of MCP servers, which the proxy reads before it serves."""
    return [name for name, one in INPUTS.items() if one.pages is None]


def _each(
    names: Iterable[str], target: Target, port: int, world: subprocess.Popen[str], seconds: float
) -> Iterator[Seen]:
    model, spread = f"paced-{int(seconds * 1000 / _PACE)}-{_PACE}", _PACE / 1000
    streams = Scenario("streams", "streams", model, _STREAMS, spread, stream=True, first=True)
    with ThreadPoolExecutor(1) as thread:
        for at, name in enumerate(names):
            if at % _CONTROL_EVERY == 0:
                yield Seen(target.name, CONTROL, 0, 0, _late(streams, target, thread.submit(bool)))
            order = f"{name} {2 * INPUTS[name].size} {port}"
            say(world, order)
            answered = thread.submit(say, world, f"{order} {seconds}")
            figures = _late(streams, target, answered)
            status, count = map(int, answered.result().split())
            yield Seen(target.name, name, status, count, figures)


def _late(streams: Scenario, target: Target, beside: Future[Any]) -> Figures:
    """How late the chunks of streams come, with the target's threads before all else on its core, new ones as well."""
    processes = tree(target.pid)
    with ThreadPoolExecutor(1) as thread:
        streaming = thread.submit(run, streams, target)
        while not (streaming.done() and beside.done()):
            for pid in processes:
                come_first(pid, TARGET_PRIORITY)
            time.sleep(_LOOK_SECONDS)
        return streaming.result().figures


def rendered(seen: Seen) -> str:
    """One line."""
    figures, name = seen.figures, seen.name or "nobody else"
    late = "  ".join(
        f"{what} {delay / 1000:6.2f}"
        for what, delay in (("p50", figures.p50), ("p99.9", figures.p999), ("longest", figures.worst))
    )
    return f"{seen.target:6} beside {name:26} {seen.status or '':3} x {seen.count:<5} {late} ms"


def broken_promises(seen: Seen) -> list[str]:
    """What does not hold of what docs/security.md says."""
    figures = seen.figures
    kept = {
        f"{figures.failures} streams failed": not figures.failures,
        f"p99.9 of a chunk's delay was {figures.p999 / 1000:.0f} ms": figures.p999 <= P999,
        f"a chunk was {figures.worst / 1000:.0f} ms late": figures.worst <= LONGEST,
    }
    return [f"{seen.name}: {what}" for what, holds in kept.items() if not holds]


def main() -> None:
    """Measure, print, and judge."""
    parser = argparse.ArgumentParser(prog="bench.neighbour", description="Streams beside a hostile neighbour.")
    parser.add_argument(
        "names", nargs="*", choices=[*played(), []], default=[], metavar="NAME", help="only these inputs"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="for which each input is sent (default 2)")
    asked = parser.parse_args()
    with suppress(PermissionError):  # for this thread alone, which looks for new threads of the target
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(TIMING_PRIORITY))
    broken: list[str] = []
    for seen in neighbours(asked.names or played(), asked.seconds):
        print(rendered(seen), flush=True)
        if seen.name != CONTROL and seen.target == "proxy":
            broken += broken_promises(seen)
    print("\n" + ("\n".join(f"NOT KEPT: {what}" for what in broken) or "What is promised holds."))
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
