from itertools import pairwise

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.loop.actions import CallUpstream
from proxy.turn.assembler import Assembler as AssemblerOfCall
from proxy.turn.citations import CITATIONS
from proxy.turn.leaks.written import PROOF_CHARACTERS
from proxy.turn.request import Buffering, TurnView
from proxy.wire.chat import ToolCall
from proxy.wire.errors import UpstreamError

TOOLS = {"search": {"properties": {"q": {}}, "required": ["q"]}, "open_door": {"properties": {"n": {}}}}
PLAIN = CallUpstream({}, number=3, run_id="r")


def Assembler(*, client_tools=(), buffering=False, tools=TOOLS, renamed=None, **view):  # noqa: N802 - stands in for the class
    buffering = Buffering.START if buffering is True else buffering or Buffering.NONE
    view = TurnView(frozenset(client_tools), tools, buffering=buffering, **view)
    return AssemblerOfCall(CallUpstream({}, number=3, run_id="r", view=view), renamed or {})


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


def whole(completion, call=PLAIN):
    assembler = AssemblerOfCall(call)
    assembler.feed_whole(completion)
    return assembler.finish()


def finish(assembler):
    assembler.close()
    return assembler.finish()


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
    shown = feed(assembler, rated("a"), rated("nother"), rated(" one,\n"), rated("a"), chunk({"content": "nd"}))
    assert [one["delta"]["content"] for one in choices(shown)] == ["another", " one,\n", "and"]
    assert tokens(shown) == [["a", "nother"], [" one,\n"], ["a"]]
    rest = [*feed(assembler, rated(" a"), chunk({}, "stop")), *assembler.close()]
    assert "".join(one["delta"]["content"] for one in choices(rest)) == " a"
    assert [token for one in tokens(rest) for token in one] == [" a"]


def test_log_probabilities_that_are_no_list_stay_as_they_are():
    odd = [rated("One"), rated(" two")]
    odd[0]["choices"][0]["logprobs"], odd[1]["choices"][0]["logprobs"] = {"content": 5}, "many"
    assert [one["logprobs"] for one in choices(feed(Assembler(), *odd))] == [{"content": 5}, "many"]


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_forced_text_behind_long_thoughts_is_shown_when_there_is_enough_of_it(size):
    assembler = Assembler(buffering=True)
    text = f"<think>{'Hm. ' * 100}</think>{'It rains. ' * 40}"
    shown = feed(assembler, *[chunk({"content": text[at : at + size]}) for at in range(0, len(text), size)])
    rest = [*feed(assembler, chunk({}, "stop")), *assembler.close()]
    assert "".join(one["delta"].get("content", "") for one in choices([*shown, *rest])) == text
    assert choices(shown)[-1]["delta"]["content"] != text or size == 1000


def test_an_empty_model_in_the_first_chunk_is_none():
    assembler = Assembler()
    feed(
        assembler, {"id": "", "model": "", "choices": [], "prompt_filter_results": []}, chunk({"content": "a"}, "stop")
    )
    assert assembler.close()[0]["model"] == "m"
    assert assembler.finish().envelope["model"] == "m"


def test_more_of_the_same_text_and_nothing_else_is_shown_as_it_is():
    assembler = Assembler()
    feed(assembler, chunk({"reasoning_content": "Hm"}))
    assert deltas(feed(assembler, chunk({"reasoning_content": ", yes"}))) == [{"reasoning_content": ", yes"}]
    assert deltas(feed(assembler, chunk({"content": "It"}), chunk({"content": " is\n"}))) == [
        {"content": "It"},
        {"content": " is\n"},
    ]
    assert feed(assembler, chunk({"content": "a"})) == []  # what may be the beginning of a name waits
    assert deltas(feed(assembler, chunk({"content": "nother"}, "stop"))) == [{"content": "another"}]
    assert assembler.calls.take_ready() == []
    assert finish(assembler).message == {
        "role": "assistant",
        "reasoning_content": "Hm, yes",
        "content": "It is\nanother",
    }


def test_what_a_search_found_is_shown_also_while_the_text_beside_it_waits():
    assembler = Assembler()
    feed(assembler, chunk({"content": "It "}, web_search=[1]))
    (shown,) = feed(assembler, chunk({"content": "a"}, web_search=[2]))  # which may be the beginning of a name
    assert (shown["choices"], shown["web_search"]) == ([], [2])


