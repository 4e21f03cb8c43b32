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
    "address", "article", "aside", "blockquote", "body", "caption", "details", "div", "dl", "fieldset", "figcaption",
    "figure", "footer", "form", "header", "hr", "main", "nav", "ol", "p", "pre", "section", "summary", "table", "ul",
})  # fmt: skip
_LINES = frozenset(("dd", "dt", "li", "tr"))  # they begin on a line of their own, without a blank line before it
_LISTS = frozenset(("ol", "ul"))
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
_MARKS = {**_HEADINGS, "li": "- "}
_CELLS = frozenset(("td", "th"))
_LONGEST_CELL, _MOST_PIECES = 300, 100  # characters and pieces; larger cells belong to tables that lay out a page
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
_BLANKS, _BLANKS_IN_LINE = re.compile(r"\s+"), re.compile(r"[^\S\n]+")
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
    """The text of a page as Markdown: its paragraphs, headings, lists and tables, and links as `[text](url)`.

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
    reader.close()
    lines = [_BLANKS_IN_LINE.sub(" ", line).strip() for line in "".join(reader.pieces).split("\n")]
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
        self._breaks = 0  # line ends before the next text
        self._mark = ""  # what stands before the next text: of a heading or of the item of a list
        self._lists = self._preformatted = 0  # how many elements of the kind are open
        self._rows: list[_Row] = []  # the current row of each open table

    def text(self, text: str) -> None:
        """Take the text between two tags."""
        if self._hidden_by:
            return
        text = _unescaped(text)
        if self._preformatted:
            self._begin()
            self.pieces.append(text)
        elif (flat := _BLANKS.sub(" ", text)) != " ":
            if flat:
                self._begin()
                self.pieces.append(flat)
        elif not self._breaks and not self._mark:
            self.pieces.append(flat)

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
        if name in _MARKS:
            self._mark = _MARKS[name]
        elif name in _CELLS and self._rows:
            self._begin_cell(self._rows[-1])
        elif name == "table":
            self._rows.append(_Row())
        else:
            self._lists += name in _LISTS
            self._preformatted += name == "pre"

    def end(self, name: str) -> None:
        """Take an end tag."""
        if self._hidden_by:
            self._depth -= name == self._hidden_by
            if not self._depth:
                self._hidden_by = ""
            return
        if name == "a":
            self._end_link()
        elif name == "table" and self._rows:
            self._end_row(self._rows.pop())
        self._lists = max(0, self._lists - (name in _LISTS))
        self._preformatted = max(0, self._preformatted - (name == "pre"))
        self._separate(name)
        if name in _MARKS:
            self._mark = ""

    def close(self) -> None:
        """Take the end of the page."""
        self._end_link()
        while self._rows:
            self._end_row(self._rows.pop())

    def _begin(self) -> None:
        """Begin the next text, behind its line ends and its mark."""
        if self._breaks or self._mark:
            self.pieces.append("\n" * self._breaks + self._mark)
            self._breaks, self._mark = 0, ""

    def _begin_link(self, href: str) -> None:
        self._end_link()
        try:
            link = urljoin(self._url, href.strip())
        except ValueError:
            return
        if href and not href.startswith("#") and link.startswith(("http://", "https://")):
            self._begin()
            self._link = link
            self.pieces.append("[")

    def _end_link(self) -> None:
        """End the current link, if there is one; its text is the text since its beginning."""
        if self._link:
            self.pieces.append(f"]({self._link})")
            self._link = ""

    def _separate(self, name: str) -> None:
        """Begin a line, or a paragraph behind a blank line, with the next text."""
        if name == "tr" and self._rows:
            self._end_row(self._rows[-1])
        if self._mark:  # a paragraph that begins an item begins on its line
            return
        if name in _HEADINGS or (name in _BLOCKS and not (name in _LISTS and self._lists)):
            self._breaks = 2
        elif name == "br":
            self._breaks = min(self._breaks + 1, 2)
        elif name in _LINES or name in _LISTS:
            self._breaks = max(self._breaks, 1)

    def _begin_cell(self, row: "_Row") -> None:
        self._end_cell(row)
        if not row.marks:
            self._begin()
        row.marks.append(len(self.pieces))
        row.in_cell = True
        self.pieces.append("| ")

    def _end_cell(self, row: "_Row") -> None:
        """End the open cell of a row; the text of a small one is put on one line."""
        if not row.in_cell:
            return
        row.in_cell = False
        begin = row.marks[-1] + 1
        is_small = len(self.pieces) - begin <= _MOST_PIECES
        cell = " ".join("".join(self.pieces[begin:]).split()) if is_small else ""
        if is_small and len(cell) <= _LONGEST_CELL:
            self.pieces[begin:] = [cell, " "]
            self._breaks, self._mark = 0, ""
        else:
            row.lays_out = True

    def _end_row(self, row: "_Row") -> None:
        """End a row of a table. One with a large cell, or with only one, is not a row of data, and is told as text."""
        self._end_cell(row)
        if row.lays_out or len(row.marks) == 1:
            for mark in row.marks:
                self.pieces[mark] = "\n\n" if row.lays_out else ""
        elif row.marks:
            self.pieces.append("|")
        row.marks, row.lays_out = [], False


class _Row:
    """The current row of a table.

    Attributes:
        marks: the places of the marks before its cells, among the pieces of the text.
        in_cell: whether the last of the cells is open.
        lays_out: whether a cell is too large for a row of data.
    """

    def __init__(self) -> None:
        self.marks: list[int] = []
        self.in_cell = self.lays_out = False
