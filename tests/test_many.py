"""Two replicas of two workers each, one Redis: real processes, which together behave as one."""

import asyncio
from contextlib import ExitStack, asynccontextmanager

import httpx
import orjson
import pytest

from tests.fakes import SEARCH_ANSWER, Reply, whole
from tests.redis_server import RedisServer
from tests.serving import serving
from tests.test_cli import running

CONFIG = """
server: {{workers: 2, port: 0}}
clients:
  - {{name: app, key: key-app}}
  - {{name: slow, key: key-slow, requests_per_minute: 5}}
  - {{name: narrow, key: key-narrow, max_concurrent_requests: 2}}
upstreams: {{up: {{base_url: "{upstream}/v1", api_key: upstream-secret, retries: 0}}}}
models: {{m: {{upstream: up}}}}
tools: {{web_search: {{type: serper, api_key: serper-secret, base_url: "{upstream}", cache_seconds: 60}}}}
state: {{url: "${{STATE}}"}}
telemetry: {{log_level: info}}    # at debug, the lines about /readyz would fill the pipe, which is read at the end
"""
PASSWORD = "redis-canary"
OPEN_DOOR = {"type": "function", "function": {"name": "open_door", "parameters": {"type": "object", "properties": {}}}}
QUESTION = {"role": "user", "content": "Look up the code and open the door."}


class Replicas:
    """What stands behind a balancer: `post` goes round, over a new connection each time."""

    def __init__(self, processes):
        self._processes = [process for process, _ in processes]
        self._urls = [url for _, url in processes]
        self._turn = 0

    async def post(self, messages, *, key="app", **options):
        return await self.request("POST", "chat/completions", key=key, json={"messages": messages, **options})

    async def request(self, method, path, *, key="app", json=None):
        body = {"json": {"model": "m", **json}} if json else {}
        async with httpx.AsyncClient(timeout=20) as client:
            return await client.request(method, f"{self._next()}/v1/{path}", headers={"api-key": f"key-{key}"}, **body)

    async def readiness(self):
        async with httpx.AsyncClient(timeout=20) as client:
            return await client.get(f"{self._next()}/readyz")

    def stop(self):
        """The log of all of them."""
        for process in self._processes:
            process.terminate()
        logs = [process.communicate(timeout=20)[1] for process in self._processes]
        return [orjson.loads(line) for log in logs for line in log.splitlines()]

    def _next(self):
        self._turn += 1
        return self._urls[self._turn % len(self._urls)]


@asynccontextmanager
async def replicas(upstream, redis_server, folder):
    async with serving(upstream, lifespan="off") as upstream_url:
        path = folder / "config.yaml"
        path.write_text(CONFIG.format(upstream=upstream_url))
        with ExitStack() as stack:
            environ = {"STATE": redis_server.url}
            serve = ("serve", "--config", str(path))
            yield Replicas([stack.enter_context(running(*serve, environ=environ)) for _ in range(2)])


@pytest.fixture
def redis_server(tmp_path):
    server = RedisServer(tmp_path, password=PASSWORD).start()
    yield server
    server.stop()


def mixed_then_done(request):
    """An upstream that calls a search and the app's door, and is content when it has seen the door opened."""
    if any(message.get("content") == "opened" for message in request["messages"]):
        return whole("Done.")
    return whole(calls=[("u-search", "web_search", {"query": "code"}), ("u-door", "open_door", {})])


def search_then_done(request):
    if any(message["role"] == "tool" for message in request["messages"]):
        return whole("Found.")
    return whole(calls=[("u-search", "web_search", {"query": "the same"})])


async def mixed_turn(some):
    """Begin at one, finish at another."""
    first = (await some.post([QUESTION], tools=[OPEN_DOOR])).json()["choices"][0]["message"]
    (call,) = first["tool_calls"]
    opened = {"role": "tool", "tool_call_id": call["id"], "content": "opened"}
    second = await some.post([QUESTION, first, opened], tools=[OPEN_DOOR])
    assert second.status_code == 200
    return second.json()["choices"][0]["message"]["content"]


async def until(condition):
    async with asyncio.timeout(15):
        while not condition():  # noqa: ASYNC110 - what it waits for happens in another process
            await asyncio.sleep(0.02)


async def until_told(some, *, usable):
    """Whoever is asked says of its state that it is, or is not, usable, and is ready. Returns what the state is then.

    Which worker answers is the system's choice, so that one of them may never be asked.
    """
    async with asyncio.timeout(15):
        told = []
        while {state["usable"] for state in told} != {usable}:
            answers = [await some.readiness() for _ in range(16)]
            assert {answer.status_code for answer in answers} == {200}
            told = [answer.json()["state"] for answer in answers]
    return told


