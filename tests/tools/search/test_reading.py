"""Searches that read the pages they find: over real sockets, with pages of any kind on loopback."""

import asyncio
import gzip
import math
import re
from collections import Counter
from contextlib import asynccontextmanager

import httpx
import pytest

from proxy.config.model import ReadConfig
from proxy.loop.call_context import CallContext
from proxy.loop.results import ToolOutput
from proxy.tools.registry import Registry
from proxy.tools.search.reading import HitReader, reading_of
from proxy.tools.tool import Tool
from proxy.tools.tool_type import Resources
from proxy.tools.web.reader import PageRules
from proxy.wire.chat import ToolCall
from proxy.wire.search import Reading, SearchHit
from tests.api.messages.asking import ASK
from tests.api.messages.asking import SEARCH as SEARCH_TOOL
from tests.api.messages.asking import client as messages_client
from tests.fakes import FakeClock, whole
from tests.serving import proxy_of, serving
from tests.tools.search.test_searched_answers import Service, results_seen
from tests.tools.web.sites import Site, html, redirect, running, text

CONFIG = """
upstreams: {{up: {{base_url: {upstream}/v1, api_key: upstream-secret, profile: openai, retries: 0}}}}
models: {{m: {{upstream: up}}}}
{more}
"""
QUESTION = {"model": "m", "messages": [{"role": "user", "content": "When does the tower open?"}]}
AGAIN = {"role": "user", "content": "And on Sundays?"}
OTHERS = "<p>About ships and dogs.</p>" * 200
ANSWER = "The tower opens at nine."
PAGE = html(f"{OTHERS}<h2>Hours</h2><p>{ANSWER}</p>{OTHERS}")
GONE = text("gone", status="404 Not Found")
# A provider that gives the texts of pages as well.
OWN = (
    "{url: API/search, query: {q: '{query}'}, results: /results, page: {text: /raw},"
    " fields: {url: /url, title: /title, text: /content}}"
)


def search(query="tower opening hours", **arguments):
    """A turn of the model that searches."""
    return whole(calls=[("1", "web_search", {"query": query, "num_results": 10, **arguments})])


def opens(page, **arguments):
    """A turn of the model that opens a page."""
    return whole(calls=[("1", "fetch_page", {"url": page, **arguments})])


class Searched:
    """A proxy at `url` whose search finds pages of `site`; `hits` are what it finds, once for each search."""

    def __init__(self, url, site, service):
        self.url, self.site, self.service = url, site, service

    def page(self, path):
        return f"http://127.0.0.1:{self.site.port}{path}"

    def find(self, *searches):
        """Find a hit for each path, or what else an answer is, in one search after the other."""
        self.service.answers = [
            one if isinstance(one[0], int) else (200, {}, {"results": [self.hit(path) for path in one]})
            for one in searches
        ]

    def hit(self, path):
        return {"url": self.page(path), "title": path[1:], "content": f"Snippet of {path}."}

    async def ask(self, upstream, *turns, headers=None, **request):
        """The answer to a question for which the model calls tools in turns, one search if nothing else is said."""
        upstream.restart([*(turns or [search()]), whole("At nine.")])
        async with httpx.AsyncClient(timeout=30) as client:
            response = await client.post(
                f"{self.url}/v1/chat/completions", json={**QUESTION, **request}, headers=headers
            )
        assert response.status_code == 200, response.text
        return response.json()

    async def get(self, path):
        async with httpx.AsyncClient() as client:
            return await client.get(self.url + path)

    async def outcomes(self):
        """How many pages came to each outcome, by the metrics."""
        metrics = (await self.get("/metrics")).text
        return {outcome: int(n) for outcome, n in re.findall(r'pages_read_total{outcome="(\w+)"} (\d+)', metrics)}


@asynccontextmanager
async def searching(upstream, pages, *, read=3, own="", fetch="allow_hosts: [127.0.0.1]", more="", provider="searxng"):
    """A proxy whose search finds the pages of a site and reads them; `own` are further settings of the search."""
    service = Service()
    async with running(Site(dict(pages))) as site, serving(service, lifespan="off") as api:
        entry = f"{{type: search, provider: {provider}, base_url: API, retries: 0, read: {read}, {own}}}"
        fetch_page = f"  fetch_page: {{type: web_fetch, {fetch}}}" if fetch is not None else ""
        tools = f"tools:\n  web_search: {entry}\n{fetch_page}\n{more}".replace("API", api)
        async with proxy_of(upstream, config=CONFIG, more=tools) as url:
            searched = Searched(url, site, service)
            searched.find([*pages])
            yield searched


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (None, None),
        (0, Reading(0)),
        (3, Reading(3, 1500, 4)),
        (ReadConfig(pages=2, characters=500, seconds=1.5), Reading(2, 500, 1.5)),
        (ReadConfig(), Reading(3)),
    ],
)
def test_read_is_a_number_of_pages_or_a_mapping(read, value):
    assert reading_of(read) == value


