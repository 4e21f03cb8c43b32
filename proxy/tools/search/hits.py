"""Makes hits from the answers of providers, in one form for all providers."""

import html
import re
from collections.abc import Iterable
from datetime import date
from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from proxy.kit.json_pointer import MISSING, parse, resolve
from proxy.tools.search.dates import day_of
from proxy.tools.search.description import Fields, PageText
from proxy.tools.web.urls import canonical, host_of, is_address_of, page_key
from proxy.wire.search import SearchHit

# Elements that providers put into titles and snippets. Other text in angle brackets may be the page's own, such as
# `List<String>`.
_MARKUP = re.compile(
    r"</?(?:a|abbr|b|big|blockquote|br|cite|code|div|em|font|h[1-6]|i|img|li|mark|ol|p|pre|q|s|small|span|strong|sub|sup|"
    r"table|tbody|td|th|thead|tr|u|ul|wbr)(?:\s[^<>]{0,500})?/?>",
    re.IGNORECASE,
)
# Elements that are left out with their content. Where an element has no end, the expression takes the rest of the text,
# so that no end is looked for again; that text stays.
_HIDDEN = [
    re.compile(rf"{opening}.*?(?:{end}|(\Z))", re.IGNORECASE | re.DOTALL)
    for opening, end in (("<!--", "-->"), (r"<script\b", r"</script\s*>"), (r"<style\b", r"</style\s*>"))
]
_BLANKS = re.compile(r"[^\S\n]+")
_BLANK_LINES = re.compile(r"\n\s*\n\s*")
_LONGEST_TITLE = 300  # characters
_LONGEST_TEXT = 200_000  # characters of one field that are looked at; a long article has 50,000


def hit_of(row: Any, fields: Fields, today: date, *, page: PageText | None = None) -> SearchHit | None:
    """A provider's result as a hit; None: it is not an object with the URL of a page.

    Dates such as `2 days ago` are counted from `today`. Without a text at the place in `page`, the snippet is used.
    """
    given: Any = first_of(row, fields.url) if isinstance(row, dict) else None
    url = canonical(given)
    if url is None:
        return None
    given = given.strip()
    score = first_of(row, fields.score)
    text = plain_text(first_of(row, page.text), keep_lines=True) if page else ""
    hit = SearchHit(
        url=url,
        title=plain_text(first_of(row, fields.title))[:_LONGEST_TITLE] or host_of(url),
        text=text or plain_text(first_of(row, fields.text)),
        published=day_of(first_of(row, fields.published), today),
        updated=day_of(first_of(row, fields.updated), today),
        site=plain_text(first_of(row, fields.site)) or None,
        score=float(score) if isinstance(score, (int, float)) and not isinstance(score, bool) else None,
        address=given if given != url and is_address_of(given, url) else None,
    )
    return replace(hit, is_page=page.whole, of_page=True) if page and text else hit


def merged_by_page(hits: Iterable[SearchHit | None]) -> list[SearchHit]:
    """The hits, one for each page, with the longest text of the page."""
    found: dict[str, SearchHit] = {}
    for hit in hits:
        if hit is None:
            continue
        key = page_key(hit.url)
        first = found.setdefault(key, hit)
        if len(hit.text) > len(first.text):
            found[key] = replace(first, text=hit.text, is_page=hit.is_page, of_page=hit.of_page)
    return list(found.values())


def plain_text(value: object, *, keep_lines: bool = False) -> str:
    """The text of a string, a number or a list of these, without markup and entities; other values have no text.

    The items of a list are joined. The text is on one line unless line breaks are kept (`keep_lines`).
    """
    if value is None:  # most results lack some fields
        return ""
    if isinstance(value, str):
        text = value[:_LONGEST_TEXT]
        if "&" in text:  # entities may encode markup
            text = html.unescape(_without_markup(text))
        if "<" in text:
            text = _without_markup(text)
        if keep_lines:
            return _BLANK_LINES.sub("\n\n", _BLANKS.sub(" ", text)).strip()
        return " ".join(text.split())
    if isinstance(value, list):
        return " … ".join([text for item in value if (text := plain_text(item, keep_lines=keep_lines))])
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return str(value) if is_number else ""


def _without_markup(text: str) -> str:
    for hidden in _HIDDEN:
        text = hidden.sub(lambda found: " " if found[1] is None else found[0], text)
    return _MARKUP.sub(" ", text)


def first_of(document: Any, pointers: str) -> Any:
    """The first value at one of the pointers that is not empty; None: there is none."""
    for steps in steps_of(pointers) if pointers else ():
        found = resolve(document, steps)
        if found is not MISSING and (found or isinstance(found, (int, float))):
            return found
    return None


@lru_cache(maxsize=1024)  # a provider has some ten of these, and needs them for each result
def steps_of(pointers: str) -> tuple[tuple[str, ...], ...]:
    """The steps of each pointer in `/a or /b`."""
    return tuple(parse(pointer.strip()) for pointer in pointers.split(" or "))
