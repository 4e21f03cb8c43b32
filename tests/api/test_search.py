"""`POST /v1/search`: one search without a model, over real sockets."""

from contextlib import asynccontextmanager

import orjson
import pytest
from httpx import AsyncClient

from proxy.loop.results import ToolOutput
from proxy.tools.tool import Tool
from tests.fakes import FakeClock, Reply
from tests.serving import proxy_of

UP = """
upstreams: {{up: {{base_url: '{upstream}/v1', api_key: k1234567}}}}
models: {{m: {{upstream: up}}}}
"""
SERPER = "type: serper, api_key: serper-secret, base_url: '{upstream}'"
ONE = f"{UP}tools: {{{{web_search: {{{{{SERPER}, price: 0.5, cache_seconds: 60}}}}}}}}\n{{more}}"
CLIENTS = """clients:
  - {{name: app, key: app-key-1, budget: {{per: day, tool_calls: 3}}}}
  - {{name: small, key: small-key-1, limits: {{max_tool_calls: 2}}, requests_per_minute: 2}}
  - {{name: toolless, key: none-key-1, tools: []}}
  - {{name: barred, key: off-key-12, limits: {{max_tool_calls: 0}}}}
  - {{name: admin, key: admin-key-1, admin: true}}
"""


def pages(asked):
    rows = [
        {
            "title": f"{asked['q']} {n}",
            "link": f"https://{n}.example/",
            "snippet": f"About {asked['q']}.",
            "date": "2 Jan 2026",
        }
        for n in range(12)
    ]
    return Reply([orjson.dumps({"organic": rows, "peopleAlsoAsk": [{"question": "?", "link": "https://q.example/"}]})])


@asynccontextmanager
async def searching(upstream, *, config=ONE, **app):
    upstream.search = upstream.search if callable(upstream.search) else pages
    async with proxy_of(upstream, config=config, **app) as url, AsyncClient(base_url=url) as http:

        async def search(key=None, **body):
            return await http.post("/v1/search", json=body, headers={"authorization": f"Bearer {key}"} if key else {})

        search.http = http
        yield search


async def test_the_pages_that_the_configured_search_finds(upstream):
    async with searching(upstream) as search:
        answer = (await search(query="harbours", max_results=3, recency="week")).json()
    assert answer.pop("id").startswith("search_")
    first = {
        "title": "harbours 0",
        "url": "https://0.example/",
        "snippet": "About harbours.",
        "date": "2026-01-02",
        "query": "harbours",
    }
    assert answer["results"][0] == first
    assert [one["url"] for one in answer.pop("results")] == [f"https://{n}.example/" for n in range(3)]
    assert answer == {"object": "search", "provider": "serper"}
    [sent] = upstream.searches
    assert (sent["q"], sent["tbs"], sent["num"]) == ("harbours", "qdr:w", 3)


async def test_ten_results_unless_said_otherwise_and_domains_that_hold(upstream):
    async with searching(upstream) as search:
        assert len((await search(query="a")).json()["results"]) == 10
        found = (await search(query="b", allowed_domains=["3.example", "4.example"], max_results=20)).json()["results"]
        assert [one["url"] for one in found] == ["https://3.example/", "https://4.example/"]
        found = (await search(query="c", blocked_domains=["0.example"], allowed_domains=[])).json()["results"]
        assert found[0]["url"] == "https://1.example/"


