"""Turns a page in HTML into text: its article, or all of its visible text.

trafilatura (the extra `web`) finds the article in pages of moderate size. Every other page is read by the tokenizer
here, which takes linear time and no stack for any page. Parsers do not: lexbor builds a tree and takes more than 20
seconds for 2 MB of `<div>` or of `<x>` and `</y>`, and `html.parser` takes a minute for `<a <a <a`.
"""

import logging
import re
from collections.abc import Callable, Mapping
from functools import cache
from html import unescape
from typing import Any, TypeAlias
from urllib.parse import urljoin

Extract: TypeAlias = Callable[[str, str], str]
"""Takes the HTML and the URL of a page, and returns its article; empty if none is found."""

# trafilatura takes more than linear time for tables and nesting: 8,000 tables have been measured at 38 s, 28,000 tags
# in 200 levels at 8 s. Pages above these limits are read without it.
_MOST_TAGS, _MOST_TABLES = 20_000, 200
_LEAST_ARTICLE = 200  # characters; if the article is shorter, the whole page is read

_VOID = frozenset({
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr",
})  # fmt: skip
_UNSEEN = frozenset({
    "audio", "canvas", "datalist", "dialog", "head", "iframe", "math", "noembed", "noscript", "object", "script",
    "select", "style", "svg", "template", "textarea", "title", "video",
})  # fmt: skip
_BLOCKS = frozenset({
    "address", "article", "aside", "blockquote", "body", "br", "dd", "details", "div", "dl", "dt", "fieldset",
    "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main",
    "nav", "ol", "p", "pre", "section", "summary", "table", "tbody", "tfoot", "thead", "tr", "ul",
})  # fmt: skip
_CELLS = frozenset(("td", "th"))
_RAW = frozenset({"iframe", "noembed", "noframes", "script", "style", "textarea", "title", "xmp"})  # no tags in them
_ENDED_BY_THE_NEXT = frozenset(("p", "dt", "dd", "option"))  # elements whose end tag may be left out
_HIDING_STYLE = re.compile(
    r"display:none|visibility:(?:hidden|collapse)|(?:opacity|font-size):[0.]+(?:px|em|rem|pt|%)?(?:[;!]|\Z)"
)
# Possessive, so that there is no backtracking.
_TAG = re.compile(r"""<(/?)([a-z][a-z0-9:_-]{0,40})((?:[^>"']++|"[^"]*+"|'[^']*+')*+)>""", re.IGNORECASE)
_TAG_BEGINS = re.compile(r"</?[a-z]", re.IGNORECASE)
_LONGEST_TAG = 16 * 1024  # characters; only the end of a longer tag is read
_ATTRIBUTE = re.compile(r"""([a-z-]++)\s*+(?:=\s*+("[^"]*+"|'[^']*+'|[^\s"'>]++))?""", re.IGNORECASE)
_TOO_LONG = re.compile(r"&#x?[0-9a-f]{9,};?", re.IGNORECASE)  # not a character, and int() refuses some of these numbers
_BLANKS = re.compile(r"[^\S\n]+")
_EMPTY_LINES = re.compile(r"\n{3,}")
_TITLE = re.compile(r"<title[^<>]{0,200}>([^<]{0,1000})", re.IGNORECASE)
_TITLE_WITHIN = 256 * 1024  # characters; the title is in the head


def read_html(html: str, url: str, extract: Extract | None) -> str:
    """The article of a page, or its visible text if there is no article or `extract` is None."""
    article = ""
    if extract and html.count("<") <= _MOST_TAGS and html.lower().count("<table") <= _MOST_TABLES:
        try:
            article = extract(html, url)
        except Exception:  # noqa: BLE001 - the library may fail in any way, but the page can be read without it
            article = ""
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
        tree: Any = trafilatura.load_html(html)
        if tree is None:
            return ""
        for element in list(tree.iter()):
            # It drops only some hidden elements. They are emptied, not removed, which would join texts again and again.
            if isinstance(element.tag, str) and (element.tag == "template" or is_hidden(element.attrib)):
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


