import pytest

from proxy.turn.details import FoldedDetails, count_indices, shifted


def test_the_pieces_of_reasoning_details_are_folded_as_a_whole_answer_has_them():
    folded = FoldedDetails()
    thought = {"type": "reasoning.text", "index": 0, "format": "f"}
    folded.add([{**thought, "text": "I "}])
    folded.add([{**thought, "text": "need."}, "odd"])
    folded.add([{**thought, "text": "", "signature": "sig", "format": None}])
    sealed = {"type": "reasoning.encrypted", "id": "call_1", "data": "x", "index": 0}
    for one in (sealed, {**sealed, "id": "call_2"}, {**sealed, "id": "call_2"}, {"data": "y"}, {"data": "y"}):
        folded.add([one])
    assert folded.whole() == [
        {**thought, "text": "I need.", "signature": "sig"},
        "odd",
        sealed,
        {**sealed, "id": "call_2"},
        {"data": "y"},
        {"data": "y"},
    ]


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
