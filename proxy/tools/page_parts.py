"""A page's text, a part at a time: what a reader of pages is asked for, and what it answers."""

import re
from collections.abc import Iterator
from typing import Any

from proxy.core.chat import Json
from proxy.core.errors import ToolError
from proxy.tools.page_text import Page

PARAMETERS: Json = {
    "type": "object",
    "properties": {
        "url": {"type": "string", "minLength": 1, "description": "the page's full URL"},
        "offset": {"type": "integer", "minimum": 0, "description": "the character to begin at; 0 if left out"},
        "find": {"type": "string", "description": "show only the passages around this text"},
    },
    "required": ["url"],
}
_AROUND = 300  # characters before and after what was found
_MOST_PASSAGES = 20
_DIGITS = re.compile(r"[0-9]{1,12}")
_URL_NAMES = ("url", "uri", "link", "href")


def shown(page: Page, arguments: Json, *, most: int) -> str:
    """What the arguments ask for of a page: a part of it, or the passages around what is to be found.

    Raises:
        ToolError: they begin behind its end.
    """
    offset = _beginning(page.text, arguments)
    wanted = " ".join(str(arguments.get("find") or "").split())
    return passages(page, wanted, offset, most=most) if wanted else part(page, offset, most=most)


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
    pattern = re.compile(r"\s+".join(map(re.escape, wanted.split())), re.IGNORECASE)
    shown: list[str] = []
    left, more = most, ""
    for start, end in _merged(match.span() for match in pattern.finditer(page.text, offset)):
        if len(shown) == _MOST_PASSAGES or not left:
            more = f" More from offset {start} on."
            break
        text = page.text[start : min(end, start + left)]
        shown.append(f"[offset {start}]\n{text}")
        left -= len(text)
    if not shown:
        return _told(page, f"{wanted!r} does not occur from character {offset} of {len(page.text)} on.")
    return _told(page, f"{wanted!r} in its {len(page.text)} characters.{more}", "\n\n".join(shown))


def _merged(spans: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Each place with what is around it; places that touch become one."""
    begun: tuple[int, int] | None = None
    for start, end in spans:
        start, end = max(start - _AROUND, 0), end + _AROUND  # noqa: PLW2901 - the same place, wider
        if begun and start <= begun[1]:
            begun = (begun[0], end)
            continue
        if begun:
            yield begun
        begun = (start, end)
    if begun:
        yield begun


def _told(page: Page, where: str, text: str = "") -> str:
    head = "\n".join(line for line in (page.title, page.url, where) if line)
    return f"{head}\n\n{text}" if text else head


def _beginning(text: str, arguments: Json) -> int:
    """Where to begin: at `offset`, or at the start of `line`, which only the browser that some models bring knows."""
    offset: int = arguments.get("offset", 0)
    line: Any = arguments.get("line")
    if not isinstance(line, int) or isinstance(line, bool) or line <= 0:
        return offset
    at = -1
    for _ in range(line):
        at = text.find("\n", at + 1)
        if at < 0:
            raise ToolError(f"The page has only {text.count(chr(10)) + 1} lines.")
    return at + 1
