"""gpt-oss's own browser, emulated with the server's search and its reader of pages.

The model was trained with three functions, and calls them whatever tools it is offered:

    browser.search {query, topn}       links 0, 1, 2 ... of a new page
    browser.open   {id, cursor, loc}   link `id` of page `cursor`, from line `loc` on; `id` may be a URL instead
    browser.find   {pattern, cursor}   the occurrences of a pattern in a page that was opened

Each search and each opened page is a page of the browser. Pages and links are numbered from 0; a page's number is its
cursor. Without a cursor or an `id`, or with the cursor of no page, the last page is meant.
"""

import re
from collections.abc import Mapping

import orjson
from msgspec import Struct
from msgspec.structs import replace

from proxy.loop.results import InvalidArguments, ToolResult
from proxy.tools.arguments import object_for
from proxy.wire.chat import Json, ToolCall, ToolSpec
from proxy.wire.json_text import json_object

SEARCH, OPEN, FIND = NAMES = ("browser.search", "browser.open", "browser.find")

_INTEGER: Json = {"type": "integer"}
# No page has a million links, and Python does not parse numbers of more than 4300 digits.
_NUMBER = re.compile(r"\s*-?\d{1,6}\s*")
PARAMETERS: Mapping[str, Json] = {
    OPEN: {
        "type": "object",
        "properties": {
            "id": {"type": ["integer", "string"]},
            "cursor": _INTEGER,
            "loc": _INTEGER,
            "num_lines": _INTEGER,
            "view_source": {"type": "boolean"},
            "source": {"type": "string"},
        },
    },
    FIND: {
        "type": "object",
        "properties": {"pattern": {"type": "string"}, "cursor": _INTEGER},
        "required": ["pattern"],
    },
}
"""The parameters of calls by these aliases, which differ from those of the tool that reads pages."""


class _Page(Struct, frozen=True):
    """A page of the browser: the results of a search, or one page that was opened.

    Attributes:
        urls: the URLs of the results, or the URL of the opened page.
        text: the results as the model reads them; None: the page was opened.
    """

    urls: tuple[str, ...]
    text: str | None = None

    def at_line(self, line: int) -> str:
        """The URL of the result that a line belongs to; the URL of a result is in the line below its title."""
        urls, found = set(self.urls), self.urls[0]
        for text in (self.text or "").split("\n")[: line + 2]:
            if text.strip() in urls:
                found = text.strip()
        return found


class Browser(Struct):
    """The pages of one run. Implements `decisions.ToolDialect`.

    Attributes:
        tools: every name under which a tool may be called -> the tool; the tool of `browser.open` reads pages.
    """

    tools: Mapping[str, ToolSpec]
    _pages: list[_Page] = []

    def translate(self, call: ToolCall, alias: str) -> ToolCall:
        """A call by an alias, with arguments for the tool itself.

        Raises:
            InvalidArguments: there is no such link, or no page to look in.
        """
        if alias not in PARAMETERS:
            return call
        arguments = object_for(call.arguments)
        if alias == OPEN:
            line = arguments.get("loc")
            translated: Json = {"url": self._wanted(arguments)}
            if isinstance(line, int) and line > 0:
                translated["line"] = line
        else:
            translated = {"url": self._opened(arguments), "find": arguments.get("pattern")}
        return replace(call, arguments=orjson.dumps(translated).decode())

    def annotate(self, call: ToolCall, name: str, result: ToolResult) -> ToolResult:
        """Add the result of a call to the pages of the browser, and the cursor of its page to the result.

        Only a model that calls the browser by one of its names, and that can open pages, gets the cursor.
        """
        page = _Page(tuple(result.sources), result.content)
        reader = self.tools.get(OPEN)
        if reader is not None and call.name == reader.name:
            url = (json_object(call.arguments) or {}).get("url")
            page = _Page((url,) if isinstance(url, str) else page.urls[:1])
        if result.failed or not page.urls:
            return result
        self._pages.append(page)
        if reader is None or name not in NAMES:
            return result
        cursor = len(self._pages) - 1
        hint = f"(This page has cursor {cursor}.)"
        if page.text is not None:
            links = "\n".join(f"{number}: {url}" for number, url in enumerate(page.urls))
            hint = f"(Links for {OPEN}, cursor {cursor}:\n{links})"
        return replace(result, content=f"{result.content}\n\n{hint}")

    def cite(self, number: int, line: int | None) -> str | None:
        """The URL of the page that a mark refers to, `【number†Lline】` or `【number†source】`; None: there is none.

        The number is a cursor. Without a line, it may also be the number of a link of the last search.
        """
        page = self._pages[number] if number < len(self._pages) else None
        if page is not None and page.text is None:
            return page.urls[0]
        if line is not None:
            return None if page is None else page.at_line(line)
        found = self._page({}, opened=False)
        return found.urls[number] if found is not None and number < len(found.urls) else None

    def _wanted(self, arguments: Json) -> str:
        """The URL of the page to open."""
        link = arguments.get("id")
        if isinstance(link, str) and not _NUMBER.fullmatch(link):
            return link
        number = int(link) if isinstance(link, (int, str)) else -1
        if number < 0:
            return self._opened(arguments)
        found = self._page(arguments, opened=False)
        if found is None:
            raise InvalidArguments("There is no search yet whose links could be opened; search first, or give a URL.")
        if number >= len(found.urls):
            raise InvalidArguments(f"There is no link {number}: the search has links 0 to {len(found.urls) - 1}.")
        return found.urls[number]

    def _opened(self, arguments: Json) -> str:
        found = self._page(arguments, opened=True)
        if found is None:
            raise InvalidArguments("No page has been opened yet; open one first, by the id of a link or by its URL.")
        return found.urls[0]

    def _page(self, arguments: Json, *, opened: bool) -> _Page | None:
        """The page with the cursor of a call, or else the last page that was, or was not, opened."""
        cursor = arguments.get("cursor")
        at_cursor = self._pages[cursor : cursor + 1] if isinstance(cursor, int) and cursor >= 0 else []
        return next((page for page in (*at_cursor, *reversed(self._pages)) if (page.text is None) == opened), None)
