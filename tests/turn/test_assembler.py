from itertools import pairwise

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from proxy.loop.actions import CallUpstream
from proxy.turn.assembler import Assembler as AssemblerOfCall
from proxy.turn.citations import CITATIONS
from proxy.turn.leaks.written import PROOF_CHARACTERS
from proxy.turn.pieces import pieces_of_whole
from proxy.turn.request import Buffering, TurnView
from proxy.turn.turn_bounds import MOST_CALLS
from proxy.wire.chat import ToolCall
from proxy.wire.errors import UpstreamError

TOOLS = {"search": {"properties": {"q": {}}, "required": ["q"]}, "open_door": {"properties": {"n": {}}}}


def Assembler(*, client_tools=(), buffering=False, tools=TOOLS, renamed=None, thoughts_in_text=False, **view):  # noqa: N802 - stands in for the class
    buffering = Buffering.START if buffering is True else buffering or Buffering.NONE
    view = TurnView(frozenset(client_tools), tools, buffering=buffering, **view)
    return AssemblerOfCall(
        CallUpstream({}, number=3, run_id="r", view=view), renamed or {}, thoughts_in_text=thoughts_in_text
    )


def chunk(delta=None, finish_reason=None, **rest):
    choice = {"index": 0, "delta": delta if delta is not None else {}}
    if finish_reason:
        choice["finish_reason"] = finish_reason
    return {"id": "up", "created": 1, "model": "m", "choices": [choice], **rest}


def tool_delta(index=0, **fields):
    function = {key: fields.pop(key) for key in ("name", "arguments") if key in fields}
    return {"tool_calls": [{"index": index, **fields, "function": function}]}


def says(content, finish_reason=None, **rest):
    return chunk({"content": content}, finish_reason, **rest)


def thinks(words):
    return chunk({"reasoning_content": words})


def calls(index=0, *, finish=None, **fields):
    return chunk(tool_delta(index, **fields), finish)


def ends(finish_reason="stop"):
    return chunk({}, finish_reason)


def feed(assembler, *chunks):
    """The chunks that are shown of these chunks."""
    return [shown for one in chunks for shown in assembler.feed(one) if isinstance(shown, dict)]


def ready(assembler, *chunks):
    """The server's calls that are complete after these chunks."""
    return [shown for one in chunks for shown in assembler.feed(one) if isinstance(shown, ToolCall)]


def whole(message, finish_reason="stop", *, client_tools=(), **beside):
    """The turn of a whole answer, which is the same whether anybody sees its pieces or not."""
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    completion = {"choices": [choice], **beside}
    unseen = Assembler(client_tools=client_tools)
    unseen.feed_unseen(orjson.loads(orjson.dumps(completion)))
    turn = in_pieces(Assembler(client_tools=client_tools), completion)
    assert replace(unseen.finish(), aside=turn.aside) == turn
    return turn


def in_pieces(assembler, completion):
    """The turn of a whole answer whose pieces are shown."""
    assembler.begin_whole(completion["choices"][0], completion.pop("usage", None))
    feed(assembler, *pieces_of_whole(completion))
    return finish(assembler)


def finish(assembler):
    assembler.close()
    return assembler.finish()


def read(*chunks, **options):
    """What is shown of these chunks before their end, and their turn."""
    assembler = Assembler(**options)
    return feed(assembler, *chunks), finish(assembler)


def turn_of(*chunks, **options):
    return read(*chunks, **options)[1]


def deltas(shown):
    return [one["choices"][0]["delta"] for one in shown]


def rated(text, **rest):
    one = chunk({"content": text}, **rest)
    one["choices"][0]["logprobs"] = {"content": [{"token": text, "logprob": -1}], "refusal": None}
    return one


def tokens(shown):
    return [[one["token"] for one in (choice.get("logprobs") or {}).get("content", ())] for choice in choices(shown)]


def choices(shown):
    return [choice for one in shown for choice in one["choices"]]


def test_the_log_probabilities_of_text_that_was_held_back_are_shown_with_the_text_that_follows():
    assembler = Assembler()
    shown = feed(assembler, rated("<"), rated("b> and"), rated(" one,\n"), rated("<"), says("b>"))
    assert [one["delta"]["content"] for one in choices(shown)] == ["<b> and", " one,\n", "<b>"]
    assert tokens(shown) == [["<", "b> and"], [" one,\n"], ["<"]]
    rest = [*feed(assembler, rated(" <"), ends()), *assembler.close()]
    assert "".join(one["delta"]["content"] for one in choices(rest)) == " <"
    assert [token for one in tokens(rest) for token in one] == [" <"]


def test_log_probabilities_that_are_no_list_stay_as_they_are():
    odd = [rated("One"), rated(" two")]
    odd[0]["choices"][0]["logprobs"], odd[1]["choices"][0]["logprobs"] = {"content": 5}, "many"
    assert [one["logprobs"] for one in choices(feed(Assembler(), *odd))] == [{"content": 5}, "many"]


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_forced_text_behind_long_thoughts_is_shown_when_there_is_enough_of_it(size):
    assembler = Assembler(buffering=True)
    text = f"<think>{'Hm. ' * 100}</think>{'It rains. ' * 40}"
    shown = feed(assembler, *[chunk({"content": text[at : at + size]}) for at in range(0, len(text), size)])
    rest = [*feed(assembler, ends()), *assembler.close()]
    assert "".join(one["delta"].get("content", "") for one in choices([*shown, *rest])) == text
    assert choices(shown)[-1]["delta"]["content"] != text or size == 1000


def test_an_empty_model_in_the_first_chunk_is_none():
    assembler = Assembler()
    feed(assembler, {"id": "", "model": "", "choices": [], "prompt_filter_results": []}, says("<", "stop"))
    assert assembler.close()[0]["model"] == "m"
    assert assembler.finish().envelope["model"] == "m"


