"""HTML -> the text that a person would see, with the standard library alone.

For pages in which no article is found, and where the `web` extra is not installed. Reads from beginning to end without
recursion, so that no depth of nesting matters.
"""

import re
from collections.abc import Callable, Mapping
from html import unescape
from html.parser import HTMLParser
from urllib.parse import urljoin

# Python's parser takes quadratic time for some broken markup; what was read until then is a page as well.
MOST_SECONDS = 5.0

# fmt: off - a name to a line would be two pages
_VOID = frozenset(
    (
        "area",
        "base",
        "br",
        "col",
        "embed",
        "hr",
        "img",
        "input",
        "link",
        "meta",
        "source",
        "track",
        "wbr",
    )
)
_UNSEEN = frozenset(
    (
        "audio",
        "canvas",
        "datalist",
        "dialog",
        "head",
        "iframe",
        "math",
        "noembed",
        "noscript",
        "object",
        "script",
        "select",
        "style",
        "svg",
        "template",
        "textarea",
        "title",
        "video",
    )
)
_BLOCKS = frozenset(
    (
        "address",
        "article",
        "aside",
        "blockquote",
        "body",
        "br",
        "dd",
        "details",
        "div",
        "dl",
        "dt",
        "fieldset",
        "figcaption",
        "figure",
        "footer",
        "form",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "header",
        "hr",
        "li",
        "main",
        "nav",
        "ol",
        "p",
        "pre",
        "section",
        "summary",
        "table",
        "tbody",
        "tfoot",
        "thead",
        "tr",
        "ul",
    )
)
# fmt: on
_CELLS = frozenset(("td", "th"))
_ENDED_BY_THE_NEXT = frozenset(("p", "dt", "dd", "option"))  # their end tag may be left out
_HIDING_STYLE = re.compile(
    r"display:none|visibility:(?:hidden|collapse)|(?:opacity|font-size):[0.]+(?:px|em|rem|pt|%)?(?:[;!]|\Z)"
)
_BLANKS = re.compile(r"[^\S\n]+")
_EMPTY_LINES = re.compile(r"\n{3,}")
_TITLE = re.compile(r"<title[^<>]{0,200}>([^<]{0,1000})", re.IGNORECASE)
_TITLE_WITHIN = 256 * 1024  # characters; it stands in the head


def title_in(html: str) -> str:
    """The page's title on one line; empty where it has none."""
    found = _TITLE.search(html, 0, _TITLE_WITHIN)
    return " ".join(unescape(found[1]).split()) if found else ""


def is_hidden(attributes: Mapping[str, str | None]) -> bool:
    """Whether an element is kept from people's eyes by its own attributes; style sheets are not read."""
    if "hidden" in attributes or (attributes.get("aria-hidden") or "").lower() == "true":
        return True
    style = "".join((attributes.get("style") or "").lower().split())
    return _HIDING_STYLE.search(style) is not None


def visible_text(html: str, url: str, *, monotonic: Callable[[], float]) -> str:
    """The text of a page, a line for each block, links as `[text](url)`.

    Args:
        html: the page.
        url: where it is from: what its links are relative to.
        monotonic: seconds that never go back; after `MOST_SECONDS` of them the rest is left out.
    """
    reader = _Reader(url, monotonic)
    try:
        reader.feed(html)
        reader.close()
    except _OutOfTimeError:
        pass
    reader.end_link()
    lines = (_BLANKS.sub(" ", line).strip() for line in "".join(reader.pieces).split("\n"))
    return _EMPTY_LINES.sub("\n\n", "\n".join(lines)).strip()


class _OutOfTimeError(Exception):
    """The page takes too long."""


class _Reader(HTMLParser):
    def __init__(self, url: str, monotonic: Callable[[], float]) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self._url = url
        self._monotonic = monotonic
        self._end = monotonic() + MOST_SECONDS
        self._unseen = ""  # the element that hides what is being read
        self._depth = 0  # of elements of that name in each other
        self._link = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._check_time()
        if self._unseen and self._goes_on(tag):
            return
        attributes = dict(attrs)
        if tag not in _VOID and (tag in _UNSEEN or is_hidden(attributes)):
            self._unseen, self._depth = tag, 1
            return
        if tag == "a":
            self._begin_link(attributes.get("href") or "")
        self._set_apart(tag)

    def handle_endtag(self, tag: str) -> None:
        self._check_time()
        if self._unseen:
            self._depth -= tag == self._unseen
            if not self._depth:
                self._unseen = ""
            return
        if tag == "a":
            self.end_link()
        self._set_apart(tag)

    def handle_data(self, data: str) -> None:
        self._check_time()
        if not self._unseen:
            self.pieces.append(data)

    def end_link(self) -> None:
        """What was read since the link began is its text."""
        if self._link:
            self.pieces.append(f"]({self._link})")
            self._link = ""

    def _goes_on(self, tag: str) -> bool:
        """Whether what is hidden goes on behind this start tag."""
        if tag != self._unseen:
            return True
        if tag in _ENDED_BY_THE_NEXT:
            self._unseen = ""
            return False
        self._depth += 1
        return True

    def _begin_link(self, href: str) -> None:
        self.end_link()
        try:
            link = urljoin(self._url, href.strip())
        except ValueError:
            return
        if href and not href.startswith("#") and link.startswith(("http://", "https://")):
            self._link = link
            self.pieces.append("[")

    def _set_apart(self, tag: str) -> None:
        if tag in _BLOCKS:
            self.pieces.append("\n")
        elif tag in _CELLS:
            self.pieces.append(" ")

    def _check_time(self) -> None:
        if self._monotonic() > self._end:
            raise _OutOfTimeError
