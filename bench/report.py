"""Results as Markdown: on the terminal, and between two marks of bench/README.md."""

import datetime as dt
import os
import platform
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from statistics import median

from bench import measure as m
from bench.agents import header, row
from bench.load import Figures
from bench.measure import Plan, Results
from bench.neighbour import CONTROL
from bench.stalls import described
from bench.targets import ROOT

PAGE = ROOT / "bench" / "README.md"
_WORST_NEIGHBOURS = 8
_BEGIN, _END = "<!-- results: begin -->", "<!-- results: end -->"


def rendered(results: Results, plan: Plan) -> str:
    """All tables."""
    parts = [
        _head(results, plan),
        _goals(results),
        _details(results),
        _curves(results),
        _bursts(results),
        _agents(results),
        _neighbours(results),
        _watching(results),
        _others(results),
    ]
    return "\n\n".join(parts)


def write(text: str) -> None:
    """Put the results into the page."""
    page = PAGE.read_text()
    before, _, rest = page.partition(_BEGIN)
    after = rest.partition(_END)[2]
    PAGE.write_text(f"{before}{_BEGIN}\n\n{text}\n\n{_END}{after}")


def _head(results: Results, plan: Plan) -> str:
    when = dt.datetime.now(dt.UTC).strftime("%d %B %Y")
    command = "make bench" + ("-peers" if plan.peers else "")
    machine = f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}"
    how = f"Python {platform.python_version()}; `{command}`, medians of {plan.rounds} interleaved rounds"
    lines = [f"{when}, {machine}, {how}; load average at the end {os.getloadavg()[0]:.1f}."]
    if "nginx" not in results.targets:
        lines.append("**nginx is not installed: there is nothing to compare with.** (`apt-get install nginx-light`)")
    else:
        lines.append(f"Beside {_nginx_version()}.")
    return " ".join(lines)


def _goals(results: Results) -> str:
    """The figures that count, as ratios to nginx in the same run."""
    mid = results.middle
    twice = _times(2.0, mid(m.REQUEST_1, "direct", "p50"))
    added = _minus(mid(m.LOOP_1, "proxy", "p50"), twice)
    chunk_added = _minus(mid(m.CHUNK, "proxy", "p99"), mid(m.CHUNK, "direct", "p99"))
    many = results.many.figures if results.many else None
    rows = [
        *_costs(results),
        ("wall time added by the loop, idle", _ms(added), "", "<= 1.5 ms"),
        ("latency added to a chunk, p99, 100 streams", _ms(chunk_added), "", "<= 1 ms"),
        ("memory per open, idle stream", _kb(results.memory.get("proxy")), _memory_ratio(results), "<= 45 KB"),
        (
            f"{results.many_asked} open streams, a chunk a second each",
            f"{many.failures} dropped, p99 {_ms(many.p99)}" if many else "-",
            "",
            "none dropped",
        ),
        ("start to the first answer", f"{results.start_seconds:.2f} s", "", "<= 0.8 s"),
    ]
    return "### Results against the goals\n\n" + _table(("figure", "measured", "ratio", "goal"), rows)


def _costs(results: Results) -> Iterable[tuple[str, str, str, str]]:
    """What the proxy costs, and beside what that is set."""
    request, nginx, nginx_chunk = (m.REQUEST_32, "proxy"), (m.REQUEST_32, "nginx"), (m.CHUNK, "nginx")
    for name, scenario, beside, whose, goal in (
        ("CPU per request, 32 connections", m.REQUEST_32, nginx, "nginx", "<= 8 x"),
        ("the same with 256 connections", m.REQUEST_256, request, "its own at 32", "<= 1.3 x"),
        ("CPU per chunk, 100 streams, one in 20 ms each", m.CHUNK, nginx_chunk, "nginx", "<= 2.5 x"),
        ("CPU per chunk of a stream with a tool loop", m.LOOP_CHUNK, nginx_chunk, "nginx", "<= 3 x"),
        ("CPU per request with two turns and a tool", m.LOOP_32, request, "a request", "<= 2.2 x"),
    ):
        figure = "per_chunk" if beside is nginx_chunk else "per_answer"
        ratio = results.ratio((scenario, "proxy"), beside, figure)
        yield name, _us(results.middle(scenario, "proxy", figure)), _ratio(ratio, whose), goal


