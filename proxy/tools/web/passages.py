"""The passages of a page that fit a query best: what a model reads of the page in the place of a snippet. Pure.

    Markdown --split--> passages below their headings --BM25--> scores --> the best that fit, in the order of the page

A passage is a paragraph, which may be a list or a table; one that is too long is split between its lines or sentences.
The answer to a question often stands behind the passage that has the words of the question: in the next
reply of a forum, the next sentence of a report. So half of a passage's score counts for the next one as well, a
quarter for the one after that, and so on.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice, pairwise
from typing import NamedTuple, TypeAlias

from proxy.tools.bm25 import Index, best_first, terms

BREAK = " […] "
"""What stands between two passages that are not adjacent."""

_WINDOW = 600  # characters of a passage that has to be split
_PASSED_ON = 0.5  # the part of a score that counts for the next passage
_MOST_READ, _MOST_PASSAGES = 400_000, 10_000  # characters and passages of a page; long articles have a tenth of them
_LONGEST_HEADING = 200  # characters
_LONGEST_HEAD = 300  # characters of the head of a table

# The text of a link is read, and its URL is not.
_LINK = re.compile(r"!?\[([^\[\]\n]{0,300})\]\([^()\s]*+(?:\([^()\s]*+\)[^()\s]*+)?\)")
_PARAGRAPH = re.compile(r"\S[^\n]*(?:\n[^\S\n]*\S[^\n]*)*")
_HEADING = re.compile(r"#{1,6}\s[^\n]*")
_TABLE = "|"
_SENTENCE_END = re.compile(r"[.!?\u2026\u061f][^\w\s]{0,3}\s+|[\u3002\uff01\uff1f][\u300d\u300f\u201d]?|\n")

Span: TypeAlias = tuple[int, int]
"""Where a part of the text begins and ends."""


class _Passage(NamedTuple):
    """A part of a page that is shown or left out as a whole.

    Attributes:
        span: where it stands.
        above: its heading, and the head of its table, which are shown with it.
    """

    span: Span
    above: tuple[Span, ...] = ()


def fitting_passages(text: str, query: str, *, most: int) -> str:
    """The passages of a page that fit a query best, in the order of the page; empty: none of them fits.

    Args:
        text: the page as Markdown, of which the first 400,000 characters are read.
        query: the words that were searched for.
        most: the limit for the characters of all passages together.
    """
    text = _LINK.sub(r"\1", text[:_MOST_READ]).strip()
    passages = list(islice(_passages(text, most=most), _MOST_PASSAGES))
    scores = Index(_terms_of(text, passages)).scores(terms(query))
    if not any(scores):
        return ""
    if len(text) <= most:
        return text
    carried = 0.0
    for place, score in enumerate(scores):
        carried = scores[place] = score + carried * _PASSED_ON
    return _joined(text, _chosen([passages[place] for place in best_first(scores)], most))


def _chosen(passages: Sequence[_Passage], most: int) -> set[Span]:
    """The spans of as many of the passages, which are in order, as fit together, each with what stands above it."""
    shown: set[Span] = set()
    left = most + len(BREAK)
    for span, above in passages:
        for spans in ((*above, span), (span,)):  # without its heading if there is no room for both
            added = {one for one in spans if one not in shown}
            if (cost := sum(end - begin + len(BREAK) for begin, end in added)) <= left:
                shown |= added
                left -= cost
                break
    return shown


def _joined(text: str, spans: set[Span]) -> str:
    """Parts of the text in their order, with a mark between those that are not adjacent."""
    ordered = sorted(spans)
    gaps = [text[end:begin] for (_, end), (begin, _) in pairwise(ordered)]
    marks = ["", *(BREAK if gap.strip() else gap for gap in gaps)]
    return "".join(f"{mark}{text[begin:end]}" for mark, (begin, end) in zip(marks, ordered, strict=True))


def _terms_of(text: str, passages: Iterable[_Passage]) -> Iterator[list[str]]:
    """The terms of each passage, and of what stands above it."""
    for above, below in groupby(passages, key=lambda passage: passage.above):
        shared = [term for begin, end in above for term in terms(text[begin:end])]
        yield from (shared + terms(text[begin:end]) for (begin, end), _ in below)


def _passages(text: str, *, most: int) -> Iterator[_Passage]:
    """The passages of a text in their order."""
    longest = min(_WINDOW, most)
    above: tuple[Span, ...] = ()
    for paragraph in _PARAGRAPH.finditer(text):
        begin, end = paragraph.span()
        first_line = text.find("\n", begin, end)
        if end - begin <= _LONGEST_HEADING and _HEADING.fullmatch(text, begin, end):
            above = ((begin, end),)
        elif end - begin <= longest:
            yield _Passage((begin, end), above)
        else:
            has_head = text.startswith(_TABLE, begin) and 0 < first_line - begin <= _LONGEST_HEAD
            head = ((begin, first_line),) if has_head else ()
            rows = (first_line + 1 if has_head else begin, end)
            yield from (_Passage(window, (*above, *head)) for window in _windows(text, rows, longest))


def _windows(text: str, span: Span, longest: int) -> Iterator[Span]:
    """A long text in parts that end with a sentence, or else between two words."""
    begin, end = span
    while end - begin > longest:
        least, most = begin + longest // 3, begin + longest
        ends = [found.end() for found in _SENTENCE_END.finditer(text, least, most)]
        cut = ends[-1] if ends else text.rfind(" ", least, most) + 1 or most
        yield begin, begin + len(text[begin:cut].rstrip())
        begin = cut
    yield begin, end