def test_where_nothing_can_be_called_text_is_only_text():
    assembler = Assembler(tools={})
    said = [{"content": text} for text in ("It", " a", "<tool_call>search")]
    assert deltas(feed(assembler, *(chunk(dict(delta)) for delta in said))) == said


@pytest.mark.parametrize("between", [{"reasoning_content": "Hm"}, tool_delta(name="search"), {"content": None, "x": 1}])
def test_after_anything_else_the_text_is_looked_at_again(between):
    assembler = Assembler()
    feed(assembler, chunk({"content": "It is"}), chunk({"content": " a"}))
    feed(assembler, chunk(between))
    feed(assembler, chunk({"content": " day"}, "stop"))
    assert finish(assembler).message["content"] == "It is a day"


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
    turn = finish(assembler)
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
    turn = finish(assembler)
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
                {"index": 0, "id": "call_r_0", "type": "function", "function": {"name": "open_door", "arguments": ""}}
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"n":1}'}}]},
    ]
    assert [call.name for call in finish(assembler).calls] == ["search", "open_door"]


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
    assert [call.id for call in finish(assembler).calls] == ["a", "b"]


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
    assert finish(assembler).calls == (ToolCall("a", "x", "{}"), ToolCall("b", "y", '{"k":1}'))


def test_an_index_below_zero_is_none():
    assembler = Assembler(client_tools={"open_door"})
    shown = feed(
        assembler,
        chunk(tool_delta(-1, id="a", name="search", arguments="{}")),
        chunk(tool_delta(-1, id="b", name="open_door", arguments="{}")),
        chunk({}, "tool_calls"),
    )
    assert [delta["tool_calls"][0]["index"] for delta in deltas(shown)] == [0]
    assert finish(assembler).calls == (ToolCall("a", "search", "{}"), ToolCall("b", "open_door", "{}"))


def test_pieces_with_an_empty_id_and_type_leave_those_of_the_first_one():
    assembler = Assembler(client_tools={"open_door"})
    shown = feed(
        assembler,
        chunk(tool_delta(id="a", type="function", name="open_door", arguments="")),
        chunk(tool_delta(id="", type="", name="", arguments='{"n":')),
        chunk(tool_delta(id="", type="", name=None, arguments="1}")),
        chunk(tool_delta(id="", type="", arguments=None)),
        chunk({}, "tool_calls"),
        chunk({"role": "assistant", "content": ""}, "tool_calls", usage={"total_tokens": 3}),
    )
    assert [set(delta["tool_calls"][0]) for delta in deltas(shown)[1:]] == [{"index", "function"}] * 3
    turn = finish(assembler)
    assert turn.message["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "open_door", "arguments": '{"n":1}'}}
    ]
    assert (turn.finish_reason, turn.usage) == ("tool_calls", {"total_tokens": 3})


def test_a_call_without_an_id_gets_one():
    assembler = Assembler()
    feed(assembler, chunk({"tool_calls": [{"function": {"name": "x", "arguments": None}}]}, "tool_calls"))
    assert finish(assembler).calls == (ToolCall("call_rt3_0", "x", ""),)


def test_a_blank_beginning_is_shown_when_words_follow_and_not_before():
    assembler = Assembler()
    shown = feed(assembler, chunk({"content": "\n"}), chunk({"reasoning_content": "Hm"}), chunk({"content": "\nHi"}))
    assert deltas(shown) == [{"reasoning_content": "Hm"}, {"content": "\n\nHi"}]


def test_a_separator_stands_in_place_of_leading_newlines():
    shown = feed(
        Assembler(separator="\n\n"), chunk({"content": "\n"}), chunk({"content": "\nHi"}), chunk({"content": "\n!"})
    )
    assert deltas(shown) == [{"content": "\n\nHi"}, {"content": "\n!"}]


@pytest.mark.parametrize("separator", ["", "\n\n"])
def test_blank_lines_between_two_turns_are_never_more_than_one(separator):
    assembler = Assembler(separator=separator)
    shown = feed(
        assembler,
        chunk({"content": " \n\n\nHi"}),
        *[chunk({"content": "\n"}) for _ in range(4)],
        chunk(tool_delta(id="c", name="search")),
    )
    shown += feed(assembler, chunk({}, "tool_calls")) + assembler.close()
    assert "".join(delta["content"] for delta in deltas(shown)) == separator + "Hi\n\n"
    assert assembler.finish().text == " \n\n\nHi\n\n\n\n"


