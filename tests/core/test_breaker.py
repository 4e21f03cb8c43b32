"""A breaker, told the time."""

from hypothesis import given
from hypothesis import strategies as st

from proxy.core.breaker import Breaker, State


def opened(*, at=0.0):
    breaker = Breaker(threshold=2, seconds=10)
    breaker.failed(at)
    breaker.failed(at)
    return breaker


def test_it_opens_after_so_many_failures_in_a_row():
    breaker = Breaker(threshold=3, seconds=10)
    breaker.failed(1)
    breaker.failed(2)
    assert (breaker.state, breaker.allows(2)) == (State.CLOSED, True)
    breaker.failed(3)
    assert (breaker.state, breaker.allows(3), breaker.wait(3)) == (State.OPEN, False, 10)
    assert (breaker.allows(12.9), round(breaker.wait(12.9), 6)) == (False, 0.1)


def test_a_success_between_two_failures_begins_the_count_anew():
    breaker = Breaker(threshold=2, seconds=10)
    for _ in range(5):
        breaker.failed(0)
        breaker.succeeded()
    assert (breaker.state, breaker.wait(0)) == (State.CLOSED, 0)


def test_when_its_time_is_over_one_call_probes_and_no_other():
    breaker = opened()
    assert breaker.wait(10) == 0
    assert [breaker.allows(10) for _ in range(3)] == [True, False, False]
    assert (breaker.state, breaker.wait(11)) == (State.HALF_OPEN, 9)


def test_a_probe_that_succeeds_closes_it_and_the_count_begins_anew():
    breaker = opened()
    assert breaker.allows(10)
    breaker.succeeded()
    breaker.failed(11)
    assert all(breaker.allows(11) for _ in range(3))


def test_a_probe_that_fails_opens_it_for_another_while():
    breaker = opened()
    assert breaker.allows(10)
    breaker.failed(15)
    assert (breaker.state, breaker.allows(24.9), breaker.allows(25)) == (State.OPEN, False, True)


def test_a_probe_of_which_nothing_is_heard_is_followed_by_another():
    breaker = opened()
    assert (breaker.allows(10), breaker.allows(19.9), breaker.allows(20)) == (True, False, True)


def test_what_began_before_it_opened_and_fails_later_does_not_prolong_it():
    breaker = opened()
    breaker.failed(9)
    assert breaker.allows(10)


def test_what_began_before_it_opened_and_succeeds_later_closes_it():
    breaker = opened()
    breaker.succeeded()
    assert breaker.allows(1)


@given(st.lists(st.tuples(st.sampled_from(["ask", "fine", "bad"]), st.integers(0, 30))))
def test_it_never_stays_shut_for_longer_than_its_seconds(steps):
    breaker, now = Breaker(threshold=2, seconds=10), 0
    for what, passed in steps:
        now += passed
        if what == "ask":
            breaker.allows(now)
        elif what == "fine":
            breaker.succeeded()
        else:
            breaker.failed(now)
        assert 0 <= breaker.wait(now) <= 10
    assert breaker.allows(now + 10)
