"""Conversations that search with each shipped provider: the real SDK, real sockets, a scripted server for the provider."""

from contextlib import asynccontextmanager

import orjson
import pytest
from httpx import AsyncClient

from proxy.tools.search.description import description, shipped
from tests.fakes import FakeClock, whole
from tests.serving import proxy_of, serving
from tests.tools.search.test_provider import ANSWERS

CONFIG = """
upstreams: {{up: {{base_url: {upstream}/v1, api_key: upstream-secret, profile: openai, retries: 0}}}}
models: {{m: {{upstream: up}}}}
tools:
{more}
"""
ASKED = {"model": "m", "messages": [{"role": "user", "content": "Who won?"}]}
SEARCH = whole(calls=[("1", "web_search", {"query": "who won"})])


class Service:
    """A search service: each request takes the next answer, `(status, headers, body)`; the last one stays."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests = []

    async def __call__(self, scope, receive, send):
        body = (await receive())["body"]
        self.requests.append((scope["path"], dict(scope["headers"]), body))
        status, headers, answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        content = answer.encode() if isinstance(answer, str) else orjson.dumps(answer)
        head = [(b"content-type", b"application/json"), *((k.encode(), v.encode()) for k, v in headers.items())]
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": content})


def entry(name, provider, url, **more):
    fields = {"type": "search", "provider": provider, "api_key": "search-secret", "base_url": url, "retries": 0, **more}
    return f"  {name}: {orjson.dumps(fields).decode()}\n"


@asynccontextmanager
async def searching(upstream, service, provider, **more):
    """The URL of a proxy whose `web_search` asks the service, in the provider's words."""
    async with (
        serving(service, lifespan="off") as api,
        proxy_of(upstream, config=CONFIG, more=entry("web_search", provider, api, **more)) as url,
    ):
        yield url


def good(provider):
    return (200, {}, ANSWERS[provider]["answer"])


def results_seen(upstream):
    return [m["content"] for m in upstream.requests[-1]["messages"] if m["role"] == "tool"]


@pytest.mark.parametrize("name", shipped())
async def test_an_answer_cites_the_pages_that_the_provider_returned(name, upstream, sdk):
    service, hits = Service(good(name)), ANSWERS[name]["hits"]
    async with searching(upstream, service, name) as url, sdk(url) as client:
        upstream.replies = [SEARCH, whole(f"It was Leo ({hits[0]['url']}).")]
        answer = await client.chat.completions.create(**ASKED)
    [cited] = answer.choices[0].message.annotations
    assert (cited.url_citation.url, cited.url_citation.title) == (hits[0]["url"], hits[0]["title"])
    [result] = results_seen(upstream)
    for hit in hits:
        assert f"{hit['title']}\n{hit['url']}" in result
        assert hit.get("text", "") in result
    assert answer.usage.server_tool_use["web_search_requests"] == 1
    assert "search-secret" not in orjson.dumps(upstream.requests).decode()


@pytest.mark.parametrize("name", shipped())
async def test_a_response_has_the_pages_as_sources(name, upstream, sdk):
    service, hits = Service(good(name)), ANSWERS[name]["hits"]
    async with searching(upstream, service, name) as url, sdk(url) as client:
        upstream.replies = [SEARCH, whole("It was Leo.")]
        response = await client.responses.create(
            model="m", input="Who won?", tools=[{"type": "web_search"}], include=["web_search_call.action.sources"]
        )
    [search] = [item for item in response.output if item.type == "web_search_call"]
    assert [source.url for source in search.action.sources] == [hit["url"] for hit in hits]


@pytest.mark.parametrize("name", shipped())
async def test_no_byte_of_a_blocked_page_reaches_model_or_client(name, upstream, sdk):
    answer = (
        orjson.dumps(ANSWERS[name]["answer"]).replace(b"example.", b"blocked.").replace(b"arxiv.org", b"blocked.org")
    )
    service = Service((200, {}, orjson.loads(answer)))
    blocked = [f"blocked.{ending}" for ending in ("com", "org", "net", "cn")]
    async with searching(upstream, service, name, block_domains=blocked) as url, sdk(url) as client:
        upstream.replies = [SEARCH, whole("Nobody knows.")]
        completion = await client.chat.completions.create(**ASKED)
    [result] = results_seen(upstream)
    assert "No results" in result
    for text in (result, completion.model_dump_json()):
        assert "blocked." not in text
        assert not any(hit["title"] in text for hit in ANSWERS[name]["hits"])