@pytest.mark.parametrize(
    "ends", [[chunk({}, "stop")], [chunk(tool_delta(id="c", name="open_door")), chunk({}, "tool_calls")]]
)
def test_blank_lines_at_the_end_of_an_answer_are_the_models(ends):
    assembler = Assembler(client_tools={"open_door"})
    shown = feed(assembler, chunk({"content": "Hi\n\n"}), chunk({"content": "\n\n"}), *ends) + assembler.close()
    assert "".join(delta.get("content", "") for delta in deltas(shown)) == "Hi\n\n\n\n"


@pytest.mark.parametrize("hold", [False, True])
def test_marks_are_taken_out_of_the_text_and_told_beside_it(hold):
    assembler = Assembler(cite=lambda number, line: f"https://{number}.example/", buffering=hold, separator="\n\n")
    pieces = ["\n\nThe sky", " is blue", "【0", "†L1-", "L3】【1†source】", " and 【", "new", "】", "【2†"]
    shown = feed(assembler, *(chunk({"content": piece}) for piece in pieces), chunk({}, "stop")) + assembler.close()
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
    assembler = Assembler()
    feed(assembler, chunk({"content": "x"}, "stop"), {"choices": [], "usage": {"total_tokens": 9}}, {"choices": None})
    assert finish(assembler).usage == {"total_tokens": 9}


def test_only_the_first_choice_counts():
    other = {"choices": [{"index": 1, "delta": {"content": "other"}, "finish_reason": "stop"}]}
    assert feed(Assembler(), other) == []


def test_what_is_beside_the_delta_is_kept_in_the_choice():
    assembler = Assembler()
    one = chunk({"content": "x"}, "stop")
    one["choices"][0]["native_finish_reason"] = "end"
    feed(assembler, one)
    assert finish(assembler).choice["native_finish_reason"] == "end"


def test_a_turn_that_has_to_prove_itself_is_held_back_until_it_has():
    assembler = Assembler(buffering=True)
    assert feed(assembler, chunk({"reasoning": "Hm"}), chunk({"content": "So"})) == []
    shown = feed(assembler, chunk({"content": "." * PROOF_CHARACTERS}), chunk({"content": "!"}))
    assert len(shown) == 4
    feed(assembler, chunk({}, "stop"))
    assert finish(assembler).buffered == ()


def test_a_held_turn_that_is_short_keeps_what_it_held_for_whoever_decides():
    assembler = Assembler(buffering=True)
    feed(assembler, chunk({"content": "Yes."}), chunk({}, "stop"))
    assert deltas(finish(assembler).buffered) == [{"content": "Yes."}]


def test_a_held_turn_with_a_server_call_shows_nothing_however_much_it_writes():
    assembler = Assembler(buffering=True)
    call = chunk(tool_delta(id="a", name="search", arguments="{}"))
    assert feed(assembler, call, chunk({"content": "." * 1000})) == []


def test_a_held_turn_with_a_call_of_the_clients_is_shown():
    assembler = Assembler(buffering=True, client_tools={"open_door"})
    assert len(feed(assembler, chunk(tool_delta(id="a", name="open_door", arguments="{}")))) == 1


def test_a_whole_answer_is_a_turn_with_its_message_as_received():
    message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"index": 0, "function": {"name": "x", "arguments": {}}}],
    }
    body = {"id": "up", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}], "usage": {"a": 1}}
    turn = whole(body, PLAIN)
    assert turn.message == message
    assert turn.calls == (ToolCall("call_rt3_0", "x", "{}"),)
    assert turn.envelope == {"id": "up"}


def test_a_whole_answer_without_a_finish_reason_is_no_turn():
    message = {"role": "assistant", "content": "x"}
    with pytest.raises(UpstreamError, match="finish_reason"):
        whole({"choices": [{"message": message, "finish_reason": None}]})


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
    assert finish(assembler).calls == (ToolCall("a", "search", arguments),)


def test_an_entry_of_a_whole_answer_that_is_no_function_stays_as_it_is():
    entry = {"id": "c", "type": "custom", "custom": {"name": "x", "input": "raw"}}
    body = {"choices": [{"message": {"tool_calls": [dict(entry)]}, "finish_reason": "tool_calls"}]}
    assert whole(body, PLAIN).message["tool_calls"] == [entry]


def test_a_streamed_call_that_is_no_function_goes_back_with_its_own_fields():
    entry = {"id": "c", "type": "custom", "custom": {"name": "x", "input": "raw"}}
    assembler = Assembler()
    feed(assembler, chunk({"tool_calls": [{"index": 0, **entry}]}, "tool_calls"))
    assert finish(assembler).message["tool_calls"] == [entry]


