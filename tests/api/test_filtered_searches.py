"""Requests that say which pages their searches may find, over every surface, with a scripted search service."""

import orjson
import pytest
from httpx import AsyncClient
from openai import BadRequestError

from proxy.loop.results import ToolOutput
from proxy.tools.tool import Tool
from tests.fakes import whole
from tests.serving import proxy_of, serving
from tests.tools.search.test_searched_answers import CONFIG, SEARCH, Service, entry, results_seen, searching

GOOD, BAD = "https://good.example/page", "https://bad.example/page"
PAGES = [{"url": GOOD, "title": "Good", "content": "Fine."}, {"url": BAD, "title": "Bad", "content": "Dreadful."}]
FOUND = (200, {}, {"results": PAGES, "answer": "Dreadful answer."})
FILTERS = {"allowed_domains": ["good.example"], "blocked_domains": ["x.good.example"]}
WHERE = {"type": "approximate", "country": "CA", "city": "Nanaimo"}
ASKED = {"model": "m", "messages": [{"role": "user", "content": "Who won?"}]}
ANSWER = f"See {GOOD} and {BAD}."

HOSTED = {"type": "web_search", "filters": FILTERS, "user_location": WHERE, "search_context_size": "high"}
OPTIONS = {"filters": FILTERS, "user_location": {"type": "approximate", "approximate": WHERE}}
PLUGIN = {"id": "web", "max_results": 7, "include_domains": ["good.example"], "exclude_domains": ["x.good.example"]}

SURFACES = {
    "tools": {"tools": [HOSTED]},
    "web_search_options": {"web_search_options": {**OPTIONS, "search_context_size": "high"}},
    "plugins": {"plugins": [PLUGIN]},
}


@pytest.mark.parametrize("field", SURFACES)
async def test_a_chat_requests_filters_reach_the_provider_and_hold_for_text_and_citations(field, upstream, sdk):
    service = Service(FOUND)
    async with searching(upstream, service, "tavily", offer="declared") as url, sdk(url) as client:
        upstream.replies = [SEARCH, whole(ANSWER)]
        answer = await client.chat.completions.create(**ASKED, extra_body=SURFACES[field])
    sent = orjson.loads(service.requests[0][2])
    assert (sent["include_domains"], sent["exclude_domains"]) == (["good.example"], ["x.good.example"])
    assert sent["max_results"] == {"plugins": 7}.get(field, 10)
    [result] = results_seen(upstream)
    assert GOOD in result
    assert "bad.example" not in result
    assert "Dreadful" not in result
    assert [one.url_citation.url for one in answer.choices[0].message.annotations] == [GOOD]
    assert not {"plugins", "web_search_options"} & upstream.requests[0].keys()
    if field != "plugins":
        assert sent["country"] == "canada"
        assert "Nanaimo, CA" in upstream.requests[0]["messages"][0]["content"]


async def test_the_settings_of_glms_own_form_hold_for_a_model_of_others(upstream, sdk):
    service = Service(FOUND)
    settings = {"search_domain_filter": "good.example", "search_recency_filter": "oneWeek", "count": 4}
    async with searching(upstream, service, "tavily", offer="declared") as url, sdk(url) as client:
        upstream.replies = [SEARCH, whole(ANSWER)]
        tools = [{"type": "web_search", "web_search": {"enable": True, **settings}}]
        answer = await client.chat.completions.create(**ASKED, tools=tools)
        wrong = [{"type": "web_search", "web_search": {"search_recency_filter": "ever"}}]
        with pytest.raises(BadRequestError, match="search_recency_filter"):
            await client.chat.completions.create(**ASKED, tools=wrong)
    sent = orjson.loads(service.requests[0][2])
    assert (sent["include_domains"], sent["time_range"], sent["max_results"]) == (["good.example"], "week", 4)
    assert [one.url_citation.url for one in answer.choices[0].message.annotations] == [GOOD]
    assert "bad.example" not in results_seen(upstream)[0]


