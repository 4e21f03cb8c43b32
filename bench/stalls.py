"""Nobody waits for somebody else: how long the worst inputs within the limits keep the proxy from everybody else.

    python -m bench.stalls [NAME ...] [--rounds N]      exit code 1: a promise of docs/security.md does not hold

Each input of `bench.inputs` is sent to a proxy of its own, at its size n and at 2n, while `/healthz` is asked without
pause. Of each are told

    held      the most processor time that the worker, with all its threads, used between two answers of /healthz: where
              a thread leaves the interpreter to the event loop, /healthz is answered meanwhile
    cost      all the processor time that the input took
    memory    how much the worker grew at its peak

What else runs on the machine adds to a figure and never takes away from it, so the smallest of several rounds counts.
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from bench.inputs import INPUTS
from bench.processes import PYTHON, cores, first_line, running
from bench.targets import KEY, ROOT, Target, serving

# What docs/security.md promises.
HELD_SECONDS = 0.1
GROWTH = 2.2  # the cost at 2n, as a multiple of that at n
MEMORY_BASE, MEMORY_PER_BYTE = 128 * 2**20, 6
MIB = 2**20
# Processor time of one answer of /healthz, in seconds.
_PROBE_COST = 0.0001
PRIORITY = -10
# A smaller cost is made of the request itself, not of its size.
_WORTH_COMPARING = 0.1
_PROBE_PAUSE = 0.001
_QUIET_SECONDS = 0.3
_MOST_SECONDS = 30.0

CONFIG = """
server: {{port: 0}}
clients: [{{name: bench, key: {key}}}]
upstreams:
  model: {{base_url: "http://127.0.0.1:{world}/v1", api_key: bench-upstream-key, retries: 0}}
{upstreams}
models: {{m: {{upstream: model}}{models}}}
tools:
  web_search: {{type: serper, base_url: "http://127.0.0.1:{world}", api_key: bench-search-key}}
  current_time: {{type: clock}}
  search_orders:
    type: http
    method: POST
    url: http://127.0.0.1:{world}/orders
    description: Finds orders.
    parameters:
      type: object
      properties:
        text: {{type: string}}
        ids: {{type: array, items: {{type: integer}}}}
        rows: {{type: array, items: {{type: object, required: [a, b, c, d]}}}}
{more}
"""
_MCP = """  hostile: {{type: mcp, url: "http://127.0.0.1:{world}/mcp", allow: ["*"]}}"""


@dataclass(frozen=True, slots=True)
class Figures:
    """What one input did to the worker: seconds of processor time, and bytes."""

    status: int
    wire_bytes: int
    held: float
    cost: float
    memory: int


class Probe(threading.Thread):
    """Asks /healthz without pause, and notes the processor time that the worker used between two answers.

    Attributes:
        held: the most so far, in seconds.
        count: how many answers there were.
    """

    def __init__(self, target: Target) -> None:
        super().__init__(daemon=True)
        self._target = target
        self._ended = threading.Event()
        self.held = 0.0
        self.count = 0

    def run(self) -> None:
        """Ask until the end."""
        request = b"GET /healthz HTTP/1.1\r\nhost: proxy\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self._target.port), timeout=_MOST_SECONDS) as connection:
            before = processor_seconds(self._target.pid)
            while not self._ended.wait(_PROBE_PAUSE):
                connection.sendall(request)
                with suppress(TimeoutError):  # held for longer than anybody asks
                    connection.recv(65536)
                now = processor_seconds(self._target.pid)
                self.held, before = max(self.held, now - before), now
                self.count += 1

    def stop(self) -> None:
        """End, and wait for the end."""
        self._ended.set()
        self.join()


def processor_seconds(pid: int) -> float:
    """The processor time of a process with all its threads, those that have ended too (Linux: clock_getcpuclockid)."""
    return time.clock_gettime((~pid << 3) | 2)


def measure(name: str, size: int, world: subprocess.Popen[str], port: int) -> Figures:
    """Play one input to a proxy of its own."""
    say(world, f"{name} {size}")
    more = _MCP.format(world=port) if INPUTS[name].pages else ""
    config = CONFIG.format(key=KEY, world=port, more=more, upstreams="", models="")
    with tempfile.TemporaryDirectory() as where, serving(config, Path(where)) as target:
        memory, began = _memory(target.pid, "VmRSS:"), processor_seconds(target.pid)
        probe = Probe(target)
        probe.start()
        status, wire_bytes = map(int, say(world, f"{name} {size} {target.port}").split())
        _wait_until_quiet(target)
        cost = processor_seconds(target.pid) - began - probe.count * _PROBE_COST
        probe.stop()
        return Figures(status, wire_bytes, probe.held, max(0.0, cost), _memory(target.pid, "VmHWM:") - memory)


def say(world: subprocess.Popen[str], line: str) -> str:
    """Give the hostile world an order (`bench.hostile`), and wait for its answer."""
    assert world.stdin is not None  # noqa: S101 - a pipe was asked for
    world.stdin.write(line + "\n")
    world.stdin.flush()
    return first_line(world)


def _wait_until_quiet(target: Target) -> None:
    """Wait until the worker does little more than answer the probe: work may go on after its client has left."""
    ends, before = time.monotonic() + _MOST_SECONDS, processor_seconds(target.pid)
    while time.monotonic() < ends:
        time.sleep(_QUIET_SECONDS)
        now = processor_seconds(target.pid)
        if now - before < _QUIET_SECONDS / 2:
            return
        before = now


def _memory(pid: int, name: str) -> int:
    """`VmRSS:`, what a process has resident now, or `VmHWM:`, the most that it ever had; in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def smallest(several: Sequence[Figures]) -> Figures:
    """Each figure where it was smallest: what else the machine does only adds to one."""
    return Figures(
        several[-1].status,
        several[-1].wire_bytes,
        min(one.held for one in several),
        min(one.cost for one in several),
        min(one.memory for one in several),
    )


