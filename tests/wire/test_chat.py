import pytest

from proxy.wire.chat import (
    Turn,
    calls_of,
    in_plain_text,
    inferred_reason,
    name_of,
    parts_beside_text,
    text_of,
    thoughts_of,
)
from tests.playbook import call


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


def test_long_arguments_are_compared_as_they_are_written():
    text = f'{{"a":"{"x" * 70_000}"}}'
    assert call(arguments=text).fingerprint == ("web_search", text)
