"""Several keys of one search service, of which its searches take turns: over real sockets."""

import httpx
import orjson
import pytest

from tests.fakes import SEARCH_ANSWER, FakeClock, Reply, whole
from tests.serving import proxy_of

KEYS = [f"{name}-{number * 8}" for name, number in (("delta", "4"), ("echo", "5"), ("foxtrot", "6"))]
CONFIG = """
upstreams: {{up: {{base_url: "{upstream}/v1", api_key: k}}}}
models: {{m: {{upstream: up}}}}
tools:
  web_search: {{type: serper, api_key: [%s], base_url: "{upstream}", retries: 0, timeout: 5, fallback: second}}
  second: {{type: serper, api_key: own-key-of-the-second, base_url: "{upstream}", retries: 0, offer: never}}
{more}
"""
POOL = CONFIG % ", ".join(KEYS)
FOUND = Reply([orjson.dumps(SEARCH_ANSWER)])


class Service:
    """A search service that refuses keys; `refusals` has the answers that a key gets first, by its number."""

    def __init__(self, upstream):
        self.upstream, self.refusals = upstream, {}
        upstream.search = self.answer
        upstream.replies = [self.model]

    @property
    def used(self):
        sent = [head["headers"][b"x-api-key"].decode() for head in self.upstream.heads if head["path"] == "/search"]
        return [KEYS.index(key) + 1 if key in KEYS else 0 for key in sent]

    def answer(self, _):
        refusals = self.refusals.get(self.used[-1])
        return refusals.pop(0) if refusals else FOUND

    def model(self, request):
        if request["messages"][-1]["role"] == "tool":
            return whole("Hi")
        return whole(calls=[("c", "web_search", {"query": f"q {len(self.upstream.requests)}"})])


def no(status, message="No.", headers=()):
    return Reply([orjson.dumps({"message": message})], status=status, headers=headers)


async def ask(url):
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    async with httpx.AsyncClient(timeout=30, verify=False) as client:  # noqa: S501 - there is no TLS here
        response = await client.post(f"{url}/v1/chat/completions", json=body)
    assert response.json()["choices"][0]["message"]["content"] == "Hi"


@pytest.fixture
def service(upstream):
    return Service(upstream)


async def test_searches_take_turns_at_the_keys(service):
    async with proxy_of(service.upstream, config=POOL) as url:
        for _ in range(6):
            await ask(url)
        async with httpx.AsyncClient() as client:
            ready = (await client.get(f"{url}/readyz")).json()["tools"][0]
            metrics = (await client.get(f"{url}/metrics")).text
    assert service.used == [1, 2, 3, 1, 2, 3]
    assert ready["keys"] == {"usable": 3, "of": 3}
    assert 'toolproxy_tool_key_requests_total{key="2",tool="web_search"} 2.0' in metrics
    assert 'toolproxy_tool_keys{state="usable",tool="web_search"} 3.0' in metrics


@pytest.mark.parametrize(
    ("refusal", "cause", "seconds"),
    [
        (no(403, f"Unauthorized: {KEYS[1][:9]}..."), "refused", 60),
        (no(400, "Not enough credits"), "credit", 600),
        (no(400, "Not enough credits", [(b"x-ratelimit-reset", b"7200")]), "window", 7200),
        (no(429, headers=[(b"retry-after", b"9")]), "rate", 9),
    ],
)
async def test_a_key_that_the_service_refuses_costs_no_search_and_comes_back(service, logged, refusal, cause, seconds):
    clock = FakeClock()
    service.refusals = {2: [refusal]}
    async with proxy_of(service.upstream, config=POOL, clock=clock) as url:
        for _ in range(4):
            await ask(url)
        assert sorted(service.used) == [1, 1, 2, 3, 3]
        clock.now += seconds
        for _ in range(3):
            await ask(url)
    assert 2 in service.used[5:]
    assert 0 not in service.used, "the fallback was not called"
    (rest,) = [line for line in logged() if line["event"] == "tool.key_rests"]
    assert (rest["tool"], rest["key"], rest["cause"], rest["seconds"]) == ("web_search", 2, cause, seconds)
    pieces = [KEYS[1][at : at + 6] for at in range(len(KEYS[1]) - 5)]
    assert not [line for line in logged() if any(piece in orjson.dumps(line).decode() for piece in pieces)]


async def test_where_every_key_rests_the_fallback_answers_and_the_tool_is_not_left_alone_for_it(service, logged):
    service.refusals = {number: [no(403)] for number in (1, 2, 3)}
    clock = FakeClock()
    async with proxy_of(service.upstream, config=POOL, clock=clock) as url, httpx.AsyncClient() as client:
        for _ in range(3):
            await ask(url)
        assert (sorted(service.used[:3]), service.used[3:]) == ([1, 2, 3], [0, 0, 0])
        ready = (await client.get(f"{url}/readyz")).json()["tools"][0]
        assert (ready["usable"], ready["keys"], "breaker" in ready) == (True, {"usable": 0, "of": 3}, False)
        clock.now += 60
        await ask(url)
    assert service.used[6] in (1, 2, 3)
    fell_back = [line["why"] for line in logged() if line["event"] == "tool.fell_back"]
    assert len(fell_back) == 3
    assert all("key was refused" in why for why in fell_back)


async def test_a_tool_whose_keys_all_rest_is_not_usable_where_nothing_else_answers(service):
    service.refusals = {number: [no(403)] for number in (1, 2, 3)}
    alone = POOL.replace(", fallback: second", "")
    async with proxy_of(service.upstream, config=alone) as url, httpx.AsyncClient() as client:
        await ask(url)
        ready = (await client.get(f"{url}/readyz")).json()["tools"][0]
    assert (ready["name"], ready["usable"], ready["keys"]) == ("web_search", False, {"usable": 0, "of": 3})
    assert ready["why_not"] == "all its keys are refused, or without credit or quota"
