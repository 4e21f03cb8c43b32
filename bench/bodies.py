"""Sixteen bodies of 30 MB at the same time: how much memory the proxy takes, and what becomes of the requests.

    python -m bench.bodies [--memory MIB]      exit code 1: more memory than MIB was taken, or an answer is not lawful

The proxy is given the bound that it would choose for itself in a container of so much memory. Each kind of body costs
more, once it is parsed, than the one before it.
"""

import argparse
import http.client
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from bench.targets import KEY, Target, serving, upstream

AT_ONCE = 16
BODY_BYTES = 30_000_000
MIB = 2**20
# 400: nested too deep to be written anew. 413: too large in memory to fit even alone.
LAWFUL = frozenset({200, 400, 413, 503})
LIVE_WITHIN_SECONDS = 5.0
_TIMEOUT = 300.0
_CONFIG = """
server: {{port: 0, max_body_memory: {bound}}}
clients: [{{name: bench, key: {key}}}]
upstreams: {{model: {{base_url: "http://127.0.0.1:{upstream}/v1", api_key: bench-upstream-key}}}}
models: {{"*": {{upstream: model}}}}
tools: {{current_time: {{type: clock}}}}
"""


@dataclass(slots=True)
class Seen:
    """What became of one kind of body."""

    kind: str
    statuses: Counter[int] = field(default_factory=Counter)
    without_retry_after: int = 0
    peak: int = 0  # bytes of resident memory
    slowest_health: float = 0.0  # seconds


def bodies() -> dict[str, bytes]:
    """One body of each kind, all of the same size."""
    return {
        "one long string": _chat(b'"' + b"x" * BODY_BYTES + b'"'),
        "one long string, one emoji": _chat(b'"' + b"x" * BODY_BYTES + "\N{SNAKE}".encode() + b'"'),
        "many short messages": _messages(b'{"role":"user","content":[%s]}', b'{"type":"text","text":"%06d"}'),
        "small objects": _padded(b'{"a":{}}'),
        "deep objects": _padded(b'{"a":' * 900 + b"1" + b"}" * 900),
    }


def _chat(content: bytes) -> bytes:
    return b'{"model":"whole","messages":[{"role":"user","content":%s}]}' % content


def _messages(message: bytes, part: bytes) -> bytes:
    parts = BODY_BYTES // (len(part % 0) + 1)
    return b'{"model":"whole","messages":[%s]}' % (message % b",".join(part % at for at in range(parts)))


def _padded(piece: bytes) -> bytes:
    pieces = b",".join([piece] * (BODY_BYTES // (len(piece) + 1)))
    return b'{"model":"whole","messages":[{"role":"user","content":"?"}],"metadata":[%s]}' % pieces


def send_all(target: Target, kind: str, body: bytes) -> Seen:
    """The same body over so many connections at once, while `/healthz` is asked."""
    seen = Seen(kind)
    done = threading.Event()
    with ThreadPoolExecutor(AT_ONCE + 1) as pool:
        health = pool.submit(_slowest_health, target, done)
        for status, retry_after in pool.map(lambda _: _send(target, body), range(AT_ONCE)):
            seen.statuses[status] += 1
            seen.without_retry_after += status == http.HTTPStatus.SERVICE_UNAVAILABLE and retry_after is None
        done.set()
    seen.slowest_health = health.result()
    seen.peak = _peak(target.pid)
    return seen


def _send(target: Target, body: bytes) -> tuple[int, str | None]:
    connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=_TIMEOUT)
    try:
        connection.request("POST", "/v1/chat/completions", body, {**target.headers, "x-server-tools": "none"})
        answer = connection.getresponse()
        answer.read()
    except OSError:
        return 0, None
    finally:
        connection.close()
    return answer.status, answer.getheader("retry-after")


def _slowest_health(target: Target, done: threading.Event) -> float:
    slowest = 0.0
    while not done.wait(0.05):
        began = time.monotonic()
        urllib.request.urlopen(f"http://127.0.0.1:{target.port}/healthz", timeout=_TIMEOUT).close()
        slowest = max(slowest, time.monotonic() - began)
    return slowest


def _peak(pid: int) -> int:
    """The most memory that a process has had resident at any moment, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def rendered(seen: Seen) -> str:
    """One line."""
    answers = ", ".join(f"{count} x {status}" for status, count in sorted(seen.statuses.items()))
    return f"{seen.kind:>26}: {seen.peak / MIB:7,.0f} MiB, {answers}; /healthz within {seen.slowest_health:.1f} s"


def broken_promises(seen: Seen, memory: int) -> list[str]:
    """What does not hold of what docs/security.md says; `memory` in bytes."""
    odd = sorted(seen.statuses.keys() - LAWFUL)
    kept = {
        f"{seen.kind}: {seen.peak / MIB:,.0f} MiB were taken": seen.peak < memory,
        f"{seen.kind}: answered with {odd}": not odd,
        f"{seen.kind}: 503 without Retry-After": not seen.without_retry_after,
        f"{seen.kind}: /healthz took {seen.slowest_health:.1f} s": seen.slowest_health < LIVE_WITHIN_SECONDS,
    }
    return [what for what, holds in kept.items() if not holds]


def main() -> None:
    """Send each kind to a proxy of its own, print, and judge."""
    parser = argparse.ArgumentParser(prog="bench.bodies", description="Sixteen bodies of 30 MB at the same time.")
    parser.add_argument("--memory", type=int, default=1024, help="MiB that the proxy may take (default 1024)")
    memory = parser.parse_args().memory * MIB
    broken: list[str] = []
    print(f"{AT_ONCE} bodies of {BODY_BYTES / 1e6:g} MB at the same time, in {memory / MIB:,.0f} MiB\n", flush=True)
    for kind, body in bodies().items():
        with upstream() as behind, tempfile.TemporaryDirectory() as where:
            config = _CONFIG.format(upstream=behind.port, key=KEY, bound=memory // 2)
            with serving(config, Path(where)) as target:
                seen = send_all(target, kind, body)
        print(rendered(seen), flush=True)
        broken += broken_promises(seen, memory)
    print("\n" + ("\n".join(f"NOT KEPT: {what}" for what in broken) or "What is promised holds."))
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
