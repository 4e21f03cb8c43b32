"""Reloads without end, under load: is an answer ever lost, is a right key ever refused, does memory grow?

    python -m bench.reload [--reloads 1000] [--workers 1] [--clients 16]

Good files and faulty ones take turns. With each good one the client's key changes, old -> old and new -> new, and
clients use a key only while it is valid. Some streams are longer than many reloads. Exit code 1: something was lost, or
each reload has left more than a little memory behind.
"""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from bench.processes import PYTHON, first_line, memory, running
from bench.targets import ROOT

MOST_BYTES_PER_RELOAD = 10_000
_MODELS = {"whole": 0, "burst-10": 10, "paced-20-50": 20, "tool-3-10": 3}
_WORKERS_SECONDS = 0.2  # the supervisor counts a reload when it hands it to the workers
_SETTLED = 0.2  # of the reloads: by then memory is what it will be

_CONFIG = """
server: {{port: 0, max_concurrent_requests: {limit}}}
clients: [{{name: app, key: [{keys}]}}]
upstreams: {{up: {{base_url: "http://127.0.0.1:{upstream}/v1", api_key: upstream-key-1, retries: {retries}}}}}
models: {models}
tools: {{current_time: {{type: clock}}}}
telemetry: {{log_level: error}}
"""


@dataclass(slots=True)
class Keys:
    """The client's key, which changes with every good file."""

    number: int = 0

    def name(self, number: int) -> str:
        """The key of that number."""
        return f"a-key-of-the-app-{number:06}"

    @property
    def current(self) -> str:
        """A key that is valid before and after the next file."""
        return self.name(self.number)


@dataclass(slots=True)
class Load:
    """Clients that ask one thing after the other, and what became of it."""

    url: str
    keys: Keys
    outcomes: Counter[str] = field(default_factory=Counter)
    stopped: bool = False

    async def client(self, index: int) -> None:
        """One client on one connection."""
        models = list(_MODELS)
        async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
            while not self.stopped:
                index += 1
                self.outcomes[await self._asked(http, models[index % len(models)])] += 1

    async def _asked(self, http: httpx.AsyncClient, model: str) -> str:
        chunks = _MODELS[model]
        body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "stream": bool(chunks)}
        if not model.startswith("tool"):
            body["tools"] = []
        headers = {"authorization": f"Bearer {self.keys.current}"}
        try:
            answer = await http.post(f"{self.url}/chat/completions", json=body, headers=headers)
        except httpx.HTTPError as exc:
            return f"lost: {exc!r}"
        if answer.status_code != httpx.codes.OK:
            return f"refused: {answer.status_code} {answer.text[:120]}"
        if chunks and not (answer.text.endswith("data: [DONE]\n\n") and answer.text.count('"content":"') >= chunks):
            return f"cut: {model}"
        return "whole"


def _configuration(upstream: int, number: int, keys: Keys) -> str:
    """A good file: the key before and the key after, and now and then another limit or another upstream entry."""
    valid = ", ".join(keys.name(one) for one in (number - 1, number, number + 1))
    models = "{" + ", ".join(f"{name}: {{upstream: up}}" for name in _MODELS) + "}"
    limit, retries = 1000 + number % 3, number // 5 % 2
    return _CONFIG.format(limit=limit, keys=valid, upstream=upstream, retries=retries, models=models)


def _write(path: Path, text: str) -> None:
    path.write_text(text)


async def _metric(url: str, name: str) -> float:
    async with httpx.AsyncClient(trust_env=False) as http:
        text = (await http.get(url.removesuffix("/v1") + "/metrics")).text
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))


async def _reload(process: int, config: Path, upstream: int, load: Load, reloads: int) -> list[tuple[int, int]]:
    """Good and faulty files in turn; returns memory in bytes after so many reloads, now and then."""
    sizes = []
    for number in range(1, reloads + 1):
        is_good, count = number % 2 == 1, (number + 1) // 2
        _write(config, _configuration(upstream, count, load.keys) if is_good else "server: {prot: 1}\n")
        os.kill(process, signal.SIGHUP)
        metric = f'toolproxy_reloads_total{{outcome="{"ok" if is_good else "refused"}"}}'
        while await _metric(load.url, metric) < count:  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(0.02)
        if is_good:
            await asyncio.sleep(_WORKERS_SECONDS)
            load.keys.number = count
        if number % 20 == 0:
            sizes.append((number, memory(process)))
    return sizes


async def _measure(process: int, url: str, config: Path, upstream: int, options: argparse.Namespace) -> bool:
    load = Load(url, Keys())
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for index in range(options.clients):
            group.create_task(load.client(index))
        sizes = await _reload(process, config, upstream, load, options.reloads)
        load.stopped = True
    seconds = time.monotonic() - began
    settled = [size for number, size in sizes if number >= _SETTLED * options.reloads]
    grown = (settled[-1] - settled[0]) / (options.reloads * (1 - _SETTLED)) if len(settled) > 1 else 0.0
    print(f"{options.reloads} reloads in {seconds:.0f} s, {options.workers} worker(s): {dict(load.outcomes)}")
    print(f"memory: {', '.join(f'{size / 2**20:.1f}' for _, size in sizes[:: max(1, len(sizes) // 10)])} MiB")
    print(f"left behind by each reload: {grown:,.0f} bytes")
    return set(load.outcomes) == {"whole"} and grown < MOST_BYTES_PER_RELOAD


def main() -> int:
    """Reload, and say what became of it."""
    parser = argparse.ArgumentParser(prog="bench.reload", description="Reloads under load.")
    parser.add_argument("--reloads", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--clients", type=int, default=16)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running([PYTHON, "-m", "bench.upstream"], cwd=ROOT) as upstream:
        port, config, log = int(first_line(upstream)), Path(folder, "config.yaml"), Path(folder, "log")
        config.write_text(_configuration(port, 0, Keys()))
        command = [PYTHON, "-m", "proxy", "serve", "--config", str(config), "--workers", str(options.workers)]
        with running(command, log=log, cwd=ROOT) as process:
            url = first_line(process).rpartition(" ")[2]
            fine = asyncio.run(_measure(process.pid, url, config, port, options))
        unexpected = [line for line in log.read_text().splitlines() if "configuration.refused" not in line]
        print(*unexpected[:10], sep="\n")
    return 0 if fine and not unexpected else 1


if __name__ == "__main__":
    sys.exit(main())
