from dataclasses import replace

import pytest

from proxy.core.chat import name_of
from proxy.core.offer import freed, make_offer
from tests.playbook import SEARCH, TIME


def function(name):
    return {"type": "function", "function": {"name": name, "description": "the client's own words"}}


def offer(request, *, tools=(SEARCH, TIME)):
    return make_offer(request, tools)


def names(made):
    return [name_of(tool) for tool in made.tools]


@pytest.mark.parametrize("request_", [{}, {"tool_choice": "auto"}, {"tool_choice": None, "tools": None}])
def test_tools_are_added_where_the_choice_is_left_to_the_model(request_):
    made = offer(request_)
    assert made.in_play
    assert names(made) == ["web_search", "current_time"]


@pytest.mark.parametrize(
    "request_",
    [
        {"tool_choice": "none"},
        {"tool_choice": "required", "tools": [function("open_door")]},
        {"tool_choice": {"type": "function", "function": {"name": "open_door"}}, "tools": [function("open_door")]},
        {"n": 2},
        {"functions": [{"name": "legacy"}]},
    ],
)
def test_nothing_is_added_where_it_is_not(request_):
    made = offer(request_)
    assert not made.in_play
    assert list(made.tools) == request_.get("tools", [])


def test_a_tool_that_the_client_declares_keeps_the_clients_words_and_is_not_added_again():
    made = offer({"tools": [function("web_search"), function("open_door")]})
    assert names(made) == ["web_search", "open_door", "current_time"]
    assert made.tools[0]["function"]["description"] == "the client's own words"
    assert made.client_tools == {"open_door"}


def test_a_tool_that_is_declared_under_an_alias_is_run_under_it():
    made = offer({"tools": [function("browser.search")]})
    assert names(made) == ["browser.search", "current_time"]
    assert made.owned["browser.search"] is SEARCH
    assert made.client_tools == frozenset()


def test_a_function_named_like_a_tool_that_the_client_may_not_use_stays_the_clients():
    made = offer({"tools": [function("web_search")]}, tools=[TIME])
    assert made.client_tools == {"web_search"}
    assert "web_search" not in made.owned


def test_a_tool_that_is_never_offered_is_in_play_only_where_the_client_names_it():
    hidden = [replace(SEARCH, offered=False)]
    assert not offer({}, tools=hidden).in_play
    assert offer({"tools": [function("web_search")]}, tools=hidden).in_play


def test_hosted_tools_have_no_name_and_go_on_untouched():
    hosted = {"type": "web_search", "web_search": {"enable": True}}
    made = offer({"tools": [hosted]})
    assert made.tools[0] is hosted
    assert made.without_server_tools() == (hosted,)


ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [function("web_search")]}}


@pytest.mark.parametrize(
    ("choice", "later"),
    [
        ("required", "auto"),
        ("auto", "auto"),
        (None, None),
        (function("web_search"), "auto"),
        (function("open_door"), function("open_door")),
        (ALLOWED, {**ALLOWED, "allowed_tools": {**ALLOWED["allowed_tools"], "mode": "auto"}}),
    ],
)
def test_what_a_choice_becomes_after_the_first_turn(choice, later):
    assert freed(choice, offer({})) == later