def test_the_clients_own_calls_in_a_whole_answer_get_ids_of_the_run():
    entries = [{"id": name, "function": {"name": name, "arguments": "{}"}} for name in ("search", "open_door")]
    body = {"choices": [{"message": {"tool_calls": entries}, "finish_reason": "tool_calls"}]}
    call = CallUpstream({}, number=3, run_id="r", view=TurnView(frozenset({"open_door"}), TOOLS))
    assert whole(body, call).client_ids == (None, "call_r_0")


def test_a_turn_that_is_held_whole_shows_nothing_until_somebody_decides():
    assembler = Assembler(buffering=Buffering.TEXT)
    assert feed(assembler, chunk({"content": "." * 1000}), chunk({}, "stop")) == []
    assert len(finish(assembler).buffered) == 1


def test_thoughts_wait_too_where_only_the_end_of_a_turn_shows_whether_it_is_the_answer():
    assembler = Assembler(buffering=Buffering.ALL)
    shown = feed(assembler, chunk({"reasoning_content": "I think."}), chunk({"content": "{}"}), chunk({}, "stop"))
    assert shown == []
    assert [delta for held in finish(assembler).buffered if (delta := held["choices"][0]["delta"])] == [
        {"reasoning_content": "I think."},
        {"content": "{}"},
    ]


def test_a_clients_call_ends_the_wait_of_thoughts_but_not_that_of_text():
    assembler = Assembler(client_tools={"open_door"}, buffering=Buffering.ALL)
    words = [chunk({"reasoning_content": "I think."}), chunk({"content": "Opening."})]
    call = chunk(tool_delta(id="a", name="open_door", arguments="{}"), "tool_calls")
    shown = [key for delta in deltas(feed(assembler, *words, call)) for key in delta]
    assert shown == ["reasoning_content", "tool_calls"]
    assert [held["choices"][0]["delta"] for held in finish(assembler).buffered] == [{"content": "Opening."}]


def test_what_a_provider_adds_to_a_call_goes_back_with_it():
    assembler = Assembler()
    feed(
        assembler, chunk(tool_delta(id="a", name="search", arguments="{}", extra_content={"sig": 1})), chunk({}, "stop")
    )
    assert finish(assembler).message["tool_calls"][0]["extra_content"] == {"sig": 1}


# -- calls that leaked --

LEAK = "<tool_call>search<arg_key>q</arg_key><arg_value>x</arg_value></tool_call>"


def test_a_call_that_leaked_into_a_streamed_text_is_a_call_and_never_shown():
    assembler = Assembler()
    shown = feed(assembler, *(chunk({"content": character}) for character in f"Looking. {LEAK}"), chunk({}, "stop"))
    turn = finish(assembler)
    assert "".join(delta["content"] for delta in deltas(shown)) == "Looking. "
    assert turn.calls == (ToolCall("call_rt3_0", "search", '{"q":"x"}'),)
    assert turn.message["content"] == "Looking. "


def test_a_clients_call_that_leaked_is_shown_as_the_clients():
    assembler = Assembler(client_tools={"open_door"})
    assert feed(assembler, chunk({"content": '{"n": 1}'}), chunk({}, "stop")) == []
    (delta,) = deltas(assembler.close())
    function = {"name": "open_door", "arguments": '{"n": 1}'}
    assert delta["tool_calls"] == [{"index": 0, "id": "call_r_0", "type": "function", "function": function}]


def test_text_that_was_kept_back_and_is_no_leak_is_shown_at_the_end():
    assembler = Assembler()
    feed(assembler, chunk({"content": '{"n": 42, "x": 1}'}), chunk({}, "stop"))
    assert deltas(assembler.close()) == [{"content": '{"n": 42, "x": 1}'}]
    assert assembler.finish().text == '{"n": 42, "x": 1}'


def test_a_call_in_the_models_thoughts_counts_only_where_it_said_nothing():
    silent = Assembler()
    feed(silent, chunk({"reasoning_content": f"Hm. {LEAK}"}), chunk({"content": "\n"}, "stop"))
    assert [call.name for call in finish(silent).calls] == ["search"]
    talking = Assembler()
    feed(talking, chunk({"reasoning_content": f"Hm. {LEAK}"}), chunk({"content": "Done."}, "stop"))
    turn = finish(talking)
    assert (turn.calls, turn.message["reasoning_content"]) == ((), "Hm. ")


