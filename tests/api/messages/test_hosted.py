"""`web_search_*` and `web_fetch_*`: their settings, their pages, and how they fail."""

import orjson
import pytest

from tests.api.messages.asking import FETCH, SEARCH, ask, follow_up, kinds
from tests.fakes import Reply, streamed, whole
from tests.serving import proxy_of
from tests.tools.web.sites import Site, html, running, text

BOTH = pytest.mark.parametrize("streaming", [False, True])
READER = "  fetch_page: {type: web_fetch, allow_hosts: ['127.0.0.1'], respect_robots: false, offer: never}"
FOUND = [
    {"title": "Good", "link": "https://docs.good.example/a", "snippet": "Good words."},
    {"title": "Bad", "link": "https://bad.example/b", "snippet": "Bad words."},
]


def answers(streaming, call, text="Done."):
    make = streamed if streaming else whole
    return [make(calls=[call]), make(text)]


async def searched(upstream, **settings):
    """The message, and what the model has read, of one search with these settings."""
    upstream.search = Reply([orjson.dumps({"organic": FOUND})])
    upstream.replies = answers(False, ("u1", "web_search", {"query": "words"}))
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=False, tools=[{**SEARCH, **settings}])
    return message, upstream.requests[1]["messages"][-1]["content"]


@pytest.mark.parametrize(
    "settings", [{"allowed_domains": ["good.example"]}, {"blocked_domains": ["bad.example"], "allowed_domains": []}]
)
async def test_only_permitted_pages_reach_model_and_client(upstream, settings):
    message, read = await searched(upstream, **settings)
    assert [page["url"] for page in message["content"][1]["content"]] == ["https://docs.good.example/a"]
    assert "Good words." in read
    assert "bad.example" not in read
    assert "Bad words." not in read


async def test_empty_and_null_settings_are_absent(upstream):
    message, _ = await searched(upstream, allowed_domains=[], blocked_domains=None, user_location=None, max_uses=None)
    assert len(message["content"][1]["content"]) == 2


async def test_the_users_place_goes_to_the_model_and_the_search(upstream):
    await searched(upstream, user_location={"type": "approximate", "city": "Nanaimo", "country": "CA"})
    assert "Nanaimo, CA" in upstream.requests[0]["messages"][0]["content"]
    assert upstream.searches[0]["gl"] == "ca"


@BOTH
@pytest.mark.parametrize("name", ["fetch_page", "web_fetch"])
async def test_a_fetched_page_is_a_document_and_comes_back(upstream, streaming, name):
    async with running(Site()) as site, proxy_of(upstream, more=READER) as url:
        site.pages["/ferry"] = html("<title>Ferry</title><p>It sails at nine.</p>")
        page = f"http://127.0.0.1:{site.port}/ferry"
        upstream.replies = answers(streaming, ("u1", name, {"url": page}))
        message = await ask(url, streaming=streaming, tools=[FETCH])
        assert kinds(message) == ["server_tool_use", "web_fetch_tool_result", "text"]
        use, result, _ = message["content"]
        assert (use["name"], use["input"]) == ("web_fetch", {"url": page})
        found = result["content"]
        assert (found["type"], found["url"], found["content"]["title"]) == ("web_fetch_result", page, "Ferry")
        assert "It sails at nine." in found["content"]["source"]["data"]
        assert found["retrieved_at"]
        assert message["usage"]["server_tool_use"] == {"web_search_requests": 0, "web_fetch_requests": 1}
        await ask(url, streaming=streaming, tools=[FETCH], messages=follow_up(message, {"type": "text", "text": "?"}))
    _, then, later = (request["messages"] for request in upstream.requests)
    assert then[-1]["content"].startswith(later[3]["content"])  # but for the note on the budget that is left
    assert later[2]["tool_calls"][0]["function"]["name"] == "fetch_page"


@pytest.mark.parametrize(
    ("address", "settings", "code"),
    [
        ("/ferry", {"allowed_domains": ["other.example"]}, "url_not_allowed"),
        ("/nowhere", {}, "url_not_accessible"),
        ("/picture", {}, "unsupported_content_type"),
        ("file:///etc/passwd", {}, "url_not_allowed"),
    ],
)
async def test_a_page_that_cannot_be_read_is_an_error_block(upstream, address, settings, code):
    async with running(Site()) as site, proxy_of(upstream, more=READER) as url:
        site.pages["/ferry"] = html("<p>It sails at nine.</p>")
        site.pages["/picture"] = text("x", "image/png")
        page = f"http://127.0.0.1:{site.port}{address}" if address.startswith("/") else address
        upstream.replies = answers(False, ("u1", "fetch_page", {"url": page}))
        message = await ask(url, streaming=False, tools=[{**FETCH, **settings}])
    assert message["content"][1]["content"] == {"type": "web_fetch_tool_result_error", "error_code": code}


async def test_max_content_tokens_cuts_a_page(upstream):
    async with running(Site()) as site, proxy_of(upstream, more=READER) as url:
        site.pages["/long"] = html("<p>" + "word " * 1000 + "</p>")
        upstream.replies = answers(False, ("u1", "fetch_page", {"url": f"http://127.0.0.1:{site.port}/long"}))
        message = await ask(url, streaming=False, tools=[{**FETCH, "max_content_tokens": 20}])
    assert len(message["content"][1]["content"]["content"]["source"]["data"]) < 200


@pytest.mark.parametrize("name", ["web_search", "webSearch"])
async def test_a_custom_tool_named_like_a_server_tool_is_the_servers_and_hidden(upstream, name):
    upstream.replies = answers(False, ("u1", name, {"query": "x"}))
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=False, tools=[{"name": name, "input_schema": {"type": "object"}}])
    assert kinds(message) == ["text"]
    assert len(upstream.searches) == 1
