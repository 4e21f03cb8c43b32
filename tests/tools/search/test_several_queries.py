"""Several queries in one call of a search, over real sockets."""

import anthropic
import orjson
import pytest
from httpx import AsyncClient

from proxy.tools.search.description import shipped
from proxy.tools.search.query import repair
from tests.fakes import Reply, streamed, whole
from tests.serving import proxy_of
from tests.tools.search.test_searched_answers import Service, good, results_seen, searching

ASKED = {"model": "m", "messages": [{"role": "user", "content": "Who won, and where?"}]}


def page(query, *names):
    rows = [
        {"title": f"{query} {name}", "link": f"https://{name}.example/", "snippet": f"About {query}."} for name in names
    ]
    return Reply([orjson.dumps({"organic": rows})])


def call(**arguments):
    return whole(calls=[("1", "web_search", arguments)])


PAGES = {
    "who": page("who", "a", "b"),
    "where": page("where", "b", "c"),
    "when": page("when", "a"),
    "none": page("none"),
}


@pytest.mark.parametrize(
    "arguments", [{"queries": ["who", "where"]}, {"query": "who", "queries": ["where"]}, {"query": ["who", "where"]}]
)
async def test_results_come_below_each_query_in_its_order_and_a_page_once(arguments, upstream, sdk):
    upstream.search = lambda asked: PAGES[asked["q"]]
    async with proxy_of(upstream) as url, sdk(url) as client:
        upstream.replies = [call(**arguments, num_results=3), whole("At https://c.example/.")]
        answer = await client.chat.completions.create(**ASKED)
    [result] = results_seen(upstream)
    assert (
        result.index('Results for "who":') < result.index("https://b.example/") < result.index('Results for "where":')
    )
    assert result.count("https://b.example/\n") == 1
    assert result.index('Results for "where":') < result.index("https://c.example/")
    assert [asked["num"] for asked in upstream.searches] == [3, 3]
    assert answer.usage.server_tool_use == {"web_search": 2, "turns": 2, "tool_calls": 2, "web_search_requests": 2}
    assert answer.choices[0].message.annotations[0].url_citation.title == "where c"


@pytest.mark.parametrize("name", shipped())
async def test_every_provider_takes_several_queries(name, upstream, sdk):
    service = Service(good(name))
    async with searching(upstream, service, name) as url, sdk(url) as client:
        upstream.replies = [call(queries=["first words", "second words"]), whole("It was Leo.")]
        answer = await client.chat.completions.create(**ASKED)
    assert len(service.requests) == 2
    [result] = results_seen(upstream)
    assert 'Results for "first words":' in result
    assert 'Results for "second words":' in result
    assert answer.usage.server_tool_use["web_search_requests"] == 2


async def test_a_query_that_finds_nothing_or_fails_says_so_and_the_others_are_shown(upstream, sdk):
    upstream.search = lambda asked: PAGES.get(asked["q"]) or Reply([b"{}"], status=500)
    config = """
upstreams:
  up: {{base_url: {upstream}/v1, api_key: upstream-secret, profile: openai, retries: 0}}
models: {{m: {{upstream: up}}}}
tools: {{web_search: {{type: serper, api_key: k, base_url: '{upstream}', cache_seconds: 60, price: 0.5, retries: 0}}}}
{more}
"""
    async with proxy_of(upstream, config=config) as url, sdk(url) as client, AsyncClient(base_url=url) as http:
        for cost in (1.0, 1.0):  # what has failed in part is not cached
            upstream.restart([call(queries=["who", "broken", "none"]), whole("Done")])
            answer = await client.chat.completions.create(**ASKED)
            assert answer.usage.cost == cost
            assert len(upstream.searches) == 3
        [result] = results_seen(upstream)
        assert 'No results for "broken": ' in result
        assert 'No results for "none".' in result
        assert "https://a.example/" in result
        for cost in (1.5, 0):
            upstream.restart([call(queries=["who", "when", "none"]), whole("Done")])
            assert (await client.chat.completions.create(**ASKED)).usage.cost == cost
        upstream.restart([call(queries=["broken", "too"]), whole("Done")])
        assert (await client.chat.completions.create(**ASKED)).usage.server_tool_use["web_search_requests"] == 2
        assert '"error":' in results_seen(upstream)[0]
        assert 'tool_calls_total{outcome="ok",tool="web_search"} 4.0' in (await http.get("/metrics")).text


async def test_queries_are_looked_up_at_once_but_no_more_than_the_tool_permits(upstream, sdk):
    under_way, most = 0, 0

    class Counting(Service):
        async def __call__(self, scope, receive, send):
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await super().__call__(scope, receive, send)
            under_way -= 1

    for limit, expected in ((None, 5), (2, 2)):
        most = 0
        settings = {"max_concurrent_calls": limit} if limit else {}
        async with searching(upstream, Counting(good("tavily")), "tavily", **settings) as url, sdk(url) as client:
            upstream.restart([call(queries=list("abcde")), whole("Done")])
            await client.chat.completions.create(**ASKED)
        assert most <= expected
        assert len(upstream.requests) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_visible_search_shows_all_of_its_queries(upstream, sdk, stream):
    upstream.search = lambda asked: PAGES[asked["q"]]
    script = [streamed(calls=[("1", "web_search", {"queries": ["who", "where"]})]), streamed("Done")]
    async with (
        proxy_of(upstream) as url,
        sdk(url) as openai,
        anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as claude,
    ):
        upstream.restart(script)
        asked = {
            "model": "m",
            "input": "Who?",
            "tools": [{"type": "web_search"}],
            "include": ["web_search_call.action.sources"],
        }
        if stream:
            async with openai.responses.stream(**asked) as events:
                response = await events.get_final_response()
        else:
            response = await openai.responses.create(**asked)
        action = response.output[0].action
        assert (action.query, action.queries) == ("who", ["who", "where"])
        assert [source.url for source in action.sources] == [f"https://{name}.example/" for name in "abc"]
        upstream.restart(script)
        asked = {**ASKED, "max_tokens": 99, "tools": [{"type": "web_search_20250305", "name": "web_search"}]}
        if stream:
            async with claude.messages.stream(**asked) as events:
                message = await events.get_final_message()
        else:
            message = await claude.messages.create(**asked)
        use, found, _ = message.content
        assert use.input == {"queries": ["who", "where"]}
        assert [one.url for one in found.content] == [f"https://{name}.example/" for name in "abc"]
        assert message.usage.server_tool_use.web_search_requests == 2


@pytest.mark.parametrize(
    ("arguments", "repaired"),
    [
        ({"queries": ["a", "b"]}, {"query": "a", "queries": ["b"]}),
        ({"queries": ["a"]}, {"query": "a"}),
        ({"query": ["a", "b"], "n": 1}, {"query": "a", "queries": ["b"], "n": 1}),
        ({"q": "a", "queries": ["b"]}, {"query": "a", "queries": ["b"]}),
        ({"q": ["a", "b"]}, {"query": ["a", "b"]}),
        ({"queries": ["a"], "objective": "b"}, {"query": "a", "objective": "b"}),
        ({"queries": list("abcdef")}, {"queries": list("abcdef")}),
    ],
)
def test_queries_in_any_form_are_those_that_were_counted(arguments, repaired):
    assert repair(arguments) == repaired
