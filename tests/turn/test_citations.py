import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.turn.citations import MarkFilter, annotations, joined_annotations, moved_back, without_marks

SOURCES = {
    "https://a.example/x": "X",
    "https://a.example/x/y": "Y",
    "https://b.example/": "B",
    "https://wiki.example/Foo_(bar)": "",
}


def cited(text, sources=SOURCES):
    return [
        (text[span["start_index"] : span["end_index"]], span["url"], span["title"])
        for span in (one["url_citation"] for one in annotations(text, sources))
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("See https://a.example/x.", [("https://a.example/x", "https://a.example/x", "X")]),
        (
            "[X](https://a.example/x), and (https://a.example/x/y)!",
            [
                ("https://a.example/x", "https://a.example/x", "X"),
                ("https://a.example/x/y", "https://a.example/x/y", "Y"),
            ],
        ),
        ("https://b.example", [("https://b.example", "https://b.example/", "B")]),
        ("https://b.example/ and", [("https://b.example/", "https://b.example/", "B")]),
        (
            "(https://wiki.example/Foo_(bar))",
            [("https://wiki.example/Foo_(bar)", "https://wiki.example/Foo_(bar)", "https://wiki.example/Foo_(bar)")],
        ),
        (
            "\U0001f600 \u5929\u6c17 \u2014 https://a.example/x\u3002",
            [("https://a.example/x", "https://a.example/x", "X")],
        ),
        ("https://a.example/x, https://a.example/x", [("https://a.example/x", "https://a.example/x", "X")] * 2),
        ("https://a.example/x,https://a.example/x", [("https://a.example/x", "https://a.example/x", "X")] * 2),
        ("[1](https://a.example/x)[2](https://a.example/x)", [("https://a.example/x", "https://a.example/x", "X")] * 2),
        (
            "\u898bhttps://a.example/x\u3001https://a.example/x",
            [("https://a.example/x", "https://a.example/x", "X")] * 2,
        ),
    ],
)
def test_a_url_that_a_tool_returned_is_cited_where_it_stands(text, found):
    assert cited(text) == found


@pytest.mark.parametrize(
    ("source", "written"),
    [
        ("https://zh.wikipedia.org/wiki/%E4%B8%AD%E5%9B%BD", "https://zh.wikipedia.org/wiki/中国"),
        ("https://zh.wikipedia.org/wiki/%e4%b8%ad%e5%9b%bd", "https://zh.wikipedia.org/wiki/%E4%B8%AD%e5%9b%bd"),
        ("https://xn--tda.example/%C3%A9?q=%C3%A4+b#%C3%B6", "https://ü.example/é?q=ä+b#ö"),
        ("https://xn--tda.example:8080/", "https://ü.example:8080"),
        ("https://a.example?q=%C3%A4", "https://a.example?q=ä"),
        ("https://upper.example/Path", "HTTPS://Upper.Example/Path"),
        ("HTTPS://Upper.example/Path", "https://upper.example/Path"),
    ],
)
def test_a_url_may_be_written_as_browsers_show_it_or_in_capitals(source, written):
    text = f"\U0001f600 See {written}\u3002 And ({written})."
    assert cited(text, {source: "Title"}) == [(written, source, "Title")] * 2


@pytest.mark.parametrize(
    ("source", "written"),
    [
        ("https://upper.example/Path", "https://upper.example/path"),
        ("https://a.example/%E4%B8%AD", "https://a.example/中国"),
        ("https://a.example/a%2Fb", "https://a.example/a/b"),
        ("https://a.example/%FF", "https://a.example/\u00ff"),
        ("https://xn--a.example/%C3%A9", "https://xn--a.example/é"),
    ],
)
def test_a_url_of_another_page_is_not_the_readable_form_of_one(source, written):
    assert cited(written, {source: "Title"}) == []


def test_of_two_pages_the_one_whose_url_is_written_is_cited():
    sources = {"https://a.example/%C3%A9": "Encoded", "https://a.example/é": "Plain"}
    assert [title for _, _, title in cited("https://a.example/é https://a.example/%C3%A9", sources)] == [
        "Plain",
        "Encoded",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "https://a.example/xyz",
        "https://a.example/x/other",
        "https://a.example/x.html",
        "https://b.example.evil.example/",
        "https://b.example:8080/",
        "https://c.example/",
        "https://c.example/?next=https://a.example/x",
        "a.example/x",
        "none",
    ],
)
def test_any_other_url_is_not(text):
    assert cited(text) == []


def test_without_sources_nothing_is_cited():
    assert annotations("https://a.example/x", {}) == []


def test_the_shape_is_openais():
    (one,) = annotations("https://b.example/", SOURCES)
    assert one == {
        "type": "url_citation",
        "url_citation": {"start_index": 0, "end_index": 18, "title": "B", "url": "https://b.example/"},
    }


