"""Requests that say which pages their searches may find, on every API, with a scripted search service."""

import orjson
import pytest

from proxy.loop.results import ToolOutput
from proxy.tools.tool import Tool
from tests.api.surfaces import on
from tests.fakes import turn
from tests.serving import serving
from tests.tools.search.test_searched_answers import CONFIG, Service, entry

GOOD, BAD = "https://good.example/page", "https://bad.example/page"
PAGES = [{"url": GOOD, "title": "Good", "content": "Fine."}, {"url": BAD, "title": "Bad", "content": "Dreadful."}]
FOUND = (200, {}, {"results": PAGES, "answer": "Dreadful answer."})
FILTERS = {"allowed_domains": ["good.example"], "blocked_domains": ["x.good.example"]}
WHERE = {"type": "approximate", "country": "CA", "city": "Nanaimo"}
ANSWER = f"See {GOOD} and {BAD}."
SEARCH = ("1", "web_search", {"query": "who won"})

FILTERED = {"filters": FILTERS, "user_location": WHERE, "search_context_size": "high"}
OPTIONS = {"filters": FILTERS, "user_location": {"type": "approximate", "approximate": WHERE}}
PLUGIN = {"id": "web", "max_results": 7, "include_domains": ["good.example"], "exclude_domains": ["x.good.example"]}
FIELDS = {
    "tools": {"search": FILTERED},
    "web_search_options": {"body": {"web_search_options": {**OPTIONS, "search_context_size": "high"}}},
    "plugins": {"body": {"plugins": [PLUGIN]}},
}


async def searched(surface, *calls, more="", provider=(), server=None, **words):
    """The answer to a request whose model searches, and what the search service was asked."""
    service = Service(FOUND)
    async with serving(service, lifespan="off") as api:
        tools = entry("web_search", "tavily", api, **dict(provider)) + more.replace("{api}", api)
        config = CONFIG if server is None else CONFIG.replace("tools:\n{more}", "")
        answer = await surface.ask(
            turn(calls=calls or [SEARCH]), turn(ANSWER), config=config, more=tools, server=server or (), **words
        )
    return answer, [orjson.loads(body) for _, _, body in service.requests if body]


@pytest.mark.parametrize("field", FIELDS)
async def test_a_chat_requests_filters_reach_the_provider_and_hold_for_text_and_citations(chat, field):
    answer, [sent] = await searched(chat, provider={"offer": "declared"}, **FIELDS[field])
    assert (sent["include_domains"], sent["exclude_domains"]) == (["good.example"], ["x.good.example"])
    assert sent["max_results"] == {"plugins": 7}.get(field, 10)
    [result] = chat.results()
    assert (GOOD in result, "bad.example" in result, "Dreadful" in result) == (True, False, False)
    assert answer.cited == [GOOD]
    assert not {"plugins", "web_search_options"} & chat.upstream.requests[0].keys()
    if field != "plugins":
        assert sent["country"] == "canada"
        assert "Nanaimo, CA" in chat.upstream.requests[0]["messages"][0]["content"]


@on("responses-whole", "responses-streamed", "messages-whole", "messages-streamed")
async def test_filters_reach_the_provider_and_hold_for_all_that_is_shown(surface):
    settings, body = {"allowed_domains": ["good.example"], "user_location": WHERE}, {}
    if surface.kind == "responses":
        settings, body = FILTERED, {"include": ["web_search_call.action.sources"]}
    answer, [sent] = await searched(surface, search=settings, body=body)
    assert (sent["include_domains"], sent["country"]) == (["good.example"], "canada")
    assert sent.get("exclude_domains", []) == (["x.good.example"] if surface.kind == "responses" else [])
    assert (answer.server_calls[0].pages, answer.cited) == ((GOOD,), [GOOD])
    assert "bad.example" not in surface.results()[0]
    assert "Nanaimo, CA" in surface.upstream.requests[0]["messages"][0]["content"]


@on("messages-whole")
async def test_the_filters_of_a_search_hold_for_the_pages_that_are_fetched(surface):
    tools = {
        "tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}],
        "more": "  fetch_page: {type: web_fetch}\n",
    }
    fetch = ("2", "fetch_page", {"url": BAD})
    answer, _ = await searched(surface, SEARCH, fetch, search={"allowed_domains": ["good.example"]}, **tools)
    found = {block["type"]: block["content"] for block in answer.whole["content"] if block["type"].endswith("_result")}
    assert found["web_fetch_tool_result"]["error_code"] == "url_not_allowed"