def is_hidden(attributes: Mapping[str, str | None]) -> bool:
    """Whether an element is hidden from people by its own attributes; style sheets are not read."""
    if "hidden" in attributes or (attributes.get("aria-hidden") or "").lower() == "true":
        return True
    style = "".join((attributes.get("style") or "").lower().split())
    return _HIDING_STYLE.search(style) is not None


def visible_text(html: str, url: str) -> str:
    """The text of a page, a line for each block, links as `[text](url)`.

    Args:
        html: the page.
        url: the URL of the page, to which its links are relative.
    """
    reader = _Reader(url)
    # The only capital whose lower case has two characters; without it, indices are the same in both strings.
    small = html.replace("\u0130", "i").lower()
    at = 0
    while (begin := html.find("<", at)) >= 0:
        reader.text(html[at:begin])
        if html.startswith("<!--", begin):
            at = _behind(html, "-->", begin + 4)
        elif tag := _TAG.match(html, begin, begin + _LONGEST_TAG):
            at, name = tag.end(), tag[2].lower()
            if tag[1]:
                reader.end(name)
            else:
                reader.start(name, tag[3])
                if name in _RAW:
                    end = small.find(f"</{name}", at)
                    at = end if end >= 0 else len(html)
        elif _TAG_BEGINS.match(html, begin) or html.startswith(("<!", "<?"), begin):
            at = _behind(html, ">", begin)
        else:
            reader.text("<")
            at = begin + 1
    reader.text(html[at:])
    reader.end_link()
    lines = [_BLANKS.sub(" ", line).strip() for line in "".join(reader.pieces).split("\n")]
    return _EMPTY_LINES.sub("\n\n", "\n".join(lines)).strip()


def _behind(html: str, mark: str, at: int) -> int:
    """The index after the next `mark`; the end of the page if there is none."""
    found = html.find(mark, at)
    return found + len(mark) if found >= 0 else len(html)


def _unescaped(text: str) -> str:
    return unescape(_TOO_LONG.sub("\ufffd", text)) if "&" in text else text


class _Reader:
    """Takes a page's texts and tags in order, and collects the visible text in `pieces`."""

    def __init__(self, url: str) -> None:
        self.pieces: list[str] = []
        self._url = url
        self._hidden_by = ""  # the name of the element that hides the current text
        self._depth = 0  # how many elements of that name are nested
        self._link = ""

    def text(self, text: str) -> None:
        """Take the text between two tags."""
        if not self._hidden_by:
            self.pieces.append(_unescaped(text))

    def start(self, name: str, written: str) -> None:
        """Take a start tag, with its attributes as text."""
        if self._hidden_by:
            if name != self._hidden_by:
                return
            if name not in _ENDED_BY_THE_NEXT:
                self._depth += 1
                return
            self._hidden_by = ""
        attributes: dict[str, str] = {}
        for key, value in _ATTRIBUTE.findall(written):
            attributes.setdefault(key.lower(), _unescaped(value.strip("\"'")))
        if name not in _VOID and (name in _UNSEEN or is_hidden(attributes)):
            self._hidden_by, self._depth = name, 1
            return
        if name == "a":
            self._begin_link(attributes.get("href", ""))
        self._separate(name)

    def end(self, name: str) -> None:
        """Take an end tag."""
        if self._hidden_by:
            self._depth -= name == self._hidden_by
            if not self._depth:
                self._hidden_by = ""
            return
        if name == "a":
            self.end_link()
        self._separate(name)

    def end_link(self) -> None:
        """End the current link, if there is one; its text is the text since its beginning."""
        if self._link:
            self.pieces.append(f"]({self._link})")
            self._link = ""

    def _begin_link(self, href: str) -> None:
        self.end_link()
        try:
            link = urljoin(self._url, href.strip())
        except ValueError:
            return
        if href and not href.startswith("#") and link.startswith(("http://", "https://")):
            self._link = link
            self.pieces.append("[")

    def _separate(self, name: str) -> None:
        if name in _BLOCKS:
            self.pieces.append("\n")
        elif name in _CELLS:
            self.pieces.append(" ")
