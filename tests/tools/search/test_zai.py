import httpx
import orjson
import pytest
import respx
from hypothesis import given
from hypothesis import strategies as st

from proxy.loop.results import ToolError
from proxy.tools.kinds.zai_search import ZaiSearchConfig, zai_search_tool
from proxy.tools.tool_type import Resources
from proxy.wire.search import SearchFilters
from tests import hostile
from tests.fakes import FakeClock

RESULT = {
    "title": "T",
    "link": "https://t.example/",
    "media": "Paper",
    "publish_date": "2026-01-01",
    "content": "Summary.",
}
BASE = "https://api.z.ai/api/paas/v4"


def tool_with(client, **config):
    entry = ZaiSearchConfig(api_key="secret", **config)
    return zai_search_tool("zai_search", entry, Resources(client, FakeClock(1_800_000_000)))


async def search(client, path, response, *, arguments=None, **config):
    tool = tool_with(client, **config)
    with respx.mock:
        route = respx.post(f"{BASE}{path}").mock(return_value=response)
        output = await tool.run(tool.repair(arguments or {"query": "q", "topn": 3, "tbs": "qdr:w"}))
    links = [item["link"] for item in (RESULT,) if item["link"] in output.text]
    assert list(output.sources) == links
    return output.text, route.calls.last.request


async def test_the_search_endpoint_is_asked_in_its_own_words(client):
    text, request = await search(client, "/web_search", httpx.Response(200, json={"search_result": [RESULT]}))
    assert orjson.loads(request.content) == {
        "search_engine": "search-prime",
        "search_query": "q",
        "count": 3,
        "search_recency_filter": "oneWeek",
    }
    assert request.headers["authorization"] == "Bearer secret"
    assert text == 'Results for "q":\n\nT\nhttps://t.example/\nPaper - 2026-01-01\nSummary.'


async def test_by_chat_glm_searches_once_with_its_native_tool_and_no_other(client):
    answer = {"choices": [{"message": {"content": "It is so."}}], "web_search": [RESULT]}
    text, request = await search(client, "/chat/completions", httpx.Response(200, json=answer), mode="chat")
    sent = orjson.loads(request.content)
    (tool,) = sent["tools"]
    assert (sent["model"], sent["stream"], tool["type"]) == ("glm-4.7", False, "web_search")
    assert tool["web_search"]["search_query"] == "q"
    assert "Direct answer:\nIt is so.\n\nT\nhttps://t.example/" in text


async def filtered(client, filters, answer, query="q"):
    tool = zai_search_tool("zai_search", ZaiSearchConfig(api_key="secret"), Resources(client, FakeClock(1_800_000_000)))
    with respx.mock:
        route = respx.post(f"{BASE}/web_search").mock(return_value=httpx.Response(200, json=answer))
        output = await tool.run_filtered({"query": query}, filters)
    return output, orjson.loads(route.calls.last.request.content)


async def test_a_long_query_is_cut_between_words_at_70_characters(client):
    _, sent = await filtered(client, SearchFilters(), {}, query="ferries " * 20)
    assert sent["search_query"] == " ".join(["ferries"] * 8)


@pytest.mark.parametrize(("allow", "sent"), [(("t.example",), "t.example"), (("t.example", "u.example"), None)])
async def test_one_allowed_domain_is_asked_for_and_several_are_filtered_afterwards(client, allow, sent):
    other = {**RESULT, "link": "https://other.example/", "title": "Other"}
    output, asked = await filtered(client, SearchFilters(allow=allow), {"search_result": [other, RESULT]})
    assert asked.get("search_domain_filter") == sent
    assert list(output.sources) == ["https://t.example/"]
    assert "Other" not in output.text


@pytest.mark.parametrize(
    "found", [{}, {"search_result": None}, {"search_result": ["x", {}]}, {"choices": []}, {"choices": [{}]}]
)
async def test_an_answer_without_results_says_so(client, found):
    text, _ = await search(client, "/web_search", httpx.Response(200, json=found), search_engine="search_std")
    assert text == 'No results for "q".'


@pytest.mark.parametrize(
    ("response", "why"),
    [
        (httpx.Response(401, json={"error": {"code": "1002", "message": "x"}}), "key was refused"),
        (httpx.Response(429, json={"error": {"code": "1113", "message": "x"}}), "credit is used up"),
        (httpx.Response(429, json={"error": {"code": "1302", "message": "x"}}), "busy"),
        (httpx.Response(200, json={"error": {"code": "9", "message": "x"}}), "does not work"),
        (httpx.Response(200, text="<html>"), "does not work"),
        (httpx.Response(500, text="<html>"), "does not work"),
    ],
)
async def test_each_way_of_failing_is_told_apart(client, response, why):
    with pytest.raises(ToolError, match=why):
        await search(client, "/web_search", response)


FOUND = {
    "search_result": [{"title": "t", "link": "https://a.example/", "content": "c", "media": "m", "publish_date": "d"}],
    "choices": [{"message": {"content": "Said."}}],
}

REFUSED = {"error": {"code": "1113", "message": "m"}}


@given(
    st.sampled_from([200, 200, 200, 400, 429, 500]),
    hostile.mutated(st.just(FOUND) | st.just(REFUSED)),
    st.sampled_from(["api", "chat"]),
)
async def test_whatever_zai_answers_is_text_with_pages_or_an_error_for_the_model(status, answer, mode):
    await hostile.expect_pages_or_a_refusal(lambda client: tool_with(client, mode=mode), answer, status=status)
