"""`type: web_fetch`: one web page as clean text, a part at a time.

    url --guard--> robots.txt --> each hop: guard, connect to the checked address --> body, bounded --> text --> a part

The text is cached for a few minutes (`pages`), so that paging through it takes only one request.
"""

import re
import ssl
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec

import httpx
import msgspec
from cachetools import TTLCache

from proxy import __version__
from proxy.config.model import Characters, HeaderValue, Text, ToolConfig
from proxy.http.connect import client_context
from proxy.loop.limits import Bytes, Count
from proxy.loop.results import ToolError, ToolUnavailable, UrlNotAllowed
from proxy.ports import Clock
from proxy.tools.kind import Faults, Kind, Resources
from proxy.tools.threads import DaemonThreads
from proxy.tools.tool import Tool
from proxy.tools.web.client import Answer, PageClient, PageSession
from proxy.tools.web.guard import Target, UrlGuard, parse_url
from proxy.tools.web.network import Resolve, SystemResolver
from proxy.tools.web.page import Page, expect_permitted, page_tool
from proxy.tools.web.pages import PageCache
from proxy.tools.web.text import check_content_type, installed_pdf_reader, read_page
from proxy.tools.web.urls import canonical
from proxy.wire.search import SearchFilters

USER_AGENT = f"toolproxy/{__version__} (+reads single pages for people who ask a language model)"

_TRANSIENT = (429, 502, 503, 504)
_NOT_FOUND, _FORBIDDEN = (404, 410), (401, 402, 403, 451)

_ROBOTS_KEPT_SECONDS, _ROBOTS_KEPT_CHARACTERS = 600, 4 * 1024 * 1024
_ROBOTS_BYTES = 500 * 1024  # RFC 9309, 2.5: a crawler reads at least this much
# The number of rules times user agents: a group may name many agents, each of which gets every rule of the group.
MOST_RULES = 100_000
# `toolproxy/1.0` counts as the product `toolproxy`, although RFC 9309 has no versions.
_VERSION = re.compile(r"^(\s*user-agent\s*:[^/#\n]*)/.*$", re.IGNORECASE | re.MULTILINE)


class WebFetchConfig(ToolConfig, tag="web_fetch", frozen=True, kw_only=True):
    """`type: web_fetch`: one web page as text.

    Every public host is open at ports 80 and 443. `allow_hosts` opens further hosts, private addresses and other ports,
    and closes nothing; `deny_hosts` closes hosts, and takes precedence. `deny_hosts: ["*"]` closes all hosts that
    `allow_hosts` does not name. An entry is `host`, `*.host`, an address, or a network such as 10.1.0.0/16; `host:port`
    is that port only.
    """

    # Calls at the same time, of all requests together; each may hold several times max_bytes.
    max_concurrent_calls: Count | None = 32
    allow_hosts: tuple[Text, ...] = ()  # Hosts that are opened in addition to public ones.
    deny_hosts: tuple[Text, ...] = ()  # Hosts that are closed, even if allow_hosts has them.
    max_bytes: Bytes = 5 * 1024 * 1024  # Largest part of a page that is read, in bytes after decompression.
    # Characters of text in one result; at three bytes each they fit into limits.max_result_bytes.
    max_characters: Characters = 20_000
    user_agent: HeaderValue | None = None  # User-Agent header. None: that of toolproxy.
    respect_robots: bool = True  # Obey the robots.txt of the page's site.


def web_fetch_tool(
    name: str,
    entry: WebFetchConfig,
    resources: Resources,
    *,
    resolve: Resolve | None = None,
    ssl_context: Callable[[], ssl.SSLContext] = client_context,
) -> Tool:
    """The tool of an entry.

    Args:
        name: the name in the configuration.
        entry: the entry, whose `allow_hosts` and `deny_hosts` have no fault.
        resources: the time, for the expiry of caches, and the cache of pages.
        resolve: finds the addresses of hosts; None: the system's resolver.
        ssl_context: makes the TLS context.
    """
    pages = resources.pages
    reader = _Reader(entry, resources.clock, pages, resolve or SystemResolver(), ssl_context)

    async def page_at(url: str, filters: SearchFilters) -> Page:
        target = parse_url(await pages.address_of(url))
        expect_permitted(target.url, filters)
        return await reader.page(target)

    tool = page_tool(name, page_at, most=entry.max_characters, one_service=False)
    return msgspec.structs.replace(tool, fetches=True)


def _faults(entry: WebFetchConfig) -> Faults:
    for option, allow, deny in (("allow_hosts", entry.allow_hosts, ()), ("deny_hosts", (), entry.deny_hosts)):
        try:
            UrlGuard(allow, deny)
        except ValueError as exc:
            yield option, str(exc)


