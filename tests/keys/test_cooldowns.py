import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.keys.cooldowns import KeyCooldowns, KeyRefusal

HOUR, DAY = 3600.0, 86400.0
NO = ValueError("no")


def lengths(cause, times, seconds=None):
    """The lengths of so many rests in a row, each refused as soon as the one before is over."""
    rests, now, found = KeyCooldowns(), 0.0, []
    for _ in range(times):
        assert rests.refused(KeyRefusal(cause, seconds), NO, began=now, now=now, model="m")
        until = rests.at(now, "m").until
        found.append(until - now)
        now = until
    return found


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        ("refused", [60, 120, 240, 480, 960, 1920, 3600, 3600]),
        ("credit", [600, 1200, 2400, 3600, 3600]),
        ("window", [600, 1200, 2400, 3600]),
        ("rate", [2, 4, 8, 16, 32, 60, 60]),
        ("model", [3600, 3600]),
    ],
)
def test_a_rest_doubles_while_the_key_is_refused(cause, expected):
    assert lengths(cause, len(expected)) == expected


@pytest.mark.parametrize(
    ("cause", "said", "rests"),
    [
        ("rate", 0.5, 0.5),
        ("rate", 30, 30),
        ("rate", 5 * HOUR, 600),
        ("window", -90, 60),
        ("window", 5 * HOUR, 5 * HOUR),
        ("window", 90 * DAY, 31 * DAY),
        ("refused", 5, 60),
        ("credit", 5, 600),
    ],
)
def test_a_time_that_the_provider_names_is_kept_within_bounds(cause, said, rests):
    assert lengths(cause, 2, said)[0] == rests


def test_an_answer_to_a_call_that_began_after_the_rest_ends_its_doubling():
    rests = KeyCooldowns()
    rests.refused(KeyRefusal("rate"), NO, began=0, now=0)
    assert not rests.answered(began=-1), "the call was under way when the rest began"
    assert rests.at(1).until == 2
    assert rests.answered(began=2)
    rests.refused(KeyRefusal("rate"), NO, began=3, now=3)
    assert rests.at(3).until == 5


def test_calls_that_were_under_way_do_not_double_a_rest():
    rests = KeyCooldowns()
    assert rests.refused(KeyRefusal("rate"), NO, began=0, now=1)
    assert not any(rests.refused(KeyRefusal("rate"), NO, began=0.5, now=1 + at / 10) for at in range(9))
    assert rests.at(2).until == 3
    assert not rests.refused(KeyRefusal("rate", 1), NO, began=0, now=1.5), "a shorter time"
    assert rests.refused(KeyRefusal("rate", 9), NO, began=0, now=2), "a longer one"
    assert rests.refused(KeyRefusal("refused"), NO, began=0, now=2), "of another kind"
    assert rests.at(20).cause == "refused"
    assert not rests.refused(KeyRefusal("rate", 9), NO, began=0, now=3)
    assert rests.refused(KeyRefusal("refused"), NO, began=62, now=62)
    assert rests.at(62).until == 62 + 120


def test_a_model_that_the_plan_lacks_rests_alone():
    rests = KeyCooldowns()
    rests.refused(KeyRefusal("model"), NO, began=0, now=0, model="large")
    assert (rests.at(1, "small"), rests.at(1, "large").cause, rests.state(1)) == (None, "model", "usable")
    rests.refused(KeyRefusal("rate"), NO, began=1, now=1, model="small")
    assert (rests.at(1, "small").cause, rests.at(1, "large").cause, rests.state(1)) == ("rate", "model", "rate")
    assert rests.at(HOUR, "large") is None
    rests.answered(began=HOUR, model="large")
    for at in range(1000):
        rests.refused(KeyRefusal("model"), NO, began=HOUR, now=HOUR, model=str(at))
    assert rests.at(HOUR, "0") is None, "strangers may choose the names of models"
    assert rests.at(HOUR, "999").until == 2 * HOUR


CAUSES = st.sampled_from(["refused", "credit", "window", "rate", "model"])
SAID = st.none() | st.floats(-1e6, 1e9)
STEPS = st.lists(st.tuples(st.floats(0, 1e5), CAUSES, SAID, st.floats(0, 1e5)), max_size=30)


@given(STEPS)
def test_a_rest_is_never_longer_than_its_kind_allows_and_late_calls_never_shorten_it(steps):
    longest = {"refused": HOUR, "credit": HOUR, "window": 31 * DAY, "rate": 600, "model": HOUR}
    rests, now = KeyCooldowns(), 0.0
    for seconds, cause, said, ago in steps:
        now += seconds
        before = rests.at(now, "m")
        began = min(now, before.began - 1 if before else now - ago)
        rests.refused(KeyRefusal(cause, said), NO, began=began, now=now, model="m")
        after = rests.at(now, "m")
        if after is not None and after is not before:
            assert 0 < after.until - now <= longest[after.cause] * (1 + 1e-9)
        if before is not None:
            assert after.until >= before.until