def test_raw_format_that_means_nothing_makes_a_turn_garbled():
    assembler = Assembler()
    feed(assembler, chunk({"content": '{"cursor": 2, "id": 2}'}), chunk({}, "stop"))
    turn = finish(assembler)
    assert (turn.garbled, turn.text) == (True, "")


def test_a_name_loses_what_is_glued_to_it_and_its_arguments_are_not_lost():
    assembler = Assembler()
    feed(
        assembler,
        chunk(tool_delta(0, id="a", name="functions.search<|channel|>commentary", arguments="{}")),
        chunk(tool_delta(1, id="b", name="search<arg_key>q</arg_key><arg_value>x</arg_value>", arguments="{}")),
        chunk({}, "tool_calls"),
    )
    assert finish(assembler).calls == (ToolCall("a", "search", "{}"), ToolCall("b", "search", '{"q":"x"}'))


def test_the_same_goes_for_whole_answers():
    call = CallUpstream({}, number=1, view=TurnView(tools=TOOLS))

    def read(message):
        return whole({"choices": [{"message": message, "finish_reason": "stop"}]}, call)

    assert read({"content": f"Hm {LEAK}"}).calls == (ToolCall("call_t1_0", "search", '{"q":"x"}'),)
    assert read({"content": None, "reasoning": LEAK}).calls == (ToolCall("call_t1_0", "search", '{"q":"x"}'),)
    assert read({"content": '{"cursor":1}'}).garbled
    assert read({"content": "Hi"}).message == {"content": "Hi"}
    named = {"function": {"name": "to=functions.search", "arguments": {"q": 1}}}
    assert read({"content": "", "tool_calls": [named]}).calls == (ToolCall("call_t1_0", "search", '{"q":1}'),)


PIECES = ["Hello", " ", "\n", "<", "<tool_call>", LEAK, "`", "```", "{", '{"n": 1}', "</tool_call>", "<|channel|>", "é"]


@given(st.lists(st.sampled_from(PIECES)), st.lists(st.integers(0, 300)), st.booleans())
def test_however_a_text_is_cut_the_turn_is_the_same_as_the_whole_answers(pieces, cuts, hold):
    text = "".join(pieces)
    bounds = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    assembler = Assembler(buffering=hold, client_tools={"open_door"})
    shown = feed(assembler, *(chunk({"content": text[a:b]}) for a, b in pairwise(bounds)), chunk({}, "stop"))
    shown += assembler.close()
    turn = assembler.finish()
    call = CallUpstream({}, number=3, run_id="r", view=TurnView(frozenset({"open_door"}), TOOLS))
    message = {"role": "assistant", "content": text}
    at_once = whole({"choices": [{"message": message, "finish_reason": "stop"}]}, call)
    assert (turn.text, turn.calls, turn.garbled) == (at_once.text, at_once.calls, at_once.garbled)
    seen = "".join(delta.get("content") or "" for delta in deltas([*shown, *turn.buffered]))
    assert seen == (turn.text if turn.text.strip() else "")


def test_what_a_native_search_found_is_shown_although_nothing_was_said():
    results = [{"title": "T", "link": "https://t.example/"}]
    shown = feed(Assembler(), {"choices": [], "web_search": results}, {"choices": [], "other": 1})
    assert shown == [{"choices": [], "web_search": results}]


def test_what_was_kept_back_of_a_text_comes_before_what_follows_it():
    assembler = Assembler(client_tools={"open_door"})
    opening = tool_delta(id="a", name="open_door", arguments="{}")
    shown = feed(assembler, chunk({"reasoning_content": "foo <"}), chunk({"content": "Run <"}), chunk(opening))
    keys = [list(delta) for delta in deltas(shown)]
    assert deltas(shown)[1]["reasoning_content"] == "<"
    assert deltas(shown)[2]["content"] == "<"
    assert keys == [["reasoning_content"], ["content", "reasoning_content"], ["content", "tool_calls"]]


def test_a_leak_under_a_name_that_the_upstream_was_told_is_a_call_of_the_clients_name():
    assembler = Assembler(tools={"my.search": TOOLS["search"]}, renamed={"my_search": "my.search"})
    feed(assembler, chunk({"content": LEAK.replace("search", "my_search")}), chunk({}, "stop"))
    assert [call.name for call in finish(assembler).calls] == ["my.search"]


