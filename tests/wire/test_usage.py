import math

import orjson
import pytest

from proxy.wire.usage import add_usage, credible, other_usage, token_count


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


def test_counts_are_added_down_to_their_details_and_no_deeper():
    deep = orjson.loads(b'{"a":' * 1000 + b"1" + b"}" * 1000)
    one = {"total_tokens": 1, "details": {"cached": 2}, "odd": deep}
    assert add_usage(one, one) == {"total_tokens": 2, "details": {"cached": 4}, "odd": deep}


@pytest.mark.parametrize(
    ("usage", "path", "count"),
    [
        ({"prompt_tokens": 3}, ("prompt_tokens",), 3),
        ({"prompt_tokens": 0}, ("prompt_tokens",), 0),
        ({"prompt_tokens": 3.0}, ("prompt_tokens",), 3),
        ({"prompt_tokens": -3}, ("prompt_tokens",), None),
        ({"prompt_tokens": 2.5}, ("prompt_tokens",), None),
        ({"prompt_tokens": 1e300}, ("prompt_tokens",), None),
        ({"prompt_tokens": 10**19}, ("prompt_tokens",), None),
        ({"prompt_tokens": math.nan}, ("prompt_tokens",), None),
        ({"prompt_tokens": True}, ("prompt_tokens",), None),
        ({"prompt_tokens": "3"}, ("prompt_tokens",), None),
        ({"prompt_tokens_details": {"cached_tokens": 2}}, ("prompt_tokens_details", "cached_tokens"), 2),
        ({"prompt_tokens_details": 7}, ("prompt_tokens_details", "cached_tokens"), None),
        (None, ("prompt_tokens",), None),
    ],
)
def test_a_count_of_tokens_is_a_whole_number_or_none(usage, path, count):
    assert token_count(usage, *path) == count


def test_numbers_that_cannot_be_true_are_left_out_of_a_usage():
    usage = {
        "prompt_tokens": 1e300,
        "completion_tokens": 12.0,
        "total_tokens": -1,
        "prompt_tokens_details": {"cached_tokens": 10**19, "audio_tokens": 0, "odd": {"tokens": -1}},
        "cost": 1e308,
        "queue_time": 0.25,
        "is_byok": False,
        "note": "a",
    }
    assert credible(usage) == {
        "completion_tokens": 12,
        "prompt_tokens_details": {"audio_tokens": 0, "odd": {"tokens": -1}},
        "queue_time": 0.25,
        "is_byok": False,
        "note": "a",
    }
    assert credible({"total_tokens": -1}) is None


@pytest.mark.parametrize("usage", [None, {}])
def test_a_usage_without_counts_is_none(usage):
    assert credible(usage) is None


def test_a_usage_of_counts_only_is_believed_whole():
    usage = {"total_tokens": 3, "prompt_tokens_details": {"cached_tokens": 1}}
    assert credible(usage) == usage


@pytest.mark.parametrize(
    ("answer", "usage"),
    [
        ({"x_groq": {"usage": {"total_tokens": 3}}}, {"total_tokens": 3}),
        ({"choices": [{"usage": {"total_tokens": 3}}]}, {"total_tokens": 3}),
        ({"x_groq": 1, "choices": [{"usage": 3}]}, None),
        ({"choices": []}, None),
    ],
)
def test_a_usage_is_found_where_groq_and_moonshot_send_it(answer, usage):
    assert other_usage(answer) == usage
