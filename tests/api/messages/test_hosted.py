"""`web_search_*` and `web_fetch_*`: their settings, their pages, and how they fail."""

import orjson
import pytest

from tests.api.messages.asking import FETCH, kinds
from tests.api.surfaces import SEARCH, on
from tests.fakes import Reply, turn
from tests.tools.web.sites import Site, html, running, text

READER = "  fetch_page: {type: web_fetch, allow_hosts: ['127.0.0.1'], respect_robots: false, offer: never}"
FOUND = [
    {"title": "Good", "link": "https://docs.good.example/a", "snippet": "Good words."},
    {"title": "Bad", "link": "https://bad.example/b", "snippet": "Bad words."},
]


@pytest.mark.parametrize(
    ("settings", "pages"),
    [
        ({"allowed_domains": ["good.example"]}, 1),
        ({"blocked_domains": ["bad.example"], "allowed_domains": []}, 1),
        ({"allowed_domains": [], "blocked_domains": None, "user_location": None, "max_uses": None}, 2),
    ],
)
async def test_only_permitted_pages_reach_model_and_client(messages, settings, pages):
    messages.upstream.search = Reply([orjson.dumps({"organic": FOUND})])
    answer = await messages.ask(turn(calls=[SEARCH]), turn("Done."), search=settings)
    assert answer.server_calls[0].pages == tuple(page["link"] for page in FOUND[:pages])
    [read] = messages.results()
    assert ("Good words." in read, "bad.example" in read, "Bad words." in read) == (True, pages == 2, pages == 2)


async def test_the_users_place_goes_to_the_model_and_the_search(messages):
    place = {"user_location": {"type": "approximate", "city": "Nanaimo", "country": "CA"}}
    await messages.ask(turn(calls=[SEARCH]), turn("Done."), search=place)
    assert "Nanaimo, CA" in messages.upstream.requests[0]["messages"][0]["content"]
    assert messages.upstream.searches[0]["gl"] == "ca"


@pytest.mark.parametrize("name", ["fetch_page", "web_fetch"])
async def test_a_fetched_page_is_a_document_and_comes_back(messages, name):
    async with running(Site()) as site, messages.proxy(more=READER) as client:
        site.pages["/ferry"] = html("<title>Ferry</title><p>It sails at nine.</p>")
        page = f"http://127.0.0.1:{site.port}/ferry"
        messages.upstream.restart([turn(calls=[("u1", name, {"url": page})]), turn("Done.")])
        first = await client.ask(tools=[FETCH])
        await client.ask(after=first, text="?")
    assert kinds(first.whole) == ["server_tool_use", "web_fetch_tool_result", "text"]
    use, result, _ = first.whole["content"]
    assert (use["name"], use["input"]) == ("web_fetch", {"url": page})
    found = result["content"]
    assert (found["type"], found["url"], found["content"]["title"]) == ("web_fetch_result", page, "Ferry")
    assert "It sails at nine." in found["content"]["source"]["data"]
    assert found["retrieved_at"]
    assert first.whole["usage"]["server_tool_use"] == {"web_search_requests": 0, "web_fetch_requests": 1}
    [then], [later] = messages.results(1), messages.results(2)
    assert then.startswith(later)  # but for the note on the budget that is left
    assert messages.history()[1]["tool_calls"][0]["function"]["name"] == "fetch_page"


async def fetched(surface, address, **settings):
    """The result of a page of a site: it has a ferry, a picture, and a long page."""
    async with running(Site()) as site:
        site.pages["/ferry"] = html("<p>It sails at nine.</p>")
        site.pages["/picture"] = text("x", "image/png")
        site.pages["/long"] = html("<p>" + "word " * 1000 + "</p>")
        page = f"http://127.0.0.1:{site.port}{address}" if address.startswith("/") else address
        replies = turn(calls=[("u1", "fetch_page", {"url": page})]), turn("Done.")
        answer = await surface.ask(*replies, more=READER, tools=[{**FETCH, **settings}])
    return answer.whole["content"][1]["content"]


@on("messages-whole")
@pytest.mark.parametrize(
    ("address", "settings", "code"),
    [
        ("/ferry", {"allowed_domains": ["other.example"]}, "url_not_allowed"),
        ("/nowhere", {}, "url_not_accessible"),
        ("/picture", {}, "unsupported_content_type"),
        ("file:///etc/passwd", {}, "url_not_allowed"),
    ],
)
async def test_a_page_that_cannot_be_read_is_an_error_block(surface, address, settings, code):
    result = await fetched(surface, address, **settings)
    assert result == {"type": "web_fetch_tool_result_error", "error_code": code}


@on("messages-whole")
async def test_max_content_tokens_cuts_a_page(surface):
    assert len((await fetched(surface, "/long", max_content_tokens=20))["content"]["source"]["data"]) < 200
