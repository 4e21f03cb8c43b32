"""The passages of a page that fit a query best: what a model reads of the page in the place of a snippet. Pure.

    Markdown --split--> passages below their headings --BM25--> scores --> the best that fit, in the order of the page

A passage is a paragraph, a list, a table or a block of code; one that is too long is split between its rows or
sentences. The answer to a question often stands behind the passage that has the words of the question: in the next
reply of a forum, the next sentence of a report. So half of a passage's score counts for the next one as well, a
quarter for the one after that, and so on.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice, pairwise, zip_longest
from typing import NamedTuple, TypeAlias

from proxy.tools.bm25 import Index, terms

BREAK = " […] "
"""What stands between two passages that are not adjacent."""

_WINDOW = 600  # characters of a passage that has to be split
_PASSED_ON = 0.5  # the part of a score that counts for the next passage
_MOST_READ, _MOST_PASSAGES = 400_000, 10_000  # characters and passages of a page; long articles have a tenth of them
_LONGEST_HEADING, _LONGEST_UNMARKED = 200, 80  # characters of a heading, and of one that is not marked as such
_LONGEST_HEAD = 300  # characters of the head of a table

# The text of a link is read, and its URL is not.
_LINK = re.compile(r"!?\[([^\[\]\n]{0,300})\]\([^()\s]*+(?:\([^()\s]*+\)[^()\s]*+)?\)")
_LIST = re.compile(r"[-*+•‣]\s|[0-9]{1,3}[.)]\s")
_HEADING = re.compile(r"#{1,6}\s")
# Of the scripts of Europe, Arabia, China and Japan.
_ENDS_SENTENCE = re.compile(r"[.!?:;,\u2026\u060c\u061b\u061f\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f][^\w\s]{0,3}\Z")
_SENTENCE_END = re.compile(r"[.!?\u2026\u061f][^\w\s]{0,3}\s+|[\u3002\uff01\uff1f][\u300d\u300f\u201d]?|\n")

Span: TypeAlias = tuple[int, int]
"""Where a part of the text begins and ends."""


_Block: TypeAlias = tuple[str, list[Span]]
"""The kind of a block, and its lines."""


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
    best = sorted((place for place, score in enumerate(scores) if score), key=lambda place: -scores[place])
    return _joined(text, _chosen([passages[place] for place in best], most))


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
    for kind, lines in _with_headings(_blocks(text)):
        (begin, _), (_, end) = lines[0], lines[-1]
        if kind == "heading":
            above = (lines[0],)
        elif kind == "text":
            yield from (_Passage(window, above) for window in _windows(text, (begin, end), longest))
        elif end - begin <= most:
            yield _Passage((begin, end), above)
        else:
            head = lines[:1] if kind == "table" and lines[0][1] - begin <= _LONGEST_HEAD else []
            yield from (_Passage(rows, (*above, *head)) for rows in _rows(text, lines, longest))


def _with_headings(blocks: Iterable[_Block]) -> Iterator[_Block]:
    """The blocks, in which each short line before a text is its heading, and further short lines are a text."""
    groups = [(kind, [lines for _, lines in group]) for kind, group in groupby(blocks, key=lambda block: block[0])]
    for (kind, texts), (following, _) in zip_longest(groups, groups[1:], fillvalue=("", [])):
        if kind != "line":
            yield from ((kind, lines) for lines in texts)
            continue
        has_heading = following not in ("", "heading")
        if plain := texts[:-1] if has_heading else texts:
            yield "text", [line for lines in plain for line in lines]
        if has_heading:
            yield "heading", texts[-1]


def _blocks(text: str) -> Iterator[_Block]:
    """The blocks of a text: `heading`, `table`, `list`, `code`, `text`, and `line` for what may be a heading."""
    for (_, kind), group in groupby(_lines(text), key=lambda line: line[0]):
        lines = [span for _, span in group]
        is_line = kind == "text" and len(lines) == 1 and _may_be_heading(text[slice(*lines[0])])
        yield "line" if is_line else kind, lines


def _lines(text: str) -> Iterator[tuple[tuple[int, str], Span]]:
    """The lines of a text, but for blank ones, each with the number of its paragraph and its kind."""
    paragraph, in_code, begin = 0, False, 0
    for line in text.split("\n"):
        kind = _kind_of(line.strip())
        if kind == "fence":
            in_code = not in_code
        if in_code or kind == "fence":
            kind = "code"
        elif kind in ("", "heading"):
            paragraph += 1
        if kind:
            yield (paragraph, kind), (begin, begin + len(line))
        begin += len(line) + 1


def _kind_of(line: str) -> str:
    if line.startswith("|"):
        return "table"
    if line.startswith("```"):
        return "fence"
    if len(line) <= _LONGEST_HEADING and _HEADING.match(line):
        return "heading"
    if _LIST.match(line):
        return "list"
    return "text" if line else ""


def _may_be_heading(line: str) -> bool:
    return len(line) <= _LONGEST_UNMARKED and not _ENDS_SENTENCE.search(line)


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


def _rows(text: str, lines: Sequence[Span], longest: int) -> Iterator[Span]:
    """A long table or list in groups of its lines."""
    begin, end = lines[0]
    for line in lines[1:]:
        if line[1] - begin > longest:
            yield from _windows(text, (begin, end), longest)
            begin = line[0]
        end = line[1]
    yield from _windows(text, (begin, end), longest)