def test_more_of_the_same_text_and_nothing_else_is_shown_as_it_is():
    assembler = Assembler()
    feed(assembler, thinks("Hm"))
    assert deltas(feed(assembler, thinks(", yes"))) == [{"reasoning_content": ", yes"}]
    assert deltas(feed(assembler, says("It"), says(" is\n"))) == [{"content": "It"}, {"content": " is\n"}]
    assert feed(assembler, says("<")) == []  # what may be the beginning of a mark waits
    assert deltas(feed(assembler, says("b>", "stop"))) == [{"content": "<b>"}]
    assert finish(assembler).message == {
        "role": "assistant",
        "reasoning_content": "Hm, yes",
        "content": "It is\n<b>",
    }


def test_newlines_beyond_a_blank_line_wait_also_where_nothing_else_is_added():
    assembler = Assembler()
    feed(assembler, says("It is\n"))
    assert [assembler.feed_text(text) for text in ("\n", "\n\n")][1] == []
    assert deltas(assembler.feed_text("so")) == [{"content": "\n\nso"}]


def test_thoughts_before_an_answer_are_taken_out_of_its_text_streamed_and_whole():
    def assembler():
        return AssemblerOfCall(CallUpstream({}, number=1), thoughts_in_text=True)

    streamed = assembler()
    shown = feed(streamed, says("<think>Hm"), says(".</th"), says("ink>\nIt"), says(" is."), ends())
    assert [[*delta] for delta in deltas(shown)][:2] == [["content", "reasoning_content"]] * 2
    assert finish(streamed).message == {"role": "assistant", "content": "It is.", "reasoning_content": "Hm."}
    cut_off = assembler()
    feed(cut_off, says("<think>Hm.</thi"), ends("length"))
    assert deltas(cut_off.close()) == [{"reasoning_content": "</thi"}]
    choice = {"message": {"role": "assistant", "content": "<think>Hm.</think>It is."}, "finish_reason": "stop"}
    unseen = assembler()
    unseen.feed_unseen({"choices": [{**choice}]})
    for turn in in_pieces(assembler(), {"choices": [choice]}), unseen.finish():
        assert turn.message == {"role": "assistant", "content": "It is.", "reasoning_content": "Hm."}


def test_a_whole_answer_that_nobody_sees_is_buffered_as_a_stream_is():
    choice = {"message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}
    unseen = Assembler(buffering=True)
    unseen.feed_unseen({"choices": [orjson.loads(orjson.dumps(choice))]})
    turn = unseen.finish()
    assert turn.buffered
    assert turn == in_pieces(Assembler(buffering=True), {"choices": [choice]})


def test_what_a_search_found_is_shown_also_while_the_text_beside_it_waits():
    assembler = Assembler()
    feed(assembler, says("It ", web_search=[1]))
    (shown,) = feed(assembler, says("<", web_search=[2]))  # which may be the beginning of a mark
    assert (shown["choices"], shown["web_search"]) == ([], [2])


def test_where_nothing_can_be_called_text_is_only_text():
    said = [{"content": text} for text in ("It", " a", "<tool_call>search")]
    assert deltas(feed(Assembler(tools={}), *(chunk(dict(delta)) for delta in said))) == said


@pytest.mark.parametrize("between", [{"reasoning_content": "Hm"}, tool_delta(name="search"), {"content": None, "x": 1}])
def test_after_anything_else_the_text_is_looked_at_again(between):
    assembler = Assembler()
    feed(assembler, says("It is"), says(" a"))
    feed(assembler, chunk(between))
    feed(assembler, says(" day", "stop"))
    assert finish(assembler).message["content"] == "It is a day"


def test_text_and_reasoning_are_shown_as_they_come_and_folded_into_the_message():
    shown, turn = read(
        chunk({"role": "assistant", "reasoning_content": "Hm"}),
        chunk({"role": "assistant", "content": "Hel"}),
        says("lo"),
        says("", "stop", usage={"total_tokens": 3}),
    )
    assert deltas(shown) == [{"reasoning_content": "Hm"}, {"content": "Hel"}, {"content": "lo"}]
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
    shown, turn = read(
        calls(id="a", type="function", name="search", arguments=""),
        calls(arguments='{"q":'),
        calls(arguments='"x"}'),
        ends("tool_calls"),
    )
    assert shown == []
    assert turn.calls == (ToolCall("a", "search", '{"q":"x"}'),)
    assert turn.message == {
        "role": "assistant",
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "search", "arguments": '{"q":"x"}'}}],
    }