def test_a_whole_answer_in_parts_is_read_for_leaks_as_well():
    message = {"role": "assistant", "content": [{"type": "text", "text": "Hm"}, {"type": "text", "text": LEAK}]}
    call = CallUpstream({}, number=1, view=TurnView(tools=TOOLS))
    turn = whole({"choices": [{"message": message, "finish_reason": "stop"}]}, call)
    assert ([one.name for one in turn.calls], turn.text) == (["search"], "Hm")


def test_a_call_is_ready_when_its_arguments_are_an_object_and_those_before_it_are_ready():
    assembler = Assembler(client_tools={"open_door"})

    def ready(*fragment, **fields):
        feed(assembler, chunk(tool_delta(*fragment, **fields)))
        return [(call.name, call.arguments) for call in assembler.calls.take_ready()]

    assert ready(0, id="a", name="search", arguments='{"q":{"x":1}') == []
    assert ready(0, arguments="}") == [("search", '{"q":{"x":1}}')]
    assert ready(0, arguments=" ") == []
    assert ready(1, id="b", name="open_door", arguments='{"n":') == []  # the client's
    assert ready(2, id="c", name="search", arguments='{"q":') == []
    assert ready(3, id="d", name="search", arguments='{"q":2}') == []
    assert ready(2, arguments="1}") == [("search", '{"q":1}'), ("search", '{"q":2}')]
    assert ready(4, id="e", name="search", arguments="null") == []
    assert ready(5, id="f", name="search", arguments="[1}") == [("search", "null")]
    assert ready(6, id="g", name="search", arguments="{]") == []


def test_an_empty_object_that_the_tool_would_refuse_may_stand_for_arguments_that_are_still_to_come():
    assembler = Assembler()
    feed(assembler, chunk(tool_delta(0, id="a", name="open_door", arguments="{}")))
    feed(assembler, chunk(tool_delta(1, id="b", name="search", arguments="{}")))
    assert [call.name for call in assembler.calls.take_ready()] == ["open_door"]
    feed(assembler, chunk(tool_delta(1, arguments='{"q":7}')), chunk({}, "tool_calls"))
    assert [call.arguments for call in assembler.calls.take_ready()] == ['{"q":7}']
    assert [call.arguments for call in finish(assembler).calls] == ["{}", '{"q":7}']


def test_a_call_without_a_word_of_its_arguments_is_not_ready_because_the_next_one_has_begun():
    assembler = Assembler()
    feed(assembler, chunk(tool_delta(0, id="a", name="open_door")), chunk(tool_delta(1, id="b", name="search")))
    assert assembler.calls.take_ready() == []
    feed(assembler, chunk(tool_delta(0, arguments='{"n":7}')), chunk(tool_delta(1, arguments='{"q":1}')))
    assert [call.arguments for call in assembler.calls.take_ready()] == ['{"n":7}', '{"q":1}']


def test_a_streamed_custom_call_is_the_clients_like_a_function():
    assembler = Assembler(client_tools={"run_code"})
    first = {"index": 0, "id": "a", "type": "custom", "custom": {"name": "run_code", "input": "print"}}
    shown = feed(
        assembler,
        chunk({"tool_calls": [first]}),
        chunk({"tool_calls": [{"index": 0, "custom": {"input": "(1)"}}]}),
        chunk({}, "tool_calls"),
    )
    fragments = [one["tool_calls"][0] for one in deltas(shown)]
    assert [one["custom"]["input"] for one in fragments] == ["print", "(1)"]
    [entry] = finish(assembler).message["tool_calls"]
    assert entry["custom"] == {"name": "run_code", "input": "print(1)"}


def test_a_streamed_call_of_a_type_that_nobody_knows_stays_as_it_is():
    assembler = Assembler(client_tools={"look"})
    call = {"index": 0, "id": "a", "type": "odd", "odd": {"name": "look", "at": "x"}}
    more = {"index": 0, "odd": {"at": "y"}}
    shown = feed(assembler, chunk({"tool_calls": [call]}), chunk({"tool_calls": [more]}), chunk({}, "tool_calls"))
    assert [one["tool_calls"][0]["odd"].get("at") for one in deltas(shown)] == ["x", "y"]
    assert finish(assembler).message["tool_calls"][0]["type"] == "odd"


