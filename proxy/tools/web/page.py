"""A page as text, and the tool that shows a part of it, whichever way the page is fetched."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from proxy.loop.call_context import NO_CONTEXT, CallContext
from proxy.loop.fence import INVISIBLE
from proxy.loop.results import ToolError, ToolOutput, UrlNotAllowed
from proxy.tools import browser
from proxy.tools.tool import Tool
from proxy.tools.web.guard import parse_url
from proxy.tools.web.urls import canonical
from proxy.wire.chat import Json
from proxy.wire.search import SearchFilters

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
_AROUND = 300  # characters before and after a match
_MOST_PASSAGES = 20
_LAST_LINE = 100_000  # the time to find a line is proportional to its number
_URL_NAMES = ("url", "uri", "link", "href")


@dataclass(frozen=True, slots=True)
class Page:
    """A page as a model reads it.

    Attributes:
        url: the URL after redirects.
        title: the title on one line; may be empty.
        text: the text without markup and control characters.
        cut: whether only the beginning was read.
    """

    url: str
    title: str
    text: str
    cut: bool = False


def page_tool(name: str, page_at: Callable[[str, CallContext], Awaitable[Page]], *, most: int) -> Tool:
    """A tool that reads pages, at most `most` characters at a time; also gpt-oss's `browser.open` and `browser.find`.

    `page_at` gets the page at a URL, if the filters of the call permit it, or raises `ToolError`.
    """

    async def read(arguments: Json, call: CallContext) -> ToolOutput:
        page = await page_at(parse_url(arguments["url"]).url, call)
        expect_permitted(page.url, call.filters)  # a redirect may have led to another page
        return ToolOutput(shown(page, arguments, most=most), {page.url: page.title})

    return Tool(
        name=name,
        description=DESCRIPTION,
        parameters=PARAMETERS,
        run=lambda arguments: read(arguments, NO_CONTEXT),
        run_filtered=lambda arguments, filters: read(arguments, CallContext(filters=filters)),
        run_in_call=read,
        one_service=False,
        repair=repair,
        aliases=(browser.OPEN, browser.FIND),
        fetches=True,
    )


def clean(text: str) -> str:
    """The text without control characters, and with only one kind of line end."""
    return INVISIBLE.sub("", text.replace("\r\n", "\n").replace("\r", "\n")).strip()


def expect_permitted(url: str, filters: SearchFilters) -> None:
    """Raise `UrlNotAllowed` for a page that the request's filters do not permit."""
    if not filters.permits(url):
        raise UrlNotAllowed("url not allowed: the user of this conversation does not permit pages of this site.")


def shown(page: Page, arguments: Json, *, most: int) -> str:
    """The part of a page that the arguments ask for, or the passages around the text to find.

    Raises:
        ToolError: the part would begin after the end of the page.
    """
    offset = _beginning(page.text, arguments)
    wanted = " ".join(str(arguments.get("find") or "").split())
    return passages(page, wanted, offset, most=most) if wanted else part(page, offset, most=most)


def repair(arguments: Json) -> Json:
    """The arguments with the names of the schema."""
    repaired = {key: value for key, value in arguments.items() if key not in _URL_NAMES and value is not None}
    url = next((arguments[name] for name in _URL_NAMES if arguments.get(name) is not None), None)
    if url is not None:
        # As in search results, so that the page is cached and cited under one URL.
        repaired["url"] = canonical(url) or url
    return repaired


def part(page: Page, offset: int, *, most: int) -> str:
    """At most `most` characters of a page from `offset` on, below its title and URL."""
    total = len(page.text)
    if not total:
        return _headed(page, "The page has no text.")
    if offset >= total:
        raise ToolError(f"The page has only {total} characters; offset {offset} is beyond its end.")
    end = min(offset + most, total)
    where = f"Characters {offset} to {end} of {total}."
    if end < total:
        where += f" For more, call again with offset {end}."
    elif page.cut:
        where += " The page is longer, but no more of it is read."
    return _headed(page, where, page.text[offset:end])


def passages(page: Page, wanted: str, offset: int, *, most: int) -> str:
    """The occurrences of `wanted` from `offset` on, ignoring case and line breaks, with the text around each."""
    total, left, more = len(page.text), most, ""
    shown: list[str] = []
    for begin, end in _places(page.text, wanted, offset):
        if len(shown) == _MOST_PASSAGES or end - begin > left:
            more = f" More from offset {begin} on."
            break
        shown.append(f"[offset {begin}]\n{page.text[begin:end]}")
        left -= end - begin
    if not shown and not more:
        return _headed(page, f"{wanted!r} does not occur from character {offset} of {total} on.")
    return _headed(page, f"{wanted!r} in its {total} characters.{more}", "\n\n".join(shown))


def _places(text: str, wanted: str, offset: int) -> Iterator[tuple[int, int]]:
    """The span of each occurrence with its surroundings, without overlaps. No regex: both texts may be hostile."""
    # The only capital whose lower case has two characters; replacing it keeps the offsets.
    flat, needle = (one.replace("\u0130", "i").lower().replace("\n", " ") for one in (text, wanted))
    end = 0
    while (at := flat.find(needle, max(offset, end))) >= 0:
        begin, end = max(at - _AROUND, end), min(at + len(needle) + _AROUND, len(text))
        yield begin, end


def _headed(page: Page, where: str, text: str = "") -> str:
    head = "\n".join(line for line in (page.title, page.url, where) if line)
    return f"{head}\n\n{text}" if text else head


def _beginning(text: str, arguments: Json) -> int:
    """The offset of the part: `offset`, or the start of `line`, an argument of gpt-oss's own browser."""
    offset: int = arguments.get("offset", 0)
    line: Any = arguments.get("line")
    if not isinstance(line, int) or isinstance(line, bool) or line <= 0:
        return offset
    if line > _LAST_LINE:
        raise ToolError(f"A page cannot be read from beyond line {_LAST_LINE}; use offset.")
    at = -1
    for _ in range(line):
        at = text.find("\n", at + 1)
        if at < 0:
            raise ToolError(f"The page has only {text.count(chr(10)) + 1} lines.")
    return at + 1
