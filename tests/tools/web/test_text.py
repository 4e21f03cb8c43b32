"""Pages of any bytes: text without control characters, in bounded time, or a word to the model."""

import re
from html import escape

from hypothesis import given
from hypothesis import strategies as st

from proxy.loop.results import ToolError
from proxy.tools.web.client import PageAnswer
from proxy.tools.web.guard import parse_url
from proxy.tools.web.html import title_in, visible_text
from proxy.tools.web.page import Page, clean, passages, repair, shown
from proxy.tools.web.text import read_page
from tests import hostile

HERE = "https://a.example/b/"
MARKUP = st.sampled_from([
    "<p>", "</p>", "<script>", "</script>", "<div hidden>", "</div>", "<a href='x'>", '<a href="//[">', "</a>", "<!--", "-->", "<", ">",
    "<title>", "</title>", "&amp;", "&#99999999999;", "&#x110000;", "<td style='display:none'>", "<?xml", "<![CDATA[", "<a <a", "\u0130", '"', "'",
])  # fmt: skip
HTML = st.lists(MARKUP | st.text(max_size=6), max_size=12).map("".join)
PLAIN = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]), min_size=1, max_size=12)


@given(HTML)
def test_any_html_is_text(html):
    text = visible_text(html, HERE)
    assert text == text.strip()
    assert "\n\n\n" not in text
    assert len(text) <= 20 * len(html) + 20
    assert "\n" not in title_in(html)


@given(PLAIN, PLAIN)
def test_what_can_be_seen_is_read_and_what_is_hidden_is_not(seen, hidden):
    html = f"<p>{escape(seen)}</p><div hidden><p>{escape('<' + hidden + '>')}</p></div><script>{hidden}</script>"
    assert visible_text(html, HERE) == seen


@given(
    st.binary(max_size=60) | HTML.map(str.encode),
    st.sampled_from(
        ["text/html", "text/plain; charset=utf-16", "text/html; charset=x", "", "application/json; charset=shift_jis"]
    ),
)
def test_any_bytes_are_a_page_or_a_word_to_the_model(body, content_type):
    answer = PageAnswer(parse_url(HERE), 200, content_type, body, cut=False)
    page = hostile.outcome(ToolError, lambda: read_page(answer, read_pdf=None))
    if not isinstance(page, ToolError):
        assert clean(page.text) == page.text
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", page.text)
        assert len(page.title) <= 200


@given(st.text("ab \nİ", max_size=60), st.text("abİ ", min_size=1, max_size=3).filter(str.strip), st.integers(0, 60))
def test_a_passage_is_at_its_offset(text, wanted, offset):
    told = passages(Page(HERE, "", text), wanted, offset, most=1000)
    found = re.findall(r"\[offset (\d+)\]\n((?:(?!\n\n\[offset).)*)", told, re.DOTALL)
    assert bool(found) is (flat(wanted) in flat(text)[offset:])
    for at, passage in found:
        assert text[int(at) :].startswith(passage)


@given(
    st.text("ab\n", max_size=20).map(lambda text: text * 4),
    hostile.mutated(st.just({"offset": 3, "find": "a", "line": 2, "uri": "x"}) | st.just({"offset": 3})),
)
def test_whatever_is_asked_of_a_page_is_a_part_of_it_or_a_word_to_the_model(text, arguments):
    arguments = repair(arguments) if isinstance(arguments, dict) else {}
    fits = isinstance(arguments.get("offset", 0), int) and arguments.get("offset", 0) >= 0
    if fits and isinstance(arguments.get("find", ""), str):  # as the schema makes sure
        told = hostile.outcome(ToolError, lambda: shown(Page(HERE, "", text), arguments, most=20))
        if not isinstance(told, ToolError):
            _, _, body = told.partition("\n\n")
            parts = re.split(r"(?:\n\n)?\[offset \d+\]\n", body)
            assert sum(map(len, parts)) <= 20
            assert all(part in text for part in parts)


def flat(text):
    return text.replace("\n", " ").replace("İ", "i").lower()
