"""Ten times as many requests as the proxy has capacity for: what is still served, how the rest is refused, how it ends.

    python -m bench.overload [--rounds N] [--seconds N]      exit code 1: a promise of docs/security.md does not hold

Twice: where places are the limit, and where the CPU is, for as many places as are shipped are more than one core can
serve. Promises are made for the first; the second is told because it happens.
"""

import argparse
import http.client
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from statistics import median

from bench.load import Figures
from bench.scenarios import Sample, Scenario, run
from bench.targets import Target, proxy, upstream

# Places that take a tenth of a second each: 100 answers a second, for which and for ten times as many requests one core
# suffices, so that what is measured is not the load itself.
PLACES, SERVICE_MS = 10, 100
SHIPPED_PLACES = 1000
TIMES = 10
# What docs/security.md promises.
GOODPUT, REFUSED_WITHIN_MS, RECOVERED_WITHIN_SECONDS = 0.9, 100.0, 2.0

# Connections: enough for those that are served, those that wait and those that are refused.
_AT_ONCE = SHIPPED_PLACES * 4
_BUSY = 128  # connections that keep a core busy
_PROBE_SECONDS = 0.02
_AFTERWARDS_SECONDS = 3.0


@dataclass(slots=True)
class Seen:
    """One load in several rounds."""

    name: str
    samples: list[Sample] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)

    def middle(self, figure: Callable[[Figures], float]) -> float:
        """The median of a figure."""
        return median(figure(sample.figures) for sample in self.samples)

    @property
    def goodput(self) -> float:
        """Answers per second."""
        return self.middle(lambda figures: figures.answers / figures.seconds)

    @property
    def offered(self) -> float:
        """Requests per second."""
        return self.middle(lambda figures: (figures.answers + figures.refusals + figures.failures) / figures.seconds)

    @property
    def neither(self) -> int:
        """What was neither answered nor refused."""
        return sum(sample.figures.failures for sample in self.samples)


def overload(behind: Target, *, places: int, clients: int, rounds: int, seconds: float) -> tuple[Seen, Seen, Seen]:
    """The peak with so many clients, ten times its rate, and ten times its clients that never wait."""
    usual = Scenario("peak", "closed", f"after-{SERVICE_MS}", connections=clients, seconds=seconds)
    peak, burst = Seen(f"{clients} clients: the peak"), Seen(f"{TIMES} times that rate")
    crowd = Seen(f"{TIMES * clients:,} clients that ask again at once")
    with proxy(behind, places=places) as target:
        run(replace(usual, seconds=1.0), target)  # what is imported or connected at the first request
        for _ in range(rounds):
            peak.samples.append(run(usual, target))
            rate = TIMES * peak.goodput
            _beset(burst, replace(usual, kind="open", rate=rate, connections=min(_AT_ONCE, int(rate))), target)
            _beset(crowd, replace(usual, connections=min(_AT_ONCE, TIMES * clients)), target)
    return peak, burst, crowd


def _beset(seen: Seen, load: Scenario, target: Target) -> None:
    """One round of a load that is too much, and how long it is felt afterwards."""
    with ThreadPoolExecutor(1) as beside:
        under_way = beside.submit(run, load, target)
        probes: list[Probe] = []
        while not under_way.done() or time.monotonic() < under_way.result().figures.ended + _AFTERWARDS_SECONDS:
            probes.append(_probe(target))
            time.sleep(_PROBE_SECONDS)
    seen.samples.append(under_way.result())
    seen.recoveries.append(recovery(probes, under_way.result().figures.ended))


@dataclass(frozen=True, slots=True)
class Probe:
    """One small request: when it began, and whether it was answered as if nothing was the matter."""

    began: float
    good: bool


def recovery(probes: Sequence[Probe], ended: float) -> float:
    """Seconds from the end of a load until every request is answered as usual; infinite where that was not seen."""
    after = [probe for probe in probes if probe.began >= ended]
    bad = [at for at, probe in enumerate(after) if not probe.good]
    first_good = bad[-1] + 1 if bad else 0
    return after[first_good].began - ended if first_good < len(after) else float("inf")


def _probe(target: Target) -> Probe:
    began = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=30)
    body = f'{{"model": "after-{SERVICE_MS}", "messages": [{{"role": "user", "content": "?"}}]}}'
    try:
        connection.request("POST", "/v1/chat/completions", body, target.headers)
        answer = connection.getresponse()
        answer.read()
    finally:
        connection.close()
    return Probe(began, answer.status == http.HTTPStatus.OK and time.monotonic() - began < 2 * SERVICE_MS / 1000)


def rendered(title: str, peak: Seen, *others: Seen) -> str:
    """A table."""
    names = ("load", "offered /s", "answered /s", "of the peak", "answered after, p50, p99", "refused after, p50, p99",
             "neither", "CPU", "felt for")  # fmt: skip
    lines = [f"{title}\n", "| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    for seen in (peak, *others):
        times = f"{_ms(seen, 'p50')}, {_ms(seen, 'p99')} ms"
        refusals = f"{_ms(seen, 'refusal_p50')}, {_ms(seen, 'refusal_p99')} ms" if seen is not peak else ""
        felt = f"{max(seen.recoveries):.2f} s" if seen.recoveries else ""
        busy = median(sample.busy for sample in seen.samples)
        cells = (seen.name, f"{seen.offered:,.0f}", f"{seen.goodput:,.0f}", f"{seen.goodput / peak.goodput:.0%}",
                 times, refusals, str(seen.neither), f"{busy:.0%}", felt)  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _ms(seen: Seen, name: str) -> str:
    return f"{seen.middle(lambda figures: float(getattr(figures, name))) / 1000:,.1f}"


def broken_promises(peak: Seen, burst: Seen) -> list[str]:
    """What does not hold of what docs/security.md says."""
    refused_after = burst.middle(lambda figures: figures.refusal_p99) / 1000
    kept = {
        f"goodput is {burst.goodput / peak.goodput:.0%} of the peak": burst.goodput >= GOODPUT * peak.goodput,
        f"a refusal takes {refused_after:.1f} ms (p99)": refused_after < REFUSED_WITHIN_MS,
        f"the burst is felt for {max(burst.recoveries):.1f} s": max(burst.recoveries) < RECOVERED_WITHIN_SECONDS,
        f"{burst.neither} requests were neither answered nor refused": not burst.neither,
    }
    return [what for what, holds in kept.items() if not holds]


def main() -> None:
    """Measure, print, and judge."""
    parser = argparse.ArgumentParser(prog="bench.overload", description="Ten times what the proxy has capacity for.")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds, of which the median counts")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load in each round")
    asked = parser.parse_args()
    with upstream() as behind:
        rounds = {"rounds": asked.rounds, "seconds": asked.seconds}
        few = overload(behind, places=PLACES, clients=PLACES, **rounds)
        print(rendered(f"{PLACES} places, each taken for {SERVICE_MS} ms", *few), flush=True)
        many = overload(behind, places=SHIPPED_PLACES, clients=_BUSY, **rounds)
        print("\n" + rendered(f"{SHIPPED_PLACES:,} places, as shipped: the core is the limit", *many), flush=True)
    broken = broken_promises(few[0], few[1])
    print("\n" + ("\n".join(f"NOT KEPT: {what}" for what in broken) or "What is promised holds."))
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
