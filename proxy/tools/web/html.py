"""Turns a page in HTML into text: its article, or all of its visible text.

trafilatura (the extra `web`) finds the article in pages of moderate size. html-to-markdown reads every other page, in
linear time and off the interpreter's lock. Its own rules for hidden content miss elements whose end tag is left out, so
that it is told which elements to leave out.
"""

import logging
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from html import unescape
from typing import Any, Final, TypeAlias

from proxy.loop.results import ToolError

Extract: TypeAlias = Callable[[str, str], str]
"""Takes the HTML and the URL of a page, and returns its article; empty if none is found."""

# trafilatura takes more than linear time for tables and nesting: 8,000 tables have been measured at 38 s, 28,000 tags
# in 200 levels at 8 s. Pages above these limits are read without it.
_MOST_TAGS, _MOST_TABLES = 20_000, 200
_LEAST_ARTICLE = 200  # characters; if the article is shorter, the whole page is read

_UNSEEN: Final = (
    "[hidden]", "audio", "canvas", "datalist", "dialog", "iframe", "math", "noembed", "noscript", "object", "script",
    "select", "style", "svg", "template", "textarea", "title", "video",
)  # fmt: skip
_RAW_ENDS: Final = "</script></style>"  # without them, a script that is never closed is text to the library
_HIDING_STYLE = re.compile(
    r"display:none|visibility:(?:hidden|collapse)|(?:opacity|font-size):[0.]+(?:px|em|rem|pt|%)?(?:[;!]|\Z)"
)
# Possessive and without any other `<`, so that a page takes linear time.
_TAG = re.compile(r"""<([a-z][^\s<>"'/]*+)((?:[^<>"']++|"[^"<]*+"|'[^'<]*+')*+)>""", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"""([a-z-]++)\s*+(?:=\s*+("[^"]*+"|'[^']*+'|[^\s"'>]++))?""", re.IGNORECASE)
_MAY_HIDE = re.compile(r"style|hidden", re.IGNORECASE)
_NO_PAGE = re.compile(r"\s*(?:#|(?!https?:)[a-z][a-z0-9+.-]*+:)", re.IGNORECASE)  # a fragment, or another scheme
_LONGEST_VALUE = 4000  # characters of an attribute; `unescape` refuses a number of more digits
_EMPTY_LINES = re.compile(r"\n{3,}")
_TITLE = re.compile(r"<title[^<>]{0,200}>([^<]{0,1000})", re.IGNORECASE)
_TITLE_WITHIN = 256 * 1024  # characters; the title is in the head


def read_html(html: str, url: str, extract: Extract | None) -> str:
    """The article of a page, or its visible text if there is no article or `extract` is None."""
    article = ""
    if extract and html.count("<") <= _MOST_TAGS and html.lower().count("<table") <= _MOST_TABLES:
        with suppress(Exception):  # the library may fail in any way, but the page can be read without it
            article = extract(html, url)
    if len(article) >= _LEAST_ARTICLE:
        return article
    return max(article, visible_text(html, url), key=len)


@cache
def installed_extractor() -> Extract | None:
    """The extractor of trafilatura, if the `web` extra is installed."""
    try:
        import trafilatura  # noqa: PLC0415 - an extra; takes half a second, which only the first page waits for
    except ImportError:
        return None
    logging.getLogger("trafilatura").setLevel(logging.CRITICAL)  # operators do not need its messages about pages

    def extract(html: str, url: str) -> str:
        tree: Any = trafilatura.load_html(_simplified(html))
        if tree is None:
            return ""
        for element in list(tree.iter()):
            # It drops only some hidden elements. They are emptied, not removed, which would join texts again and again.
            if isinstance(element.tag, str) and (element.tag == "template" or "hidden" in element.attrib):
                element.clear(keep_tail=True)
        found = trafilatura.extract(
            tree, url=url, output_format="markdown", include_links=True, include_comments=False, favor_recall=True
        )
        return found or ""

    return extract


def title_in(html: str) -> str:
    """The page's title on one line; empty if it has none."""
    found = _TITLE.search(html, 0, _TITLE_WITHIN)
    return " ".join(unescape(found[1]).split()) if found else ""


def visible_text(html: str, url: str) -> str:
    """The text of a page as Markdown: its paragraphs, headings, lists and tables, and links as `[text](url)`.

    Raises:
        ToolError: the page is no text, or the library is not installed.
    """
    try:
        from html_to_markdown import ConversionOptions, PreprocessingOptions, convert  # noqa: PLC0415 - takes 20 ms
    except ImportError as exc:
        raise ToolError("Pages in HTML cannot be read here: html-to-markdown is not installed.") from exc
    options = ConversionOptions(
        autolinks=False,
        base_url=url,
        bullets="-",
        compact_tables=True,
        exclude_selectors=[*_UNSEEN],
        expand_abbreviations=False,
        extract_metadata=False,
        hidden_content="all",
        include_blockquote_citations=False,
        preprocessing=PreprocessingOptions(enabled=False),
        skip_images=True,
    )
    try:
        text = convert(_simplified(html.replace("\0", "")) + _RAW_ENDS, options).content or ""
    except Exception as exc:
        raise ToolError("The page is no HTML that can be read.") from exc
    return _EMPTY_LINES.sub("\n\n", "\n".join(line.rstrip() for line in text.split("\n"))).strip()


def _simplified(html: str) -> str:
    """The page with only one way to hide an element, the attribute `hidden`, and with links to pages only."""
    return _TAG.sub(_simplified_tag, html)


def _simplified_tag(tag: re.Match[str]) -> str:
    name, written = tag[1].lower(), tag[2]
    if name != "a" and not _MAY_HIDE.search(written):
        return tag[0]
    attributes: dict[str, str] = {}
    for key, value in _ATTRIBUTE.findall(written):
        attributes.setdefault(key.lower(), unescape(value.strip("\"'")[:_LONGEST_VALUE]))
    if _is_hidden(attributes):
        return f"<{name} hidden>"
    return "<a>" if name == "a" and _NO_PAGE.match(attributes.get("href", "")) else tag[0]


def _is_hidden(attributes: Mapping[str, str]) -> bool:
    """Whether an element is hidden from people by its own attributes; style sheets are not read."""
    if "hidden" in attributes or attributes.get("aria-hidden", "").lower() == "true":
        return True
    return _HIDING_STYLE.search("".join(attributes.get("style", "").lower().split())) is not None