def test_the_clients_calls_are_shown_live_and_re_indexed_without_gaps():
    shown, turn = read(
        calls(0, id="a", type="function", name="search", arguments="{}"),
        calls(1, id="b", type="function", name="open_door", arguments=""),
        calls(1, id="b", name="", arguments='{"n":1}'),
        ends("tool_calls"),
        client_tools={"open_door"},
    )
    assert deltas(shown) == [
        {
            "tool_calls": [
                {"index": 0, "id": "call_r_0", "type": "function", "function": {"name": "open_door", "arguments": ""}}
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"n":1}'}}]},
    ]
    assert [call.name for call in turn.calls] == ["search", "open_door"]


def test_arguments_that_come_before_the_name_are_shown_with_it():
    shown = feed(
        Assembler(client_tools={"open_door"}), calls(id="b", arguments='{"n"'), calls(name="open_door", arguments=":1}")
    )
    assert deltas(shown)[0]["tool_calls"][0]["function"] == {"name": "open_door", "arguments": '{"n":1}'}


def test_a_finish_reason_on_every_tool_chunk_does_not_end_the_turn():
    turn = turn_of(
        calls(0, id="a", name="add", arguments="{}", finish="tool_calls"),
        calls(1, id="b", name="multiply", arguments="{}", finish="tool_calls"),
        chunk({"role": "assistant", "content": ""}, "tool_calls"),
    )
    assert [call.id for call in turn.calls] == ["a", "b"]


def test_fragments_without_an_index_belong_to_the_last_call_or_open_a_new_one_by_their_id():
    turn = turn_of(
        chunk({"tool_calls": [{"id": "a", "function": {"name": "x", "arguments": "{"}}]}),
        chunk({"tool_calls": [{"function": {"arguments": "}"}}]}),
        chunk({"tool_calls": [{"id": "b", "function": {"name": "y", "arguments": {"k": 1}}}]}),
        chunk({"tool_calls": [{"id": "a", "function": {"arguments": " "}}]}),
        ends("tool_calls"),
    )
    assert turn.calls == (ToolCall("a", "x", "{}"), ToolCall("b", "y", '{"k":1}'))


def test_an_index_below_zero_is_none():
    shown, turn = read(
        calls(-1, id="a", name="search", arguments="{}"),
        calls(-1, id="b", name="open_door", arguments="{}"),
        ends("tool_calls"),
        client_tools={"open_door"},
    )
    assert [delta["tool_calls"][0]["index"] for delta in deltas(shown)] == [0]
    assert turn.calls == (ToolCall("a", "search", "{}"), ToolCall("b", "open_door", "{}"))


def test_pieces_with_an_empty_id_and_type_leave_those_of_the_first_one():
    shown, turn = read(
        calls(id="a", type="function", name="open_door", arguments=""),
        calls(id="", type="", name="", arguments='{"n":'),
        calls(id="", type="", name=None, arguments="1}"),
        calls(id="", type="", arguments=None),
        ends("tool_calls"),
        chunk({"role": "assistant", "content": ""}, "tool_calls", usage={"total_tokens": 3}),
        client_tools={"open_door"},
    )
    assert [set(delta["tool_calls"][0]) for delta in deltas(shown)[1:]] == [{"index", "function"}] * 3
    assert turn.message["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "open_door", "arguments": '{"n":1}'}}
    ]
    assert (turn.finish_reason, turn.usage) == ("tool_calls", {"total_tokens": 3})


def test_a_call_without_an_id_gets_one():
    turn = turn_of(chunk({"tool_calls": [{"function": {"name": "x", "arguments": None}}]}, "tool_calls"))
    assert turn.calls == (ToolCall("call_rt3_0", "x", ""),)


def test_a_blank_beginning_is_shown_when_words_follow_and_not_before():
    shown = feed(Assembler(), says("\n"), thinks("Hm"), says("\nHi"))
    assert deltas(shown) == [{"reasoning_content": "Hm"}, {"content": "\n\nHi"}]


def test_a_separator_stands_in_place_of_leading_newlines():
    shown = feed(Assembler(separator="\n\n"), says("\n"), says("\nHi"), says("\n!"))
    assert deltas(shown) == [{"content": "\n\nHi"}, {"content": "\n!"}]


@pytest.mark.parametrize("separator", ["", "\n\n"])
def test_blank_lines_between_two_turns_are_never_more_than_one(separator):
    assembler = Assembler(separator=separator)
    shown = feed(assembler, says(" \n\n\nHi"), *[says("\n") for _ in range(4)], calls(id="c", name="search"))
    shown += feed(assembler, ends("tool_calls")) + assembler.close()
    assert "".join(delta["content"] for delta in deltas(shown)) == separator + "Hi\n\n"
    assert assembler.finish().text == " \n\n\nHi\n\n\n\n"


@pytest.mark.parametrize("end", [[ends()], [calls(id="c", name="open_door"), ends("tool_calls")]])
def test_blank_lines_at_the_end_of_an_answer_are_the_models(end):
    assembler = Assembler(client_tools={"open_door"})
    shown = feed(assembler, says("Hi\n\n"), says("\n\n"), *end) + assembler.close()
    assert "".join(delta.get("content", "") for delta in deltas(shown)) == "Hi\n\n\n\n"


@pytest.mark.parametrize("hold", [False, True])
def test_marks_are_taken_out_of_the_text_and_told_beside_it(hold):
    assembler = Assembler(cite=lambda number, line: f"https://{number}.example/", buffering=hold, separator="\n\n")
    pieces = ["\n\nThe sky", " is blue", "【0", "†L1-", "L3】【1†source】", " and 【", "new", "】", "【2†"]
    shown = feed(assembler, *(says(piece) for piece in pieces), ends()) + assembler.close()
    turn = assembler.finish()
    shown += turn.buffered
    texts = [(delta["content"], delta.get(CITATIONS)) for delta in deltas(shown)]
    assert texts == [
        ("\n\nThe sky", None),
        (" is blue", None),
        ("", [(0, "https://0.example/"), (0, "https://1.example/")]),
        (" and ", None),
        ("【new", None),
        ("】", None),
        ("【2†", None),
    ]
    assert turn.text == "".join(pieces)


@pytest.mark.parametrize(
    ("delta", "done"),
    [
        ({"content": "Hel"}, False),
        (tool_delta(id="a", name="search", arguments="{}"), False),
        ({"content": ""}, True),
        ({"reasoning": "Hm"}, True),
        (tool_delta(id="a", name="search", arguments='{"q":'), True),
    ],
)
def test_a_stream_without_a_finish_reason_is_no_turn(delta, done):
    assembler = Assembler()
    feed(assembler, chunk(delta))
    with pytest.raises(UpstreamError, match="finish_reason"):
        assembler.close(done=done)


@pytest.mark.parametrize(
    ("delta", "reason"),
    [
        ({"content": "Hello"}, "stop"),
        ({"content": "It"}, "length"),
        (tool_delta(id="a", name="search", arguments="{}"), "tool_calls"),
        ({"content": "<tool_call>search<arg_key>q</arg_key><arg_value>x</arg_value></tool_call>"}, "tool_calls"),
        ({"content": '{"cursor": 2, "id": 2}'}, "stop"),
    ],
)
def test_a_stream_that_ends_with_done_after_a_whole_answer_is_a_turn(delta, reason):
    assembler = AssemblerOfCall(CallUpstream({"max_tokens": 5}, number=3, run_id="r", view=TurnView(tools=TOOLS)))
    used = 5 if reason == "length" else 4
    feed(assembler, chunk(delta), {"choices": [], "usage": {"completion_tokens": used}})
    assembler.close(done=True)
    assert assembler.finish().finish_reason == reason


def test_chunks_without_choices_are_read_for_their_usage():
    turn = turn_of(says("x", "stop"), {"choices": [], "usage": {"total_tokens": 9}}, {"choices": None})
    assert turn.usage == {"total_tokens": 9}


def test_only_the_first_choice_counts():
    other = {"choices": [{"index": 1, "delta": {"content": "other"}, "finish_reason": "stop"}]}
    assert feed(Assembler(), other) == []


def test_what_is_beside_the_delta_is_kept_in_the_choice():
    one = says("x", "stop")
    one["choices"][0]["native_finish_reason"] = "end"
    turn = turn_of(one)
    assert turn.choice["native_finish_reason"] == "end"


def test_a_turn_that_has_to_prove_itself_is_held_back_until_it_has():
    assembler = Assembler(buffering=True)
    assert feed(assembler, chunk({"reasoning": "Hm"}), says("So")) == []
    shown = feed(assembler, says("." * PROOF_CHARACTERS), says("!"))
    assert len(shown) == 4
    feed(assembler, ends())
    assert finish(assembler).buffered == ()


def test_a_held_turn_that_is_short_keeps_what_it_held_for_whoever_decides():
    turn = turn_of(says("Yes."), ends(), buffering=True)
    assert deltas(turn.buffered) == [{"content": "Yes."}]


def test_a_held_turn_with_a_server_call_shows_nothing_however_much_it_writes():
    call = calls(id="a", name="search", arguments="{}")
    assert feed(Assembler(buffering=True), call, says("." * 1000)) == []


def test_a_held_turn_with_a_call_of_the_clients_is_shown():
    opening = calls(id="a", name="open_door", arguments="{}")
    assert len(feed(Assembler(buffering=True, client_tools={"open_door"}), opening)) == 1


def test_a_whole_answer_is_a_turn_with_its_message_as_received():
    message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"index": 0, "function": {"name": "x", "arguments": {}}}],
    }
    turn = whole(message, "tool_calls", id="up", usage={"a": 1})
    named = {"index": 0, "function": {"name": "x", "arguments": "{}"}, "id": "call_rt3_0", "type": "function"}
    assert turn.message == {**message, "tool_calls": [named]}
    assert turn.calls == (ToolCall("call_rt3_0", "x", "{}"),)
    assert turn.envelope == {"id": "up"}