def test_the_text_of_a_turn_stands_before_the_clients_calls():
    assembler = Assembler(client_tools={"open_door"})
    shown = feed(
        assembler,
        chunk({"content": "Well.\n\n\n"}),
        chunk(tool_delta(0, id="a", name="open_door", arguments='{"n":1}')),
        chunk({}, "tool_calls"),
    )
    assert [one.get("content") for one in deltas(shown)] == ["Well.\n\n", "\n"]
    assert assembler.close() == []


@pytest.mark.parametrize("text", ["Run `make`", "I use search", "a <"])
def test_text_in_the_same_chunk_as_a_call_stands_before_it_to_its_last_character(text):
    assembler = Assembler(client_tools={"open_door"})
    both = {"content": text, **tool_delta(0, id="a", name="open_door", arguments='{"n":')}
    shown = feed(assembler, chunk(both), chunk(tool_delta(0, arguments="1}")), chunk({}, "tool_calls"))
    assert [one.get("content") for one in deltas(shown)] == [text, None]
    assert assembler.close() == []
    assert assembler.finish().message["content"] == text


@pytest.mark.parametrize("more", [{"content": "Look."}, tool_delta(0, id="a", name="open_door", arguments='{"n":1}')])
def test_thoughts_in_the_same_chunk_as_text_or_a_call_are_shown_to_their_last_character(more):
    assembler = Assembler(client_tools={"open_door"})
    shown = feed(assembler, chunk({"reasoning_content": "I need search", **more}), chunk({}, "stop"))
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
    assembler = Assembler(buffering=True)
    assert (feed(assembler, chunk({"content": text})) == []) is is_held


def test_a_forced_turn_that_begins_with_thoughts_is_shown_once_it_has_gone_on_as_an_answer():
    assembler = Assembler(buffering=True)
    pieces = ["<think>", *["x" * PROOF_CHARACTERS] * 3, "</think>", "It rains. " * 8, "It snows. " * 8, "!"]
    shown = [len(feed(assembler, chunk({"content": piece}))) for piece in pieces]
    assert shown == [0] * (len(pieces) - 2) + [len(pieces) - 1, 1]
    feed(assembler, chunk({}, "stop"))
    assert finish(assembler).text == "".join(pieces)


def test_a_call_that_leaked_into_whole_thoughts_is_taken_out_of_their_details_too():
    leak = "<tool_call>search<arg_key>q</arg_key><arg_value>x</arg_value></tool_call>"
    details = [{"type": "reasoning.text", "text": f"Hm. {leak}", "index": 0}]
    message = {"role": "assistant", "content": "", "reasoning": f"Hm. {leak}", "reasoning_details": details}
    completion = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    turn = whole(completion, CallUpstream({}, number=3, run_id="r", view=TurnView(tools=TOOLS)))
    assert [one["text"] for one in turn.message["reasoning_details"]] == ["Hm. "]


def test_the_id_of_a_call_stays_once_it_is_ready():
    assembler = Assembler()
    feed(assembler, chunk(tool_delta(0, id="a", name="search", arguments='{"q":1}')))
    [ready] = assembler.calls.take_ready()
    feed(assembler, chunk(tool_delta(0, id="b", arguments="")))
    feed(assembler, chunk({}, "tool_calls"))
    assert [one.id for one in finish(assembler).calls] == [ready.id] == ["a"]


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
    feed(assembler, chunk(tool_delta(0, id="a", name="search", arguments="{}")))
    assert feed(assembler, chunk({"note": "text"})) == []
    feed(assembler, chunk(tool_delta(1, id="b", name="open_door", arguments="{}")))
    assert deltas(feed(assembler, chunk({"note": "more"}, "tool_calls"))) == [{"note": "more"}]
    assert deltas(finish(assembler).aside) == [{"note": "text"}]


def test_reasoning_details_count_on_from_those_of_the_turns_before():
    assembler = Assembler(first_detail=2)
    sealed = [{"type": "reasoning.encrypted", "data": "x", "index": 0}]
    assert deltas(feed(assembler, chunk({"reasoning_details": sealed}))) == [
        {"reasoning_details": [{"type": "reasoning.encrypted", "data": "x", "index": 2}]}
    ]
    feed(assembler, chunk({"content": "Hi"}, "stop"))
    assert finish(assembler).message["reasoning_details"] == sealed


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_reasoning_details_show_no_leak_that_the_thoughts_do_not(size):
    assembler = Assembler(first_detail=1)
    thoughts = f"I call `x`. {LEAK} a"
    shown = []
    for at in range(0, len(thoughts), size):
        piece = thoughts[at : at + size]
        shown += feed(assembler, chunk({"reasoning": piece, "reasoning_details": [{"text": piece, "index": 0}]}))
    shown += feed(assembler, chunk({}, "stop"))
    shown += assembler.close()
    details = [detail for delta in deltas(shown) for detail in delta.get("reasoning_details") or ()]
    assert "".join(detail["text"] for detail in details) == "I call `x`.  a"
    assert {detail["index"] for detail in details} == {1}
    kept = assembler.finish().message["reasoning_details"]
    assert "".join(detail["text"] for detail in kept) == thoughts