def _details(results: Results) -> str:
    rows = []
    for (scenario, target), samples in results.samples.items():
        streams = bool(samples[0].figures.chunks)
        figure = "per_chunk" if streams else "per_answer"
        cost = _beside_nginx(results, scenario, target, figure, _us)
        rate = "" if streams else _beside_nginx(results, scenario, target, "rate", "{:,.0f}".format)
        late = [_us(results.middle(scenario, target, name)) for name in ("p50", "p99")]
        added = ["" if target == "direct" else _added(results, scenario, target, name) for name in ("p50", "p99")]
        failures = sum(sample.figures.failures for sample in samples)
        busy = results.middle(scenario, target, "busy") or 0.0
        rows.append((scenario, target, cost, rate, *late, *added, f"{busy:.0%}", str(failures or "")))
    names = ("scenario", "target", "CPU", "per second", "p50", "p99", "added p50", "added p99", "busy", "failed")
    explained = (
        "Times in microseconds; CPU per answer or per chunk, from /proc. In brackets: the ratio to nginx under the "
        "same load, as the median of the ratios of all rounds; it may differ from the ratio of the two medians. "
        "(For added latency it is the ratio of the medians, where nginx adds any.) `busy` is the target's share of "
        "its core. The `direct` rows are the upstream by itself under the same load: what it and the load can do, "
        "and cost, without anything between them. Where a target is not busy, the load was the limit; its CPU "
        "figure is then a little too high, because it wakes up more often."
    )
    return f"### In detail\n\n{explained}\n\n" + _table(names, rows)


def _beside_nginx(
    results: Results, scenario: str, target: str, figure: str, written: Callable[[float | None], str]
) -> str:
    """A figure, and what it is to nginx's."""
    value = results.middle(scenario, target, figure)
    ratio = None if target == "nginx" else results.ratio((scenario, target), (scenario, "nginx"), figure)
    return _with_ratio(written(value), ratio)


def _added(results: Results, scenario: str, target: str, quantile: str) -> str:
    """The latency that a target adds to what the upstream takes by itself, and what that is to nginx's."""
    direct = results.middle(m.CHUNK if scenario == m.LOOP_CHUNK else scenario, "direct", quantile)
    value = _minus(results.middle(scenario, target, quantile), direct)
    nginx = _minus(results.middle(scenario, "nginx", quantile), direct)
    if value is None or nginx is None or nginx <= 0 or target == "nginx":
        return _us(value)
    return _with_ratio(_us(value), value / nginx)


def _with_ratio(text: str, ratio: float | None) -> str:
    if ratio is None:
        return text
    return f"{text} ({ratio:,.2f} x)" if ratio < 100 else f"{text} ({ratio:,.0f} x)"  # noqa: PLR2004 - digits


def _curves(results: Results) -> str:
    rows = [
        (name, ", ".join(f"{size:,}: {cost:,.1f}" for size, cost in points)) for name, points in results.curves.items()
    ]
    return "### Growth\n\n" + _table(("what grows", "size: cost"), rows)


def _bursts(results: Results) -> str:
    rows = [
        (f"{connections:,}", target, _ms(p99), _ms(worst))
        for (target, connections), (p99, worst) in results.bursts.items()
    ]
    explained = (
        "How late chunks arrive in 100 streams of one chunk per 20 ms each, while the given number of connections "
        "send requests as fast as they can."
    )
    return f"### Streams in a burst\n\n{explained}\n\n" + _table(("connections", "target", "p99", "longest"), rows)


def _agents(results: Results) -> str:
    explained = (
        "Requests with 20 tools of 3 KB and a history of rounds, each a text, a call and its result. Processor time of "
        "a request in microseconds; in brackets how many times nginx's it is in the same round. What is `in play` may "
        "be called by the model, and in `a loop` is."
    )
    return "\n".join(
        (f"### Agents' conversations\n\n{explained}\n", *map(header, results.agents[:1]), *map(row, results.agents))
    )


