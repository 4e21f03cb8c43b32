import orjson
import pytest

from proxy.loop.actions import Tally, add_usage, sum_of
from proxy.loop.chat import (
    Turn,
    calls_of,
    in_plain_text,
    inferred_reason,
    name_of,
    parts_beside_text,
    text_of,
    thoughts_of,
)
from proxy.loop.limits import Limits
from proxy.upstreams.router import carries_image
from tests.playbook import call


def test_the_sum_of_usage_holds_details_and_fields_of_one_side_only():
    left = {"total_tokens": 3, "prompt_tokens_details": {"cached_tokens": 1}, "note": "a"}
    right = {
        "total_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 2, "audio_tokens": 0},
        "cost": 0.5,
        "note": "b",
    }
    assert add_usage(left, right) == {
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 3, "audio_tokens": 0},
        "note": "a",
        "cost": 0.5,
    }


@pytest.mark.parametrize(
    ("left", "right", "total"), [(None, None, None), ({"a": 1}, None, {"a": 1}), (None, {"a": 1}, {"a": 1})]
)
def test_an_upstream_that_does_not_count_adds_nothing(left, right, total):
    assert add_usage(left, right) == total


def test_a_price_is_added_up_like_a_count():
    assert add_usage({"cost": 0.5, "details": {"cost": 0.5}}, {"cost": 1, "details": {"cost": 0.25}}) == {
        "cost": 1.5,
        "details": {"cost": 0.75},
    }


def test_details_that_only_the_second_turn_has_are_kept():
    assert add_usage({"details": None}, {"details": {"x": 1}}) == {"details": {"x": 1}}


def test_calls_for_the_same_thing_have_the_same_fingerprint():
    assert call(arguments='{"a":1,"b":2}').fingerprint == call(arguments='{ "b": 2, "a": 1 }').fingerprint
    assert call(arguments="{broken").fingerprint != call(arguments="{other").fingerprint
    assert len({call(arguments=none).fingerprint for none in ("", " ", "null", "{}")}) == 1


def test_only_functions_are_calls():
    message = {"tool_calls": [{"type": "mcp", "mcp": {}}, {"id": None, "function": None}]}
    assert [(one.id, one.name, one.arguments) for one in calls_of(message)] == [("", "", "")]
    assert calls_of({"tool_calls": None}) == ()


def test_the_name_of_a_tool():
    assert name_of({"function": {"name": "x"}}) == "x"
    assert name_of({"type": "custom", "custom": {"name": "y"}}) == "y"
    assert name_of({"type": "web_search"}) is None
    assert name_of({"type": "function", "function": {"name": 7}}) is None


def test_content_that_is_no_text_says_nothing():
    assert Turn({"content": [{"type": "text"}]}, "stop").text == ""


def test_usage_is_complete_even_if_no_upstream_counted():
    assert Tally(turns=1).as_usage() == {
        "prompt_tokens": 0,
        "completion_tokens": 0,
        "total_tokens": 0,
        "server_tool_use": {"turns": 1, "tool_calls": 0, "web_search_requests": 0},
    }


@pytest.mark.parametrize(("turns", "calls", "possible"), [(5, 8, True), (1, 8, False), (5, 0, False)])
def test_whether_there_can_be_tools_at_all(turns, calls, possible):
    assert Limits(max_turns=turns, max_tool_calls=calls).allow_tools is possible


IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


@pytest.mark.parametrize(
    ("messages", "carries"),
    [
        ([{"role": "user", "content": [{"type": "text"}, IMAGE]}], True),
        ([{"role": "user", "content": [IMAGE]}, {"role": "assistant", "content": "A cat."}], True),
        ([{"role": "user", "content": [IMAGE]}, {"role": "user", "content": "And now?"}], False),
        ([{"role": "system", "content": [IMAGE]}], False),
    ],
)
def test_whether_the_last_question_carries_an_image(messages, carries):
    assert carries_image(messages) is carries


def test_counts_are_added_down_to_their_details_and_no_deeper():
    deep = orjson.loads(b'{"a":' * 1000 + b"1" + b"}" * 1000)
    one = {"total_tokens": 1, "details": {"cached": 2}, "odd": deep}
    assert add_usage(one, one) == {"total_tokens": 2, "details": {"cached": 4}, "odd": deep}


