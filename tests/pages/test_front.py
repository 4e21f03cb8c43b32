"""`GET /` and `GET /v1`: what this is, for people and for programs."""

import asyncio

import httpx
import pytest

from tests.browser import CHROMIUM, browsing
from tests.fakes import FakeUpstream
from tests.serving import proxy_of

CLIENTS = """
clients:
  - {name: a, key: the-key-of-client-a, models: ["al*"]}
  - {name: chief, key: the-key-of-the-chief, admin: true}
"""


async def get(url, path="/", **headers):
    async with httpx.AsyncClient() as client:
        return await client.get(f"{url}{path}", headers=headers)


@pytest.mark.parametrize("path", ["/", "/v1"])
async def test_without_clients_anyone_on_this_machine_reads_the_address_the_models_and_the_pages(path):
    async with proxy_of(FakeUpstream([])) as url:
        facts = (await get(url, path)).json()
        assert facts.pop("description").startswith("An OpenAI-compatible proxy")
        assert facts.pop("version")
        assert facts == {"name": "toolproxy", "base_url": f"{url}/v1", "models": ["m", "alias"],
                         "chat": "/chat", "debug": "/debug"}  # fmt: skip
        for link in ("chat", "debug"):
            assert (await get(url, f"/{link}", accept="text/html")).status_code == 200


@pytest.mark.parametrize(
    ("headers", "models", "links"),
    [
        ({}, None, set()),
        ({"authorization": "Bearer the-key-of-client-a"}, ["alias"], set()),
        ({"x-api-key": "the-key-of-the-chief"}, ["m", "alias"], {"debug"}),
    ],
)
async def test_where_there_are_clients_a_key_decides_what_is_shown(headers, models, links):
    async with proxy_of(FakeUpstream([]), more=CLIENTS) as url:
        facts = (await get(url, **headers)).json()
        page = (await get(url, accept="text/html", **headers)).text
    assert facts.get("models") == models
    assert facts.keys() & {"chat", "debug"} == links
    assert ("version" in facts, "alias" in page, url in page) == (models is not None,) * 3


@pytest.mark.parametrize("headers", [{"authorization": "Bearer wrong"}, {"x-api-key": "wrong"}])
async def test_a_wrong_key_is_refused(headers):
    async with proxy_of(FakeUpstream([]), more=CLIENTS) as url:
        assert (await get(url, **headers)).status_code == 401


async def test_nobody_reads_of_debug_or_the_chat_through_a_front_or_under_a_name_that_was_rebound():
    async with proxy_of(FakeUpstream([])) as url:
        for headers in ({"host": "evil.example"}, {"x-forwarded-for": "203.0.113.9"}):
            assert (await get(url, **headers)).json().keys() & {"chat", "debug"} == set()


async def test_head_is_answered_and_post_is_not():
    async with proxy_of(FakeUpstream([]), more=CLIENTS) as url, httpx.AsyncClient() as client:
        for path in ("/", "/v1"):
            assert (await client.head(f"{url}{path}")).status_code == 200
            posted = await client.post(f"{url}{path}", json={})
            assert (posted.status_code, posted.json()["error"]["code"]) == (405, "method_not_allowed")


async def test_the_host_header_is_escaped_in_the_page():
    async with proxy_of(FakeUpstream([])) as url:
        page = await get(url, accept="text/html", host="a'b.example")
    assert "http://a&#x27;b.example/v1" in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
async def test_a_person_sees_the_address_as_the_browser_knows_it_and_the_way_to_the_chat():
    async with asyncio.timeout(60), proxy_of(FakeUpstream([])) as url, browsing(f"{url}/") as page:
        assert await page.evaluate("document.getElementById('at-openai').textContent") == f"{url}/v1"
        links = await page.evaluate("[...document.querySelectorAll('.ways a')].map((link) => link.href)")
    assert links == [f"{url}/chat", f"{url}/debug"]