async def test_several_queries_in_their_order_and_a_page_once(upstream):
    upstream.search = lambda asked: Reply([orjson.dumps({"organic": [
        {"title": asked["q"], "link": "https://both.example/"}, {"title": asked["q"], "link": f"https://{asked['q']}.example/"}
    ]})])  # fmt: skip
    async with searching(upstream) as search:
        found = (await search(queries=["x", "y"])).json()["results"]
        assert [(one["url"], one["query"]) for one in found] == [
            ("https://both.example/", "x"),
            ("https://x.example/", "x"),
            ("https://y.example/", "y"),
        ]
        assert [one["query"] for one in (await search(query="z", queries=["y", "z"])).json()["results"]] == [
            "z",
            "z",
            "y",
        ]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "query"),
        ({"query": ""}, "query"),
        ({"query": 7}, "query"),
        ({"query": "x" * 2001}, "query"),
        ({"queries": []}, "queries"),
        ({"queries": list("abcdef")}, "queries"),
        ({"queries": ["a", " "]}, "queries"),
        ({"queries": "a"}, "queries"),
        ({"query": "a", "max_results": 0}, "max_results"),
        ({"query": "a", "max_results": 21}, "max_results"),
        ({"query": "a", "max_results": "9"}, "max_results"),
        ({"query": "a", "recency": "hour"}, "recency"),
        ({"query": "a", "recency": []}, "recency"),
        ({"query": "a", "allowed_domains": ["https://a.example"]}, "allowed_domains"),
        ({"query": "a", "blocked_domains": "a.example"}, "blocked_domains"),
        ({"query": "a", "blocked_domains": ["b.example"], "allowed_domains": ["a.example"]}, "blocked_domains"),
    ],
)
async def test_a_field_that_cannot_be_is_refused_with_its_name(upstream, body, param):
    async with searching(upstream) as search:
        answer = await search(**body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert answer.json()["error"]["code"] == "invalid_request"
    assert upstream.searches == []


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'"a"'])
async def test_a_body_that_is_no_object_is_refused(upstream, body):
    async with searching(upstream) as search:
        answer = await search.http.post("/v1/search", content=body)
        assert answer.status_code == 400
        assert (await search.http.get("/v1/search")).status_code == 405


@pytest.mark.parametrize(
    ("tools", "provider"),
    [
        ("{{news: {{{serper}}}, web_search: {{type: zai_search, api_key: k, base_url: '{upstream}'}}}}", "zai_search"),
        (
            "{{spare: {{{serper}, offer: never}}, news: {{type: search, provider: tavily, api_key: k, base_url: '{upstream}'}}}}",
            "tavily",
        ),
        ("{{current_time: {{type: clock}}}}", None),
        ("{{spare: {{{serper}, offer: never}}}}", None),
    ],
)
async def test_the_search_is_web_search_or_else_the_first_of_the_file(upstream, tools, provider):
    empty = {"search_result": [], "results": []}
    upstream.search = lambda _: Reply([orjson.dumps(empty)])
    upstream.replies = [Reply([orjson.dumps(empty)])]
    config = f"{UP}tools: {tools.replace('{serper}', SERPER)}\n{{more}}"
    async with searching(upstream, config=config) as search:
        answer = await search(query="a")
    if provider is None:
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    else:
        assert (answer.json()["provider"], answer.json()["results"]) == (provider, [])


async def test_keys_rates_limits_and_budgets_are_those_of_a_tools_call(upstream):
    async with searching(upstream, config=ONE.replace("{more}", CLIENTS + "{more}"), clock=FakeClock()) as search:
        assert (await search(query="a")).status_code == 401
        assert (await search("none-key-1", query="a")).status_code == 404
        assert (await search("off-key-12", query="a")).status_code == 404
        answer = (await search("small-key-1", queries=list("abc"))).json()
        assert {one["query"] for one in answer["results"]} == {"a"}  # b has the same pages
        assert answer["left_out"] == ["c"]
        assert (await search("small-key-1", query="a")).headers["x-ratelimit-remaining-requests"] == "0"
        limited = await search("small-key-1", query="a")
        assert (limited.status_code, limited.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert (await search("app-key-1", queries=list("ab"))).status_code == 200
        assert (await search("app-key-1", queries=list("ab"))).json()["left_out"] == ["b"]
        over = await search("app-key-1", query="a")
        assert (over.status_code, over.json()["error"]["code"]) == (429, "budget_exceeded")
        usage = (
            await search.http.get(
                "/debug/usage", params={"format": "json"}, headers={"authorization": "Bearer admin-key-1"}
            )
        ).json()
        metrics = (await search.http.get("/metrics")).text
    assert "none" in orjson.dumps(usage).decode()
    assert 'toolproxy_client_tool_calls_total{client="app",model="none"} 3.0' in metrics
    assert 'toolproxy_tool_calls_total{outcome="ok",tool="web_search"} ' in metrics
    assert 'route="/v1/search"' in metrics


async def test_equal_searches_of_one_client_are_answered_from_the_cache_and_cost_once(upstream):
    async with searching(upstream) as search:
        for _ in range(2):
            await search(query="a", max_results=5)
        metrics = (await search.http.get("/metrics")).text
    assert len(upstream.searches) == 1
    assert 'toolproxy_cost_total{client="none",model="none"} 0.5' in metrics


@pytest.mark.parametrize(
    ("reply", "status", "code", "retry"),
    [
        (Reply([b'{"message":"Unauthorized."}'], status=403), 502, "upstream_auth_failed", "false"),
        (Reply([b'{"message":"Not enough credits"}'], status=400), 502, "upstream_quota_exceeded", "false"),
        (Reply([b"{}"], status=429, headers=[(b"retry-after", b"7")]), 503, "overloaded", None),
        (Reply([b"{}"], status=500), 502, "upstream_error", None),
        (Reply([b"no JSON"]), 502, "upstream_error", None),
        (Reply([b"{}"], status=422), 400, "invalid_request", None),
    ],
)
async def test_a_search_that_fails_is_an_error_of_the_right_class_without_the_providers_words(
    upstream, reply, status, code, retry
):
    upstream.search = lambda _: reply
    async with searching(upstream, clock=FakeClock()) as search:
        answer = await search(query="a")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code)
    assert answer.headers.get("x-should-retry") == retry
    assert (answer.headers.get("retry-after") == "7") is (status == 503)
    assert "credits" not in answer.text
    assert "Answer from what you know" not in answer.text