async def test_a_responses_filters_reach_the_provider_and_hold_for_text_and_sources(upstream, sdk):
    service = Service(FOUND)
    async with searching(upstream, service, "tavily") as url, sdk(url) as client:
        upstream.replies = [SEARCH, whole(ANSWER)]
        response = await client.responses.create(
            model="m", input="Who won?", tools=[HOSTED], include=["web_search_call.action.sources"]
        )
    sent = orjson.loads(service.requests[0][2])
    assert (sent["include_domains"], sent["exclude_domains"]) == (["good.example"], ["x.good.example"])
    [call, message] = response.output
    assert [source.url for source in call.action.sources] == [GOOD]
    assert [one.url for one in message.content[0].annotations] == [GOOD]
    assert "bad.example" not in results_seen(upstream)[0]


@pytest.mark.parametrize("field", SURFACES)
async def test_filters_that_are_none_are_refused_by_the_name_of_their_field(field, upstream, sdk):
    wrong = orjson.loads(orjson.dumps(SURFACES[field]).replace(b'"good.example"', b'"https://good.example"'))
    async with searching(upstream, Service(FOUND), "tavily") as url, sdk(url) as client:
        with pytest.raises(BadRequestError) as refused:
            await client.chat.completions.create(**ASKED, extra_body=wrong)
    assert refused.value.param == field
    assert upstream.requests == []


OWN_OUTPUTS = {
    "sources": ToolOutput("Dreadful.", {GOOD: "Good", BAD: "Bad"}),
    "addresses in the text": ToolOutput(
        '[{"u": "https:\\/\\/good.example\\/page"}, {"u": "www.bad.example/x", "t": "Dreadful."}]'
    ),
    "no address at all": ToolOutput("Dreadful."),
}


@pytest.mark.parametrize("output", OWN_OUTPUTS.values(), ids=OWN_OUTPUTS)
async def test_the_text_of_a_search_of_ones_own_is_withheld_where_a_page_is_not_permitted(output, upstream, sdk):
    async def run(_):
        return output

    own = Tool(name="web_search", description="d", parameters={"type": "object"}, run=run)
    async with proxy_of(upstream, config=CONFIG.replace("tools:", ""), tools=[own]) as url, sdk(url) as client:
        upstream.replies = [SEARCH, whole(ANSWER)]
        answer = await client.chat.completions.create(**ASKED, extra_body={"tools": [HOSTED]})
    [result] = results_seen(upstream)
    assert "withheld" in result
    assert "Dreadful" not in result
    assert "bad.example" not in result
    assert (GOOD in result) is (output.text != "Dreadful." or bool(output.sources))
    cited = [one.url_citation.url for one in answer.choices[0].message.annotations or ()]
    assert cited == ([GOOD] if output.sources else [])


async def test_filters_hold_for_the_text_of_a_tool_that_stands_in_for_a_search(upstream, sdk):
    call = {
        "description": "d",
        "method": "GET",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
        "offer": "never",
    }
    async with serving(Service(FOUND), lifespan="off") as api:
        spare = orjson.dumps({"type": "http", "url": f"{api}/find", **call}).decode()
        more = entry("web_search", "tavily", "http://127.0.0.1:1", fallback="spare") + f"  spare: {spare}\n"
        async with proxy_of(upstream, config=CONFIG, more=more) as url, sdk(url) as client:
            upstream.replies = [SEARCH, whole(ANSWER)]
            await client.chat.completions.create(**ASKED, extra_body={"tools": [HOSTED]})
    [result] = results_seen(upstream)
    assert GOOD in result
    assert "Dreadful" not in result


async def test_domains_that_a_search_blocks_are_not_found_by_its_fallback_either(upstream, sdk):
    service = Service(FOUND)
    async with serving(service, lifespan="off") as api:
        spare = entry("spare", "tavily", api, offer="never")
        more = (
            entry("web_search", "tavily", "http://127.0.0.1:1", fallback="spare", block_domains=["bad.example"]) + spare
        )
        async with proxy_of(upstream, config=CONFIG, more=more) as url, sdk(url) as client:
            upstream.replies = [SEARCH, whole(ANSWER)]
            answer = await client.chat.completions.create(**ASKED)
    assert orjson.loads(service.requests[0][2])["exclude_domains"] == ["bad.example"]
    [result] = results_seen(upstream)
    assert GOOD in result
    assert "bad.example" not in result
    assert [one.url_citation.url for one in answer.choices[0].message.annotations] == [GOOD]


