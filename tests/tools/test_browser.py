"""gpt-oss's browser, in dialogues: what it calls, what is run, and what it is told."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from proxy.loop.results import InvalidArguments, ToolResult
from proxy.tools.browser import NAMES, PARAMETERS, Browser
from proxy.wire.chat import ToolSpec
from tests import hostile
from tests.playbook import SEARCH, Playbook, asks, call, calls, responds, run_of, says

READER = ToolSpec(
    name="fetch_page",
    description="Reads a page.",
    parameters={"type": "object", "properties": {"url": {"type": "string"}}, "required": ["url"]},
    aliases=("browser.open", "browser.find"),
    alias_parameters=PARAMETERS,
)
TOOLS = dict.fromkeys(READER.names, READER)
FOUND = ToolResult("found", sources={"https://zero.example/": "Zero", "https://one.example/": "One"})
NEWS = ToolResult("found", sources={"https://news.example/": "News"})
PAGE = ToolResult("page")


def browser(**limits):
    return Playbook(run_of(tools=(SEARCH, READER), dialect=Browser(TOOLS), max_turns=20, max_tool_calls=20, **limits))


def runs(name, **arguments):
    def check(action):
        assert [(one.name, orjson.loads(one.arguments)) for one in action.calls] == [(name, arguments)]

    return check


def opens(url, **more):
    return runs("fetch_page", url=url, **more)


def told(playbook):
    return playbook.pending.body["messages"][-1]["content"]


def searched():
    return (
        browser()
        << asks()
        >> calls(call("browser.search", '{"query":"x","topn":2}'))
        << runs("web_search", query="x", topn=2)
        >> [FOUND]
        << asks()
    )


def test_a_search_by_the_models_own_name_tells_the_ids_of_its_links():
    assert told(searched()).endswith(
        "(Links for browser.open, cursor 0:\n0: https://zero.example/\n1: https://one.example/)"
    )


@pytest.mark.parametrize(
    ("arguments", "url", "more"),
    [
        ({"id": 0}, "https://zero.example/", {}),
        ({"id": 1, "cursor": 0}, "https://one.example/", {}),
        ({"id": "1", "cursor": -1}, "https://one.example/", {}),
        ({"id": 1, "cursor": 7}, "https://one.example/", {}),
        ({"id": 1, "loc": 40, "num_lines": 5}, "https://one.example/", {"line": 40}),
        ({"id": "https://other.example/"}, "https://other.example/", {}),
        ({"id": "--1"}, "--1", {}),
        ({"id": "9" * 5000}, "9" * 5000, {}),
    ],
)
def test_a_link_is_opened_by_its_id_or_a_page_by_its_url(arguments, url, more):
    step = searched() >> calls(call("browser.open", orjson.dumps(arguments).decode())) << opens(url, **more)
    step >> [PAGE] << asks()
    assert told(step) == "page\n\n(This page has cursor 1.)"


def test_a_cursor_chooses_among_the_searches_and_the_last_is_meant_without_one():
    step = (
        searched()
        >> calls(call("web_search", '{"query":"news"}'))
        << runs("web_search", query="news")
        >> [NEWS]
        << asks()
    )
    step >> calls(call("browser.open", '{"id":0}')) << opens("https://news.example/") >> [PAGE] << asks()
    step >> calls(call("browser.open", '{"id":0,"cursor":0}')) << opens("https://zero.example/")


def test_something_is_found_in_the_page_that_was_opened_last():
    step = searched() >> calls(call("browser.open", '{"id":0}')) << opens("https://zero.example/") >> [PAGE] << asks()
    (
        step
        >> calls(call("browser.find", '{"pattern":"ferry"}'))
        << opens("https://zero.example/", find="ferry")
        >> [PAGE]
        << asks()
    )
    step >> calls(call("browser.open", '{"id":1}')) << opens("https://one.example/") >> [PAGE] << asks()
    (
        step
        >> calls(call("browser.find", '{"pattern":"x"}'))
        << opens("https://one.example/", find="x")
        >> [PAGE]
        << asks()
    )
    step >> calls(call("browser.find", '{"pattern":"y","cursor":1}')) << opens("https://zero.example/", find="y")


def test_an_open_without_an_id_is_the_last_page_again():
    step = searched() >> calls(call("browser.open", '{"id":0}')) << opens("https://zero.example/") >> [PAGE] << asks()
    step >> calls(call("browser.open", '{"loc":80}')) << opens("https://zero.example/", line=80)


@pytest.mark.parametrize(
    ("name", "arguments", "why"),
    [
        ("browser.open", '{"id":2}', "links 0 to 1"),
        ("browser.find", '{"pattern":"x"}', "No page has been opened"),
        ("browser.open", "{}", "No page has been opened"),
        ("browser.open", "", "No page has been opened"),
        ("browser.open", "null", "No page has been opened"),
        ("browser.open", "[1]", "one JSON object"),
        ("browser.open", "{", "not valid JSON"),
    ],
)
def test_what_cannot_be_opened_is_told_and_nothing_is_run(name, arguments, why):
    step = searched() >> calls(call(name, arguments)) << asks()
    assert why in told(step)


def test_before_a_search_there_are_no_links():
    step = browser() << asks() >> calls(call("browser.open", '{"id":0}')) << asks()
    assert "no search yet" in told(step)


def test_a_page_that_could_not_be_read_is_none():
    step = searched() >> calls(call("browser.open", '{"id":0}')) << opens("https://zero.example/")
    (
        step
        >> [ToolResult('{"error":"404"}', failed=True)]
        << asks()
        >> calls(call("browser.find", '{"pattern":"x"}'))
        << asks()
    )
    assert "No page has been opened" in told(step)


def test_a_page_read_by_arguments_that_had_to_be_repaired_is_the_page_that_was_found():
    step = browser() << asks() >> calls(call("fetch_page", '{"url":"https://a.example/"'))
    step >> [ToolResult("page", sources={"https://a.example/": "A"})] << asks()
    step >> calls(call("browser.find", '{"pattern":"x"}')) << opens("https://a.example/", find="x")


def test_a_page_without_a_url_is_none_either():
    step = browser() << asks() >> calls(call("fetch_page", '{"url":1}')) << runs("fetch_page", url=1) >> [PAGE]
    step << asks() >> calls(call("browser.find", '{"pattern":"x"}')) << asks()
    assert "No page has been opened" in told(step)


def test_a_link_that_does_not_exist_yet_is_not_opened_early():
    run = run_of(tools=(SEARCH, READER), dialect=Browser(TOOLS))
    assert run.would_run(call("browser.open", '{"id":0}')) is None
    assert run.would_run(call("browser.open", '{"id":"https://a.example/"}')) is not None


def test_arguments_that_leaked_into_the_text_are_known_as_the_browsers():
    run = run_of(tools=(SEARCH, READER), dialect=Browser(TOOLS))
    assert run.start_turn().view.tools["browser.open"]["properties"].keys() >= {"id", "cursor"}


def test_without_a_reader_of_pages_nothing_is_said_of_links():
    step = (
        Playbook(run_of(tools=(SEARCH,), dialect=Browser({})))
        << asks()
        >> calls(call("browser.search"))
        << runs("web_search", query="x")
        >> [FOUND]
        << asks()
    )
    assert told(step) == "found"
    step >> says("Done") << responds("Done")


@given(
    st.sampled_from(NAMES),
    hostile.mutated(st.just({"id": 1, "cursor": 0, "loc": 3, "pattern": "x"})),
    st.integers(0, 2),
)
def test_whatever_it_is_asked_it_opens_a_page_or_says_why_not(name, arguments, searches):
    pages = Browser(TOOLS)
    for _ in range(searches):
        pages.annotate(call("web_search"), "browser.search", FOUND)
    asked = call(name, hostile.written(arguments).decode())
    try:
        wanted = pages.translate(asked, name)
    except InvalidArguments:
        return
    assert name == "browser.search" or isinstance(orjson.loads(wanted.arguments)["url"], str)


# -- what its marks mean --

RESULTS = """<tool_result tool="web_search">
Results for "x":