# -- content in parts --

THINKING = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]}


def test_content_in_parts_is_shown_as_text_and_thoughts_and_goes_back_in_parts():
    assembler = Assembler()
    shown = feed(
        assembler,
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": [THINKING]}),
        chunk({"content": [THINKING, {"type": "text", "text": "1"}]}),
        chunk({"content": "44"}, "stop"),
    )
    assert deltas(shown) == [
        {"content": "", "reasoning_content": "Hm"},
        {"content": "1", "reasoning_content": "Hm"},
        {"content": "44"},
    ]
    turn = finish(assembler)
    assert turn.text == "144"
    assert turn.message["content"] == [
        {"type": "thinking", "thinking": [{"type": "text", "text": "HmHm"}]},
        {"type": "text", "text": "144"},
    ]
    assert "reasoning_content" not in turn.message


def test_content_of_text_parts_alone_goes_back_as_text():
    assembler = Assembler()
    feed(assembler, chunk({"content": [{"type": "text", "text": "Hel"}]}), chunk({"content": "lo"}, "stop"))
    assert finish(assembler).message == {"role": "assistant", "content": "Hello"}


def test_thoughts_alone_are_parts_alone():
    assembler = Assembler()
    feed(assembler, chunk({"content": [THINKING]}), chunk({}, "length"))
    assert finish(assembler).message["content"] == [THINKING]


@pytest.mark.parametrize("text", ["Hi", "a <tool_call of words"])
def test_a_whole_answer_in_parts_stays_as_received_where_nothing_leaked(text):
    parts = [THINKING, {"type": "text", "text": text}]
    message = {"role": "assistant", "content": list(parts)}
    call = CallUpstream({}, number=1, view=TurnView(tools=TOOLS))
    turn = whole({"choices": [{"message": message, "finish_reason": "stop"}]}, call)
    assert (turn.message["content"], turn.text) == (parts, text)


def test_a_call_that_leaks_into_a_whole_answer_in_parts_is_taken_out_of_its_text():
    call = CallUpstream({}, number=1, view=TurnView(tools=TOOLS))
    message = {"role": "assistant", "content": [THINKING, {"type": "text", "text": f"Hm {LEAK}"}]}
    turn = whole({"choices": [{"message": message, "finish_reason": "stop"}]}, call)
    assert (turn.message["content"], len(turn.calls)) == ([THINKING, {"type": "text", "text": "Hm "}], 1)


@pytest.mark.parametrize("together", [True, False])
def test_a_refusal_stands_behind_all_that_its_text_held_back(together):
    assembler = Assembler(tools=TOOLS)
    parts = [{"content": "a\n\n\n"}, {"refusal": "No"}]
    shown = feed(assembler, *map(chunk, [parts[0] | parts[1]] if together else parts), chunk({}, "stop"))
    texts = [(key, delta[key]) for delta in deltas(shown) for key in ("content", "refusal") if delta.get(key)]
    assert ["".join(text for key, text in texts if key == name) for name in ("content", "refusal")] == ["a\n\n\n", "No"]
    assert texts[-1] == ("refusal", "No")


@pytest.mark.parametrize("more", [{"tool_calls": [tool_delta(id="a")]}, {"refusal": "No"}, {}])
def test_the_beginning_of_a_leaked_call_is_cut_off_only_at_the_end_of_an_answer(more):
    message = {"role": "assistant", "content": "so <tool_call>", **more}
    call = CallUpstream({}, number=1, view=TurnView(tools=TOOLS))
    turn = whole({"choices": [{"message": {**message}, "finish_reason": "length"}]}, call)
    assembler = Assembler(tools=TOOLS)
    feed(assembler, chunk({"content": "so <tool_call>"}), chunk(more, "length"))
    streamed = finish(assembler)
    assert turn.text == streamed.text == ("so <tool_call>" if more else "so ")
