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
from typing import Any

import orjson
from msgspec import Struct
from msgspec.structs import replace

from proxy.loop.results import InvalidArguments, ToolResult
from proxy.wire.chat import Json, ToolCall, ToolSpec
from proxy.wire.json_text import read_json

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


class _Links(Struct, frozen=True):
    """The results of a search: the URLs, and the text that the model reads."""

    urls: tuple[str, ...]
    text: str

    def at_line(self, line: int) -> str:
        """The URL of the result that a line belongs to; the URL of a result is in the line below its title."""
        urls, found = set(self.urls), self.urls[0]
        for text in self.text.split("\n")[: line + 2]:
            if text.strip() in urls:
                found = text.strip()
        return found


class _Opened(Struct, frozen=True):
    """A page that was opened."""

    url: str


class Browser(Struct):
    """The pages of one run. Implements `decisions.ToolDialect`.

    Attributes:
        tools: every name under which a tool may be called -> the tool; the tool of `browser.open` reads pages.
    """

    tools: Mapping[str, ToolSpec]
    _pages: list[_Links | _Opened] = []

    def translate(self, call: ToolCall, alias: str) -> ToolCall:
        """A call by an alias, with arguments for the tool itself.

        Raises:
            InvalidArguments: there is no such link, or no page to look in.
        """
        if alias not in PARAMETERS:
            return call
        arguments = _object(call.arguments)
        translated = self._opening(arguments) if alias == OPEN else self._finding(arguments)
        return replace(call, arguments=orjson.dumps(translated).decode())

    def annotate(self, call: ToolCall, name: str, result: ToolResult) -> ToolResult:
        """Add the result of a call to the pages of the browser, and the cursor of its page to the result.

        Only a model that calls the browser by one of its names, and that can open pages, gets the cursor.
        """
        page: _Links | _Opened
        if result.failed:
            return result
        reader = self.tools.get(OPEN)
        if reader is not None and call.name == reader.name:
            url = _url_in(call.arguments) or next(iter(result.sources), None)
            if url is None:
                return result
            page = _Opened(url)
        elif result.sources:
            page = _Links(tuple(result.sources), result.content)
        else:
            return result
        self._pages.append(page)
        if reader is None or name not in NAMES:
            return result
        return replace(result, content=f"{result.content}\n\n{_hint(len(self._pages) - 1, page)}")

    def cite(self, number: int, line: int | None) -> str | None:
        """The URL of the page that a mark refers to, `【number†Lline】` or `【number†source】`; None: there is none.

        The number is a cursor. Without a line, it may also be the number of a link of the last search.
        """
        page = self._pages[number] if number < len(self._pages) else None
        if isinstance(page, _Opened):
            return page.url
        if line is not None:
            return None if page is None else page.at_line(line)
        found = self._last(_Links)
        return found.urls[number] if isinstance(found, _Links) and number < len(found.urls) else None

    def _opening(self, arguments: Json) -> Json:
        link = arguments.get("id")
        if isinstance(link, str) and not _NUMBER.fullmatch(link):
            return _at_line(link, arguments)
        number = int(link) if isinstance(link, (int, str)) else -1
        url = self._opened(arguments) if number < 0 else self._link(number, arguments)
        return _at_line(url, arguments)

    def _finding(self, arguments: Json) -> Json:
        return {"url": self._opened(arguments), "find": arguments.get("pattern")}

    def _link(self, number: int, arguments: Json) -> str:
        at_cursor = self._at(arguments)
        found = at_cursor if isinstance(at_cursor, _Links) else self._last(_Links)
        if not isinstance(found, _Links):
            raise InvalidArguments("There is no search yet whose links could be opened; search first, or give a URL.")
        if number >= len(found.urls):
            raise InvalidArguments(f"There is no link {number}: the search has links 0 to {len(found.urls) - 1}.")
        return found.urls[number]

    def _opened(self, arguments: Json) -> str:
        at_cursor = self._at(arguments)
        found = at_cursor if isinstance(at_cursor, _Opened) else self._last(_Opened)
        if not isinstance(found, _Opened):
            raise InvalidArguments("No page has been opened yet; open one first, by the id of a link or by its URL.")
        return found.url

    def _at(self, arguments: Json) -> _Links | _Opened | None:
        cursor = arguments.get("cursor")
        known = isinstance(cursor, int) and 0 <= cursor < len(self._pages)
        return self._pages[cursor] if known and isinstance(cursor, int) else None

    def _last(self, kind: type[_Links | _Opened]) -> _Links | _Opened | None:
        return next((page for page in reversed(self._pages) if isinstance(page, kind)), None)


def _at_line(url: str, arguments: Json) -> Json:
    line = arguments.get("loc")
    return {"url": url, "line": line} if isinstance(line, int) and line > 0 else {"url": url}


def _hint(cursor: int, page: _Links | _Opened) -> str:
    if isinstance(page, _Opened):
        return f"(This page has cursor {cursor}.)"
    links = "\n".join(f"{number}: {url}" for number, url in enumerate(page.urls))
    return f"(Links for {OPEN}, cursor {cursor}:\n{links})"


def _url_in(arguments: str) -> str | None:
    """The URL in the arguments of a call; None: there is none, or the arguments had to be repaired to be parsed."""
    try:
        url = _object(arguments).get("url")
    except InvalidArguments:
        return None
    return url if isinstance(url, str) else None


def _object(arguments: str) -> dict[str, Any]:
    """The arguments of a call; an empty text and `null` stand for no arguments. Raises `InvalidArguments`."""
    try:
        value = read_json(arguments) if arguments.strip() else None
    except orjson.JSONDecodeError as exc:
        raise InvalidArguments(f"The arguments are not valid JSON: {exc.msg}.") from exc
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidArguments("The arguments must be one JSON object.")
    return value
