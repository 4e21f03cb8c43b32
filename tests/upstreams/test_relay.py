import asyncio

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.upstreams.answers import Mender
from proxy.upstreams.ending import Ending
from proxy.upstreams.profile import OPENAI
from proxy.upstreams.relay import RelayReader
from proxy.wire.errors import UpstreamError

DELTAS = st.sampled_from(
    [
        {"content": "It"},
        {"content": " is"},
        {"content": " is"},
        {"content": ""},
        {"reasoning_content": "Hm"},
        {"refusal": "No"},
        {"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "assistant", "content": "a"},
        {},
    ]
)
CHUNKS = st.builds(
    lambda delta, choice, rest: {
        "id": "up",
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": delta, **choice}],
        **rest,
    },
    DELTAS,
    st.sampled_from([{}, {}, {}, {"index": 1}, {"finish_reason": "stop"}, {"finish_reason": "eos"}]),
    st.sampled_from([{}, {}, {}, {"usage": {"total_tokens": 1}}]),
)


async def relayed(chunks, *, by_patterns, request=None):
    """What a client reads of a stream, and what its end is judged by."""
    written = []

    async def write(data):
        written.append(data)

    reader = RelayReader(Mender(OPENAI, None, request or {}), write, Ending(OPENAI))
    for one in chunks:
        if not by_patterns:
            reader.pattern = None
        await reader.take(b"data: %b\n\n" % orjson.dumps(one))
    try:
        await reader.take(b"data: [DONE]\n\n")
    except UpstreamError as exc:
        reader.last = str(exc).encode()
    choices = {index: choice.message for index, choice in reader.choices.items()}
    return b"".join(written), reader.last, reader.written, reader.usage, reader.finished, choices


@settings(max_examples=300)
@given(st.lists(CHUNKS, min_size=1, max_size=12))
def test_a_stream_relayed_by_patterns_is_the_stream_that_a_parser_relays(chunks):
    assert asyncio.run(relayed(chunks, by_patterns=True)) == asyncio.run(relayed(chunks, by_patterns=False))


def test_the_reason_of_a_choice_without_calls_is_not_that_of_another_one():
    call = {"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}
    choices = [(0, call, None), (1, {"content": "Hi"}, None), (0, {}, "eos"), (1, {}, "eos")]
    chunks = [
        {"id": "up", "choices": [{"index": at, "delta": delta, "finish_reason": reason}]}
        for at, delta, reason in choices
    ]
    written, *_ = asyncio.run(relayed(chunks, by_patterns=True))
    ends = [
        orjson.loads(event[6:])["choices"][0] for event in written.split(b"\n\n") if b'"eos"' not in event and event
    ]
    assert [(end["index"], end["finish_reason"]) for end in ends[2:]] == [(0, "tool_calls"), (1, "stop")]


OPEN_DOOR = {"type": "function", "function": {"name": "open_door", "parameters": None}}


def relayed_calls(*entries):
    """The entries of `tool_calls` that a client gets, and whether its bytes are the upstream's."""
    chunks = [
        {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"tool_calls": [one]}}]}
        for one in entries
    ]
    sent = b"".join(b"data: %b\n\n" % orjson.dumps(one) for one in chunks)
    written, *_ = asyncio.run(relayed(chunks, by_patterns=True, request={"tools": [OPEN_DOOR]}))
    events = [orjson.loads(event[6:]) for event in written.split(b"\n\n") if event]
    return [event["choices"][0]["delta"]["tool_calls"][0] for event in events], written == sent


def entry(index, identity=None, name=None, arguments=""):
    head = {"id": identity, "type": "function"} if identity else {}
    return {"index": index, **head, "function": {"name": name, "arguments": arguments}}


def test_calls_that_all_carry_index_0_get_indices_of_their_own():
    head, rest = '{"n":', "1}"
    by_id = [(0, "a", "open_door", head), (0, None, None, rest), (0, "b", "open_door", head), (0, None, None, rest)]
    by_name = [(0, None, "open_door", head + rest), (0, None, "close_door", head), (0, None, None, rest)]
    named_again = [(0, None, "open_door", head + rest), (0, None, "open_door", ""), (0, None, None, '{"n":2}')]
    for fragments, indices in ((by_id, [0, 0, 1, 1]), (by_name, [0, 1, 1]), (named_again, [0, 0, 1])):
        got, is_same = relayed_calls(*(entry(*fragment) for fragment in fragments))
        assert [one["index"] for one in got] == indices
        assert not is_same
    assert got[2]["function"] == {"name": "open_door", "arguments": '{"n":2}'}


def test_an_id_and_a_name_that_every_fragment_repeats_reach_the_client_once():
    fragments = [(0, "a", "open_door", '{"n"'), (0, "a", "open_door", ":"), (0, "x", None, "1"), (0, "", "", "}")]
    got, is_same = relayed_calls(*(entry(*fragment) for fragment in fragments))
    assert [one.get("id") or "" for one in got] == ["a", "", "", ""]
    assert [one["function"].get("name") or "" for one in got] == ["open_door", "", "", ""]
    assert "".join(one["function"]["arguments"] for one in got) == '{"n":1}'
    assert not is_same


def test_an_index_that_is_taken_is_not_given_twice():
    calls = [entry(0, "a", "f"), entry(0, "b", "f"), entry(1, "c", "f"), entry(7, "d", "f"), entry(None, "e", "f")]
    assert [one["index"] for one in relayed_calls(*calls)[0]] == [0, 1, 2, 7, 8]


def test_calls_with_indices_of_their_own_pass_byte_for_byte():
    calls = [entry(1, "a", "open_door", '{"n":'), entry(4, "a", "f<x", '{"n":'), entry(1, None, None, "1}")]
    assert relayed_calls(*calls)[1]


def test_raw_format_is_taken_off_the_name_of_a_function_in_the_first_fragment_already():
    glued = "open_door<arg_key>n</arg_key><arg_value>1</arg_value>"
    names = ["open_door</tool_call>", "<tool_call>open_door", "functions.open_door", " open_door", glued]
    for name in names:
        [first, rest], is_same = relayed_calls(entry(0, "a", name), entry(0, None, None, '{"n":1}'))
        assert (first["function"]["name"], rest["function"]["name"], is_same) == ("open_door", None, False)
    assert first["function"]["arguments"] == '{"n":1}'
    assert relayed_calls(entry(0, "a", "open_door_slowly</tool_call>"))[1]
