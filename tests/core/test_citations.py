import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.citations import annotations

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
    ],
)
def test_a_url_that_a_tool_returned_is_cited_where_it_stands(text, found):
    assert cited(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "https://a.example/xyz",
        "https://a.example/x/other",
        "https://a.example/x.html",
        "https://b.example.evil.example/",
        "https://b.example:8080/",
        "https://c.example/",
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
    text, before = "".join(pieces), 0
    for cited in annotations(text, dict.fromkeys(found, "A title")):
        span = cited["url_citation"]
        assert span["url"] in found
        assert text[span["start_index"] : span["end_index"]].rstrip("/") == span["url"].rstrip("/")
        assert before <= span["start_index"] < span["end_index"]
        before = span["end_index"]