def test_a_whole_answer_without_a_finish_reason_is_no_turn():
    with pytest.raises(UpstreamError, match="finish_reason"):
        whole({"role": "assistant", "content": "x"}, None)


def test_a_whole_answer_without_a_finish_reason_is_no_turn_if_nobody_sees_it_either():
    with pytest.raises(UpstreamError, match="finish_reason"):
        Assembler().feed_unseen({"choices": [{"message": {"content": "x"}}]})
    with pytest.raises(UpstreamError, match="finish_reason"):
        in_pieces(Assembler(), {"choices": [{"message": {"content": "x"}}]})


def test_a_whole_answer_of_too_many_calls_fails_and_what_was_read_of_it_can_be_counted():
    entries = [{"id": str(at), "function": {"name": "search", "arguments": "{}"}} for at in range(MOST_CALLS + 9)]
    choice = {"message": {"content": "I look.", "tool_calls": entries}, "finish_reason": "tool_calls"}
    seen, unseen = Assembler(), Assembler()
    with pytest.raises(UpstreamError, match="128 tool calls"):
        in_pieces(seen, {"choices": [orjson.loads(orjson.dumps(choice))]})
    with pytest.raises(UpstreamError, match="128 tool calls"):
        unseen.feed_unseen({"choices": [choice]})
    assert [one.finish().text for one in (seen, unseen)] == ["I look."] * 2


@given(st.data())
def test_however_the_arguments_are_cut_the_call_is_the_same(data):
    arguments = orjson.dumps({"query": data.draw(st.text()), "n": 3}).decode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(arguments)))))
    pieces = [arguments[a:b] for a, b in zip([0, *cuts], [*cuts, len(arguments)], strict=True)]
    assembler = Assembler()
    feed(assembler, calls(id="a", name="search", arguments=""))
    for piece in pieces:
        feed(assembler, calls(arguments=piece))
    feed(assembler, ends("tool_calls"))
    assert finish(assembler).calls == (ToolCall("a", "search", arguments),)


def test_an_entry_of_a_whole_answer_that_is_no_function_stays_as_it_is():
    entry = {"id": "c", "type": "custom", "custom": {"name": "x", "input": "raw"}}
    assert whole({"tool_calls": [dict(entry)]}, "tool_calls").message["tool_calls"] == [entry]


def test_a_streamed_call_that_is_no_function_goes_back_with_its_own_fields():
    entry = {"id": "c", "type": "custom", "custom": {"name": "x", "input": "raw"}}
    turn = turn_of(chunk({"tool_calls": [{"index": 0, **entry}]}, "tool_calls"))
    assert turn.message["tool_calls"] == [entry]