async def test_passages_stand_in_the_place_of_snippets_and_are_one_call(upstream):
    async with searching(upstream, dict.fromkeys(("/a", "/b", "/c", "/d"), PAGE)) as searched:
        answer = await searched.ask(upstream)
        assert await searched.outcomes() == {"read": 3}
    assert "pages are read for you" in upstream.requests[0]["tools"][0]["function"]["description"]
    [result] = results_seen(upstream)
    assert result.count(ANSWER) == 3
    assert re.findall("Snippet of (..)", result) == ["/d"]
    assert f"a\n{searched.page('/a')}\n" in result
    used = {"turns": 2, "tool_calls": 1, "web_search_requests": 1, "web_search": 1}
    assert answer["usage"]["server_tool_use"] == used
    assert sorted(searched.site.requests) == ["/a", "/b", "/c", "/robots.txt"]


@pytest.mark.parametrize("read", ["0", "null", "{pages: 0}"])
async def test_without_read_no_page_is_fetched(upstream, read):
    async with searching(upstream, {"/a": PAGE}, read=read) as searched:
        await searched.ask(upstream)
        assert await searched.outcomes() == {}
    assert "pages are read for you" not in upstream.requests[0]["tools"][0]["function"]["description"]
    assert "Snippet of /a" in results_seen(upstream)[0]
    assert searched.site.connections == 0


HUGE = f"<p>{ANSWER}</p>" + "<p>About ships.</p>" * 20_000
PAGES = {  # path -> the page, its outcome, and what the model reads of it
    "/good": (PAGE, "read", ANSWER),
    "/short": (html(f"<p>{ANSWER}</p>"), "read", ANSWER),
    "/moved": (redirect("/good"), "read", ANSWER),
    "/charset": (text(f"<p>{ANSWER} Äh.</p>".encode("cp1252"), "text/html; charset=no-such"), "read", ANSWER),
    "/huge": (html(HUGE), "read", ANSWER),
    "/bomb": (text(gzip.compress(HUGE.encode() * 10), "text/html", "Content-Encoding: gzip"), "read", ANSWER),
    "/missing": (GONE, "failed", None),
    "/broken": (text("no", status="500 Oops"), "failed", None),
    "/picture": (text(b"\x89PNG", "image/png"), "failed", None),
    "/nothing": (html("<script>tower()</script>"), "empty", None),
    "/other": (html(OTHERS), "empty", None),
    "/private": (redirect("http://10.0.0.1/tower"), "refused", None),
    "/metadata": (redirect("http://169.254.169.254/tower"), "refused", None),
    "/port": (redirect("http://user@127.0.0.1:22/"), "refused", None),
    "/secret/robots": (PAGE, "refused", None),
}
ROBOTS = {"/robots.txt": text("User-agent: *\nDisallow: /secret/")}


async def test_whatever_a_page_is_its_hit_keeps_at_least_its_snippet(upstream, logged):
    pages = {path: page for path, (page, _, _) in PAGES.items()}
    expected = Counter(outcome for _, outcome, _ in PAGES.values())
    fetch = "allow_hosts: [127.0.0.1], max_bytes: 100000"
    async with searching(upstream, pages | ROBOTS, read="{pages: 20, seconds: 25}", fetch=fetch) as searched:
        searched.find([*pages][:8], [*pages][8:])
        await searched.ask(upstream, search("tower"), search("hours of the tower"))
        assert await searched.outcomes() == expected
    result = "".join(results_seen(upstream))
    for path, (_, _, read) in PAGES.items():
        block = result.partition(f"{searched.page(path)}\n")[2].partition(searched.page(""))[0]
        assert (read or f"Snippet of {path}.") in block, path
    pages = [Counter(line["pages"]) for line in logged() if line["event"] == "tool.completed"]
    assert pages[0] + pages[1] == expected


