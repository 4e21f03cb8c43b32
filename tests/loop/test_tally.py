from proxy.loop.tally import Tally, Use, sum_of
from proxy.wire.usage import MOST_TOKENS, add_usage


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


def test_usage_is_complete_even_if_no_upstream_counted():
    assert Tally(turns=1).as_usage() == {
        "prompt_tokens": 0,
        "completion_tokens": 0,
        "total_tokens": 0,
        "server_tool_use": {"turns": 1, "tool_calls": 0, "web_search_requests": 0},
    }


def test_what_several_runs_have_used_is_summed():
    one = Tally(2, {"web_search": 1}, 1, {"total_tokens": 5})
    other = Tally(3, {"web_search": 2, "current_time": 1}, 3, {"total_tokens": 7})
    assert sum_of([Tally(tool_cost=0.5), Tally(), Tally(tool_cost=0.25)]).as_usage()["cost"] == 0.75
    assert sum_of([one, other, Tally()]) == Tally(5, {"web_search": 3, "current_time": 1}, 4, {"total_tokens": 12})
    assert sum_of([one]) == one


def test_the_use_of_requests_is_summed_up_to_what_every_store_can_hold():
    use = Use(requests=1, input_tokens=MOST_TOKENS, output_tokens=2, cost=0.5)
    use.add(Use(requests=1, input_tokens=1, output_tokens=3, tool_calls=1, cost=0.25))
    assert use == Use(requests=2, input_tokens=MOST_TOKENS, output_tokens=5, tool_calls=1, cost=0.75)
    assert use.tokens == MOST_TOKENS + 5
