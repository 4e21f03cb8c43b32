"""Waits before another attempt, and a breaker whose tests pass the time."""

from hypothesis import given
from hypothesis import strategies as st

from proxy.kit.breaker import Backoff, Breaker, BreakerState


def opened(*, at=0.0):
    breaker = Breaker(threshold=2, seconds=10)
    breaker.failed(at)
    breaker.failed(at)
    return breaker


def test_it_opens_after_so_many_failures_in_a_row():
    breaker = Breaker(threshold=3, seconds=10)
    breaker.failed(1)
    breaker.failed(2)
    assert (breaker.state, breaker.allows(2)) == (BreakerState.CLOSED, True)
    breaker.failed(3)
    assert (breaker.state, breaker.allows(3), breaker.wait(3)) == (BreakerState.OPEN, False, 10)
    assert (breaker.allows(12.9), round(breaker.wait(12.9), 6)) == (False, 0.1)


def test_a_success_between_two_failures_begins_the_count_anew():
    breaker = Breaker(threshold=2, seconds=10)
    for _ in range(5):
        breaker.failed(0)
        breaker.succeeded()
    assert (breaker.state, breaker.wait(0)) == (BreakerState.CLOSED, 0)


def test_when_its_time_is_over_one_call_probes_and_no_other():
    breaker = opened()
    assert breaker.wait(10) == 0
    assert [breaker.allows(10) for _ in range(3)] == [True, False, False]
    assert (breaker.state, breaker.wait(11)) == (BreakerState.HALF_OPEN, 9)


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
    assert (breaker.state, breaker.allows(24.9), breaker.allows(25)) == (BreakerState.OPEN, False, True)


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


def test_one_that_is_tripped_stays_so_for_as_long_as_the_service_says():
    breaker = Breaker(threshold=2, seconds=10)
    breaker.trip(0, 600)
    breaker.succeeded()  # of a call that began before
    assert (breaker.allows(599), breaker.wait(599)) == (False, 1)
    assert [breaker.allows(600), breaker.allows(600)] == [True, False]
    breaker.succeeded()
    assert breaker.allows(600)


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


# -- whose failures they are --


def told(breaker, *clients, has_fallback=False):
    return [breaker.failed(0, client=client, has_fallback=has_fallback) for client in clients]


def test_one_clients_failures_never_open_it_however_many_they_are():
    breaker = Breaker(threshold=4, seconds=10)
    assert not any(told(breaker, *["one"] * 100))
    assert (breaker.state, breaker.allows(0)) == (BreakerState.CLOSED, True)


def test_no_client_counts_for_more_than_half():
    breaker = Breaker(threshold=4, seconds=10)
    assert told(breaker, "one", "one", "one", "two", "two") == [False, False, False, False, True]
    assert (breaker.allows(0), breaker.allows(0, has_fallback=True)) == (False, False)


def test_as_many_clients_as_it_takes_open_it_together():
    assert told(Breaker(threshold=3, seconds=10), "one", "two", "three") == [False, False, True]
    assert told(Breaker(threshold=2, seconds=10), "one", "one", "two") == [False, False, True]


def test_what_no_request_can_have_caused_counts_in_full():
    assert told(Breaker(threshold=3, seconds=10), None, "one", None) == [False, False, True]
    assert told(Breaker(threshold=1, seconds=10), None) == [True]


def test_where_one_failure_is_enough_it_is_not_enough_that_a_client_causes_it():
    assert told(Breaker(threshold=1, seconds=10), "one", "two", "one") == [False, False, False]


def test_calls_that_have_a_spare_are_kept_out_after_any_failures_in_a_row_and_no_others():
    breaker = Breaker(threshold=3, seconds=10)
    assert told(breaker, "one", "one", "one", has_fallback=True) == [False, False, True]
    assert (breaker.state, breaker.allows(1, has_fallback=True), breaker.allows(1)) == (BreakerState.OPEN, False, True)
    assert breaker.wait(1) == 9


def test_a_client_that_is_named_is_kept_out_by_its_own_failures_alone():
    breaker = Breaker(threshold=3, seconds=10)
    told(breaker, "one", "one", "one", has_fallback=True)
    assert (breaker.allows(1, client="one", has_fallback=True), breaker.allows(1, client="two", has_fallback=True)) == (
        False,
        True,
    )


def test_one_that_is_tripped_is_not_tripped_again_before_a_probe():
    breaker = Breaker(threshold=3, seconds=10)
    assert (breaker.trip(0, 60), breaker.trip(1, 600), breaker.wait(1)) == (True, False, 59)
    assert breaker.allows(60)
    assert breaker.trip(61, 600)


def test_a_call_without_a_spare_that_succeeds_lets_the_others_in_again():
    breaker = Breaker(threshold=3, seconds=10)
    told(breaker, "one", "one", "one", has_fallback=True)
    assert breaker.allows(1)
    assert breaker.succeeded()
    assert breaker.allows(1, has_fallback=True)


def test_one_that_is_open_for_calls_with_a_spare_is_open_for_all_once_clients_agree():
    breaker = Breaker(threshold=2, seconds=10)
    told(breaker, "one", "one", has_fallback=True)
    assert breaker.allows(1)
    told(breaker, "two")
    assert not breaker.allows(1)
    assert breaker.allows(10), "the probe"


def test_failures_of_one_client_wait_for_the_next_that_has_a_spare():
    breaker = Breaker(threshold=3, seconds=10)
    assert told(breaker, "one", "one", "one", "one") == [False] * 4
    assert told(breaker, "one", has_fallback=True) == [True]


def test_a_success_forgets_whose_failures_there_were():
    breaker = Breaker(threshold=2, seconds=10)
    told(breaker, "one")
    breaker.succeeded()
    assert told(breaker, "two") == [False]
    assert told(breaker, "one") == [True]


@given(st.lists(st.booleans(), max_size=30), st.integers(2, 6))
def test_it_keeps_out_a_call_without_a_spare_only_where_clients_agree(spares, threshold):
    breaker = Breaker(threshold=threshold, seconds=10)
    for has_fallback in spares:
        breaker.failed(0, client="one", has_fallback=has_fallback)
    assert breaker.allows(0)
    for _ in range(threshold):
        breaker.failed(0, client="two")
    assert breaker.allows(0) is (len(spares) < threshold // 2)


def test_waits_double_up_to_the_longest_and_are_spread_by_half():
    assert [Backoff(jitter=lambda: 1.0).wait(attempt) for attempt in (0, 1, 2, 3, 4, 5, 9999)] == [
        0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0,
    ]  # fmt: skip
    assert [Backoff(jitter=lambda: 0.0).wait(attempt) for attempt in (0, 1)] == [0.25, 0.5]