@on("chat-whole")
async def test_the_settings_of_glms_own_form_hold_for_a_model_of_others(surface):
    settings = {"search_domain_filter": "good.example", "search_recency_filter": "oneWeek", "count": 4}
    glms = [{"type": "web_search", "web_search": {"enable": True, **settings}}]
    answer, [sent] = await searched(surface, provider={"offer": "declared"}, tools=glms)
    assert (sent["include_domains"], sent["time_range"], sent["max_results"]) == (["good.example"], "week", 4)
    assert answer.cited == [GOOD]
    assert "bad.example" not in surface.results()[0]
    wrong = [{"type": "web_search", "web_search": {"search_recency_filter": "ever"}}]
    refused, _ = await searched(surface, tools=wrong)
    assert (refused.status, "search_recency_filter" in refused.error["message"]) == (400, True)


@on("chat-whole")
@pytest.mark.parametrize("field", FIELDS)
async def test_filters_that_are_none_are_refused_by_the_name_of_their_field(surface, field):
    wrong = orjson.loads(orjson.dumps(FIELDS[field]).replace(b'"good.example"', b'"https://good.example"'))
    refused, _ = await searched(surface, **wrong)
    assert (refused.status, refused.error["param"], surface.upstream.requests) == (400, field, [])


OWN_OUTPUTS = {
    "sources": ToolOutput("Dreadful.", {GOOD: "Good", BAD: "Bad"}),
    "addresses in the text": ToolOutput(
        '[{"u": "https:\\/\\/good.example\\/page"}, {"u": "www.bad.example/x", "t": "Dreadful."}]'
    ),
    "no address at all": ToolOutput("Dreadful."),
}


def own_search(output, **fields):
    async def run(_):
        return output

    return Tool(**{"name": "web_search", "description": "d", "parameters": {"type": "object"}, "run": run, **fields})


@pytest.mark.parametrize("output", OWN_OUTPUTS.values(), ids=OWN_OUTPUTS)
async def test_the_text_of_a_search_of_ones_own_is_withheld_where_a_page_is_not_permitted(chat, output):
    answer, _ = await searched(chat, server=[own_search(output)], search=FILTERED)
    [result] = chat.results()
    assert ("withheld" in result, "Dreadful" in result, "bad.example" in result) == (True, False, False)
    assert (GOOD in result) is (output.text != "Dreadful." or bool(output.sources))
    assert answer.cited == ([GOOD] if output.sources else [])


@on("chat-whole")
async def test_the_text_of_a_search_of_ones_own_that_is_of_permitted_pages_stays(surface):
    output = ToolOutput(f"Fine, but see {BAD}.", {GOOD: "Good"})
    await searched(surface, server=[own_search(output)], search=FILTERED)
    assert "Fine, but" in surface.results()[0]


@on("chat-whole")
async def test_filters_hold_for_the_text_of_a_tool_that_stands_in_for_a_search(surface):
    parameters = {"type": "object", "properties": {"query": {"type": "string"}}}
    call = {"description": "d", "method": "GET", "parameters": parameters, "offer": "never"}
    spare = orjson.dumps({"type": "http", "url": "{api}/find", **call}).decode()
    broken = {"base_url": "http://127.0.0.1:1", "fallback": "spare"}
    await searched(surface, provider=broken, more=f"  spare: {spare}\n", search=FILTERED)
    [result] = surface.results()
    assert (GOOD in result, "Dreadful" in result) == (True, False)


@on("chat-whole")
async def test_domains_that_a_search_blocks_are_not_found_by_its_fallback_either(surface):
    broken = {"base_url": "http://127.0.0.1:1", "fallback": "spare", "block_domains": ["bad.example"]}
    answer, [sent] = await searched(surface, provider=broken, more=entry("spare", "tavily", "{api}", offer="never"))
    assert sent["exclude_domains"] == ["bad.example"]
    [result] = surface.results()
    assert (GOOD in result, "bad.example" in result, answer.cited) == (True, False, [GOOD])


