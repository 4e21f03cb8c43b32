"""What a request with state pays for a SQLite file, beside `memory://`, with many conversations kept in both.

    python -m bench.state [--conversations 10000] [--requests 1000]

A request continues a stored response and stores its own: it reads, renews and writes. One goes to each proxy in turn,
so that whatever else the machine does disturbs both alike. Then the proxy starts again on the file that has grown.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import httpx

from bench.durable import CONFIG, proxy
from bench.processes import PYTHON, first_line, running
from bench.targets import ROOT

_CLIENTS = 16


async def _respond(http: httpx.AsyncClient, url: str, previous: str | None = None) -> str:
    body = {"model": "whole", "input": "What is a proxy? " * 16, "previous_response_id": previous}
    return str((await http.post(f"{url}/responses", json=body)).raise_for_status().json()["id"])


async def _fill(url: str, conversations: int) -> list[str]:
    """Keep so many responses; returns their ids."""
    found: list[str] = []

    async def client(http: httpx.AsyncClient) -> None:
        while len(found) < conversations:
            found.append(await _respond(http, url))

    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        await asyncio.gather(*(client(http) for _ in range(_CLIENTS)))
    return found


async def _compare(urls: dict[str, str], conversations: int, requests: int) -> None:
    """Milliseconds of requests that continue a kept response, one to each proxy in turn."""
    kept = {name: await _fill(url, conversations) for name, url in urls.items()}
    times: dict[str, list[float]] = {name: [] for name in urls}
    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        for at in range(requests):
            for name, url in urls.items():
                began = time.perf_counter()
                await _respond(http, url, kept[name][at * 7919 % conversations])
                times[name].append(1000 * (time.perf_counter() - began))
    medians = {name: statistics.median(found) for name, found in times.items()}
    for name, median in medians.items():
        print(f"{name}: p50 {median:.2f} ms, p99 {statistics.quantiles(times[name], n=100)[-1]:.2f} ms")
    memory, file = medians.values()
    print(f"a file costs {file - memory:+.2f} ms at p50, {file / memory:.2f} times as long")


def _measure(folder: Path, upstream: str, options: argparse.Namespace) -> None:
    file, urls = folder / "state.db", {}
    states = {"memory": "memory://", "sqlite": f"sqlite:///{file}"}
    configs = {name: CONFIG.format(upstream=upstream, state=state) for name, state in states.items()}
    with ExitStack() as stack:
        for name, config in configs.items():
            urls[name] = stack.enter_context(proxy(folder, name, config, 1))[1]
        asyncio.run(_compare(urls, options.conversations, options.requests))
    size = file.stat().st_size / 2**20
    began = time.monotonic()
    with proxy(folder, "again", configs["sqlite"], 1):
        print(f"{options.conversations} conversations: {size:.1f} MiB, {time.monotonic() - began:.2f} s to start")


def main() -> int:
    """Fill, time, start again."""
    parser = argparse.ArgumentParser(prog="bench.state", description="The cost of state in a SQLite file.")
    parser.add_argument("--conversations", type=int, default=10_000)
    parser.add_argument("--requests", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running([PYTHON, "-m", "bench.upstream"], cwd=ROOT) as upstream:
        _measure(Path(folder), f"http://127.0.0.1:{first_line(upstream)}", options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
