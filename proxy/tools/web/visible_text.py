"""HTML -> the text that a person would see, with the standard library alone.

For pages in which no article is found, and where the `web` extra is not installed. Takes time in proportion to the
page's length and no stack, whatever the page: `html.parser` works for more than a minute on 2 MB of `<a <a <a`, and
keeps the interpreter's lock for two seconds at a time.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import unescape
from typing import TypeAlias
from urllib.parse import urljoin

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
_RAW = frozenset(("iframe", "noembed", "noframes", "script", "style", "textarea", "title", "xmp"))  # no tags in them
_ENDED_BY_THE_NEXT = frozenset(("p", "dt", "dd", "option"))  # their end tag may be left out
_HIDING_STYLE = re.compile(
    r"display:none|visibility:(?:hidden|collapse)|(?:opacity|font-size):[0.]+(?:px|em|rem|pt|%)?(?:[;!]|\Z)"
)
# Possessive: what has been read is not read again another way.
_TAG = re.compile(r"""<(/?)([a-z][a-z0-9:_-]{0,40})((?:[^>"']++|"[^"]*+"|'[^']*+')*+)>""", re.IGNORECASE)
_TAG_BEGINS = re.compile(r"</?[a-z]", re.IGNORECASE)
_LONGEST_TAG = 16 * 1024  # characters; of a longer one nothing is read but its end
_ATTRIBUTE = re.compile(r"""([a-z-]++)\s*+(?:=\s*+("[^"]*+"|'[^']*+'|[^\s"'>]++))?""", re.IGNORECASE)
_TOO_LONG = re.compile(r"&#x?[0-9a-f]{9,};?", re.IGNORECASE)  # no character has such a number, and int() refuses some
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


@dataclass(frozen=True, slots=True)
class _Start:
    name: str
    attributes: str  # as they are written


@dataclass(frozen=True, slots=True)
class _End:
    name: str


_Token: TypeAlias = str | _Start | _End


def visible_text(html: str, url: str) -> str:
    """The text of a page, a line for each block, links as `[text](url)`.

    Args:
        html: the page.
        url: where it is from: what its links are relative to.
    """
    reader = _Reader(url)
    for token in _tokens(html):
        reader.take(token)
    reader.end_link()
    lines = (_BLANKS.sub(" ", line).strip() for line in "".join(reader.pieces).split("\n"))
    return _EMPTY_LINES.sub("\n\n", "\n".join(lines)).strip()


def _tokens(html: str) -> Iterator[_Token]:
    """Texts and tags of a page in their order; comments, declarations and what stands in raw elements are left out."""
    # The only capital that becomes two characters when it is made small: what is found in one is there in the other.
    small = html.replace("\u0130", "i").lower()
    at = 0
    while (begin := html.find("<", at)) >= 0:
        yield html[at:begin]
        if html.startswith("<!--", begin):
            at = _behind(html, "-->", begin + 4)
        elif tag := _TAG.match(html, begin, begin + _LONGEST_TAG):
            at, name = tag.end(), tag[2].lower()
            yield _End(name) if tag[1] else _Start(name, tag[3])
            if name in _RAW and not tag[1]:
                end = small.find(f"</{name}", at)
                at = end if end >= 0 else len(html)
        elif _TAG_BEGINS.match(html, begin) or html.startswith(("<!", "<?"), begin):
            at = _behind(html, ">", begin)
        else:
            yield "<"
            at = begin + 1
    yield html[at:]


def _behind(html: str, mark: str, at: int) -> int:
    """Where the next `mark` has ended; the end of the page where there is none."""
    found = html.find(mark, at)
    return found + len(mark) if found >= 0 else len(html)


def _attributes(text: str) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name, value in _ATTRIBUTE.findall(text):
        found.setdefault(name.lower(), _plain(value.strip("\"'")))
    return found


def _plain(text: str) -> str:
    return unescape(_TOO_LONG.sub("\ufffd", text)) if "&" in text else text


class _Reader:
    """Takes tokens, and keeps the text of those that can be seen."""

    def __init__(self, url: str) -> None:
        self.pieces: list[str] = []
        self._url = url
        self._unseen = ""  # the element that hides what is being read
        self._depth = 0  # of elements of that name in each other
        self._link = ""

    def take(self, token: _Token) -> None:
        """The next token of the page."""
        match token:
            case _Start(name, attributes):
                self._start(name, attributes)
            case _End(name):
                self._end(name)
            case text:
                if not self._unseen:
                    self.pieces.append(_plain(text))

    def end_link(self) -> None:
        """What was read since the link began is its text."""
        if self._link:
            self.pieces.append(f"]({self._link})")
            self._link = ""

    def _start(self, name: str, written: str) -> None:
        if self._unseen and self._goes_on(name):
            return
        attributes = _attributes(written) if written else {}
        if name not in _VOID and (name in _UNSEEN or is_hidden(attributes)):
            self._unseen, self._depth = name, 1
            return
        if name == "a":
            self._begin_link(attributes.get("href") or "")
        self._set_apart(name)

    def _end(self, name: str) -> None:
        if self._unseen:
            self._depth -= name == self._unseen
            if not self._depth:
                self._unseen = ""
            return
        if name == "a":
            self.end_link()
        self._set_apart(name)

    def _goes_on(self, name: str) -> bool:
        """Whether what is hidden goes on behind this start tag."""
        if name != self._unseen:
            return True
        if name in _ENDED_BY_THE_NEXT:
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

    def _set_apart(self, name: str) -> None:
        if name in _BLOCKS:
            self.pieces.append("\n")
        elif name in _CELLS:
            self.pieces.append(" ")
