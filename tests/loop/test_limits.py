import math

import pytest

from proxy.loop.actions import Stop
from proxy.loop.limits import Limits


def test_each_layer_replaces_what_it_names_and_the_last_layer_wins():
    limits = Limits(max_turns=5, deadline=100)
    laid = limits.overlaid({"max_turns": 3, "deadline": 50}, None, {"max_turns": 2})
    assert (laid.max_turns, laid.deadline, laid.max_tool_calls) == (2, 50, limits.max_tool_calls)


def test_without_layers_the_limits_are_the_same():
    limits = Limits()
    assert limits.overlaid(None, {}) == limits


def test_a_tool_timeout_of_a_layer_bounds_every_tool():
    assert Limits(tool_timeout=30).max_tool_timeout == math.inf
    assert Limits(tool_timeout=30).overlaid({"tool_timeout": 5}).max_tool_timeout == 5


def test_a_bound_on_tool_calls_lowers_their_limit_and_never_raises_it():
    limits = Limits(max_tool_calls=3)
    bounded = limits.with_calls_at_most(1, Stop.BUDGET)
    assert (bounded.max_tool_calls, bounded.calls_stop) == (1, Stop.BUDGET)
    assert limits.with_calls_at_most(4, Stop.BUDGET) == limits


@pytest.mark.parametrize(("turns", "calls", "possible"), [(5, 8, True), (1, 8, False), (5, 0, False)])
def test_whether_there_can_be_tools_at_all(turns, calls, possible):
    assert Limits(max_turns=turns, max_tool_calls=calls).allow_tools is possible