def test_the_clients_own_calls_in_a_whole_answer_get_ids_of_the_run():
    entries = [{"id": name, "function": {"name": name, "arguments": "{}"}} for name in ("search", "open_door")]
    turn = whole({"tool_calls": entries}, "tool_calls", client_tools={"open_door"})
    assert turn.client_ids == (None, "call_r_0")


def test_a_turn_that_is_held_whole_shows_nothing_until_somebody_decides():
    assembler = Assembler(buffering=Buffering.TEXT)
    assert feed(assembler, says("." * 1000), ends()) == []
    assert len(finish(assembler).buffered) == 1


def test_thoughts_wait_too_where_only_the_end_of_a_turn_shows_whether_it_is_the_answer():
    shown, turn = read(thinks("I think."), says("{}"), ends(), buffering=Buffering.ALL)
    assert shown == []
    assert [delta for held in turn.buffered if (delta := held["choices"][0]["delta"])] == [
        {"reasoning_content": "I think."},
        {"content": "{}"},
    ]


def test_a_clients_call_ends_the_wait_of_thoughts_but_not_that_of_text():
    assembler = Assembler(client_tools={"open_door"}, buffering=Buffering.ALL)
    words = [thinks("I think."), says("Opening.")]
    call = calls(id="a", name="open_door", arguments="{}", finish="tool_calls")
    shown = [key for delta in deltas(feed(assembler, *words, call)) for key in delta]
    assert shown == ["reasoning_content", "tool_calls"]
    assert [held["choices"][0]["delta"] for held in finish(assembler).buffered] == [{"content": "Opening."}]


def test_what_a_provider_adds_to_a_call_goes_back_with_it():
    turn = turn_of(calls(id="a", name="search", arguments="{}", extra_content={"sig": 1}), ends())
    assert turn.message["tool_calls"][0]["extra_content"] == {"sig": 1}


# -- calls that leaked --

LEAK = "<tool_call>search<arg_key>q</arg_key><arg_value>x</arg_value></tool_call>"


def test_a_call_that_leaked_into_a_streamed_text_is_a_call_and_never_shown():
    shown, turn = read(*(says(character) for character in f"Looking. {LEAK}"), ends())
    assert "".join(delta["content"] for delta in deltas(shown)) == "Looking. "
    assert turn.calls == (ToolCall("call_rt3_0", "search", '{"q":"x"}'),)
    assert turn.message["content"] == "Looking. "


def test_a_clients_call_that_leaked_is_shown_as_the_clients():
    assembler = Assembler(client_tools={"open_door"})
    assert feed(assembler, says('{"n": 1}'), ends()) == []
    (delta,) = deltas(assembler.close())
    function = {"name": "open_door", "arguments": '{"n": 1}'}
    assert delta["tool_calls"] == [{"index": 0, "id": "call_r_0", "type": "function", "function": function}]


def test_text_that_was_kept_back_and_is_no_leak_is_shown_at_the_end():
    assembler = Assembler()
    feed(assembler, says('{"n": 42, "x": 1}'), ends())
    assert deltas(assembler.close()) == [{"content": '{"n": 42, "x": 1}'}]
    assert assembler.finish().text == '{"n": 42, "x": 1}'


def test_a_call_in_the_models_thoughts_counts_only_where_it_said_nothing():
    silent = Assembler()
    feed(silent, thinks(f"Hm. {LEAK}"), says("\n", "stop"))
    assert [call.name for call in finish(silent).calls] == ["search"]
    talking = Assembler()
    feed(talking, thinks(f"Hm. {LEAK}"), says("Done.", "stop"))
    turn = finish(talking)
    assert (turn.calls, turn.message["reasoning_content"]) == ((), "Hm. ")


def test_raw_format_that_means_nothing_makes_a_turn_garbled():
    turn = turn_of(says('{"cursor": 2, "id": 2}'), ends())
    assert (turn.garbled, turn.text) == (True, "")


def test_a_name_loses_what_is_glued_to_it_and_its_arguments_are_not_lost():
    turn = turn_of(
        calls(0, id="a", name="functions.search<|channel|>commentary", arguments="{}"),
        calls(1, id="b", name="search<arg_key>q</arg_key><arg_value>x</arg_value>", arguments="{}"),
        ends("tool_calls"),
    )
    assert turn.calls == (ToolCall("a", "search", "{}"), ToolCall("b", "search", '{"q":"x"}'))


def test_the_same_goes_for_whole_answers():
    assert whole({"content": f"Hm {LEAK}"}).calls == (ToolCall("call_rt3_0", "search", '{"q":"x"}'),)
    assert whole({"content": None, "reasoning": LEAK}).calls == (ToolCall("call_rt3_0", "search", '{"q":"x"}'),)
    assert whole({"content": '{"cursor":1}'}).garbled
    assert whole({"content": "Hi"}).message == {"content": "Hi"}
    named = {"function": {"name": "to=functions.search", "arguments": {"q": 1}}}
    assert whole({"content": "", "tool_calls": [named]}).calls == (ToolCall("call_rt3_0", "search", '{"q":1}'),)


PIECES = ["Hello", " ", "\n", "<", "<tool_call>", LEAK, "`", "```", "{", '{"n": 1}', "</tool_call>", "<|channel|>", "é"]


@given(st.lists(st.sampled_from(PIECES)), st.lists(st.integers(0, 300)), st.booleans())
def test_however_a_text_is_cut_the_turn_is_the_same_as_the_whole_answers(pieces, cuts, hold):
    text = "".join(pieces)
    bounds = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    assembler = Assembler(buffering=hold, client_tools={"open_door"})
    shown = feed(assembler, *(chunk({"content": text[a:b]}) for a, b in pairwise(bounds)), ends())
    shown += assembler.close()
    turn = assembler.finish()
    at_once = whole({"role": "assistant", "content": text}, client_tools={"open_door"})
    assert (turn.text, turn.calls, turn.garbled) == (at_once.text, at_once.calls, at_once.garbled)
    seen = "".join(delta.get("content") or "" for delta in deltas([*shown, *turn.buffered]))
    assert seen == (turn.text if turn.text.strip() else "")