def test_what_several_runs_have_used_is_summed():
    one = Tally(2, {"web_search": 1}, 1, {"total_tokens": 5})
    other = Tally(3, {"web_search": 2, "current_time": 1}, 3, {"total_tokens": 7})
    assert sum_of([Tally(cost=0.5), Tally(), Tally(cost=0.25)]).as_usage()["cost"] == 0.75
    assert sum_of([one, other, Tally()]) == Tally(5, {"web_search": 3, "current_time": 1}, 4, {"total_tokens": 12})
    assert sum_of([one]) == one


THINKING = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}, {"type": "text", "text": ", yes"}]}
MORE = {"type": "thinking", "thinking": [{"type": "text", "text": "."}], "closed": True}
PICTURE = {"type": "image_url", "image_url": {"url": "https://a.example/"}}
PARTS = [THINKING, MORE, {"type": "text", "text": "1"}, "odd", PICTURE, {"type": "text", "text": "44"}]


def test_text_parts_are_joined_as_they_are():
    assert text_of({"content": PARTS}) == "144"


@pytest.mark.parametrize("thought", ["Hm, yes", THINKING["thinking"]])
def test_thoughts_are_parts_of_their_own_kind(thought):
    assert thoughts_of([{"type": "thinking", "thinking": thought}, {"type": "thinking"}, PICTURE]) == "Hm, yes"


def test_thoughts_that_were_streamed_in_pieces_are_one_part():
    whole = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm, yes."}], "closed": True}
    assert parts_beside_text(PARTS) == [whole, PICTURE]


def test_a_message_in_parts_is_told_in_plain_text():
    assert in_plain_text({"role": "assistant", "content": PARTS}) == {
        "role": "assistant",
        "content": "144",
        "reasoning_content": "Hm, yes.",
    }
    assert in_plain_text({"content": [PARTS[2]]}) == {"content": "1"}
    plain = {"content": "1"}
    assert in_plain_text(plain) is plain


# -- why a model stopped --


def entry(arguments):
    return {"type": "function", "function": {"name": "a", "arguments": arguments}}


CUSTOM = {"type": "custom", "custom": {"name": "a", "input": "raw"}}
SPENT = {"completion_tokens": 100}


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"content": "Hello"}, "stop"),
        ({"content": [{"type": "text", "text": "Hello"}]}, "stop"),
        ({"content": None, "refusal": "No."}, "stop"),
        ({"content": "", "tool_calls": [entry("{}"), entry("")]}, "tool_calls"),
        ({"content": "I look.", "tool_calls": [entry('{"a": 1}')]}, "tool_calls"),
        ({"tool_calls": [CUSTOM]}, "tool_calls"),
        ({"tool_calls": [entry('{"a": 1}'), entry('{"a"')]}, None),
        ({"function_call": {"name": "a", "arguments": "{}"}}, "function_call"),
        ({"content": "Hello", "function_call": {"name": "", "arguments": ""}, "tool_calls": None}, "stop"),
        ({"content": "", "reasoning": "Hm"}, None),
        ({}, None),
    ],
)
def test_the_end_of_an_answer_is_read_off_what_is_whole_in_it(message, reason):
    assert inferred_reason(message, {}, None) == reason


@pytest.mark.parametrize(
    ("message", "request_", "usage", "reason"),
    [
        ({"content": "Once"}, {"max_tokens": 100}, SPENT, "length"),
        ({"content": "Once"}, {"max_completion_tokens": 99}, SPENT, "length"),
        ({"content": "Once"}, {"max_tokens": 200, "max_completion_tokens": 100}, SPENT, "length"),
        ({"content": "", "reasoning": "Hm"}, {"max_tokens": 100}, SPENT, "length"),
        ({"tool_calls": [entry('{"a"')]}, {"max_tokens": 100}, SPENT, "length"),
        ({"tool_calls": [entry('{"a":1}')]}, {"max_tokens": 100}, SPENT, "tool_calls"),
        ({"content": "Once"}, {"max_tokens": 101}, SPENT, "stop"),
        ({"content": "Once"}, {"max_tokens": "100"}, SPENT, "stop"),
        ({"content": "Once"}, {"max_tokens": 100}, None, "stop"),
        ({"content": "Once"}, {"max_tokens": 100}, {"completion_tokens": None}, "stop"),
        ({"content": "Once"}, {}, SPENT, "stop"),
    ],
)
def test_an_answer_that_has_used_up_max_tokens_was_cut_off(message, request_, usage, reason):
    assert inferred_reason(message, request_, usage) == reason