def broken_promises(name: str, once: Figures, twice: Figures) -> list[str]:
    """What does not hold of what docs/security.md says."""
    allowed = MEMORY_BASE + MEMORY_PER_BYTE * twice.wire_bytes
    growth = twice.cost / max(once.cost, _WORTH_COMPARING)
    kept = {
        f"{name}: no answer": bool(once.status and twice.status),
        f"{name}: a bug of ours": HTTPStatus.INTERNAL_SERVER_ERROR not in (once.status, twice.status),
        f"{name}: the worker was held for {twice.held * 1000:.0f} ms": max(once.held, twice.held) <= HELD_SECONDS,
        f"{name}: twice the input costs {growth:.1f} times as much": growth <= GROWTH,
        f"{name}: {twice.memory / MIB:.0f} MiB were taken": twice.memory <= allowed,
    }
    return [what for what, holds in kept.items() if not holds]


def described(name: str) -> str:
    """Who sends how much of what, at the larger of the two sizes."""
    return f"{INPUTS[name].who}: {2 * INPUTS[name].size:,} {INPUTS[name].what}"


def rendered(name: str, once: Figures, twice: Figures) -> str:
    """One line."""
    held, cost = f"{once.held * 1000:4.0f}, {twice.held * 1000:4.0f} ms", f"{once.cost:5.2f}, {twice.cost:5.2f} s"
    return f"{name:24} {twice.status:3} held {held}  cost {cost}  {twice.memory / MIB:5.0f} MiB   {described(name)}"


@contextmanager
def hostile_world() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The process that sends the inputs, and its port."""
    with running([PYTHON, "-m", "bench.hostile"], cores=cores()[1], cwd=ROOT) as world:
        yield world, int(first_line(world))


def main() -> None:
    """Measure, print, and judge."""
    parser = argparse.ArgumentParser(prog="bench.stalls", description="Nobody waits for somebody else.")
    parser.add_argument("names", nargs="*", choices=[*INPUTS, []], default=[], metavar="NAME", help="only these inputs")
    parser.add_argument("--rounds", type=int, default=2, help="of which the smallest figures count (default 2)")
    asked = parser.parse_args()
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)  # a probe that waits for a core would blame the worker
    broken: list[str] = []
    for name in asked.names or INPUTS:
        figures = []
        for size in (INPUTS[name].size, 2 * INPUTS[name].size):
            with hostile_world() as (world, port):
                figures.append(smallest([measure(name, size, world, port) for _ in range(asked.rounds)]))
        print(rendered(name, *figures), flush=True)
        broken += broken_promises(name, *figures)
    print("\n" + ("\n".join(f"NOT KEPT: {what}" for what in broken) or "What is promised holds."))
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
