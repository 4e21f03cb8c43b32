import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.assembler import PROOF_CHARACTERS, Assembler, turn_from_completion
from proxy.core.chat import ToolCall
from proxy.core.errors import UpstreamError


def chunk(delta=None, finish_reason=None, **rest):
    choice = {"index": 0, "delta": delta if delta is not None else {}}
    if finish_reason:
        choice["finish_reason"] = finish_reason
    return {"id": "up", "created": 1, "model": "m", "choices": [choice], **rest}


def tool_delta(index=0, **fields):
    function = {key: fields.pop(key) for key in ("name", "arguments") if key in fields}
    return {"tool_calls": [{"index": index, **fields, "function": function}]}


def feed(assembler, *chunks):
    return [shown for one in chunks for shown in assembler.feed(one)]


def deltas(shown):
    return [one["choices"][0]["delta"] for one in shown]


def test_text_and_reasoning_are_shown_as_they_come_and_folded_into_the_message():
    assembler = Assembler()
    shown = feed(
        assembler,
        chunk({"role": "assistant", "reasoning_content": "Hm"}),
        chunk({"role": "assistant", "content": "Hel"}),
        chunk({"content": "lo"}),
        chunk({"content": ""}, "stop", usage={"total_tokens": 3}),
    )
    assert deltas(shown) == [{"reasoning_content": "Hm"}, {"content": "Hel"}, {"content": "lo"}]
    turn = assembler.finish()
    assert turn.message == {"role": "assistant", "reasoning_content": "Hm", "content": "Hello"}
    assert (turn.finish_reason, turn.usage, turn.calls) == ("stop", {"total_tokens": 3}, ())


def test_no_finish_reason_usage_or_role_is_shown():
    shown = feed(Assembler(), chunk({"role": "assistant", "content": "x"}, "stop", usage={"total_tokens": 1}))
    assert shown[0]["choices"] == [{"index": 0, "delta": {"content": "x"}, "finish_reason": None}]
    assert "usage" not in shown[0]


def test_fields_that_nobody_knows_survive():
    shown = feed(Assembler(), chunk({"content": "x", "mood": "calm"}, system_fingerprint="fp", vendor=[1]))
    assert shown[0]["vendor"] == [1]
    assert deltas(shown) == [{"content": "x", "mood": "calm"}]


def test_server_calls_are_hidden_and_whole_in_the_message():
    assembler = Assembler()
    shown = feed(
        assembler,
        chunk(tool_delta(id="a", type="function", name="search", arguments="")),
        chunk(tool_delta(arguments='{"q":')),
        chunk(tool_delta(arguments='"x"}')),
        chunk({}, "tool_calls"),
    )
    assert shown == []
    turn = assembler.finish()
    assert turn.calls == (ToolCall("a", "search", '{"q":"x"}'),)
    assert turn.message == {
        "role": "assistant",
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "search", "arguments": '{"q":"x"}'}}],
    }


