"""Reads single pages of the web for a model, whichever tool wants them.

    url --guard--> robots.txt --> each hop: guard, connect to the checked address --> body, bounded --> text

The text is cached for a few minutes (`pages`), so that paging through it takes only one request.
"""

import asyncio
import re
import ssl
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from weakref import WeakValueDictionary

import httpx
from cachetools import TTLCache
from msgspec import Struct

from proxy import __version__
from proxy.http.connect import client_context
from proxy.kit.pdf import installed_pdf_reader
from proxy.loop.call_context import CallContext
from proxy.loop.results import ToolError, ToolUnavailable, UrlNotAllowed
from proxy.ports import Clock
from proxy.tools.threads import DaemonThreads
from proxy.tools.web.client import PageAnswer, PageSession, page_session
from proxy.tools.web.guard import Target, UrlGuard, parse_url
from proxy.tools.web.network import Resolve, SystemResolver
from proxy.tools.web.page import Page, expect_permitted
from proxy.tools.web.pages import PageCache
from proxy.tools.web.text import check_content_type, read_page
from proxy.tools.web.urls import canonical

USER_AGENT = f"toolproxy/{__version__} (+reads single pages for people who ask a language model)"
_TRANSIENT = (429, 502, 503, 504)
_REFUSALS = {
    **dict.fromkeys((404, 410), "There is no such page"),
    **dict.fromkeys((401, 402, 403, 451), "The server does not let this page be read"),
}

_ROBOTS_KEPT_SECONDS, _ROBOTS_KEPT_CHARACTERS = 600, 4 * 1024 * 1024
_ROBOTS_BYTES = 500 * 1024  # RFC 9309, 2.5: a crawler reads at least this much
# The number of rules times user agents: a group may name many agents, each of which gets every rule of the group.
MOST_RULES = 100_000
# `toolproxy/1.0` counts as the product `toolproxy`, although RFC 9309 has no versions.
_VERSION = re.compile(r"^(\s*user-agent\s*:[^/#\n]*)/.*$", re.IGNORECASE | re.MULTILINE)


class PageRules(Struct, frozen=True, kw_only=True):
    """Which pages may be read, and how much of each.

    Attributes:
        allow_hosts: hosts that may be opened in addition to public ones, as in `UrlGuard`.
        deny_hosts: hosts that may not be opened.
        max_bytes: the limit for the part of a page that is read, in bytes after decompression.
        user_agent: the User-Agent header; None: `USER_AGENT`.
        respect_robots: whether the robots.txt of a page's site is obeyed.
    """

    allow_hosts: tuple[str, ...] = ()
    deny_hosts: tuple[str, ...] = ()
    max_bytes: int = 5 * 1024 * 1024
    user_agent: str | None = None
    respect_robots: bool = True


class PageReader:
    """Reads pages; one from the cache only if it could also be fetched now.

    Args:
        rules: which pages may be read; their hosts have no fault.
        clock: the time, for the expiry of caches.
        pages: the cache of pages.
        resolve: finds the addresses of hosts; None: the system's resolver.
        ssl_context: makes the TLS context.
    """

    def __init__(
        self,
        rules: PageRules,
        clock: Clock,
        pages: PageCache,
        *,
        resolve: Resolve | None = None,
        ssl_context: Callable[[], ssl.SSLContext] = client_context,
    ) -> None:
        self._most_bytes = rules.max_bytes
        agent = rules.user_agent or USER_AGENT
        guard = UrlGuard(rules.allow_hosts, rules.deny_hosts)
        resolve = resolve or SystemResolver()
        self._session = partial(page_session, guard, resolve, user_agent=agent, ssl_context=ssl_context)
        self._wanted = partial(check_content_type, pdf=find_spec("pypdf") is not None)
        self._threads = DaemonThreads("toolproxy-page", most=2)  # more threads would only compete for the processor
        self._robots = _Robots(agent, timer=clock.monotonic, threads=self._threads) if rules.respect_robots else None
        self._pages = pages

    async def page_at(self, url: str, call: CallContext) -> Page:
        """The page at a URL, or at the end of its redirects, which need not be one that the call's filters permit.

        Raises:
            UrlNotAllowed: the filters do not permit the URL, or the guard or the site one of the redirects.
            ToolError: there is no such page, or it cannot be read.
        """
        target = parse_url(await self._pages.address_of(call.scope, url))
        expect_permitted(target.url, call.filters)
        fetched = False

        async def fetch() -> Page:
            nonlocal fetched
            fetched = True
            return await self._fetched(target)

        page = await self._pages.get_or_read(call.scope, target.url, fetch)
        if not fetched:  # a page found by a search, or read by a tool that may open other pages than this one
            async with self._session() as session:
                for passed in {target.url, page.url}:
                    await session.check(parse_url(passed), visit=self._robots)
        return page

    async def _fetched(self, target: Target) -> Page:
        async with self._session() as session:
            answer = await session.get(target, most_bytes=self._most_bytes, wanted=self._wanted, visit=self._robots)
        _check_status(answer)
        page = await self._threads.run(lambda: read_page(answer, read_pdf=installed_pdf_reader()))
        return replace(page, url=canonical(page.url) or page.url)


class _Robots:
    """Robots.txt (RFC 9309): whether a site permits robots to read a page. Files are cached for ten minutes.

    The rules for the first word of the User-Agent header apply, without its version.
    """

    def __init__(self, user_agent: str, *, timer: Callable[[], float], threads: DaemonThreads) -> None:
        self._agent = user_agent.partition(" ")[0].partition("/")[0]
        self._threads = threads
        self._files: TTLCache[str, str] = TTLCache(
            _ROBOTS_KEPT_CHARACTERS, _ROBOTS_KEPT_SECONDS, timer, getsizeof=lambda text: len(text) + 100
        )
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # origin -> held while it is asked

    async def __call__(self, session: PageSession, target: Target) -> None:
        """Check that a page may be read.

        Raises:
            ToolError: the site does not permit it.
            ToolUnavailable: the site cannot answer now, which RFC 9309 counts as a refusal.
        """
        async with self._asking.setdefault(target.origin, asyncio.Lock()):
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


def _check_status(answer: PageAnswer) -> None:
    status = answer.status
    if httpx.codes.is_success(status):
        return
    if status in _TRANSIENT:
        raise ToolUnavailable(f"The server is busy or down now (HTTP {status}).")
    raise ToolError(f"{_REFUSALS.get(status, 'The server did not give the page')} (HTTP {status}).")
