import pytest

from proxy.loop.details import ThoughtsInDetails, count_indices, shifted


@pytest.mark.parametrize(
    ("details", "shown"),
    [
        ([{"index": 0, "data": "x"}, {"index": 1}], [{"index": 3, "data": "x"}, {"index": 4}]),
        ([{"data": "x"}, "odd", {"index": None}], [{"data": "x"}, "odd", {"index": None}]),
        ("odd", "odd"),
        (None, None),
    ],
)
def test_entries_of_a_later_turn_have_indices_of_their_own(details, shown):
    assert shifted(details, 3) == shown


def test_those_of_the_first_turn_stay_as_they_are():
    details = [{"index": 0}]
    assert shifted(details, 0) is details


@pytest.mark.parametrize(
    ("message", "count"),
    [
        ({}, 0),
        ({"reasoning_details": "odd"}, 0),
        ({"reasoning_details": []}, 0),
        ({"reasoning_details": [{"index": 0}, {"index": 2}, {"index": 0}]}, 3),
        ({"reasoning_details": [{"data": "x"}]}, 0),
    ],
)
def test_a_message_takes_as_many_indices_as_it_counts_to(message, count):
    assert count_indices(message) == count


def test_entries_say_no_more_of_the_thoughts_than_is_shown_of_them():
    details = ThoughtsInDetails()
    sealed = {"type": "reasoning.encrypted", "data": "x", "index": 1}
    entry = {"type": "reasoning.text", "text": "I call <", "index": 0}
    assert details.kept_back("x") == []
    assert details.showing([entry, sealed, "odd"], "I call <", "I call ") == [
        {**entry, "text": "I call "},
        sealed,
        "odd",
    ]
    assert details.showing([{**entry, "text": "tool"}], "tool", "") == []
    assert details.kept_back("<tool") == [{**entry, "text": "<tool"}]


@pytest.mark.parametrize(("details", "said"), [("odd", "x"), ([{"text": ""}], "")])
def test_entries_that_repeat_nothing_stay_as_they_are(details, said):
    assert ThoughtsInDetails().showing(details, said, "") == details