def test_what_a_native_search_found_is_shown_although_nothing_was_said():
    results = [{"title": "T", "link": "https://t.example/"}]
    shown = feed(Assembler(), {"choices": [], "web_search": results}, {"choices": [], "other": 1})
    assert shown == [{"choices": [], "web_search": results}]


def test_what_was_kept_back_of_a_text_comes_before_what_follows_it():
    opening = tool_delta(id="a", name="open_door", arguments="{}")
    shown = feed(Assembler(client_tools={"open_door"}), thinks("foo <"), says("Run <"), chunk(opening))
    keys = [list(delta) for delta in deltas(shown)]
    assert deltas(shown)[1]["reasoning_content"] == "<"
    assert deltas(shown)[2]["content"] == "<"
    assert keys == [["reasoning_content"], ["content", "reasoning_content"], ["content", "tool_calls"]]


def test_a_leak_under_a_name_that_the_upstream_was_told_is_a_call_of_the_clients_name():
    turn = turn_of(
        chunk({"content": LEAK.replace("search", "my_search")}),
        ends(),
        tools={"my.search": TOOLS["search"]},
        renamed={"my_search": "my.search"},
    )
    assert [call.name for call in turn.calls] == ["my.search"]


def test_a_whole_answer_in_parts_is_read_for_leaks_as_well():
    message = {"role": "assistant", "content": [{"type": "text", "text": "Hm"}, {"type": "text", "text": LEAK}]}
    turn = whole(message)
    assert ([one.name for one in turn.calls], turn.text) == (["search"], "Hm")


def test_a_call_is_ready_when_its_arguments_are_an_object_and_those_before_it_are_ready():
    assembler = Assembler(client_tools={"open_door"})

    def taken(*fragment, **fields):
        return [(call.name, call.arguments) for call in ready(assembler, calls(*fragment, **fields))]

    assert taken(0, id="a", name="search", arguments='{"q":{"x":1}') == []
    assert taken(0, arguments="}") == [("search", '{"q":{"x":1}}')]
    assert taken(0, arguments=" ") == []
    assert taken(1, id="b", name="open_door", arguments='{"n":') == []  # the client's
    assert taken(2, id="c", name="search", arguments='{"q":') == []
    assert taken(3, id="d", name="search", arguments='{"q":2}') == []
    assert taken(2, arguments="1}") == [("search", '{"q":1}'), ("search", '{"q":2}')]
    assert taken(4, id="e", name="search", arguments="null") == []
    assert taken(5, id="f", name="search", arguments="[1}") == [("search", "null")]
    assert taken(6, id="g", name="search", arguments="{]") == []


def test_an_empty_object_that_the_tool_would_refuse_may_stand_for_arguments_that_are_still_to_come():
    assembler = Assembler()
    both = calls(0, id="a", name="open_door", arguments="{}"), calls(1, id="b", name="search", arguments="{}")
    assert [call.name for call in ready(assembler, *both)] == ["open_door"]
    assert [call.arguments for call in ready(assembler, calls(1, arguments='{"q":7}'), ends("tool_calls"))] == [
        '{"q":7}'
    ]
    assert [call.arguments for call in finish(assembler).calls] == ["{}", '{"q":7}']


def test_a_call_without_a_word_of_its_arguments_is_not_ready_because_the_next_one_has_begun():
    assembler = Assembler()
    assert ready(assembler, calls(0, id="a", name="open_door"), calls(1, id="b", name="search")) == []
    both = calls(0, arguments='{"n":7}'), calls(1, arguments='{"q":1}')
    assert [call.arguments for call in ready(assembler, *both)] == ['{"n":7}', '{"q":1}']


def test_a_streamed_custom_call_is_the_clients_like_a_function():
    first = {"index": 0, "id": "a", "type": "custom", "custom": {"name": "run_code", "input": "print"}}
    shown, turn = read(
        chunk({"tool_calls": [first]}),
        chunk({"tool_calls": [{"index": 0, "custom": {"input": "(1)"}}]}),
        ends("tool_calls"),
        client_tools={"run_code"},
    )
    fragments = [one["tool_calls"][0] for one in deltas(shown)]
    assert [one["custom"]["input"] for one in fragments] == ["print", "(1)"]
    [entry] = turn.message["tool_calls"]
    assert entry["custom"] == {"name": "run_code", "input": "print(1)"}


def test_a_streamed_call_of_a_type_that_nobody_knows_stays_as_it_is():
    call = {"index": 0, "id": "a", "type": "odd", "odd": {"name": "look", "at": "x"}}
    more = {"index": 0, "odd": {"at": "y"}}
    shown, turn = read(
        chunk({"tool_calls": [call]}), chunk({"tool_calls": [more]}), ends("tool_calls"), client_tools={"look"}
    )
    assert [one["tool_calls"][0]["odd"].get("at") for one in deltas(shown)] == ["x", "y"]
    assert turn.message["tool_calls"][0]["type"] == "odd"


def test_the_text_of_a_turn_stands_before_the_clients_calls():
    assembler = Assembler(client_tools={"open_door"})
    shown = feed(
        assembler, says("Well.\n\n\n"), calls(0, id="a", name="open_door", arguments='{"n":1}'), ends("tool_calls")
    )
    assert [one.get("content") for one in deltas(shown)] == ["Well.\n\n", "\n"]
    assert assembler.close() == []


