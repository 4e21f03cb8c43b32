"""How much each client may ask: over real sockets, with the real SDK."""

import asyncio

import httpx
import openai
import pytest

from proxy.api.middleware.clients import duration, is_limited
from proxy.config.model import ClientConfig
from tests.fakes import FakeClock, Reply, chunk, stream, streamed, whole
from tests.serving import proxy_of

QUESTION = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tool_choice": "none"}
SLOW, BRISK, FREE = "key-slow", "key-brisk", "key-free"
CLIENTS = f"""
clients:
  - {{name: slow, key: {SLOW}, requests_per_minute: 2}}
  - {{name: brisk, key: {BRISK}, max_concurrent_requests: 1}}
  - {{name: free, key: {FREE}}}
"""
LIMIT, REMAINING, RESET = (f"x-ratelimit-{which}-requests" for which in ("limit", "remaining", "reset"))


async def ask(url, key, *, path="/v1/chat/completions", **changes):
    async with httpx.AsyncClient() as client:
        return await client.post(url + path, json={**QUESTION, **changes}, headers={"api-key": key})


def left(response):
    return [response.headers.get(name) for name in (LIMIT, REMAINING)]


@pytest.mark.parametrize(
    ("limits", "counted"),
    [({}, False), ({"requests_per_minute": 1}, True), ({"max_concurrent_requests": 1}, True)],
)
def test_only_clients_with_a_limit_are_counted(limits, counted):
    assert is_limited(ClientConfig(name="a", key="k", **limits)) is counted


async def test_a_client_over_its_rate_is_told_when_to_come_again(upstream, sdk):
    upstream.replies = [whole("Hi")]
    async with proxy_of(upstream, more=CLIENTS) as url:
        first, second, third = [await ask(url, SLOW) for _ in range(3)]
        assert [response.status_code for response in (first, second, third)] == [200, 200, 429]
        assert [left(response) for response in (first, second, third)] == [["2", "1"], ["2", "0"], ["2", "0"]]
        assert third.json()["error"] == {
            "message": "This key is limited to 2 requests per minute, and the limit is reached.",
            "type": "rate_limit_error",
            "param": None,
            "code": "rate_limit_exceeded",
        }
        assert 58 <= int(third.headers["retry-after"]) <= 60
        assert "x-should-retry" not in third.headers
        async with sdk(url, api_key=SLOW) as client:
            with pytest.raises(openai.RateLimitError):
                await client.chat.completions.create(**QUESTION)
    assert len(upstream.requests) == 2


async def test_the_window_moves_along(upstream):
    upstream.replies = [whole("Hi")]
    clock = FakeClock()
    async with proxy_of(upstream, more=CLIENTS, clock=clock) as url:
        assert (await ask(url, SLOW)).status_code == 200
        clock.now += 40
        assert (await ask(url, SLOW)).status_code == 200
        refused = await ask(url, SLOW)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "20")
        clock.now += 20  # as long as it was asked to wait
        assert left(await ask(url, SLOW)) == ["2", "0"]
        assert (await ask(url, SLOW)).status_code == 429


async def test_one_clients_rate_is_not_anothers(upstream):
    upstream.replies = [whole("Hi")]
    async with proxy_of(upstream, more=CLIENTS) as url:
        for _ in range(3):
            await ask(url, SLOW)
        for _ in range(5):
            response = await ask(url, FREE)
            assert (response.status_code, left(response)) == (200, [None, None])


@pytest.mark.parametrize(
    ("path", "changes", "status"),
    [
        ("/v1/chat/completions", {}, 200),
        ("/v1/chat/completions", {"stream": True}, 200),
        ("/v1/chat/completions", {"model": "unknown"}, 404),
        ("/v1/chat/completions", {"messages": []}, 400),
        ("/v1/models", {}, 405),
        ("/v1/nothing", {"model": 5}, 400),
        ("/v1/embeddings", {}, 200),
        ("/nowhere", {}, 404),
    ],
)
async def test_what_is_left_of_the_rate_stands_on_every_response(upstream, path, changes, status):
    upstream.replies = [streamed("Hi") if changes.get("stream") else whole("Hi")]
    async with proxy_of(upstream, more=CLIENTS) as url:
        response = await ask(url, SLOW, path=path, **changes)
    assert (response.status_code, left(response)) == (status, ["2", "1"])
    assert response.headers[RESET] in {"1m0s", *(f"59.{n:03}".rstrip("0") + "s" for n in range(1000))}


async def test_what_an_upstream_says_of_its_own_rate_does_not_contradict_it(upstream):
    of_its_own = ((REMAINING.encode(), b"9999"), (b"x-ratelimit-remaining-tokens", b"5"))
    upstream.replies = [Reply([b"{}"], headers=of_its_own), Reply([b'{"error": "no"}'], status=400, headers=of_its_own)]
    async with proxy_of(upstream, more=CLIENTS) as url:
        for remaining in ("1", "0"):
            response = await ask(url, SLOW, path="/v1/embeddings")
            assert response.headers.get_list(REMAINING) == [remaining]


async def test_the_health_checks_do_not_count(upstream):
    upstream.replies = [whole("Hi")]
    async with proxy_of(upstream, more=CLIENTS) as url, httpx.AsyncClient() as client:
        for _ in range(3):
            assert (await client.get(f"{url}/healthz", headers={"api-key": SLOW})).status_code == 200
        assert left(await ask(url, SLOW)) == ["2", "1"]


async def test_a_client_with_as_many_open_requests_as_it_may_have_waits_for_one_of_them(upstream):
    gate = asyncio.Event()
    upstream.replies = [stream(chunk({"content": "x"}), gate, chunk({}, "stop")), whole("Hi")]
    async with proxy_of(upstream, more=CLIENTS) as url:
        first = asyncio.ensure_future(ask(url, BRISK, stream=True))
        await upstream.asked.wait()
        refused = await ask(url, BRISK)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert (await ask(url, FREE)).status_code == 200
        gate.set()
        assert (await first).status_code == 200
        assert (await ask(url, BRISK)).status_code == 200
    assert len(upstream.requests) == 3


@pytest.mark.parametrize(
    ("reply", "status"),
    [(whole("Hi"), 200), (Reply([b"{}"], status=500), 502), (Reply([b"not json"]), 502), (Reply([None]), 502)],
)
async def test_whoever_waits_for_the_answer_is_never_refused_the_next(upstream, reply, status):
    upstream.replies = [reply]
    async with proxy_of(upstream, more=CLIENTS) as url:
        statuses = {(await ask(url, BRISK)).status_code for _ in range(20)}
    assert statuses == {status}


async def test_a_client_that_leaves_gives_its_place_back(upstream):
    upstream.replies = [stream(asyncio.Event()), whole("Hi")]
    async with proxy_of(upstream, more=CLIENTS) as url:
        leaving = asyncio.ensure_future(ask(url, BRISK, stream=True))
        await upstream.asked.wait()
        leaving.cancel()
        await upstream.left.wait()
        assert (await ask(url, BRISK)).status_code == 200


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(0, "0ms"), (0.0123, "13ms"), (1, "1s"), (8.64, "8.64s"), (59.9995, "1m0s"), (90.951, "1m30.951s")],
)
def test_durations_are_written_as_openai_writes_them(seconds, written):
    assert duration(seconds) == written
