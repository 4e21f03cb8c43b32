"""Several queries in one call of a search: each counts, and those beyond a limit are left out."""

import orjson
import pytest
from msgspec.structs import replace

from proxy.loop.actions import Stop
from proxy.wire.search import queries_of, with_queries
from tests.playbook import SEARCH, TIME, Playbook, asks, call, calls, responds, results, run_of, runs, says, told

WEB = replace(SEARCH, searches=True)


def searches(*queries, id="s1", **more):  # noqa: A002
    return call("web_search", orjson.dumps({"queries": queries, **more}).decode(), id)


def play(**limits):
    return Playbook(run_of(tools=[WEB, TIME], **limits))


def sent(playbook):
    return [orjson.loads(one.arguments) for one in playbook.pending.calls]


def use(playbook):
    return playbook.run.tally.as_usage()["server_tool_use"]


@pytest.mark.parametrize(
    ("arguments", "queries", "beyond"),
    [
        ({"query": "a"}, ["a"], []),
        ({"queries": ["a", "b", "a", " "]}, ["a", "b"], []),
        ({"query": "c", "queries": ["a", "b"]}, ["c", "a", "b"], []),
        ({"query": "a", "queries": ["a", "b"]}, ["a", "b"], []),
        ({"query": ["a", "b"]}, ["a", "b"], []),
        ({"queries": list("abcdefg")}, list("abcde"), ["f", "g"]),
        ({"query": "z", "queries": list("abcdef")}, list("zabcde"), ["f"]),
        ({"query": "a", "queries": list("abcdef")}, list("abcde"), ["f"]),
        ({"queries": ["a", 7]}, [], []),
        ({"query": 7, "queries": ["a"]}, [], []),
        ({"queries": 7}, [], []),
        ({}, [], []),
    ],
)
def test_the_queries_of_a_call_each_once_and_those_that_are_too_many(arguments, queries, beyond):
    assert queries_of(arguments) == (queries, beyond)


def test_a_call_with_other_queries_keeps_its_other_arguments():
    assert with_queries({"queries": ["a", "b"], "n": 1}, ["x", "y"]) == {"query": "x", "queries": ["y"], "n": 1}
    assert with_queries({"query": "a", "n": 1}, ["x"]) == {"query": "x", "n": 1}


def test_each_query_counts_as_a_search_and_a_tool_call():
    playing = play() << asks() >> calls(searches("a", "b", "c")) << runs("web_search")
    playing >> results("found") << told("found") >> says("Done") << responds("Done", stop=Stop.ANSWER)
    assert use(playing) == {"web_search": 3, "turns": 2, "tool_calls": 3, "web_search_requests": 3}


@pytest.mark.parametrize(("limits", "tools"), [({"max_tool_calls": 2}, [WEB]), ({}, [replace(WEB, max_calls=2)])])
def test_queries_beyond_a_limit_are_left_out_and_the_result_says_so(limits, tools):
    playing = Playbook(run_of(tools=tools, **limits)) << asks() >> calls(searches("a", "b", "c", "d", num=3))
    assert sent(playing << runs("web_search")) == [{"query": "a", "queries": ["b"], "num": 3}]
    playing >> results("found") << told('found\n\n(Not searched: "c", "d". A call has at most 5 queries')
    assert use(playing)["tool_calls"] == 2


def test_of_more_than_five_queries_the_first_five_are_run():
    playing = play() << asks() >> calls(searches(*"abcdefg")) << runs("web_search")
    assert sent(playing) == [{"query": "a", "queries": ["b", "c", "d", "e"]}]
    playing >> results("found") << told('(Not searched: "f", "g".')


def test_calls_of_a_turn_share_what_is_left():
    both = calls(searches("a", "b"), searches("c", "d", id="s2"), call("current_time", "{}", "t1"))
    playing = play(max_tool_calls=3) << asks() >> both << runs("web_search", "web_search")
    assert [queries_of(one)[0] for one in sent(playing)] == [["a", "b"], ["c"]]
    playing >> results("ab", "c") << told("ab", 'c\n\n(Not searched: "d".', "was not run")


def test_the_same_queries_again_are_a_repetition_even_if_some_were_left_out():
    playing = play(max_tool_calls=9) << asks() >> calls(searches("a", "b")) << runs("web_search") >> results("found")
    playing << asks() >> calls(searches("a", "b")) << told("was made before")


def test_a_list_of_a_tool_that_does_not_search_counts_once():
    tool = replace(TIME, parameters={"type": "object"})
    playing = Playbook(run_of(tools=[tool])) << asks() >> calls(call("current_time", '{"queries":["a","b"]}'))
    playing << runs("current_time") >> results("now") << asks()
    assert use(playing)["tool_calls"] == 1


def test_a_search_that_was_begun_early_and_dropped_counts_each_query():
    run = run_of(tools=[WEB])
    run.count_dropped([(searches("a", "b"), None)])
    assert (run.tally.total_tool_calls, run.tally.calls, run.tally.web_searches) == (2, 0, 2)


def test_a_call_whose_lists_are_no_queries_counts_once():
    playbook = play() << asks() >> calls(call("web_search", '{"domains": ["a.example"]}'))
    assert sent(playbook) == [{"domains": ["a.example"]}]
    playbook = playbook >> results("Found.")
    assert use(playbook)["web_search"] == 1