@pytest.mark.parametrize("text", ["Run `make`", "I use search", "a <"])
def test_text_in_the_same_chunk_as_a_call_stands_before_it_to_its_last_character(text):
    assembler = Assembler(client_tools={"open_door"})
    both = {"content": text, **tool_delta(0, id="a", name="open_door", arguments='{"n":')}
    shown = feed(assembler, chunk(both), calls(0, arguments="1}"), ends("tool_calls"))
    assert [one.get("content") for one in deltas(shown)] == [text, None]
    assert assembler.close() == []
    assert assembler.finish().message["content"] == text


@pytest.mark.parametrize("more", [{"content": "Look."}, tool_delta(0, id="a", name="open_door", arguments='{"n":1}')])
def test_thoughts_in_the_same_chunk_as_text_or_a_call_are_shown_to_their_last_character(more):
    assembler = Assembler(client_tools={"open_door"})
    shown = feed(assembler, chunk({"reasoning_content": "I need search", **more}), ends())
    assert [one.get("reasoning_content") for one in deltas(shown)] == ["I need search"]
    assert assembler.close() == []


NAMED_CALL = f'{{"name": "search", "arguments": {{"q": "{"x" * PROOF_CHARACTERS}"}}}}'
CALL_IN_WORDS = f'<function_calls><invoke name="search"><parameter name="q">{"x" * PROOF_CHARACTERS}'


@pytest.mark.parametrize(
    ("text", "is_held"),
    [
        (CALL_IN_WORDS, True),
        (f"```json\n{{{' ' * PROOF_CHARACTERS}", True),
        (f"search({'x' * PROOF_CHARACTERS}", True),
        (f"search of {'x' * PROOF_CHARACTERS}", False),
        (f"```python\nprint({'1' * PROOF_CHARACTERS})", False),
        (f"I will call: {NAMED_CALL}", True),
        (f"I will call: [{NAMED_CALL}", True),
        (f'I will call: {{"tool_calls": [{{"id": "{"x" * PROOF_CHARACTERS}"', True),
        (f"{'x' * (PROOF_CHARACTERS - 1)}{{", True),
        (f"{'x' * PROOF_CHARACTERS}{NAMED_CALL}", False),
        (f'She is {{"name": "Ann", "age": {"1" * PROOF_CHARACTERS}', False),
        (f'It holds {{"city": "{"x" * PROOF_CHARACTERS}"', False),
        (f"Well. <|tool_calls_section_begin|>{'x' * PROOF_CHARACTERS}", True),
        (f"<|observation|>{'x' * PROOF_CHARACTERS}", True),
        (f"<think>{'x' * PROOF_CHARACTERS}</think>", True),
        (f"<think>{'x' * PROOF_CHARACTERS}</think>search({'x' * PROOF_CHARACTERS}", True),
        (f"<think>Hm.</think>{'x' * PROOF_CHARACTERS}", False),
    ],
)
def test_a_forced_turn_that_begins_like_a_call_waits_for_its_end(text, is_held):
    assert (feed(Assembler(buffering=True), says(text)) == []) is is_held


def test_a_forced_turn_that_begins_with_thoughts_is_shown_once_it_has_gone_on_as_an_answer():
    assembler = Assembler(buffering=True)
    pieces = ["<think>", *["x" * PROOF_CHARACTERS] * 3, "</think>", "It rains. " * 8, "It snows. " * 8, "!"]
    shown = [len(feed(assembler, says(piece))) for piece in pieces]
    assert shown == [0] * (len(pieces) - 2) + [len(pieces) - 1, 1]
    feed(assembler, ends())
    assert finish(assembler).text == "".join(pieces)


def test_a_call_that_leaked_into_whole_thoughts_is_taken_out_of_their_details_too():
    details = [{"type": "reasoning.text", "text": f"Hm. {LEAK}", "index": 0}]
    message = {"role": "assistant", "content": "", "reasoning": f"Hm. {LEAK}", "reasoning_details": details}
    turn = whole(message)
    assert [one["text"] for one in turn.message["reasoning_details"]] == ["Hm. "]


def test_the_id_of_a_call_stays_once_it_is_ready():
    assembler = Assembler()
    [started] = ready(assembler, calls(0, id="a", name="search", arguments='{"q":1}'))
    feed(assembler, calls(0, id="b", arguments=""))
    feed(assembler, ends("tool_calls"))
    assert [one.id for one in finish(assembler).calls] == [started.id] == ["a"]


@pytest.mark.parametrize("buffering", [Buffering.NONE, Buffering.START, Buffering.ALL])
def test_a_call_of_the_servers_stands_behind_the_text_of_its_piece_and_before_a_call_of_the_clients(buffering):
    assembler = Assembler(client_tools={"open_door"}, buffering=buffering)
    feed(assembler, calls(0, id="a", name="search", arguments="null"))
    opening = tool_delta(1, id="b", name="open_door", arguments="{}")
    shown = assembler.feed(chunk({"reasoning_content": "Hm <b", **opening}))
    assert [one.name if isinstance(one, ToolCall) else [*one["choices"][0]["delta"]] for one in shown] == [
        ["reasoning_content"],
        "search",
        ["tool_calls"],
    ]


# -- what a provider says beside its answer --

METADATA = {"provider_metadata": {"gateway": {"attempts": [{"success": True}]}}}


def test_what_a_provider_says_beside_the_answer_waits_until_the_turn_is_known_to_be_the_last():
    assembler = Assembler()
    assert deltas(feed(assembler, chunk({"content": "Hi", "note": "text", **METADATA}))) == [
        {"content": "Hi", "note": "text"}
    ]
    assert feed(assembler, chunk({"count": 1, "nothing": None}, "stop")) == []
    turn = finish(assembler)
    assert deltas(turn.aside) == [METADATA, {"count": 1}]
    assert turn.aside[0]["model"] == "m"
    assert turn.message == {"role": "assistant", "content": "Hi", "note": "text", "count": 1, **METADATA}