@pytest.mark.parametrize("name", shipped())
async def test_a_provider_that_refuses_leaves_the_answer_to_the_fallback(name, upstream, sdk):
    refusals = [case for case in ANSWERS[name]["errors"] if case["means"] != "input"]
    service = Service(*((case["status"], case.get("headers", {}), case["body"]) for case in refusals))
    other = Service(good("tavily"))
    async with serving(service, lifespan="off") as first, serving(other, lifespan="off") as second:
        more = entry("web_search", name, first, fallback=["spare"]) + entry("spare", "tavily", second, offer="never")
        async with proxy_of(upstream, config=CONFIG, more=more) as url, sdk(url) as client:
            for _ in refusals:
                upstream.restart([SEARCH, whole("It was Leo.")])
                await client.chat.completions.create(**ASKED)
                assert ANSWERS["tavily"]["hits"][0]["title"] in results_seen(upstream)[0]
    assert len(other.requests) == len(refusals)
    assert "search-secret" not in orjson.dumps(upstream.requests).decode()


async def test_a_provider_without_credit_is_skipped_until_its_reset(upstream, sdk):
    clock = FakeClock()
    first = Service((432, {"retry-after": "600"}, {"detail": {"error": "This request exceeds your plan's usage."}}))
    other = Service(good("brave"))
    async with serving(first, lifespan="off") as one, serving(other, lifespan="off") as two:
        more = entry("web_search", "tavily", one, fallback="spare") + entry("spare", "brave", two, offer="never")
        async with proxy_of(upstream, config=CONFIG, more=more, clock=clock) as url, sdk(url) as client:
            for _ in range(5):
                upstream.restart([SEARCH, whole("It was Leo.")])
                answer = await client.chat.completions.create(**ASKED)
                assert answer.choices[0].message.content == "It was Leo."
            assert (len(first.requests), len(other.requests)) == (1, 5)
            first.answers = [good("tavily")]
            clock.now += 601
            upstream.restart([SEARCH, whole("It was Leo.")])
            await client.chat.completions.create(**ASKED)
    assert (len(first.requests), len(other.requests)) == (2, 5)


async def test_a_provider_whose_key_is_refused_is_asked_again_after_a_minute_and_used_once_it_is_mended(upstream, sdk):
    clock = FakeClock()
    first, other = Service((401, {}, {"detail": {"error": "bad key"}})), Service(good("brave"))
    async with serving(first, lifespan="off") as one, serving(other, lifespan="off") as two:
        more = entry("web_search", "tavily", one, fallback="spare") + entry("spare", "brave", two, offer="never")
        async with proxy_of(upstream, config=CONFIG, more=more, clock=clock) as url, sdk(url) as client:
            asked = []
            for passed in (0, 59, 1, 119, 1, 0):
                clock.now += passed
                if len(asked) == 4:
                    first.answers = [good("tavily")]
                upstream.restart([SEARCH, whole("It was Leo.")])
                await client.chat.completions.create(**ASKED)
                asked.append((len(first.requests), len(other.requests)))
    assert asked == [(1, 1), (1, 2), (2, 3), (2, 4), (3, 4), (4, 4)]


async def test_nothing_found_and_a_refused_query_ask_no_fallback(upstream, sdk):
    first = Service((200, {}, {"results": []}), (400, {}, {"detail": {"error": "Query is too long."}}))
    other = Service(good("brave"))
    async with serving(first, lifespan="off") as one, serving(other, lifespan="off") as two:
        more = entry("web_search", "tavily", one, fallback="spare") + entry("spare", "brave", two, offer="never")
        async with proxy_of(upstream, config=CONFIG, more=more) as url, sdk(url) as client:
            for expected in ("No results", "did not understand"):
                upstream.restart([SEARCH, whole("Nobody knows.")])
                await client.chat.completions.create(**ASKED)
                assert expected in results_seen(upstream)[0]
    assert other.requests == []