pages = st.sampled_from(
    ["https://a.example/", "https://a.example/x", "http://b.example", "https://a.example/x?y=1", "HTTPS://c"]
)


@given(st.lists(st.text(" .,)x/🚢\n", max_size=5) | pages), st.sets(pages))
def test_a_citation_is_where_it_says_and_of_a_page_that_was_found(pieces, found):
    text, before = "".join([*pieces, *(f" {page} " for page in found)]), 0
    spans = [cited["url_citation"] for cited in annotations(text, dict.fromkeys(found, "A title"))]
    assert {span["url"] for span in spans} == found
    for span in spans:
        assert text[span["start_index"] : span["end_index"]].rstrip("/") == span["url"].rstrip("/")
        assert before <= span["start_index"] < span["end_index"]
        before = span["end_index"]


# -- gpt-oss's marks --

PAGES = {0: "https://zero.example/", 1: "https://one.example/"}


def cite(number, line):
    return PAGES.get(number)


@pytest.mark.parametrize(
    ("text", "shown", "found"),
    [
        ("Blue【0†L1-L3】.", "Blue.", [(4, PAGES[0])]),
        ("Blue【0†L1】【1†source】.", "Blue.", [(4, PAGES[0]), (4, PAGES[1])]),
        ("【1†L5】 Blue【7†L12】", " Blue", [(0, PAGES[1])]),
        ("Blue【0†title†a.example】", "Blue", [(4, PAGES[0])]),
        (
            "【0】 【a†L1】 【0†L1\n】 【0†【】】 【天气】 【4:0†source】",
            "【0】 【a†L1】 【0†L1\n】 【0†【】】 【天气】 【4:0†source】",
            [],
        ),
        (f"【0†{'x' * 101}】", f"【0†{'x' * 101}】", []),
        ("Blue【0†L", "Blue【0†L", []),
    ],
)
def test_marks_are_taken_out_and_the_pages_that_they_mean_are_cited(text, shown, found):
    assert without_marks(text, cite) == (shown, found)


def test_marks_that_nobody_can_read_stay():
    assert without_marks("Blue【0†L1】", None) == ("Blue【0†L1】", [])


@given(
    st.lists(
        st.sampled_from(
            ["a ", "【", "0†L1-L3】", "【1†source】", "】", "【7†", "†", "L", "12", "\n", "【0†" + "x" * 99]
        )
    ),
    st.data(),
)
def test_however_a_text_with_marks_is_cut_it_is_read_alike(pieces, data):
    text = "".join(pieces)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    marks, shown, found = MarkFilter(cite), "", []
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        more, cited = marks.feed(text[start:end])
        found += [(len(shown) + at, url) for at, url in cited]
        shown += more
    assert (shown + marks.buffer, found) == without_marks(text, cite)


def test_what_is_too_long_for_a_mark_is_not_held_back():
    assert MarkFilter(cite).feed("Blue【0†" + "x" * 200) == ("Blue【0†" + "x" * 200, [])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("The sky is blue【0†L1】.", ["The sky is blue"]),
        ("The sky is blue.【0†L1】 So is the sea.【1†L2】", ["The sky is blue.", "So is the sea."]),
        ("It rains. The sky is grey【0†L1】, the sea【1†L1】 too.", ["The sky is grey", ", the sea"]),
        ("- one\n- two 【0†L1】\n- three", ["- two"]),
        ("It is v1.2 now【0†L1】【0†L9】【1†L1】.", ["It is v1.2 now"] * 2),
        ("天空是蓝的。海也是。【0†L1】", ["海也是。"]),
        ("【0†L1】Blue", []),
        ("x" * 3000 + "【0†L1】", ["x" * 1000]),
        ("Blue【7†L1】", []),
    ],
)
def test_a_mark_cites_the_sentence_before_it(text, said):
    shown, citations = without_marks(text, cite)
    spans = [one["url_citation"] for one in annotations(shown, {PAGES[0]: "Zero"}, citations)]
    assert [shown[span["start_index"] : span["end_index"]] for span in spans] == said
    assert all(span["title"] == ("Zero" if span["url"] == PAGES[0] else PAGES[1]) for span in spans)


def test_marks_and_urls_are_cited_in_the_order_of_the_text():
    shown, citations = without_marks("See https://b.example/ first. Then blue【0†L1】.", cite)
    assert [one["url_citation"]["start_index"] for one in annotations(shown, SOURCES, citations)] == [4, 30]


def test_citations_move_with_a_text_that_loses_its_beginning():
    assert moved_back([(1, "a"), (5, "b")], 2) == [(0, "a"), (3, "b")]


def test_an_upstreams_annotations_stand_before_ours_and_none_twice():
    assert joined_annotations([{"a": 1}], [{"a": 1}, {"b": 2}]) == [{"a": 1}, {"b": 2}]
    assert joined_annotations("none", [{"b": 2}]) == [{"b": 2}]
