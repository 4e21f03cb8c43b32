"""Sixty pages of many kinds and languages, each with a question whose answer stands in the page and in no snippet.

A page is written in `corpus/` in a short form, and becomes HTML in one of several manners of real sites: articles,
`div` elements without meaning, lines with breaks, text without any structure. Around it stand menus, a banner and a
footer, and below it other pages of its language, as on sites that load the next article.

    @ name kind language        ? question        ! the answer's words        s the snippet
    # title    ## heading    - item    | cell | cell    > author: post    any other line: a paragraph
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from html import escape
from itertools import groupby
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
MORE = 4  # other pages below each page
_MENU = (
    "Home", "News", "Products", "Pricing", "Limits", "Documentation", "Community", "Forum", "Support", "Time table",
    "Downloads", "Blog", "Careers", "Contact", "About us", "Log in", "Register", "Newsletter", "Archive", "Search",
)  # fmt: skip
_BANNER = (
    "We and our 214 partners store cookies on your device. You can accept them or choose which of them you permit."
)
_FOOTER = "Terms of use · Privacy · Imprint · Accessibility · © 2026 All rights reserved"


@dataclass(frozen=True)
class Page:
    """A page of the corpus: `answer` has the words that answer `question`, with ` … ` where others may stand."""

    name: str
    kind: str
    language: str
    question: str
    answer: str
    snippet: str
    lines: tuple[str, ...]
    manner: int

    @property
    def title(self) -> str:
        return self.lines[0].removeprefix("# ")

    def is_answered_by(self, text: str) -> bool:
        """Whether a text has the words of the answer, whatever stands between cells and lines."""
        words = [re.escape(plain(part)) for part in self.answer.split(" … ")]
        return re.search(".{0,120}?".join(words), plain(text)) is not None

    @property
    def html(self) -> str:
        """The page as its site sends it."""
        body = _rendered(self.lines, self.manner)
        more = "".join(
            f"<section><h2>{escape(page.title)}</h2>{_rendered(page.lines[1:], self.manner)}</section>"
            for page in self._others()
        )
        menu = "".join(f'<li><a href="/{index}">{item}</a></li>' for index, item in enumerate(_MENU))
        main = ("article", "main", "div", "div", "div")[self.manner]
        return (
            f'<!doctype html><html lang="{self.language}"><head><meta charset="utf-8">'
            f"<title>{escape(self.title)}</title><style>p {{ margin: 0 }}</style>"
            f"<script>window.data = {{q: '{len(body)}'}};</script></head><body>"
            f'<header><nav><ul>{menu}</ul></nav></header><div class="banner"><p>{_BANNER}</p></div>'
            f"<{main}>{body}</{main}>{more}<footer><p>{_FOOTER}</p></footer></body></html>"
        )

    def _others(self) -> list["Page"]:
        of_language = [page for page in corpus() if page.language == self.language]
        at = of_language.index(self)
        return [*of_language[at + 1 :], *of_language[:at]][:MORE]


@cache
def corpus() -> tuple[Page, ...]:
    """All pages, in the order of their files."""
    return tuple(page for path in sorted(CORPUS.glob("*.txt")) for page in _read(path))


def plain(text: str) -> str:
    """A text without marks of tables and emphasis, on one line, with one form of each character."""
    return " ".join(unicodedata.normalize("NFKC", re.sub(r"[|*_`\\]", " ", text)).split())


def _read(path: Path) -> Iterator[Page]:
    for index, entry in enumerate(path.read_text("utf-8").split("\n@ ")):
        head, question, answer, snippet, *lines = entry.removeprefix("@ ").strip("\n").split("\n")
        name, kind, language = head.split()
        yield Page(name, kind, language, question[2:], answer[2:], snippet[2:], tuple(lines), index % 5)


def _rendered(lines: tuple[str, ...], manner: int) -> str:
    return "".join(_elements(lines, manner))


def _elements(lines: tuple[str, ...], manner: int) -> Iterator[str]:
    for kind, group in groupby(lines, key=_kind_of):
        texts = [escape(line[len(kind) :].strip(), quote=False) for line in group]
        if kind == "|":
            yield _table([text.split("|") for text in texts], manner)
        elif kind == "-":
            yield "<ul>\n" + "".join(f"  <li>{text}</li>\n" for text in texts) + "</ul>\n"
        else:
            yield from (
                _ELEMENTS[kind][manner].format(*text.split(": ", 1) if kind == ">" else [text]) for text in texts
            )


def _kind_of(line: str) -> str:
    kind = line.partition(" ")[0]
    return kind if kind in ("#", "##", "|", "-", ">") else ""


# How each kind of line looks in each manner: an article, a page of an editor, `div` elements, breaks, running text.
_ELEMENTS = {
    "#": ("<h1>{}</h1>\n", '<h1 class="title"><span>{}</span></h1>\n', '<div class="t1">{}</div>', "<b>{}</b><br><br>", "{}. "),
    "##": ("<h2>{}</h2>\n", "<h3><a href='#x'>{}</a></h3>\n", '<div class="t2">{}</div>', "<b>{}</b><br>", "{}. "),
    "": ("<p>{}</p>\n", "<p><span>{}</span></p>\n", "<div><div>{}</div></div>", "{}<br>\n<br>\n", "{} "),
    ">": (
        "<article><h4>{}</h4><p>{}</p></article>\n",
        "<ol><li><cite>{}</cite><p>{}</p></li></ol>\n",
        '<div class="post"><div class="by">{}</div><div class="text">{}</div></div>',
        "<b>{}</b> wrote:<br>{}<br><br>\n",
        "{}: {} ",
    ),
}  # fmt: skip


def _table(rows: list[list[str]], manner: int) -> str:
    tag = "th" if manner < 2 else "td"
    head, *rest = ("".join(f"<td>{cell.strip()}</td>" for cell in row) for row in rows)
    rows_of_table = [head.replace("td>", f"{tag}>"), *rest]
    return "<table>\n" + "".join(f"<tr>{row}</tr>\n" for row in rows_of_table) + "</table>\n"