class _Reader:
    """Gets pages; one from the cache only if it could also be fetched now."""

    def __init__(
        self,
        config: WebFetchConfig,
        clock: Clock,
        pages: PageCache,
        resolve: Resolve,
        ssl_context: Callable[[], ssl.SSLContext],
    ) -> None:
        self._most_bytes = config.max_bytes
        agent = config.user_agent or USER_AGENT
        guard = UrlGuard(config.allow_hosts, config.deny_hosts)
        self._client = PageClient(guard, resolve, user_agent=agent, ssl_context=ssl_context)
        self._wanted = partial(check_content_type, pdf=find_spec("pypdf") is not None)
        self._threads = DaemonThreads("toolproxy-page", most=2)  # more threads would only compete for the processor
        self._robots = _Robots(agent, timer=clock.monotonic, threads=self._threads) if config.respect_robots else None
        self._pages = pages

    async def page(self, target: Target) -> Page:
        """The page at a URL. Raises `ToolError`."""
        fetched = False

        async def fetch() -> Page:
            nonlocal fetched
            fetched = True
            return await self._fetched(target)

        page = await self._pages.get_or_read(target.url, fetch)
        if not fetched:  # a page found by a search, or read by a tool that may open other pages than this one
            for url in {target.url, page.url}:
                await self._expect_open(parse_url(url))
        return page

    async def _expect_open(self, target: Target) -> None:
        """Raise `ToolError` for a page that could not be fetched itself, because of guard, addresses or robots.txt."""
        async with self._client.session() as session:
            await session.check(target, visit=self._robots)

    async def _fetched(self, target: Target) -> Page:
        async with self._client.session() as session:
            answer = await session.get(target, most_bytes=self._most_bytes, wanted=self._wanted, visit=self._robots)
        _check_status(answer)
        page = await self._threads.run(lambda: read_page(answer, read_pdf=installed_pdf_reader()))
        return replace(page, url=canonical(page.url) or page.url)


class _Robots:
    """Robots.txt (RFC 9309): whether a site permits robots to read a page. Files are cached for ten minutes.

    Args:
        user_agent: the User-Agent header; the rules for its first word, without the version, apply.
        timer: a monotonic clock, in seconds.
        threads: the threads in which files are parsed.
    """

    def __init__(self, user_agent: str, *, timer: Callable[[], float], threads: DaemonThreads) -> None:
        self._agent = user_agent.partition(" ")[0].partition("/")[0]
        self._threads = threads
        self._files: TTLCache[str, str] = TTLCache(
            _ROBOTS_KEPT_CHARACTERS, _ROBOTS_KEPT_SECONDS, timer, getsizeof=lambda text: len(text) + 100
        )

    async def __call__(self, session: PageSession, target: Target) -> None:
        """Check that a page may be read.

        Raises:
            ToolError: the site does not permit it.
            ToolUnavailable: the site cannot answer now, which RFC 9309 counts as a refusal.
        """
        text = self._files.get(target.origin)
        if text is None:
            text = self._files[target.origin] = await self._file(session, target)
        if text and not await self._threads.run(lambda: permits(text, self._agent, target.url)):
            raise UrlNotAllowed("The site asks machines not to read this page (robots.txt).")

    async def _file(self, session: PageSession, target: Target) -> str:
        where = Target(target.scheme, target.host, target.port, "/robots.txt")
        try:
            answer = await session.get(where, most_bytes=_ROBOTS_BYTES, wanted=lambda _: None)
        except ToolUnavailable:
            raise
        except ToolError:
            return ""  # a wrong redirect, for example: there are no rules
        if answer.status == httpx.codes.TOO_MANY_REQUESTS or answer.status >= httpx.codes.INTERNAL_SERVER_ERROR:
            raise ToolUnavailable(f"The site cannot say now whether it may be read (robots.txt: {answer.status}).")
        return answer.body.decode("utf-8-sig", "replace")


def permits(robots: str, agent: str, url: str) -> bool:
    """Whether a robots.txt permits `agent` to read the page at `url`. Only the beginning of a huge file counts."""
    from protego import Protego  # noqa: PLC0415 - not needed if robots.txt is switched off

    agents = 1 + robots.lower().count("agent")
    lines = robots.splitlines()[: MOST_RULES // agents]
    return Protego.parse(_VERSION.sub(r"\1", "\n".join(lines))).can_fetch(url, agent)


def _check_status(answer: Answer) -> None:
    status = answer.status
    if httpx.codes.is_success(status):
        return
    if status in _TRANSIENT:
        raise ToolUnavailable(f"The server is busy or down now (HTTP {status}).")
    if status in _NOT_FOUND:
        raise ToolError(f"There is no such page (HTTP {status}).")
    if status in _FORBIDDEN:
        raise ToolError(f"The server does not let this page be read (HTTP {status}).")
    raise ToolError(f"The server did not give the page (HTTP {status}).")


KIND = Kind(config=WebFetchConfig, make=web_fetch_tool, faults=_faults, judges_parts=True)
