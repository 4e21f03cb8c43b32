"""`url_citation` annotations: for URLs in an answer that a tool really returned, and for gpt-oss's citation marks.

gpt-oss writes citation marks, as it was trained to with its own browser: `【0†L1-L3】` for lines of a page, and
`【3†source】` for a whole page. Each mark is taken out of the text, and the sentence before it becomes a citation of
the mark's page; a mark that refers to no page is taken out as well. In the conversation that the model reads, the marks
stay.

Offsets count Unicode code points, as Python's do, and as OpenAI's `start_index` and `end_index`.
"""

import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import Struct

from proxy.wire.chat import Json
from proxy.wire.urls import readable

Cite: TypeAlias = Callable[[int, int | None], str | None]
"""Finds the URL of the page that a mark refers to, by the mark's number and its first line, if it names lines."""

Citation: TypeAlias = tuple[int, str]
"""The offset of a removed mark in the remaining text, and the URL of the page that the mark referred to."""

CITATIONS = "toolproxy_citations"
"""The field beside `content` in a turn's delta with its citations, for the surface that shows it, never for clients."""

# Everything that can belong to a URL in running text, up to another URL; the returned URLs decide where it ends.
_CANDIDATE = re.compile(r"https?://(?:(?![,;()\[\]\u3001\uff0c]https?://)[^\s<>\"`|\\^{}])+", re.IGNORECASE)
# A character that continues a URL; punctuation does so only if a further word follows at once.
_GOES_ON = re.compile(r"[\w/%=&?#~+@$-]|[.:!,;](?!https?://)(?=[\w/])")
# The case-insensitive parts of a URL (RFC 3986, 6.2.2.1): scheme, host, and the hexadecimal digits after %.
_CASELESS = re.compile(r"\Ahttps?://[^/?#]*|%[0-9a-f]{2}", re.IGNORECASE)
_SMALL = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)

OPENING = "【"
"""The first character of every mark."""

_MARK = re.compile(r"【([0-9]{1,6})†(?:L([0-9]{1,6}))?[^【】\n]{0,100}】")
_BEGINNING_OF_A_MARK = re.compile(r"【(?:[0-9]{1,6}(?:†[^【】\n]{0,107})?)?\Z")
# The end of a sentence, after which a cited sentence may begin, and how many characters before a mark are searched.
_SENTENCE_END = re.compile(r"[.!?]\s+|[\u3002\uff01\uff1f]\s*|\n")
_LONGEST_SENTENCE = 1000


class MarkFilter(Struct):
    """Takes gpt-oss's marks out of a text that arrives in pieces.

    Attributes:
        cite: finds the page that a mark refers to; None: the marks have no meaning and stay.
        buffer: the beginning of a mark that is not complete yet; at the end of the text it is ordinary text.
    """

    cite: Cite | None
    buffer: str = ""

    def feed(self, text: str) -> tuple[str, list[Citation]]:
        """The text that may be shown now, and the citations in it."""
        if self.cite is None or (not self.buffer and OPENING not in text):
            return text, []
        text = self.buffer + text
        beginning = _BEGINNING_OF_A_MARK.search(text)
        whole = text[: beginning.start()] if beginning else text
        self.buffer = text[len(whole) :]
        shown, cited, at = "", [], 0
        for mark in _MARK.finditer(whole):
            shown += whole[at : mark.start()]
            at = mark.end()
            if url := self.cite(int(mark[1]), int(mark[2]) if mark[2] else None):
                cited.append((len(shown), url))
        return shown + whole[at:], cited


def without_marks(text: str, cite: Cite | None) -> tuple[str, list[Citation]]:
    """A whole text without gpt-oss's marks, and its citations; without `cite`, the marks stay."""
    if OPENING not in text:
        return text, []
    marks = MarkFilter(cite)
    shown, cited = marks.feed(text)
    return shown + marks.buffer, cited


def annotations(text: str, sources: Mapping[str, str], citations: Sequence[Citation] = ()) -> list[Json]:
    """The citations in `text`, in order.

    Args:
        text: the text as the client has it.
        sources: URL -> title of all pages that the tools returned for this answer.
        citations: the citations that were marks in the text, in order.
    """
    spans = [*_urls_in(text, sources)] if sources and "://" in text else []
    if citations:
        spans += _before_marks(text, citations)
    return [
        {
            "type": "url_citation",
            "url_citation": {"start_index": start, "end_index": end, "title": sources.get(url) or url, "url": url},
        }
        for start, end, url in dict.fromkeys(sorted(spans, key=lambda span: span[:2]))
    ]


def moved_back(citations: Sequence[Citation], by: int) -> list[Citation]:
    """The citations of a text from whose beginning `by` characters were removed."""
    return [(max(0, at - by), url) for at, url in citations]


def joined_annotations(upstream: Any, ours: Sequence[Json]) -> list[Json]:
    """An upstream's own annotations, if it sent any, and those of `ours` that are not among them."""
    own = upstream if isinstance(upstream, list) else []
    return [*own, *(one for one in ours if one not in own)]


def _urls_in(text: str, sources: Mapping[str, str]) -> Iterable[tuple[int, int, str]]:
    known = {_folded(readable(url)).rstrip("/"): url for url in sources}
    known |= {_folded(url).rstrip("/"): url for url in sources}
    longest_first = sorted(known, key=len, reverse=True)
    for candidate in _CANDIDATE.finditer(text):
        written = _folded(candidate.group())
        for base in longest_first:
            if written.startswith(base) and not is_longer_url(written, len(base)):
                end = candidate.start() + len(base) + written.startswith("/", len(base))
                yield candidate.start(), end, known[base]
                break


def _folded(url: str) -> str:
    """A URL in the case in which URLs are compared, of the same length."""
    if "%" not in url and "".join(url.split("/", 3)[:3]).islower():  # most URLs
        return url
    return _CASELESS.sub(lambda part: part[0].translate(_SMALL), url)


def is_longer_url(text: str, end: int) -> bool:
    """Whether the URL that ends at `end` is the beginning of a longer URL; one more slash alone does not count."""
    return _GOES_ON.match(text, end + text.startswith("/", end)) is not None


def _before_marks(text: str, citations: Sequence[Citation]) -> Iterable[tuple[int, int, str]]:
    """For each mark the span of the sentence before it, from the previous mark on, and the URL of its page."""
    latest = begin = 0
    for at, url in dict.fromkeys(citations):
        if at > latest:
            begin, latest = latest, at
        end = begin + len(text[begin:at].rstrip())
        start = max(begin, end - _LONGEST_SENTENCE)
        for boundary in _SENTENCE_END.finditer(text, start, end):
            start = boundary.end() if boundary.end() < end else start
        start = end - len(text[start:end].lstrip())
        if start < end:  # a mark without any text before it supports nothing
            yield start, end, url
