import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.loop.continuation import Continuation, as_json, from_json, put_back, runs_in, visible_message
from proxy.loop.prompts import NO_RESULT
from proxy.turn.call_ids import client_call_id, server_call_id
from proxy.turn.opaque_fields import OpaqueFields
from proxy.wire.chat import Turn

RUN, OTHER = "a" * 32, "b" * 32
USER = {"role": "user", "content": "Hi"}


def call(identity, name="open_door"):
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": "{}"}}


def continuation(run=RUN, *, before=()):
    """A turn with a search and two calls of the client's."""
    message = {"role": "assistant", "content": "Let me.", "tool_calls": [call("u1", "search"), call("u2"), call("u3")]}
    ids = {client_call_id(run, 0): 1, client_call_id(run, 1): 2}
    return Continuation(before, message, {0: "found"}, ids)


def assistant(*numbers, run=RUN):
    return {"role": "assistant", "content": None, "tool_calls": [call(client_call_id(run, n)) for n in numbers]}


def result(number, content="opened", run=RUN):
    return {"role": "tool", "tool_call_id": client_call_id(run, number), "content": content}


WHOLE = [("assistant", None, "Let me."), ("tool", "u1", "found"), ("tool", "u2", "one"), ("tool", "u3", "two")]


def essence(messages):
    return [(message["role"], message.get("tool_call_id"), message["content"]) for message in messages]


@pytest.mark.parametrize(
    "history",
    [
        [assistant(0, 1), result(0, "one"), result(1, "two")],
        [assistant(0, 1), result(1, "two"), result(0, "one")],
        [assistant(0), result(0, "one"), assistant(1), result(1, "two")],
        [result(0, "one"), result(1, "two")],
        [result(1, "two"), assistant(0, 1), result(0, "one")],
    ],
)
def test_however_the_client_arranges_what_it_got_the_hidden_part_is_back_in_its_place_once(history):
    restored = put_back([USER, *history, USER], {RUN: continuation()})
    assert essence(restored) == [("user", None, "Hi"), *WHOLE, ("user", None, "Hi")]


def test_other_calls_in_a_merged_message_follow_with_their_results():
    merged = assistant(0, 1)
    merged["tool_calls"].append(call("call_of_another"))
    other = {"role": "tool", "tool_call_id": "call_of_another", "content": "three"}
    restored = put_back([USER, merged, result(0, "one"), result(1, "two"), other], {RUN: continuation()})
    expected = [("assistant", None, None), ("tool", "call_of_another", "three")]
    assert essence(restored) == [("user", None, "Hi"), *WHOLE, *expected]
    assert [one["id"] for one in restored[-2]["tool_calls"]] == ["call_of_another"]


def test_a_result_that_the_client_left_out_is_said_to_be_missing():
    restored = put_back([assistant(0, 1), result(0, "one")], {RUN: continuation()})
    assert restored[-1] == {"role": "tool", "tool_call_id": "u3", "content": NO_RESULT}


def test_other_fields_of_the_clients_result_are_kept():
    restored = put_back([assistant(0, 1), {**result(0), "name": "door"}, result(1)], {RUN: continuation()})
    assert restored[2] == {"role": "tool", "tool_call_id": "u2", "content": "opened", "name": "door"}


def test_any_number_of_such_turns_can_stand_in_one_conversation():
    found = {RUN: continuation(), OTHER: continuation(OTHER, before=({"role": "assistant", "content": "earlier"},))}
    history = [USER, assistant(0, 1), result(0), result(1), assistant(0, 1, run=OTHER), result(0, run=OTHER)]
    assert list(runs_in(history)) == [RUN, OTHER]
    roles = [message["role"] for message in put_back(history, found)]
    assert roles == ["user", "assistant", "tool", "tool", "tool", "assistant", "assistant", "tool", "tool", "tool"]


