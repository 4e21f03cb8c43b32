from time import process_time

import pytest
from msgspec.structs import replace

from proxy.loop.actions import CallUpstream
from proxy.turn.call_assembler import CallAssembler
from proxy.turn.leaks import Leak
from proxy.turn.request import TurnView
from proxy.turn.turn_bounds import MOST_ARGUMENT_BYTES, MOST_CALLS
from proxy.wire.errors import UpstreamError

CALL = CallUpstream(
    {},
    number=1,
    run_id="r",
    view=TurnView(
        frozenset({"open_door"}), {"search": {"properties": {"q": {}}}, "open_door": {"properties": {"n": {}}}}
    ),
)


def function(name="search", arguments="", *, index=0, **fields):
    return {"index": index, **fields, "function": {"name": name, "arguments": arguments}}


def piece(arguments, index=0):
    return {"index": index, "function": {"arguments": arguments}}


def whole(*entries, call=CALL):
    """The calls of a whole message, which are the same whether anybody sees them one by one or not."""
    calls, unseen = CallAssembler(call, received=entries), CallAssembler(call)
    calls.add([{**entry, "index": at} for at, entry in enumerate(entries)])
    unseen.add_whole(entries)
    assert unseen.entries() == calls.entries()
    assert unseen.client_count == calls.client_count
    return calls


def shown_arguments(fragments):
    return [(one["index"], one["function"]["arguments"]) for one in fragments]


@pytest.mark.parametrize("ids", [("a", "a", "a"), ("", "", ""), (None, 0, None), ("a", "", "a"), ("a", "b", "a")])
def test_every_call_of_a_turn_has_an_id_of_its_own(ids):
    streamed = CallAssembler(CALL)
    streamed.add([function(id=identity, index=at, arguments='{"q":1}') for at, identity in enumerate(ids)])
    for calls in streamed, whole(*[function(id=identity, arguments="{}") for identity in ids]):
        entries = calls.entries()
        assert len({entry["id"] for entry in entries}) == len(ids)
        assert entries[0]["id"] == (ids[0] or "call_rt1_0")
    assert [call.id for call in streamed.take_ready()] == [entry["id"] for entry in streamed.entries()]


def test_a_call_has_no_id_of_an_earlier_turn_either():
    earlier = {"role": "assistant", "tool_calls": [function(id="call_1"), function(id=["no text"])]}
    body = {"messages": [{"role": "user", "content": "Hi"}, earlier]}
    calls = whole(function(id="call_1"), function(id="call_2"), call=replace(CALL, body=body))
    first, second = (entry["id"] for entry in calls.entries())
    assert first != "call_1"
    assert second == "call_2"


def test_an_id_that_comes_late_is_the_calls_until_the_call_has_started():
    calls = CallAssembler(CALL)
    calls.add([function(), {"index": 0, "id": "late"}])
    calls.add([function(index=1, arguments='{"q":1}')])
    assert calls.entries()[0]["id"] == "late"
    started = CallAssembler(CALL)
    started.add([function(arguments='{"q":1}')])
    [ready] = started.take_ready()
    started.add([{"index": 0, "id": "late"}])
    assert started.entries()[0]["id"] == ready.id != "late"


def test_a_call_with_an_empty_object_starts_when_the_next_one_begins():
    calls = CallAssembler(CALL)
    calls.add([function(arguments="{}")])
    assert calls.take_ready() == []
    calls.add([function(index=1, arguments="{")])
    assert [call.arguments for call in calls.take_ready()] == ["{}"]
    calls.add([piece("}", index=1), piece('{"q":1}', index=1)])
    assert [call.arguments for call in calls.take_ready()] == ['{"q":1}']


def test_a_call_whose_arguments_are_being_sent_twice_starts_when_the_next_one_begins():
    calls = CallAssembler(CALL)
    calls.add([function("search", '{"q":1}{')])
    assert calls.take_ready() == []
    calls.add([piece('"q":1}')])
    assert calls.take_ready() == []
    calls.add([function("search", index=1)])
    assert [call.arguments for call in calls.take_ready()] == ['{"q":1}']


def test_a_custom_call_is_never_started_early():
    calls = CallAssembler(CALL)
    calls.add([{"index": 0, "id": "a", "type": "custom", "custom": {"name": "search", "input": '{"q":1}'}}])
    calls.add([function(index=1, arguments='{"q":1}')])
    assert [call.name for call in calls.take_ready()] == ["search"]