async def test_a_fallback_answers_and_is_named(upstream):
    upstream.search = lambda _: Reply([b"{}"], status=500)
    upstream.replies = [Reply([orjson.dumps({"search_result": [{"link": "https://z.example/", "title": "Z"}]})])]
    spare = "spare: {{type: zai_search, api_key: k, base_url: '{upstream}', offer: never}}"
    config = f"{UP}tools: {{{{web_search: {{{{{SERPER}, fallback: spare}}}}, {spare}}}}}\n{{more}}"
    async with searching(upstream, config=config) as search:
        answer = (await search(query="a")).json()
    assert answer["provider"] == "zai_search"
    assert [one["url"] for one in answer["results"]] == ["https://z.example/"]


@pytest.mark.parametrize(("name", "more"), [("q", {}), ("query", {}), ("q", {"queries": {"type": "array"}})])
async def test_a_search_of_the_operators_own_is_asked_query_by_query(upstream, name, more):
    asked = []

    async def run(arguments):
        asked.append(arguments)
        return ToolOutput("text", {f"https://{arguments[name]}.example/": "\u200bA page"})

    tool = Tool(
        name="web_search",
        description="",
        parameters={"type": "object", "properties": {name: {"type": "string"}, **more}, "additionalProperties": False},
        run=run,
    )
    async with searching(upstream, config=f"{UP}{{more}}", tools=[tool]) as search:
        answer = (await search(queries=["x", "y"])).json()
    assert asked == [{name: "x"}, {name: "y"}]
    assert answer["provider"] == "web_search"
    assert [(one["title"], one["query"]) for one in answer["results"]] == [("A page", "x"), ("A page", "y")]


async def test_with_keys_that_only_the_upstream_knows_it_answers_on_this_machine_only(upstream):
    config = ONE.replace("api_key: k1234567", "api_key: from_client")
    async with searching(upstream, config=config) as search:
        assert (await search("any-key", query="a")).status_code == 200
        headers = {"x-forwarded-for": "10.0.0.1", "authorization": "Bearer any-key"}
        answer = await search.http.post("/v1/search", json={"query": "a"}, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "not_allowed")
        metrics = (await search.http.get("/metrics")).text
    assert len(upstream.searches) == 1
    assert 'toolproxy_tool_calls_total{outcome="ok",tool="web_search"} 1.0' in metrics


async def test_of_several_queries_those_that_fail_are_named(upstream):
    upstream.search = lambda asked: Reply([b"{}"], status=500) if asked["q"] == "bad" else pages(asked)
    async with searching(upstream) as search:
        answer = (await search(queries=["good", "bad"], max_results=1)).json()
    assert [one["query"] for one in answer["results"]] == ["good"]
    assert answer["failed"] == ["bad"]


async def test_debug_shows_the_call(upstream):
    async with searching(upstream) as search:
        answer = await search(query="harbours")
        record = await search.http.get(f"/debug/requests/{answer.headers['x-request-id']}", params={"format": "json"})
    [step] = record.json()["steps"]
    assert (step["kind"], step["tool"], step["outcome"]) == ("tool", "web_search", "completed")
    assert record.json()["search"] == "web_search"
