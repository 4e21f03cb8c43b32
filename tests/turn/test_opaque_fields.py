"""The fields of a turn that go back with it."""

import orjson
import pytest

from proxy.turn.opaque_fields import OpaqueFields, carried_by, has_opaque_fields, merge_fields

SIGNED = {"google": {"thought_signature": "s"}}
CALL = {"id": "u1", "index": 0, "type": "function", "function": {"name": "door", "arguments": "{}"}}


def message(*calls, **fields):
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **fields}


def test_unknown_fields_of_a_message_and_its_calls_are_carried_under_the_ids_of_the_history():
    received = message(
        {**CALL, "extra_content": SIGNED},
        {**CALL, "id": "hidden", "extra_content": SIGNED},
        {**CALL, "id": "u3", "function": {**CALL["function"], "provider": 1}},
        reasoning_content="Hm.",
        reasoning_details=[{"data": "x"}],
        annotations=[{}],
        refusal=None,
        other=None,
    )
    carried = carried_by(received, ["c1", None, "c3"])
    assert carried.message == {"reasoning_details": [{"data": "x"}]}
    assert carried.calls == {"c1": {"extra_content": SIGNED}, "c3": {"function": {"provider": 1}}}
    assert OpaqueFields.from_json(orjson.loads(orjson.dumps(carried.as_json()))) == carried
    history = message({**CALL, "id": "c1"}, {**CALL, "id": "c3"}, {**CALL, "id": "another"})
    restored = carried.put_into(history)
    assert restored["reasoning_details"] == [{"data": "x"}]
    assert [call.get("extra_content") for call in restored["tool_calls"]] == [SIGNED, None, None]
    assert restored["tool_calls"][1]["function"] == {**CALL["function"], "provider": 1}


def test_fields_go_into_a_message_without_calls_too():
    assert OpaqueFields({"reasoning_details": [1]}).put_into({"content": "Hi"}) == {
        "content": "Hi",
        "reasoning_details": [1],
    }


@pytest.mark.parametrize(
    ("received", "expected"),
    [
        (message(CALL, reasoning="Hm.", refusal=None, extra=None, empty=[]), False),
        (message(CALL, extra=1), True),
        (message({**CALL, "extra_content": SIGNED}), True),
        (message({**CALL, "extra_content": {}}), False),
        ({"role": "assistant", "content": "Hi"}, False),
    ],
)
def test_a_plain_turn_carries_nothing(received, expected):
    assert has_opaque_fields(received) is expected
    assert bool(carried_by(received, ["c1"])) is expected


def test_fields_that_the_client_has_sent_back_itself_stay_as_they_are():
    carried = OpaqueFields({"reasoning_details": "ours"}, {"c1": {"extra_content": SIGNED}})
    history = message({**CALL, "id": "c1", "extra_content": "theirs"}, reasoning_details="theirs")
    assert carried.put_into(history) == history


@pytest.mark.parametrize("held", [None, 1, {"message": 1}, {"calls": {"c1": 1}}])
def test_carried_fields_of_another_form_are_ignored(held):
    assert OpaqueFields.from_json(held) is None


def test_objects_of_several_pieces_are_merged_and_null_takes_nothing_away():
    first = {"extra_content": {"google": {"a": 1}}, "other": None}
    merged: dict = {}
    for piece in (first, {"extra_content": {"google": {"b": 2}}, "other": 3}, {"extra_content": None, "other": None}):
        merge_fields(merged, piece)
    assert merged == {"extra_content": {"google": {"a": 1, "b": 2}}, "other": 3}
    assert first == {"extra_content": {"google": {"a": 1}}, "other": None}


def test_objects_that_are_nested_deeper_than_any_stack_are_merged_at_the_top_only():
    deep: dict = {}
    for _ in range(5_000):
        deep = {"in": deep}
    merged: dict = {}
    merge_fields(merged, deep)
    merge_fields(merged, deep)
    assert merged["in"] is not None