def test_text_beside_a_call_of_the_servers_waits_too_and_beside_one_of_the_clients_does_not():
    assembler = Assembler(client_tools={"open_door"})
    feed(assembler, calls(0, id="a", name="search", arguments="{}"))
    assert feed(assembler, chunk({"note": "text"})) == []
    feed(assembler, calls(1, id="b", name="open_door", arguments="{}"))
    assert deltas(feed(assembler, chunk({"note": "more"}, "tool_calls"))) == [{"note": "more"}]
    assert deltas(finish(assembler).aside) == [{"note": "text"}]


def test_reasoning_details_count_on_from_those_of_the_turns_before():
    assembler = Assembler(first_detail=2)
    sealed = [{"type": "reasoning.encrypted", "data": "x", "index": 0}]
    assert deltas(feed(assembler, chunk({"reasoning_details": sealed}))) == [
        {"reasoning_details": [{"type": "reasoning.encrypted", "data": "x", "index": 2}]}
    ]
    feed(assembler, says("Hi", "stop"))
    assert finish(assembler).message["reasoning_details"] == sealed


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_reasoning_details_show_no_leak_that_the_thoughts_do_not(size):
    assembler = Assembler(first_detail=1)
    thoughts = f"I call `x`. {LEAK} a"
    shown = []
    for at in range(0, len(thoughts), size):
        piece = thoughts[at : at + size]
        shown += feed(assembler, chunk({"reasoning": piece, "reasoning_details": [{"text": piece, "index": 0}]}))
    shown += feed(assembler, ends())
    shown += assembler.close()
    details = [detail for delta in deltas(shown) for detail in delta.get("reasoning_details") or ()]
    assert "".join(detail["text"] for detail in details) == "I call `x`.  a"
    assert {detail["index"] for detail in details} == {1}
    kept = assembler.finish().message["reasoning_details"]
    assert "".join(detail["text"] for detail in kept) == thoughts


def test_the_end_of_thoughts_that_waited_has_the_index_of_their_details():
    assembler = Assembler(first_detail=2)
    feed(assembler, chunk({"reasoning": "a <", "reasoning_details": [{"text": "a <", "index": 0}]}), ends())
    (delta,) = deltas(assembler.close())
    assert delta == {"reasoning": "<", "reasoning_details": [{"text": "<", "index": 2}]}


# -- content in parts --

THINKING = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]}


def test_content_in_parts_is_shown_as_text_and_thoughts_and_goes_back_in_parts():
    shown, turn = read(
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": [THINKING]}),
        chunk({"content": [THINKING, {"type": "text", "text": "1"}]}),
        says("44", "stop"),
    )
    assert deltas(shown) == [
        {"content": "", "reasoning_content": "Hm"},
        {"content": "1", "reasoning_content": "Hm"},
        {"content": "44"},
    ]
    assert turn.text == "144"
    assert turn.message["content"] == [
        {"type": "thinking", "thinking": [{"type": "text", "text": "HmHm"}]},
        {"type": "text", "text": "144"},
    ]
    assert "reasoning_content" not in turn.message


def test_content_of_text_parts_alone_goes_back_as_text():
    turn = turn_of(chunk({"content": [{"type": "text", "text": "Hel"}]}), says("lo", "stop"))
    assert turn.message == {"role": "assistant", "content": "Hello"}


def test_thoughts_alone_are_parts_alone():
    turn = turn_of(chunk({"content": [THINKING]}), ends("length"))
    assert turn.message["content"] == [THINKING]


@pytest.mark.parametrize("text", ["Hi", "a <tool_call of words"])
def test_a_whole_answer_in_parts_stays_as_received_where_nothing_leaked(text):
    parts = [THINKING, {"type": "text", "text": text}]
    message = {"role": "assistant", "content": list(parts)}
    turn = whole(message)
    assert (turn.message["content"], turn.text) == (parts, text)


def test_a_call_that_leaks_into_a_whole_answer_in_parts_is_taken_out_of_its_text():
    message = {"role": "assistant", "content": [THINKING, {"type": "text", "text": f"Hm {LEAK}"}]}
    turn = whole(message)
    assert (turn.message["content"], len(turn.calls)) == ([THINKING, {"type": "text", "text": "Hm "}], 1)


@pytest.mark.parametrize("thoughts_in_text", [True, False])
@pytest.mark.parametrize("together", [True, False])
def test_a_refusal_follows_all_the_text_that_was_held_back(together, thoughts_in_text):
    parts = [{"content": "a\n\n\n"}, {"refusal": "No"}]
    assembler = Assembler(tools=TOOLS, thoughts_in_text=thoughts_in_text)
    shown = feed(assembler, *map(chunk, [parts[0] | parts[1]] if together else parts), ends())
    texts = [(key, delta[key]) for delta in deltas(shown) for key in ("content", "refusal") if delta.get(key)]
    assert ["".join(text for key, text in texts if key == name) for name in ("content", "refusal")] == ["a\n\n\n", "No"]
    assert texts[-1] == ("refusal", "No")


@pytest.mark.parametrize("more", [{"tool_calls": [tool_delta(id="a")]}, {"refusal": "No"}, {}])
def test_the_beginning_of_a_leaked_call_is_cut_off_only_at_the_end_of_an_answer(more):
    turn = whole({"role": "assistant", "content": "so <tool_call>", **more}, "length")
    streamed = turn_of(says("so <tool_call>"), chunk(more, "length"), tools=TOOLS)
    assert turn.text == streamed.text == ("so <tool_call>" if more else "so ")
