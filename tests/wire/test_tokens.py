"""The estimate of tokens beside what GLM itself has counted."""

import orjson
import pytest

from proxy.wire.tokens import CountedMessage, count_tokens, has_all_counts, tokens_in_text, tokens_of, with_estimates
from tests.conformance import recordings

USER = {"role": "user", "content": "What will the weather in Nanaimo be like for the next three days?"}


@pytest.mark.skipif(not recordings.FOLDER.is_dir(), reason="no recordings beside the project")
def test_the_estimate_is_near_glms_own_count():
    off = [
        count_tokens(exchange.request) / exchange.usage["prompt_tokens"] - 1
        for name in recordings.names("glm*")
        for exchange in recordings.load(name)
        if exchange.is_good and b"prompt_tokens" in exchange.body and exchange.usage["prompt_tokens"] > 100
    ]
    assert len(off) > 5
    assert max(map(abs, off)) < 0.1


def test_an_estimate_grows_with_its_text_whatever_it_is_written_in():
    for text in ("word ", "слово ", "字", "{}", "1", "line\n", "  indented"):
        assert 0 < tokens_in_text(text * 10) < tokens_in_text(text * 500)


def test_a_text_that_comes_again_is_counted_alike():
    long = orjson.dumps({"text": "words and words " * 100}).decode()
    assert tokens_in_text(long) == tokens_in_text(f"{long} ".strip())


def test_a_message_that_comes_again_keeps_its_estimate():
    call = {"id": "call_1", "type": "function", "function": {"name": "search", "arguments": '{"query": "Nanaimo"}'}}
    plain = {"role": "assistant", "content": "I will look that up.", "tool_calls": [call]}
    message = CountedMessage(plain)
    assert (tokens_of(message), message.tokens, orjson.dumps(message)) == (
        tokens_of(plain),
        tokens_of(plain),
        orjson.dumps(plain),
    )
    assert tokens_of(message) == tokens_of(plain)


def test_the_settings_that_become_a_sentence_for_the_model_are_counted():
    assert count_tokens({"messages": [USER], "reasoning_effort": "high"}) > count_tokens({"messages": [USER]})


def test_a_tool_counts_its_text_and_the_first_one_what_explains_tools_to_the_model():
    tool = {"type": "function", "function": {"name": "weather", "description": "The weather of a city."}}
    none, one, two = (count_tokens({"messages": [USER], "tools": [tool] * number}) for number in range(3))
    assert 0 < two - one < one - none


DEEP = "[" * 300 + "]" * 300  # which orjson reads and does not write


@pytest.mark.parametrize("arguments", ['{"city": "Nanaimo", "days": 3}', '{"city": "Nana', "[]", ""])
def test_the_arguments_of_a_call_are_counted_whatever_they_are(arguments):
    function = {"name": "weather", "arguments": arguments}
    call = {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]}
    added = count_tokens({"messages": [USER, call]}) - count_tokens({"messages": [USER]})
    assert 5 < added < 40


def test_arguments_that_are_nested_too_deep_are_counted_as_they_are_written():
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": f'{{"a": {DEEP}}}'}}]}
    assert tokens_of(call) > tokens_in_text(DEEP)


def test_a_call_that_was_ended_early_has_the_usage_of_what_was_asked_and_written():
    asked = {"messages": [USER]}
    wrote = {"role": "assistant", "content": "Hello there"}
    usage = with_estimates(None, lambda: count_tokens(asked), lambda: tokens_of(wrote))
    assert usage["prompt_tokens"] == count_tokens(asked)
    assert 0 < usage["completion_tokens"] < usage["prompt_tokens"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_a_picture_costs_as_much_as_a_long_text():
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    with_picture = {"role": "user", "content": [{"type": "text", "text": USER["content"]}, picture]}
    assert count_tokens({"messages": [with_picture]}) - count_tokens({"messages": [USER]}) == 1000


def test_a_very_long_text_of_which_only_parts_are_counted_has_as_many_tokens():
    line = "word, number 7\n"
    assert tokens_in_text(line * 500_000) == pytest.approx(tokens_in_text(line) * 500_000, rel=0.01)


def test_parts_of_a_content_that_are_no_objects_count_nothing():
    assert tokens_of({"content": [[], "x", None]}) == tokens_of({"content": []})


def test_a_usage_of_all_three_counts_has_all_counts():
    assert has_all_counts({"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2})
    assert not has_all_counts({"prompt_tokens": 1})
    assert not has_all_counts(None)