Zero
https://zero.example/
About nothing.

One
https://one.example/
About something.
</tool_result>"""


def pages():
    """A search, the second of its results read, and another search."""
    known = Browser(TOOLS)
    known.annotate(call("web_search"), "web_search", replace(FOUND, content=RESULTS))
    known.annotate(call("fetch_page", '{"url":"https://one.example/"}'), "fetch_page", PAGE)
    known.annotate(call("web_search"), "web_search", NEWS)
    return known


@pytest.mark.parametrize(
    ("number", "line", "url"),
    [
        (0, 0, "https://zero.example/"),
        (0, 3, "https://zero.example/"),
        (0, 5, "https://zero.example/"),
        (0, 7, "https://one.example/"),
        (0, 99999, "https://one.example/"),
        (1, 12, "https://one.example/"),
        (1, None, "https://one.example/"),
        (2, 1, "https://news.example/"),
        (0, None, "https://news.example/"),
        (2, None, None),
        (7, 1, None),
        (7, None, None),
    ],
)
def test_a_mark_means_a_page_by_its_cursor_or_a_link_of_the_last_search(number, line, url):
    assert pages().cite(number, line) == url


def test_before_there_is_a_page_a_mark_means_none():
    assert Browser({}).cite(0, None) is None


def test_marks_are_read_only_by_a_run_with_a_dialect():
    assert run_of().start_turn().view.cite is None
    assert run_of(dialect=Browser({})).start_turn().view.cite(0, 1) is None