@on("chat-whole")
async def test_a_page_that_is_not_permitted_is_not_opened(surface):
    call = ("1", "fetch_page", {"url": BAD})
    await searched(surface, call, more="  fetch_page: {type: web_fetch}", search=FILTERED)
    assert "url not allowed" in surface.results()[0]


async def from_the_cache(surface, *requests, **provider):
    """Which of several conversations of one proxy have read of the bad page; each says its calls and its words."""
    service, read = Service(FOUND), []
    async with serving(service, lifespan="off") as api:
        more = entry("web_search", "tavily", api, cache_seconds=60, **provider)
        async with surface.proxy(config=CONFIG, more=more) as client:
            for call, words in requests:
                surface.upstream.restart([turn(calls=[call]), turn(ANSWER)])
                await client.ask(**words)
                read.append("bad.example" in surface.results()[0])
    return read, len(service.requests)


@on("chat-whole")
async def test_equal_queries_under_other_filters_are_not_answered_from_the_cache(surface):
    requests = [(SEARCH, {"search": search}) for search in (FILTERED, True, FILTERED)]
    assert await from_the_cache(surface, *requests) == ([False, True, False], 2)


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
ALIAS = {"aliases": ["WebSearch"]}


def calling(**lists):
    return ("1", "WebSearch", {"query": "who won", **lists})


@on("messages-whole")
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
async def test_a_calls_own_domains_reach_the_provider_and_hold_for_its_text(surface, lists, sent):
    _, [asked] = await searched(surface, calling(**lists), provider=ALIAS, tools=[OWN_SEARCH])
    assert {key: asked[key] for key in ("include_domains", "exclude_domains") if key in asked} == sent
    [result] = surface.results()
    assert (GOOD in result, "bad.example" in result, "Dreadful" in result) == (True, False, False)


@on("chat-whole")
async def test_a_page_must_be_permitted_by_the_call_and_by_its_request(surface):
    lists = {"allowed_domains": ["good.example/page", "bad.example"], "blocked_domains": ["y.good.example"]}
    answer, [sent] = await searched(surface, ("1", "web_search", {"query": "x", **lists}), search=FILTERED)
    assert sent["include_domains"] == ["good.example/page"]
    assert sent["exclude_domains"] == ["x.good.example", "y.good.example"]
    assert answer.cited == [GOOD]


@on("chat-whole")
async def test_a_call_that_allows_no_page_that_its_request_permits_is_told_so(surface):
    call = ("1", "web_search", {"query": "x", "allowed_domains": ["bad.example"]})
    _, asked = await searched(surface, call, search=FILTERED)
    assert "within what this conversation permits, which is: good.example." in surface.results()[0]
    assert asked == []


@on("messages-whole")
@pytest.mark.parametrize("listed", [7, {"domain": "a.org"}, [None], ["a b"], ["a.org?x"], "[a.org", ["a.org"] * 101])
async def test_a_call_whose_domains_are_none_is_told_so_and_searches_nothing(surface, listed):
    _, asked = await searched(surface, calling(blocked_domains=listed), provider=ALIAS, tools=[OWN_SEARCH])
    assert "'blocked_domains' must be a list of at most 100 domains" in surface.results()[0]
    assert asked == []


@on("messages-whole")
async def test_equal_queries_of_calls_with_other_domains_are_not_answered_from_the_cache(surface):
    calls = [calling(allowed_domains=["good.example"]), calling(), calling(allowed_domains=["good.example"])]
    requests = [(call, {"tools": [OWN_SEARCH]}) for call in calls]
    assert await from_the_cache(surface, *requests, **ALIAS) == ([False, True, False], 2)


@on("messages-whole")
@pytest.mark.parametrize("is_its_own", [False, True])
async def test_a_calls_domains_hold_for_a_search_of_ones_own_unless_its_schema_has_them(surface, is_its_own):
    parameters = {"type": "object", "properties": OWN_SEARCH["input_schema"]["properties"] if is_its_own else {}}
    own = own_search(OWN_OUTPUTS["sources"], parameters=parameters, aliases=("WebSearch",))
    await searched(surface, calling(allowed_domains=["good.example"]), server=[own], tools=[OWN_SEARCH])
    assert ("withheld" in surface.results()[0]) is (not is_its_own)
