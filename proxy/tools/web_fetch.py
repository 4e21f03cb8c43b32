"""`type: web_fetch`: one web page as clean text, a part at a time.

    url --guard--> robots.txt --> each hop: guard, connect to the checked address --> body, bounded --> text --> a part

The text is kept for a few minutes, so that paging through it asks the server once.
"""

import re
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import httpx
from cachetools import TTLCache

from proxy import __version__
from proxy.config import WebFetchConfig
from proxy.core.chat import Json, ToolOutput
from proxy.core.errors import ToolError, ToolUnavailable
from proxy.ports import Clock
from proxy.tools.daemon_threads import DaemonThreads
from proxy.tools.guarded_network import Resolve, SystemResolver
from proxy.tools.page_client import Answer, PageClient
from proxy.tools.page_text import Page, check_content_type, installed_pdf_reader, read_page
from proxy.tools.robots import Robots
from proxy.tools.tool import Tool
from proxy.tools.url_guard import Target, UrlGuard, parse_url

DESCRIPTION = (
    "Open one web page and read its text. Use it when a search result or a URL of the user has to be read, not guessed."
    " A long page comes in parts: call again with the offset that the part names. With find, only the passages around "
    "that text are shown."
)
PARAMETERS: Json = {
    "type": "object",
    "properties": {
        "url": {"type": "string", "minLength": 1, "description": "the page's full URL"},
        "offset": {"type": "integer", "minimum": 0, "description": "the character to begin at; 0 if left out"},
        "find": {"type": "string", "maxLength": 500, "description": "show only the passages around this text"},
    },
    "required": ["url"],
}
USER_AGENT = f"toolproxy/{__version__} (+reads single pages for people who ask a language model)"

KEPT_SECONDS, KEPT_CHARACTERS = 300, 8 * 1024 * 1024
_AROUND = 300  # characters before and after what was found
_MOST_PASSAGES = 20
_LAST_LINE = 100_000  # finding a line takes time in proportion to its number
_TRANSIENT = (429, 502, 503, 504)
_NOT_FOUND, _FORBIDDEN = (404, 410), (401, 402, 403, 451)
_DIGITS = re.compile(r"[0-9]{1,12}")
_URL_NAMES = ("url", "uri", "link", "href")


def web_fetch_tool(
    name: str,
    config: WebFetchConfig,
    clock: Clock,
    *,
    resolve: Resolve | None = None,
    ssl_context: Callable[[], ssl.SSLContext] = httpx.create_ssl_context,
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
        offset = _beginning(page.text, arguments)
        wanted = " ".join(str(arguments.get("find") or "").split())
        most = config.max_characters
        shown = passages(page, wanted, offset, most=most) if wanted else part(page, offset, most=most)
        return ToolOutput(shown, {page.url: page.title})

    return Tool(name=name, description=DESCRIPTION, parameters=PARAMETERS, run=run, repair=repair)


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


def repair(arguments: Json) -> Json:
    """The same request in the schema's words: one name for the URL, the offset as a number."""
    repaired = {key: value for key, value in arguments.items() if key not in _URL_NAMES and value is not None}
    url = next((arguments[name] for name in _URL_NAMES if arguments.get(name) is not None), None)
    if url is not None:
        repaired["url"] = url
    offset = repaired.get("offset")
    if isinstance(offset, str) and _DIGITS.fullmatch(offset.strip()):
        repaired["offset"] = int(offset)
    if isinstance(offset, float) and offset.is_integer():
        repaired["offset"] = int(offset)
    return repaired


def part(page: Page, offset: int, *, most: int) -> str:
    """The page from `offset` on, at most `most` characters of it, under its title and URL."""
    total = len(page.text)
    if not total:
        return _told(page, "The page has no text.")
    if offset >= total:
        raise ToolError(f"The page has only {total} characters; offset {offset} is behind its end.")
    end = min(offset + most, total)
    where = f"Characters {offset} to {end} of {total}."
    if end < total:
        where += f" For more, call again with offset {end}."
    elif page.cut:
        where += " The page is longer, but no more of it is read."
    return _told(page, where, page.text[offset:end])


def passages(page: Page, wanted: str, offset: int, *, most: int) -> str:
    """Where `wanted` stands in the page from `offset` on, capitals and line breaks aside, and the text around it."""
    total, left, more = len(page.text), most, ""
    shown: list[str] = []
    for begin, end in _places(page.text, wanted, offset):
        if len(shown) == _MOST_PASSAGES or end - begin > left:
            more = f" More from offset {begin} on."
            break
        shown.append(f"[offset {begin}]\n{page.text[begin:end]}")
        left -= end - begin
    if not shown and not more:
        return _told(page, f"{wanted!r} does not occur from character {offset} of {total} on.")
    return _told(page, f"{wanted!r} in its {total} characters.{more}", "\n\n".join(shown))


def _places(text: str, wanted: str, offset: int) -> Iterator[tuple[int, int]]:
    """Each place with what is around it, none overlapping. No regular expression: both texts may be hostile."""
    # The only capital that becomes two characters when it is made small, so that offsets stay what they are.
    flat, needle = (one.replace("\u0130", "i").lower().replace("\n", " ") for one in (text, wanted))
    end = 0
    while (at := flat.find(needle, max(offset, end))) >= 0:
        begin, end = max(at - _AROUND, end), min(at + len(needle) + _AROUND, len(text))
        yield begin, end


def _told(page: Page, where: str, text: str = "") -> str:
    head = "\n".join(line for line in (page.title, page.url, where) if line)
    return f"{head}\n\n{text}" if text else head


def _beginning(text: str, arguments: Json) -> int:
    """Where to begin: at `offset`, or at the start of `line`, which only the browser that some models bring knows."""
    offset: int = arguments.get("offset", 0)
    line: Any = arguments.get("line")
    if not isinstance(line, int) or isinstance(line, bool) or line <= 0:
        return offset
    if line > _LAST_LINE:
        raise ToolError(f"A page is not begun behind line {_LAST_LINE}; use offset.")
    at = -1
    for _ in range(line):
        at = text.find("\n", at + 1)
        if at < 0:
            raise ToolError(f"The page has only {text.count(chr(10)) + 1} lines.")
    return at + 1


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