def _neighbours(results: Results) -> str:
    """The inputs beside which chunks come latest, and what is seen beside nobody."""
    by_name: dict[str, dict[str, Figures]] = defaultdict(dict)
    for seen in results.neighbours:
        known = by_name[seen.name].get(seen.target)
        by_name[seen.name][seen.target] = seen.figures if known is None else _worse(known, seen.figures)
    control = by_name.pop(CONTROL, {})
    late = sorted(by_name.items(), key=lambda named: named[1]["proxy"].p999, reverse=True)
    worst, others = late[:_WORST_NEIGHBOURS], [figures for _, figures in late[_WORST_NEIGHBOURS:]]
    rows = [(f"`{name}`: {described(name)}", *_delays(figures)) for name, figures in worst]
    if others:
        at_most = {
            target: reduce(_worse, [figures[target] for figures in others if target in figures])
            for target in ("proxy", "nginx")
            if any(target in figures for figures in others)
        }
        rows.append((f"the {len(others)} others, each at most", *_delays(at_most)))
    rows.append(("nobody, at most", *_delays(control)))
    explained = (
        "How late chunks arrive in 100 streams of one chunk per 20 ms each, while one client sends an input of "
        "`bench.inputs` again and again, at the largest size within the limits as shipped; `python -m bench.neighbour` "
        "shows all of them."
    )
    names = ("beside", "proxy, p99.9", "longest", "nginx, p99.9", "longest")
    return f"### A hostile neighbour\n\n{explained}\n\n" + _table(names, rows)


def _worse(one: Figures, other: Figures) -> Figures:
    return Figures(p999=max(one.p999, other.p999), worst=max(one.worst, other.worst))


def _delays(figures: Mapping[str, Figures]) -> list[str]:
    found = [figures.get(target) for target in ("proxy", "nginx")]
    return [text for one in found for text in ((_ms(one.p999), _ms(one.worst)) if one else ("-", "-"))]


def _watching(results: Results) -> str:
    seen = results.watching
    if seen is None:
        return "### Being watched\n\nNot measured."
    rows = [
        ("CPU per request, metrics and log as shipped", _us(seen.on)),
        ("the same with `metrics: false` and `log_level: error`", _us(seen.off)),
        ("as shipped, with every request traced (`otlp_endpoint`)", _us(seen.traced)),
        (
            "a scrape under load, median and longest",
            f"{_ms(median(seen.scrapes) * 1e6)}, {_ms(max(seen.scrapes) * 1e6)}",
        ),
        ("its size, first and last", f"{seen.sizes[0]:,} and {seen.sizes[1]:,} bytes"),
    ]
    return "### Being watched\n\n" + _table(("", "measured"), rows)


def _others(results: Results) -> str:
    rows = [
        (f"{workers} worker{'s' if workers > 1 else ''}, all cores", f"{rate:,.0f}", _us(cost))
        for workers, (rate, cost) in results.workers.items()
    ]
    told = "The load and the upstream take their share of the same cores."
    return f"### Workers\n\n{told}\n\n" + _table(("", "requests per second", "CPU per request"), rows)


def _memory_ratio(results: Results) -> str:
    ours, nginx = results.memory.get("proxy"), results.memory.get("nginx")
    return _ratio(ours / nginx if ours and nginx else None, "nginx")


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def _minus(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def _times(factor: float, value: float | None) -> float | None:
    return None if value is None else factor * value


def _ratio(value: float | None, beside: str) -> str:
    return "-" if value is None else f"{value:.2f} x {beside}".strip()


def _us(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}" if abs(value) < 100 else f"{value:,.0f}"  # noqa: PLR2004 - digits


def _ms(microseconds: float | None) -> str:
    return "-" if microseconds is None else f"{microseconds / 1000:.2f} ms"


def _kb(size: float | None) -> str:
    return "-" if size is None else f"{size / 1024:.1f} KB"


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")


def _nginx_version() -> str:
    told = subprocess.run(["nginx", "-v"], capture_output=True, text=True, check=False)  # noqa: S607 - found by its name
    return told.stderr.strip().rpartition(" ")[2] or "nginx"
