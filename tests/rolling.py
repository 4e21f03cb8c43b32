"""Replicas that are restarted in turn while clients ask without a pause, through whatever stands in front of them."""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import httpx

from tests.free_port import free_port
from tests.serving import CONFIG
from tests.test_cli import PLAIN, ROOT

CLIENTS = 24
CHUNKS = 10
# What the upstream of bench/ is asked for: an answer at once, one after 30 ms, a stream at once, one of 150 ms.
WHOLE = ("whole", "after-30")
STREAMED = (f"burst-{CHUNKS}", f"paced-{CHUNKS}-15")
QUIET = "telemetry: {log_level: error}"


class Replica:
    """`toolproxy serve` on a port of its own, which it keeps when it is restarted."""

    def __init__(self, config):
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._command = [sys.executable, "-m", "proxy", "serve", "--port", str(port), "--config", str(config)]

    async def start(self):
        """Start, and return when it serves."""
        environ = {"stderr": asyncio.subprocess.DEVNULL, "env": PLAIN, "cwd": ROOT}
        self._process = await asyncio.create_subprocess_exec(*self._command, **environ)
        async with httpx.AsyncClient() as client:
            while not await _answers(client, f"{self.url}/healthz"):
                assert self._process.returncode is None
                await asyncio.sleep(0.05)

    async def stop(self):
        """Stop as a process manager does, and return when the process has ended."""
        if self._process.returncode is None:
            self._process.terminate()
        assert await self._process.wait() == 0

    async def restart(self):
        """Restart, and return when the front gives it work again."""
        await self.stop()
        await self.start()
        async with httpx.AsyncClient() as client:
            while 'route="/v1/chat/completions"' not in (await client.get(f"{self.url}/metrics")).text:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def _answers(client, url):
    try:
        return (await client.get(url)).status_code == 200
    except httpx.ConnectError:
        return False


@asynccontextmanager
async def two_replicas(folder) -> AsyncIterator[list[Replica]]:
    """Two replicas in front of one upstream."""
    command = [sys.executable, "-m", "bench.upstream"]
    upstream = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, cwd=ROOT)
    replicas = []
    try:
        port = int(await upstream.stdout.readline())
        config = folder / "config.yaml"
        models = "".join(f"  {name}: {{upstream: up}}\n" for name in (*WHOLE, *STREAMED))
        text = CONFIG.format(upstream=f"http://127.0.0.1:{port}", more=QUIET)
        config.write_text(text.replace("models:\n", f"models:\n{models}"))
        replicas = [Replica(config) for _ in range(2)]
        await asyncio.gather(*(replica.start() for replica in replicas))
        yield replicas
    finally:
        await asyncio.gather(*(replica.stop() for replica in replicas), return_exceptions=True)
        upstream.terminate()
        await upstream.wait()


class Load:
    """Clients that ask one thing after the other and never twice, and what became of it."""

    def __init__(self, url, models, *, clients=CLIENTS, size=0):
        self.outcomes = Counter()
        self._url, self._models = f"{url}/v1/chat/completions", models
        self._clients, self._content = clients, "x" * size
        self._enough = asyncio.Event()
        self._numbers = count()

    @property
    def lost(self):
        """What became of those that have not their whole answer."""
        return {outcome: times for outcome, times in self.outcomes.items() if outcome != "complete"}

    @asynccontextmanager
    async def going_on(self):
        """The load, until the block ends and every client has its last answer."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._clients):
                group.create_task(self._client())
            try:
                yield self
            finally:
                self._enough.set()

    async def _client(self):
        async with httpx.AsyncClient(timeout=20) as client:
            while not self._enough.is_set():
                model = self._models[next(self._numbers) % len(self._models)]
                self.outcomes[await self._asked(client, model)] += 1

    async def _asked(self, client, model):
        question = {"role": "user", "content": f"Hi {self._content}"}
        body = {"model": model, "messages": [question], "stream": model in STREAMED}
        try:
            answer = await client.post(self._url, json=body)
        except httpx.HTTPError as exc:
            return repr(exc)
        if answer.status_code != 200:
            return f"{answer.status_code} {answer.text[:200]}"
        if model not in STREAMED:
            return "complete" if answer.json()["choices"][0]["message"]["content"] else "empty"
        chunks = answer.text.count('"delta":{"content"')
        is_whole = chunks == CHUNKS and answer.text.endswith("data: [DONE]\n\n")
        return "complete" if is_whole else f"cut after {chunks} chunks"
