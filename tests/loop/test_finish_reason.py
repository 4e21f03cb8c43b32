import pytest

from proxy.loop.finish_reason import inferred_reason


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