class Slow:
    """A page that comes word by word and never ends; `left`: whoever read it has closed the connection."""

    def __init__(self):
        self.asked, self.left = asyncio.Event(), asyncio.Event()

    async def __call__(self, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n")
        self.asked.set()
        try:
            while True:
                writer.write(b"tower ")
                await writer.drain()
                await asyncio.sleep(0.005)
        finally:
            self.left.set()


async def test_a_page_that_is_late_is_left_out_and_its_connection_ended(upstream):
    slow = Slow()
    async with searching(upstream, {"/slow": slow}, read="{pages: 2, seconds: 0.1}") as searched:
        await searched.ask(upstream)
        assert await searched.outcomes() == {"late": 1}
        await asyncio.wait_for(slow.left.wait(), 5)
    assert "Snippet of /slow." in results_seen(upstream)[0]


async def test_pages_are_late_before_the_time_of_their_call_is_up():
    clock = FakeClock()
    async with running(Site({"/slow": Slow()})) as site:
        resources = Resources(None, clock, page_rules=PageRules(allow_hosts=("127.0.0.1",), respect_robots=False))
        hit = SearchHit(f"http://127.0.0.1:{site.port}/slow", "slow")
        call = CallContext(ends=clock.monotonic() + 0.05)
        async with asyncio.timeout(5):
            read = await HitReader("t", resources).read([("q", [hit])], call, Reading(1, seconds=60))
    assert read.outcomes == {"late": 1}


@pytest.mark.parametrize(
    ("deadline", "own", "seconds"), [(math.inf, None, 30), (math.inf, 7, 7), (20, None, 20), (20, 7, 7)]
)
async def test_a_tool_that_reads_knows_when_its_call_ends(deadline, own, seconds):
    clock, seen = FakeClock(), []

    async def run(arguments, call):
        seen.append((call.ends - clock.monotonic(), call.filters.reading))
        return ToolOutput("")

    fields = {"description": "", "parameters": {}, "run": None, "run_in_call": run, "timeout": own}
    registry = Registry([Tool(name="t", reading=Reading(3), **fields), Tool(name="u", **fields)], clock=clock)
    context = CallContext(default_timeout=30, tools=None, ends=clock.monotonic() + deadline)
    for name in "tu":
        await registry.execute(ToolCall("1", name, "{}"), context)
    assert seen == [(seconds, Reading(3)), (deadline, None)]


async def test_when_the_client_leaves_no_page_is_read_any_more(upstream, logged):
    slow = Slow()
    async with searching(upstream, {"/slow": slow}, read="{seconds: 25}") as searched:
        asking = asyncio.create_task(searched.ask(upstream))
        await asyncio.wait_for(slow.asked.wait(), 5)
        asking.cancel()
        await asyncio.wait_for(slow.left.wait(), 5)
        assert await searched.outcomes() == {}
    assert "tool.abandoned" in [line["event"] for line in logged()]


async def test_a_bug_in_reading_a_page_costs_nothing_but_the_page(upstream, logged, monkeypatch):
    monkeypatch.setattr("proxy.tools.search.reading.fitting_passages", lambda *_, **__: 1 / 0)
    async with searching(upstream, {"/a": PAGE}) as searched:
        await searched.ask(upstream)
        assert await searched.outcomes() == {"failed": 1}
    assert "Snippet of /a." in results_seen(upstream)[0]
    assert "ZeroDivisionError" in next(line for line in logged() if line["event"] == "page.crashed")["exception"]


@pytest.mark.parametrize("fetch", [None, "", "deny_hosts: ['*']", "allow_hosts: [127.0.0.1], deny_hosts: [127.0.0.1]"])
async def test_private_pages_are_read_only_where_web_fetch_may_open_them(upstream, fetch):
    async with searching(upstream, {"/a": PAGE}, fetch=fetch) as searched:
        await searched.ask(upstream)
        assert await searched.outcomes() == {"refused": 1}
    assert "Snippet of /a." in results_seen(upstream)[0]
    assert searched.site.connections == 0


async def test_the_first_web_fetch_of_the_file_has_the_rules(upstream):
    second = "  second: {type: web_fetch, allow_hosts: [127.0.0.1]}"
    async with searching(upstream, {"/a": PAGE}, fetch="", more=second) as searched:
        await searched.ask(upstream)
        assert await searched.outcomes() == {"refused": 1}


CLIENTS = """
clients:
  - {name: both, key: key-of-both-tools}
  - {name: named, key: key-of-named-tools, tools: [web_search, fetch_page]}
  - {name: search, key: key-of-search-only, tools: [web_search]}
"""


@pytest.mark.parametrize(
    ("key", "headers", "outcome"),
    [
        ("key-of-both-tools", {}, "read"),
        ("key-of-both-tools", {"x-server-tools": "web_search"}, "read"),
        ("key-of-named-tools", {}, "read"),
        ("key-of-search-only", {}, "refused"),
    ],
)
async def test_the_allowed_hosts_of_web_fetch_hold_for_clients_that_may_use_it(upstream, key, headers, outcome):
    async with searching(upstream, {"/a": PAGE}, more=CLIENTS) as searched:
        await searched.ask(upstream, headers=headers | {"authorization": f"Bearer {key}"})
        assert await searched.outcomes() == {outcome: 1}


@pytest.mark.parametrize(
    ("request_", "arguments", "own"),
    [
        ({}, {}, "block_domains: [localhost]"),
        ({"web_search_options": {"filters": {"allowed_domains": ["127.0.0.1"]}}}, {}, ""),
        ({"web_search_options": {"filters": {"blocked_domains": ["localhost"]}}}, {}, ""),
        ({}, {"blocked_domains": ["localhost"]}, ""),
    ],
)
async def test_a_redirect_does_not_lead_out_of_the_filters_of_the_call(upstream, request_, arguments, own):
    fetch = "allow_hosts: [127.0.0.1, localhost]"
    async with searching(upstream, {"/a": b""}, own=own, fetch=fetch) as searched:
        searched.site.pages = {"/a": redirect(f"http://localhost:{searched.site.port}/b"), "/b": PAGE}
        await searched.ask(upstream, search("tower", **arguments), **request_)
        assert await searched.outcomes() == {"refused": 1}
    assert ANSWER not in results_seen(upstream)[0]


@pytest.mark.parametrize("key", ["some-key", "${UNSET}"])
@pytest.mark.parametrize(
    ("read", "of_fallback", "pages"),
    [(2, "", 2), (0, "", 0), ("null", "", 0), (2, "read: 0", 0), (0, "read: 1", 1), (2, "read: 1", 1)],
)
async def test_a_fallback_reads_as_it_says_or_else_as_the_tool_that_it_stands_in_for(
    upstream, key, read, of_fallback, pages
):
    second = f"  second: {{type: search, provider: searxng, base_url: API, offer: never, {of_fallback}}}\n"
    own = f"api_key: '{key}', fallback: second"
    async with searching(upstream, {"/a": PAGE, "/b": PAGE}, read=read, own=own, more=second) as searched:
        searched.find(*([] if key == "${UNSET}" else [(500, {}, {})]), ["/a", "/b"])
        await searched.ask(upstream)
        assert await searched.outcomes() == ({"read": pages} if pages else {})


async def test_passages_are_one_entry_of_the_cache_and_their_page_is_opened_from_the_cache_afterwards(upstream, logged):
    async with searching(upstream, {"/a": PAGE}, own="cache_seconds: 60, price: 0.5") as searched:
        costs = [(await searched.ask(upstream, search("tower")))["usage"]["cost"] for _ in range(2)]
        assert results_seen(upstream)[0].count(ANSWER) == 1
        await searched.ask(upstream, opens(searched.page("/a"), find="nine"))
        assert ANSWER in results_seen(upstream)[0]
        assert await searched.outcomes() == {"read": 1}
    assert len(searched.service.requests) == 1
    assert searched.site.requests == ["/robots.txt", "/a"]
    assert costs == [0.5, 0]
    assert [line.get("pages") for line in logged() if line["event"] == "tool.completed"] == [{"read": 1}, None, None]


async def test_a_page_that_was_opened_before_is_read_from_the_cache(upstream):
    async with searching(upstream, {"/a": PAGE}) as searched:
        await searched.ask(upstream, opens(searched.page("/a")), search())
    assert ANSWER in results_seen(upstream)[1]
    assert searched.site.requests.count("/a") == 1


@pytest.mark.parametrize("size", [5000, 300])
async def test_a_providers_own_text_of_a_page_is_not_fetched_again(upstream, size):
    read = "{characters: 400}"
    own = "content: page"
    async with searching(upstream, {"/a": PAGE, "/b": PAGE}, read=read, own=own, provider=OWN) as searched:
        raw = {"raw": f"{'About ships. ' * (size // 13)}\n\n{ANSWER}"}
        searched.find((200, {}, {"results": [searched.hit("/a") | raw, searched.hit("/b")]}))
        await searched.ask(upstream)
        assert await searched.outcomes() == {"read": 1}
    assert "/a" not in searched.site.requests
    [result] = results_seen(upstream)
    assert result.count(ANSWER) == 2
    assert len(result) < 1500


async def test_passages_have_at_most_the_characters_of_read_however_long_other_texts_may_be(upstream):
    long = html("\n".join(f"<p>The tower has {number} steps and a lamp.</p>" for number in range(500)))
    read, own = "{pages: 2, characters: 3000}", "max_characters_per_result: 20"
    async with searching(upstream, dict.fromkeys(("/a", "/b", "/c"), long), read=read, own=own) as searched:
        await searched.ask(upstream)
    blocks = results_seen(upstream)[0].split(searched.page("/"))[1:]
    assert [2500 < len(block) < 3100 for block in blocks] == [True, True, False]
    assert len(blocks[2]) < 100


async def test_what_is_cited_and_sealed_is_what_the_model_has_read(upstream):
    async with (
        searching(upstream, {"/a": PAGE, "/b": html(OTHERS)}) as searched,
        messages_client(searched.url) as client,
    ):
        upstream.restart([search(), whole(f"At nine, says {searched.page('/a')}.")])
        message = await client.messages.create(**ASK, tools=[SEARCH_TOOL])
        [read] = results_seen(upstream)
        upstream.restart([whole("As I said.")])
        history = [*ASK["messages"], {"role": "assistant", "content": message.content}, AGAIN]
        await client.messages.create(**{**ASK, "messages": history}, tools=[SEARCH_TOOL])
    assert results_seen(upstream) == [read]
    [citation] = message.content[-1].citations
    assert citation.url == searched.page("/a")
    assert ANSWER in citation.cited_text


async def test_responses_name_the_pages_as_sources(upstream):
    async with searching(upstream, {"/a": PAGE}) as searched:
        upstream.restart([search(), whole(f"At nine, says {searched.page('/a')}.")])
        body = {"model": "m", "input": "When?", "tools": [{"type": "web_search"}]}
        async with httpx.AsyncClient() as client:
            include = {"include": ["web_search_call.action.sources"]}
            answer = (await client.post(f"{searched.url}/v1/responses", json=body | include)).json()
    call, message = answer["output"]
    assert call["action"]["sources"] == [{"type": "url", "url": searched.page("/a")}]
    assert message["content"][0]["annotations"][0]["url"] == searched.page("/a")


async def test_each_page_is_a_bar_of_the_waterfall(upstream):
    content = "telemetry: {log_content: true}"
    async with searching(upstream, {"/a": PAGE, "/b": GONE}, more=content) as searched:
        await searched.ask(upstream, headers={"x-request-id": "seen"})
        record = (await searched.get("/debug/requests/seen?format=json")).json()
        page = (await searched.get("/debug/requests/seen")).text
    assert [step["kind"] for step in record["steps"]] == ["turn", "tool", "page", "page", "turn"]
    pages = {step["page"]: step for step in record["steps"] if step["kind"] == "page"}
    assert [pages[number]["outcome"] for number in (1, 2)] == ["completed", "failed"]
    assert pages[1]["url"] == searched.page("/a")
    assert f"page 1 {searched.page('/a')}" in page
    assert 'class="page"' in page


async def test_of_a_call_with_several_queries_the_first_pages_of_each_are_read_and_no_more_in_all(upstream):
    async with searching(upstream, dict.fromkeys(("/a", "/b", "/c", "/d"), PAGE)) as searched:
        searched.find(["/a", "/b", "/c"], ["/a", "/d"])
        await searched.ask(upstream, whole(calls=[("1", "web_search", {"queries": ["tower", "opening hours"]})]))
        assert await searched.outcomes() == {"read": 3}
    assert sorted(searched.site.requests) == ["/a", "/b", "/d", "/robots.txt"]
    assert results_seen(upstream)[0].count(ANSWER) == 3


async def test_a_search_without_a_model_has_the_passages_as_snippets(upstream):
    async with searching(upstream, {"/a": PAGE, "/b": GONE}) as searched:
        async with httpx.AsyncClient() as client:
            found = (await client.post(f"{searched.url}/v1/search", json={"query": "tower"})).json()
        assert await searched.outcomes() == {"read": 1, "failed": 1}
    snippets = {row["url"]: row["snippet"] for row in found["results"]}
    assert ANSWER in snippets[searched.page("/a")]
    assert snippets[searched.page("/b")] == "Snippet of /b."
