"""`type: web_fetch`: one web page as clean text, a part at a time.

    url --guard--> robots.txt --> each hop: guard, connect to the checked address --> body, bounded --> text --> a part

The text is kept for a few minutes, so that paging through it asks the server once.
"""

import ssl
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import httpx
from cachetools import TTLCache

from proxy import __version__
from proxy.config import WebFetchConfig
from proxy.http.trust import client_context
from proxy.loop.chat import Json, ToolOutput
from proxy.loop.errors import ToolError, ToolUnavailable
from proxy.ports import Clock
from proxy.tools import browser
from proxy.tools.threads import DaemonThreads
from proxy.tools.tool import Tool
from proxy.tools.web.client import Answer, PageClient
from proxy.tools.web.guard import Target, UrlGuard, parse_url
from proxy.tools.web.network import Resolve, SystemResolver
from proxy.tools.web.parts import PARAMETERS, repair, shown
from proxy.tools.web.robots import Robots
from proxy.tools.web.text import Page, check_content_type, installed_pdf_reader, read_page

DESCRIPTION = (
    "Open one web page and read its text. Use it when a search result or a URL of the user has to be read, not guessed."
    " A long page comes in parts: call again with the offset that the part names. With find, only the passages around "
    "that text are shown."
)
USER_AGENT = f"toolproxy/{__version__} (+reads single pages for people who ask a language model)"

KEPT_SECONDS, KEPT_CHARACTERS = 300, 8 * 1024 * 1024
_TRANSIENT = (429, 502, 503, 504)
_NOT_FOUND, _FORBIDDEN = (404, 410), (401, 402, 403, 451)


def web_fetch_tool(
    name: str,
    config: WebFetchConfig,
    clock: Clock,
    *,
    resolve: Resolve | None = None,
    ssl_context: Callable[[], ssl.SSLContext] = client_context,
) -> Tool:
    """A reader of pages by that name.

    Args:
        name: in the configuration.
        config: its entry.
        clock: for what is kept.
        resolve: finds the addresses of hosts; None: the system does.
        ssl_context: makes what certificates are checked with.

    Raises:
        ValueError: an entry of `allow_hosts` or `deny_hosts` cannot be read.
    """
    reader = _Reader(config, clock, resolve or SystemResolver(), ssl_context)

    async def run(arguments: Json) -> ToolOutput:
        page = await reader.page(parse_url(arguments["url"]))
        return ToolOutput(shown(page, arguments, most=config.max_characters), {page.url: page.title})

    return Tool(
        name=name,
        description=DESCRIPTION,
        parameters=PARAMETERS,
        run=run,
        repair=repair,
        aliases=(browser.OPEN, browser.FIND),
    )


class _Reader:
    """Gets pages and keeps them: the same for whoever asks, for no page is asked for in anybody's name."""

    def __init__(
        self, config: WebFetchConfig, clock: Clock, resolve: Resolve, ssl_context: Callable[[], ssl.SSLContext]
    ) -> None:
        self._most_bytes = config.max_bytes
        agent = config.user_agent or USER_AGENT
        guard = UrlGuard(config.allow_hosts, config.deny_hosts)
        self._client = PageClient(guard, resolve, user_agent=agent, ssl_context=ssl_context)
        self._wanted = partial(check_content_type, pdf=find_spec("pypdf") is not None)
        self._threads = DaemonThreads("toolproxy-page", most=2)  # more would only take each other's processor
        self._robots = Robots(agent, timer=clock.monotonic, threads=self._threads) if config.respect_robots else None
        self._kept: TTLCache[str, Page] = TTLCache(KEPT_CHARACTERS, KEPT_SECONDS, clock.monotonic, getsizeof=_size)

    async def page(self, target: Target) -> Page:
        """The page at a URL. Raises `ToolError`."""
        page = self._kept.get(target.url)
        if page is None:
            page = await self._fetched(target)
            if _size(page) <= KEPT_CHARACTERS:
                self._kept[target.url] = page
        return page

    async def _fetched(self, target: Target) -> Page:
        async with self._client.session() as session:
            answer = await session.get(target, most_bytes=self._most_bytes, wanted=self._wanted, visit=self._robots)
        _check_status(answer)
        return await self._threads.run(lambda: self._read(answer))

    def _read(self, answer: Answer) -> Page:
        return read_page(answer, read_pdf=installed_pdf_reader())


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


def _size(page: Page) -> int:
    return len(page.text) + len(page.title) + len(page.url)