async def until_shared(some, upstream):
    """Turns that begin at one and finish at another keep their search, several in a row; all are answered meanwhile."""
    async with asyncio.timeout(15):
        in_a_row = 0
        while in_a_row < 6:
            assert await mixed_turn(some) == "Done."
            in_a_row = in_a_row + 1 if "https://a.example/" in str(upstream.requests[-1]["messages"]) else 0


async def test_two_replicas_of_two_workers_are_as_one(upstream, redis_server, tmp_path):
    async with replicas(upstream, redis_server, tmp_path) as some:
        # A mixed turn that is begun at one and finished at another.
        upstream.replies = [mixed_then_done]
        for _ in range(6):
            assert await mixed_turn(some) == "Done."
            assert "https://a.example/" in str(upstream.requests[-1]["messages"])
        assert len(upstream.searches) == 1  # five of them were answered from the cache

        # A response that was kept by one is continued, and forgotten, at others.
        upstream.replies = [whole("The code is 7.")]
        kept = (await some.request("POST", "responses", json={"input": "The code?"})).json()["id"]
        again = {"input": "Again?", "previous_response_id": kept}
        for _ in range(4):
            assert (await some.request("POST", "responses", json=again)).status_code == 200
            assert "The code is 7." in str(upstream.requests[-1]["messages"])
        assert (await some.request("DELETE", f"responses/{kept}")).status_code == 200
        for _ in range(4):
            assert (await some.request("GET", f"responses/{kept}")).status_code == 404

        # One search for two equal calls at the same moment.
        gate = asyncio.Event()
        upstream.search = Reply([gate, orjson.dumps(SEARCH_ANSWER)])
        upstream.replies = [search_then_done]
        asked, searched = len(upstream.requests), len(upstream.searches)
        both = [asyncio.ensure_future(some.post([QUESTION])) for _ in range(2)]
        await until(lambda: len(upstream.requests) == asked + 2 and len(upstream.searches) > searched)
        gate.set()
        contents = [answer.json()["choices"][0]["message"]["content"] for answer in await asyncio.gather(*both)]
        assert (contents, len(upstream.searches)) == (["Found."] * 2, searched + 1)

        # One rate limit.
        upstream.replies = [whole("Hi")]
        answers = [await some.post([QUESTION], key="slow") for _ in range(12)]
        assert [answer.status_code for answer in answers] == [200] * 5 + [429] * 7
        remaining = [answer.headers["x-ratelimit-remaining-requests"] for answer in answers[:6]]
        assert remaining == ["4", "3", "2", "1", "0", "0"]

        # So many open requests, over all of them.
        gate = asyncio.Event()
        upstream.replies = [Reply([gate, *whole("Hi").body])]
        asked = len(upstream.requests)
        two = [asyncio.ensure_future(some.post([QUESTION], key="narrow")) for _ in range(2)]
        await until(lambda: len(upstream.requests) == asked + 2)
        assert {(await some.post([QUESTION], key="narrow")).status_code for _ in range(4)} == {429}
        gate.set()
        assert {answer.status_code for answer in await asyncio.gather(*two)} == {200}
        assert (await some.post([QUESTION], key="narrow")).status_code == 200

        log = some.stop()
    assert PASSWORD not in str(log)
    assert not [line for line in log if line["event"] == "state.unavailable"]


async def test_when_redis_is_killed_requests_go_on_and_when_it_is_back_all_is_shared_again(
    upstream, redis_server, tmp_path
):
    async with replicas(upstream, redis_server, tmp_path) as some:
        upstream.replies = [mixed_then_done]
        await until_told(some, usable=True)
        await until_shared(some, upstream)
        first = (await some.post([QUESTION], tools=[OPEN_DOOR])).json()["choices"][0]["message"]

        opened = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "opened"}

        redis_server.stop()
        for key in ("app", "slow", "narrow") * 4:
            answer = await some.post([QUESTION, first, opened], key=key)
            assert (answer.status_code, answer.json()["choices"][0]["message"]["content"]) == (200, "Done.")
        for state in await until_told(some, usable=False):
            assert state["why_not"].startswith("it cannot be reached")

        redis_server.start()
        await until_told(some, usable=True)
        await until_shared(some, upstream)
        log = some.stop()

    assert PASSWORD not in str(log)
    told = [line for line in log if line["event"].startswith("state.")]
    lost, found = ([line["event"] for line in told].count(f"state.{event}") for event in ("unavailable", "recovered"))
    assert 2 <= found <= lost <= 4  # once by each worker that has looked while it was away, and has looked again
    assert {line["level"] for line in told} == {"warning"}