async def test_the_text_of_a_search_of_ones_own_that_is_of_permitted_pages_stays(upstream, sdk):
    async def run(_):
        return ToolOutput(f"Fine, but see {BAD}.", {GOOD: "Good"})

    own = Tool(name="web_search", description="d", parameters={"type": "object"}, run=run)
    async with proxy_of(upstream, config=CONFIG.replace("tools:", ""), tools=[own]) as url, sdk(url) as client:
        upstream.replies = [SEARCH, whole(ANSWER)]
        await client.chat.completions.create(**ASKED, extra_body={"tools": [HOSTED]})
    assert "Fine, but" in results_seen(upstream)[0]


@pytest.mark.parametrize("reader", ["web_fetch", "serper_scrape, api_key: k"])
async def test_a_page_that_is_not_permitted_is_not_opened(reader, upstream, sdk):
    more = f"  fetch_page: {{type: {reader}}}\n  web_search: {{type: serper, api_key: k}}"
    async with proxy_of(upstream, config=CONFIG, more=more) as url, sdk(url) as client:
        upstream.replies = [whole(calls=[("1", "fetch_page", {"url": BAD})]), whole("I may not.")]
        await client.chat.completions.create(**ASKED, extra_body={"tools": [HOSTED]})
    assert "url not allowed" in results_seen(upstream)[0]


async def test_equal_queries_under_other_filters_are_not_answered_from_the_cache(upstream, sdk):
    service = Service(FOUND)
    async with searching(upstream, service, "tavily", cache_seconds=60) as url, sdk(url) as client:
        for tools in ([HOSTED], [{"type": "web_search"}], [HOSTED]):
            upstream.restart([SEARCH, whole(ANSWER)])
            await client.chat.completions.create(**ASKED, extra_body={"tools": tools})
            assert ("bad.example" in results_seen(upstream)[0]) is (tools != [HOSTED])
    assert len(service.requests) == 2