def test_where_nothing_is_kept_any_more_the_history_stays_as_it_is():
    history = [USER, assistant(0), result(0)]
    assert put_back(history, {}) == history
    assert put_back(history, {OTHER: continuation(OTHER)}) == history


@pytest.mark.parametrize("identity", ["call_1", "call_" + "A" * 32 + "_0", "call_" + "a" * 31 + "_0", None, 7, "x"])
def test_ids_of_others_are_not_ours(identity):
    history = [
        {"role": "assistant", "tool_calls": [call(identity)]},
        {"role": "tool", "tool_call_id": identity, "content": ""},
    ]
    assert runs_in(history) == {}
    assert put_back(history, {RUN: continuation()}) == history


@given(
    st.permutations([assistant(0), assistant(1), result(0, "one"), result(1, "two"), USER]),
    st.sets(st.integers(0, 4), max_size=3),
)
def test_however_a_client_arranges_its_history_the_hidden_part_stands_in_it_once(messages, left_out):
    history = [message for at, message in enumerate(messages) if at not in left_out]
    known = {RUN: continuation()}
    restored = put_back(history, known)
    assert list(runs_in(history)) == ([RUN] if len(history) > (USER in history) else [])
    assert [message for message in restored if message.get("tool_call_id") == "u1"] == (
        [{"role": "tool", "content": "found", "tool_call_id": "u1"}] if runs_in(history) else []
    )
    at = next((at for at, message in enumerate(restored) if message.get("content") == "Let me."), None)
    if at is not None:
        assert [message["tool_call_id"] for message in restored[at + 1 : at + 4]] == ["u1", "u2", "u3"]
    assert put_back(restored, known) == restored
    assert restored.count(USER) == history.count(USER)


def test_a_continuation_comes_back_from_a_store_as_it_was():
    kept = continuation(before=(USER,))
    assert from_json(orjson.loads(orjson.dumps(as_json(kept)))) == kept


@pytest.mark.parametrize("stored", [None, [], {}, {"before": 1}, {**continuation().as_json(), "message": {}}])
def test_a_continuation_that_cannot_be_read_is_none(stored):
    assert from_json(stored) is None


def test_carried_fields_come_back_from_a_store_and_go_to_the_message_with_their_call():
    carried = (
        OpaqueFields({"reasoning_details": [{"data": "x"}]}, {client_call_id(RUN, 1): {"extra_content": {"a": 1}}}),
    )
    stored = orjson.loads(orjson.dumps(as_json(carried)))
    stored["carried"].append("unreadable")
    assert from_json(stored) == carried
    first, second = put_back([USER, assistant(0), assistant(1)], {RUN: carried})[1:]
    assert first == assistant(0)
    assert second["reasoning_details"] == [{"data": "x"}]
    assert second["tool_calls"][0]["extra_content"] == {"a": 1}


def test_the_ids_of_the_servers_calls_are_never_those_of_the_clients():
    run = "0" * 32
    assert {server_call_id(run, number) for number in range(3)}.isdisjoint(client_call_id(run, n) for n in range(3))


def test_the_clients_calls_are_numbered_without_those_that_it_does_not_see():
    entries = [{"index": at, "id": f"u{at}", "function": {"name": "f"}} for at in range(3)]
    turn = Turn({"role": "assistant", "tool_calls": entries}, "tool_calls", {}, {}, (), client_ids=("a", None, "b"))
    message, reason = visible_message(turn)
    assert [(entry["index"], entry["id"]) for entry in message["tool_calls"]] == [(0, "a"), (1, "b")]
    assert reason == "tool_calls"


def test_the_client_gets_no_text_beside_its_calls_where_only_json_may_be_text():
    turn = Turn(
        {"role": "assistant", "content": "Let me.", "tool_calls": [call("u1")]}, "tool_calls", client_ids=("a",)
    )
    message, _ = visible_message(turn, with_text=False)
    assert (message["content"], message["refusal"]) == (None, None)
