import httpx
import orjson
import pytest
import respx
from hypothesis import given
from hypothesis import strategies as st

from proxy.config import ZaiSearchConfig
from proxy.loop.errors import ToolError
from proxy.tools.search import zai as zai_search
from tests import hostile

RESULT = {
    "title": "T",
    "link": "https://t.example/",
    "media": "Paper",
    "publish_date": "2026-01-01",
    "content": "Summary.",
}
BASE = "https://api.z.ai/api/paas/v4"


@pytest.fixture
async def client():
    async with httpx.AsyncClient() as client:
        yield client


async def search(client, path, response, *, arguments=None, **config):
    tool = zai_search.zai_search_tool("zai_search", ZaiSearchConfig(api_key="secret", **config), client)
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
    assert "It is so.\n\nT\nhttps://t.example/" in text


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
        (httpx.Response(429, json={"error": {"code": "1113", "message": "x"}}), "credits are used up"),
        (httpx.Response(429, json={"error": {"code": "1302", "message": "x"}}), "busy"),
        (httpx.Response(200, json={"error": {"code": "9", "message": "x"}}), "no answer"),
        (httpx.Response(200, text="<html>"), "no answer"),
        (httpx.Response(500, text="<html>"), "HTTP 500"),
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
    def answered(_):
        return httpx.Response(status, content=hostile.written(answer))

    async with httpx.AsyncClient(transport=httpx.MockTransport(answered)) as client:
        tool = zai_search.zai_search_tool("zai_search", ZaiSearchConfig(api_key="k", base_url=BASE, mode=mode), client)
        try:
            output = await tool.run({"query": "q"})
        except ToolError:
            return
    assert "q" in output.text
    assert all(isinstance(part, str) for pair in output.sources.items() for part in pair)
