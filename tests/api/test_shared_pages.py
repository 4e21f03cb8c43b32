"""Pages that a search brought, or that were read before, are opened from one cache; over real sockets."""

from contextlib import asynccontextmanager

import pytest

from tests.fakes import whole
from tests.serving import proxy_of, serving
from tests.tools.search.test_searched_answers import ASKED, CONFIG, SEARCH, Service, entry, results_seen
from tests.tools.web.sites import Site, running, text

CLIENTS = """
clients: [{name: one, key: key-of-the-app}, {name: two, key: key-of-another}]
"""
LONG = "The ferry sails at nine. " * 1000
FIRST, SECOND = {"authorization": "Bearer key-of-the-app"}, {"authorization": "Bearer key-of-another"}


@pytest.fixture
async def site():
    async with running(Site()) as site:
        site.pages["/robots.txt"] = text("", status="404 Not Found")
        yield site


def found(url, **more):
    return (200, {}, {"results": [{"url": url, "title": "Ferries", "content": "A snippet.", **more}]})


@asynccontextmanager
async def reading(upstream, service, *tools, content="snippets"):
    async with serving(service, lifespan="off") as api:
        more = entry("web_search", "tavily", api, content=content) + "".join(f"  {tool}\n" for tool in tools)
        async with proxy_of(upstream, config=CONFIG, more=more + CLIENTS) as url:
            yield url


async def opened(upstream, client, url, *, search=True, headers=FIRST, tool="fetch_page", **extra):
    """What the model reads of a page that it opens, after a search."""
    opening = whole(calls=[("2", tool, {"url": url})])
    upstream.restart([*([SEARCH] if search else []), opening, whole("Done.")])
    await client.chat.completions.create(**ASKED, extra_headers=headers, extra_body=extra or None)
    return results_seen(upstream)[-1]


async def test_a_page_that_a_search_brought_is_read_whole_without_asking_its_server(upstream, sdk, site):
    page = f"http://127.0.0.1:{site.port}/ferries"
    service = Service(found(page, raw_content=LONG))
    fetch = f"fetch_page: {{type: web_fetch, allow_hosts: ['127.0.0.1:{site.port}']}}"
    async with reading(upstream, service, fetch, content="page") as url, sdk(url) as client:
        read = await opened(upstream, client, page)
        assert f"Characters 0 to 20000 of {len(LONG.strip())}" in read
        assert site.requests == ["/robots.txt"]
        assert len(results_seen(upstream)[0]) < 7000
        site.pages["/ferries"] = text("The server's own.")
        assert "The server's own." in await opened(upstream, client, page, search=False, headers=SECOND)


@pytest.mark.parametrize("closed", ["deny_hosts: ['127.0.0.1']", "deny_hosts: []", "robots", "filters"])
async def test_a_page_that_may_not_be_opened_is_not_served_from_the_cache(closed, upstream, sdk, site):
    page = f"http://127.0.0.1:{site.port}/ferries"
    site.pages["/robots.txt"] = text("User-agent: *\nDisallow: /ferries")
    allow = f"allow_hosts: ['127.0.0.1:{site.port}']"
    options = (
        f"{allow}, respect_robots: {str(closed == 'robots').lower()}" if closed in ("robots", "filters") else closed
    )
    other = f"other_page: {{type: web_fetch, {allow}, respect_robots: false}}"
    fetch = f"fetch_page: {{type: web_fetch, {options}}}"
    service = Service(found(page, raw_content=LONG))
    async with reading(upstream, service, fetch, other, content="page") as url, sdk(url) as client:
        assert "sails at nine" in await opened(upstream, client, page, tool="other_page")
        blocked = {"tools": [{"type": "web_search", "filters": {"blocked_domains": ["127.0.0.1"]}}]}
        more = blocked if closed == "filters" else {}
        read = await opened(upstream, client, page, search=False, **more)
    assert "sails at nine" not in read
    assert '"error"' in read


async def test_a_page_is_opened_at_the_address_that_the_search_gave(upstream, sdk, site):
    page = f"http://127.0.0.1:{site.port}/ferries"
    site.pages["/ferries?utm_source=x"] = text("The ferry sails at nine.")
    fetch = f"fetch_page: {{type: web_fetch, allow_hosts: ['127.0.0.1:{site.port}']}}"
    async with reading(upstream, Service(found(f"{page}?utm_source=x")), fetch) as url, sdk(url) as client:
        read = await opened(upstream, client, page)
    assert "sails at nine" in read
    assert "utm_source" not in "".join(results_seen(upstream))
    assert site.requests == ["/robots.txt", "/ferries?utm_source=x"]


async def test_tools_that_read_pages_share_them(upstream, sdk, site):
    page = f"http://127.0.0.1:{site.port}/ferries"
    site.pages["/ferries"] = text("The ferry sails at nine.")
    readers = [f"{name}: {{type: web_fetch, allow_hosts: ['127.0.0.1:{site.port}']}}" for name in ("one", "two")]
    async with reading(upstream, Service(found(page)), *readers) as url, sdk(url) as client:
        for tool in ("one", "two"):
            assert "sails at nine" in await opened(upstream, client, page, search=False, tool=tool)
        assert site.requests == ["/robots.txt", "/ferries"]
        site.pages["/ferries"] = text("It sails at ten.")
        assert "sails at ten" in await opened(upstream, client, page, search=False, tool="two", headers=SECOND)