# Claude Code's own `WebSearch`, which the proxy runs where it is an alias.
OWN_SEARCH = {
    "name": "WebSearch",
    "description": "d",
    "input_schema": {
        "type": "object",
        "properties": {
            "query": {"type": "string"},
            "allowed_domains": {"type": "array", "items": {"type": "string"}},
            "blocked_domains": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["query"],
        "additionalProperties": False,
    },
}


def calling(**lists):
    return whole(calls=[("1", "WebSearch", {"query": "who won", **lists})])


async def ask_by_alias(url, *tools):
    body = {**ASKED, "max_tokens": 99, "tools": [OWN_SEARCH, *tools]}
    async with AsyncClient() as client:
        return (await client.post(f"{url}/v1/messages", json=body)).json()


@pytest.mark.parametrize(
    ("lists", "sent"),
    [
        ({"allowed_domains": ["good.example"]}, {"include_domains": ["good.example"]}),
        ({"blocked_domains": ["bad.example"]}, {"exclude_domains": ["bad.example"]}),
        (
            {"allowed_domains": "https://good.example/, b.org", "blocked_domains": '["x.org"]'},
            {"include_domains": ["good.example/", "b.org"], "exclude_domains": ["x.org"]},
        ),
        ({"allowed_domains": " Good.example ", "blocked_domains": [""]}, {"include_domains": ["Good.example"]}),
    ],
)
async def test_a_calls_own_domains_reach_the_provider_and_hold_for_its_text(lists, sent, upstream):
    service = Service(FOUND)
    async with searching(upstream, service, "tavily", aliases=["WebSearch"]) as url:
        upstream.replies = [calling(**lists), whole(ANSWER)]
        await ask_by_alias(url)
    asked = orjson.loads(service.requests[0][2])
    assert {key: asked[key] for key in ("include_domains", "exclude_domains") if key in asked} == sent
    [result] = results_seen(upstream)
    assert GOOD in result
    assert "bad.example" not in result
    assert "Dreadful" not in result


async def test_a_page_must_be_permitted_by_the_call_and_by_its_request(upstream, sdk):
    service = Service(FOUND)
    lists = {"allowed_domains": ["good.example/page", "bad.example"], "blocked_domains": ["y.good.example"]}
    async with searching(upstream, service, "tavily") as url, sdk(url) as client:
        upstream.replies = [whole(calls=[("1", "web_search", {"query": "x", **lists})]), whole(ANSWER)]
        answer = await client.chat.completions.create(**ASKED, extra_body={"tools": [HOSTED]})
    sent = orjson.loads(service.requests[0][2])
    assert sent["include_domains"] == ["good.example/page"]
    assert sent["exclude_domains"] == ["x.good.example", "y.good.example"]
    assert [one.url_citation.url for one in answer.choices[0].message.annotations] == [GOOD]


async def test_a_call_that_allows_no_page_that_its_request_permits_is_told_so(upstream, sdk):
    service = Service(FOUND)
    async with searching(upstream, service, "tavily") as url, sdk(url) as client:
        call = ("1", "web_search", {"query": "x", "allowed_domains": ["bad.example"]})
        upstream.replies = [whole(calls=[call]), whole(ANSWER)]
        await client.chat.completions.create(**ASKED, extra_body={"tools": [HOSTED]})
    assert "within what this conversation permits, which is: good.example." in results_seen(upstream)[0]
    assert service.requests == []


@pytest.mark.parametrize("listed", [7, {"domain": "a.org"}, [None], ["a b"], ["a.org?x"], "[a.org", ["a.org"] * 101])
async def test_a_call_whose_domains_are_none_is_told_so_and_searches_nothing(listed, upstream):
    service = Service(FOUND)
    async with searching(upstream, service, "tavily", aliases=["WebSearch"]) as url:
        upstream.replies = [calling(blocked_domains=listed), whole(ANSWER)]
        await ask_by_alias(url)
    assert "'blocked_domains' must be a list of at most 100 domains" in results_seen(upstream)[0]
    assert service.requests == []


async def test_equal_queries_of_calls_with_other_domains_are_not_answered_from_the_cache(upstream):
    service = Service(FOUND)
    async with searching(upstream, service, "tavily", cache_seconds=60, aliases=["WebSearch"]) as url:
        for lists in ({"allowed_domains": ["good.example"]}, {}, {"allowed_domains": ["good.example"]}):
            upstream.restart([calling(**lists), whole(ANSWER)])
            await ask_by_alias(url)
            assert ("bad.example" in results_seen(upstream)[0]) is (not lists)
    assert len(service.requests) == 2


@pytest.mark.parametrize("is_its_own", [False, True])
async def test_a_calls_domains_hold_for_a_search_of_ones_own_unless_its_schema_has_them(is_its_own, upstream):
    async def run(_):
        return OWN_OUTPUTS["sources"]

    properties = OWN_SEARCH["input_schema"]["properties"] if is_its_own else {}
    parameters = {"type": "object", "properties": properties}
    own = Tool(name="web_search", description="d", parameters=parameters, run=run, aliases=("WebSearch",))
    async with proxy_of(upstream, config=CONFIG.replace("tools:", ""), tools=[own]) as url:
        upstream.replies = [calling(allowed_domains=["good.example"]), whole(ANSWER)]
        await ask_by_alias(url)
    assert ("withheld" in results_seen(upstream)[0]) is (not is_its_own)


async def test_a_messages_filters_reach_the_provider_and_hold_for_its_blocks(upstream):
    service = Service(FOUND)
    tool = {"type": "web_search_20250305", "name": "web_search", "allowed_domains": ["good.example"]}
    fetch = {"type": "web_fetch_20250910", "name": "web_fetch"}
    more = entry("web_search", "tavily", "{api}") + "  fetch_page: {type: web_fetch}\n"
    calls = [("1", "web_search", {"query": "x"}), ("2", "fetch_page", {"url": BAD})]
    body = {**ASKED, "max_tokens": 99, "tools": [{**tool, "user_location": WHERE}, fetch]}
    async with (
        serving(service, lifespan="off") as api,
        proxy_of(upstream, config=CONFIG, more=more.replace("{api}", api)) as url,
        AsyncClient() as client,
    ):
        upstream.replies = [whole(calls=calls), whole(ANSWER)]
        message = (await client.post(f"{url}/v1/messages", json=body)).json()
    sent = orjson.loads(service.requests[0][2])
    assert (sent["include_domains"], sent["country"]) == (["good.example"], "canada")
    found = {block["type"]: block["content"] for block in message["content"] if block["type"].endswith("_result")}
    assert [page["url"] for page in found["web_search_tool_result"]] == [GOOD]
    assert found["web_fetch_tool_result"]["error_code"] == "url_not_allowed"
    assert "bad.example" not in results_seen(upstream)[0]
    assert "Nanaimo, CA" in upstream.requests[0]["messages"][0]["content"]