async def test_the_fallbacks_are_asked_in_order_with_the_same_arguments(upstream, sdk):
    down, empty, last = Service((500, {}, {})), Service((403, {}, {})), Service(good("brave"))
    async with (
        serving(down, lifespan="off") as one,
        serving(empty, lifespan="off") as two,
        serving(last, lifespan="off") as three,
    ):
        more = (
            entry("web_search", "tavily", one, fallback=["b", "c"])
            + entry("b", "exa", two, offer="never")
            + entry("c", "brave", three, offer="never")
        )
        async with proxy_of(upstream, config=CONFIG, more=more) as url, sdk(url) as client:
            upstream.replies = [
                whole(calls=[("1", "web_search", {"q": "who won", "tbs": "qdr:w", "topn": 3})]),
                whole("It was Leo."),
            ]
            await client.chat.completions.create(**ASKED)
    assert orjson.loads(down.requests[0][2])["time_range"] == "week"
    assert orjson.loads(empty.requests[0][2])["numResults"] == 3
    [(path, _, _)] = last.requests
    assert path == description("brave").url.removeprefix("https://api.search.brave.com")


@pytest.mark.parametrize(("price", "cost"), [(0.004, 0.008), (None, None)])
async def test_calls_of_a_tool_with_a_price_are_in_the_cost(price, cost, upstream, sdk):
    more = {} if price is None else {"price": price}
    async with searching(upstream, Service(good("tavily")), "tavily", **more) as url, sdk(url) as client:
        other = whole(calls=[("2", "web_search", {"query": "who lost"})])
        upstream.replies = [SEARCH, other, whole("It was Leo.")]
        answer = await client.chat.completions.create(**ASKED)
        upstream.restart([SEARCH, other, whole("It was Leo.")])
        response = await client.responses.create(model="m", input="Who won?")
    assert (answer.usage.to_dict().get("cost"), response.usage.to_dict().get("cost")) == (cost, cost)


async def test_a_call_that_fails_or_is_answered_from_the_cache_costs_nothing(upstream, sdk):
    service = Service(good("tavily"), (400, {}, {}))
    async with searching(upstream, service, "tavily", price=0.004, cache_seconds=60) as url, sdk(url) as client:
        upstream.replies = [SEARCH, whole("It was Leo.")]
        first = await client.chat.completions.create(**ASKED)
        upstream.restart([SEARCH, whole("It was Leo.")])
        cached = await client.chat.completions.create(**ASKED)
        upstream.restart([whole(calls=[("2", "web_search", {"query": "who lost"})]), whole("I do not know.")])
        failed = await client.chat.completions.create(**ASKED)
    assert len(service.requests) == 2
    costs = [answer.usage.to_dict().get("cost") for answer in (first, cached, failed)]
    assert costs == [0.004, 0, None]


async def test_a_call_that_a_fallback_answered_is_priced_and_counted_as_the_fallbacks(upstream, sdk):
    down, other = Service((500, {}, {})), Service(good("brave"))
    async with serving(down, lifespan="off") as one, serving(other, lifespan="off") as two:
        more = entry("web_search", "tavily", one, fallback="spare", price=0.008)
        more += entry("spare", "brave", two, offer="never", price=0.005)
        async with proxy_of(upstream, config=CONFIG, more=more) as url, sdk(url) as client, AsyncClient() as plain:
            upstream.replies = [SEARCH, whole("It was Leo.")]
            answer = await client.chat.completions.create(**ASKED)
            upstream.restart([SEARCH, whole("It was Leo.")])
            message = (await plain.post(f"{url}/v1/messages", json={**ASKED, "max_tokens": 900})).json()
            metrics = (await plain.get(f"{url}/metrics")).text
    assert (answer.usage.cost, message["usage"]["cost"]) == (0.005, 0.005)
    assert 'toolproxy_tool_calls_total{outcome="ok",tool="spare"} 2.0' in metrics
    assert 'toolproxy_tool_calls_total{outcome="ok",tool="web_search"}' not in metrics


@pytest.mark.parametrize("arguments", [{"search_term": "who won"}, {"__arg1": "who won"}, {"queries": ["who won"]}])
async def test_a_search_that_a_client_declares_with_an_argument_of_any_name_is_made(arguments, upstream, sdk):
    service = Service(good("tavily"))
    parameters = {"type": "object", "properties": {name: {} for name in arguments}, "required": [*arguments]}
    own = {"type": "function", "function": {"name": "web_search", "parameters": parameters}}
    async with searching(upstream, service, "tavily") as url, sdk(url) as client:
        upstream.replies = [whole(calls=[("1", "web_search", arguments)]), whole("Leo.")]
        await client.chat.completions.create(**ASKED, tools=[own])
    assert orjson.loads(service.requests[0][2])["query"] == "who won"