def test_a_custom_call_that_is_no_object_breaks_nothing():
    calls = CallAssembler(CALL)
    calls.add([{"index": 0, "id": "a", "type": "custom", "custom": "x", "extra": 1}])
    assert calls.entries() == [{"id": "a", "type": "custom", "custom": {"name": "", "input": ""}, "extra": 1}]


def test_a_client_gets_arguments_once_that_its_upstream_sends_twice():
    calls = CallAssembler(CALL)
    shown = calls.add([function("open_door", '{"n":'), piece("1}"), piece('{"n":'), piece("1}")])
    shown += calls.add([function("open_door", "{}", index=1), piece('{"n":2}', index=1)])
    shown += calls.add([function("open_door", "{}", index=2), function("open_door", '{"n":3}{"n":4}', index=3)])
    shown += calls.end(calls.so_far)
    written = ["".join(text for index, text in shown_arguments(shown) if index == at) for at in range(4)]
    assert written == ['{"n":1}', '{"n":2}', "{}", '{"n":3}{"n":4}']
    assert [entry["function"]["arguments"] for entry in calls.entries()] == written
    twice = function("open_door", arguments='{"n":1}{"n":1}')
    assert whole(twice).entries()[0]["function"]["arguments"] == '{"n":1}'


@pytest.mark.parametrize("client", [False, True])
def test_a_turn_of_too_many_calls_is_a_failure_of_the_upstream(client):
    name = "open_door" if client else "search"
    many = [function(name, "{}", index=at, id=str(at)) for at in range(MOST_CALLS)]
    calls = CallAssembler(CALL)
    calls.add([dict(one) for one in many])
    with pytest.raises(UpstreamError, match="128 tool calls"):
        calls.add([function(index=MOST_CALLS)])
    with pytest.raises(UpstreamError, match="128 tool calls"):
        whole(*many, function())
    full = whole(*many)
    with pytest.raises(UpstreamError, match="128 tool calls"):
        full.add_leaked(Leak("search", "{}"))


def test_arguments_of_too_many_bytes_are_a_failure_of_the_upstream():
    text = '{"q":"' + "é" * (MOST_ARGUMENT_BYTES // 2 - 4) + '"}'
    assert len(text.encode()) == MOST_ARGUMENT_BYTES
    calls = CallAssembler(CALL)
    calls.add([function(arguments=text)])
    with pytest.raises(UpstreamError, match="1048576 bytes"):
        calls.add([piece(" ")])
    whole(function(arguments=text))
    with pytest.raises(UpstreamError, match="1048576 bytes"):
        whole(function(arguments={"q": "x" * MOST_ARGUMENT_BYTES}))


def test_the_arguments_of_all_calls_of_a_turn_are_bounded_together():
    text = '{"q":"' + "x" * (MOST_ARGUMENT_BYTES - 8) + '"}'
    calls = CallAssembler(CALL)
    calls.add([function(arguments=text, index=at) for at in range(4)])
    with pytest.raises(UpstreamError, match="4194304 bytes"):
        calls.add([function(arguments='{"q": 1}', index=4)])


def test_objects_that_are_closed_in_very_many_calls_are_looked_at_no_longer_than_the_budget_lasts():
    calls = CallAssembler(CALL)
    dense = '{"q":[' + "{}," * 30_000 + "0]}"
    for at in range(4):
        calls.add([function(index=at, arguments=dense)])
    assert [len(call.arguments) for call in calls.take_ready()] == [len(dense)] * 3  # the last one waits for its turn
    assert calls.entries()[3]["function"]["arguments"] == dense


def test_fields_beside_the_arguments_are_folded_without_a_copy_of_the_earlier_ones():
    def seconds(count):
        calls, begun = CallAssembler(CALL), process_time()
        for at in range(count):
            calls.add([{"index": 0, "id": "a", f"k{at}": 1, "extra_content": {f"k{at}": 1}}])
        assert len(calls.entries()[0]["extra_content"]) == count
        return process_time() - begun

    seconds(1000)
    assert seconds(20_000) < 30 * seconds(2000)


@pytest.mark.parametrize("name", ["search", "open_door", None])
@pytest.mark.parametrize("opening", ['{"a":[', "", '{}{"a":[', '{"a":1}{"a":['])
def test_arguments_in_very_many_pieces_cost_no_more_than_their_length(name, opening):
    def seconds(count):
        calls, begun = CallAssembler(CALL), process_time()
        calls.add([function(name, opening), function("search", "")])
        for _ in range(count):
            calls.add([piece('{"b":"c"},')])
            calls.take_ready()
        calls.end(calls.so_far)
        return process_time() - begun

    seconds(1000)
    assert seconds(40_000) < 30 * seconds(4000)