def test_the_clients_calls_are_shown_live_and_re_indexed_without_gaps():
    assembler = Assembler(client_tools={"open_door"})
    shown = feed(
        assembler,
        chunk(tool_delta(0, id="a", type="function", name="search", arguments="{}")),
        chunk(tool_delta(1, id="b", type="function", name="open_door", arguments="")),
        chunk(tool_delta(1, id="b", name="", arguments='{"n":1}')),
        chunk({}, "tool_calls"),
    )
    assert deltas(shown) == [
        {
            "tool_calls": [
                {"index": 0, "id": "b", "type": "function", "function": {"name": "open_door", "arguments": ""}}
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"n":1}'}}]},
    ]
    assert [call.name for call in assembler.finish().calls] == ["search", "open_door"]


def test_arguments_that_come_before_the_name_are_shown_with_it():
    assembler = Assembler(client_tools={"open_door"})
    shown = feed(
        assembler, chunk(tool_delta(id="b", arguments='{"n"')), chunk(tool_delta(name="open_door", arguments=":1}"))
    )
    assert deltas(shown)[0]["tool_calls"][0]["function"] == {"name": "open_door", "arguments": '{"n":1}'}


def test_a_finish_reason_on_every_tool_chunk_does_not_end_the_turn():
    assembler = Assembler()
    feed(
        assembler,
        chunk(tool_delta(0, id="a", name="add", arguments="{}"), "tool_calls"),
        chunk(tool_delta(1, id="b", name="multiply", arguments="{}"), "tool_calls"),
        chunk({"role": "assistant", "content": ""}, "tool_calls"),
    )
    assert [call.id for call in assembler.finish().calls] == ["a", "b"]


def test_fragments_without_an_index_belong_to_the_last_call_or_open_a_new_one_by_their_id():
    assembler = Assembler()
    feed(
        assembler,
        chunk({"tool_calls": [{"id": "a", "function": {"name": "x", "arguments": "{"}}]}),
        chunk({"tool_calls": [{"function": {"arguments": "}"}}]}),
        chunk({"tool_calls": [{"id": "b", "function": {"name": "y", "arguments": {"k": 1}}}]}),
        chunk({"tool_calls": [{"id": "a", "function": {"arguments": " "}}]}),
        chunk({}, "tool_calls"),
    )
    assert assembler.finish().calls == (ToolCall("a", "x", "{} "), ToolCall("b", "y", '{"k":1}'))


def test_a_call_without_an_id_gets_one():
    assembler = Assembler()
    feed(assembler, chunk({"tool_calls": [{"function": {"name": "x", "arguments": None}}]}, "tool_calls"))
    assert assembler.finish().calls == (ToolCall("call_0", "x", ""),)


def test_a_blank_beginning_is_shown_when_words_follow_and_not_before():
    assembler = Assembler()
    shown = feed(assembler, chunk({"content": "\n"}), chunk({"reasoning_content": "Hm"}), chunk({"content": "\nHi"}))
    assert deltas(shown) == [{"reasoning_content": "Hm"}, {"content": "\n\nHi"}]


def test_a_separator_stands_in_place_of_leading_newlines():
    shown = feed(
        Assembler(separator="\n\n"), chunk({"content": "\n"}), chunk({"content": "\nHi"}), chunk({"content": "\n!"})
    )
    assert deltas(shown) == [{"content": "\n\nHi"}, {"content": "\n!"}]


def test_a_stream_without_a_finish_reason_is_no_turn():
    assembler = Assembler()
    feed(assembler, chunk({"content": "Hel"}))
    with pytest.raises(UpstreamError, match="finish_reason"):
        assembler.finish()


def test_chunks_without_choices_are_read_for_their_usage():
    assembler = Assembler()
    feed(assembler, chunk({"content": "x"}, "stop"), {"choices": [], "usage": {"total_tokens": 9}}, {"choices": None})
    assert assembler.usage == assembler.finish().usage == {"total_tokens": 9}


def test_only_the_first_choice_counts():
    other = {"choices": [{"index": 1, "delta": {"content": "other"}, "finish_reason": "stop"}]}
    assert feed(Assembler(), other) == []


def test_what_is_beside_the_delta_is_kept_in_the_choice():
    assembler = Assembler()
    one = chunk({"content": "x"}, "stop")
    one["choices"][0]["native_finish_reason"] = "end"
    feed(assembler, one)
    assert assembler.finish().choice["native_finish_reason"] == "end"


def test_a_turn_that_has_to_prove_itself_is_held_back_until_it_has():
    assembler = Assembler(hold=True)
    assert feed(assembler, chunk({"reasoning": "Hm"}), chunk({"content": "So"})) == []
    shown = feed(assembler, chunk({"content": "." * PROOF_CHARACTERS}), chunk({"content": "!"}))
    assert len(shown) == 4
    feed(assembler, chunk({}, "stop"))
    assert assembler.finish().held == ()


def test_a_held_turn_that_is_short_keeps_what_it_held_for_whoever_decides():
    assembler = Assembler(hold=True)
    feed(assembler, chunk({"content": "Yes."}), chunk({}, "stop"))
    assert deltas(assembler.finish().held) == [{"content": "Yes."}]


def test_a_held_turn_with_a_server_call_shows_nothing_however_much_it_writes():
    assembler = Assembler(hold=True)
    call = chunk(tool_delta(id="a", name="search", arguments="{}"))
    assert feed(assembler, call, chunk({"content": "." * 1000})) == []


def test_a_held_turn_with_a_call_of_the_clients_is_shown():
    assembler = Assembler(hold=True, client_tools={"open_door"})
    assert len(feed(assembler, chunk(tool_delta(id="a", name="open_door", arguments="{}")))) == 1


def test_a_whole_answer_is_a_turn_with_its_message_as_received():
    message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"index": 0, "function": {"name": "x", "arguments": {}}}],
    }
    body = {"id": "up", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}], "usage": {"a": 1}}
    turn = turn_from_completion(body)
    assert turn.message is message
    assert turn.calls == (ToolCall("call_0", "x", "{}"),)
    assert turn.envelope == {"id": "up"}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"choices": []},
        {"choices": [{"delta": {}}]},
        {"choices": [{"message": {"role": "assistant", "content": "x"}, "finish_reason": None}]},
    ],
)
def test_an_answer_that_is_no_completion_is_no_turn(body):
    with pytest.raises(UpstreamError):
        turn_from_completion(body)


@given(st.data())
def test_however_the_arguments_are_cut_the_call_is_the_same(data):
    arguments = orjson.dumps({"query": data.draw(st.text()), "n": 3}).decode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(arguments)))))
    pieces = [arguments[a:b] for a, b in zip([0, *cuts], [*cuts, len(arguments)], strict=True)]
    assembler = Assembler()
    feed(assembler, chunk(tool_delta(id="a", name="search", arguments="")))
    for piece in pieces:
        feed(assembler, chunk(tool_delta(arguments=piece)))
    feed(assembler, chunk({}, "tool_calls"))
    assert assembler.finish().calls == (ToolCall("a", "search", arguments),)


def test_an_entry_of_a_whole_answer_that_is_no_function_stays_as_it_is():
    entry = {"id": "c", "type": "custom", "custom": {"name": "x", "input": "raw"}}
    body = {"choices": [{"message": {"tool_calls": [dict(entry)]}, "finish_reason": "tool_calls"}]}
    assert turn_from_completion(body).message["tool_calls"] == [entry]
