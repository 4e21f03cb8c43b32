"""One dialogue for each rule of the loop."""

import orjson
import pytest
from msgspec.structs import replace

from proxy.loop.continuation import put_back
from proxy.loop.forcing import AnswerStep
from proxy.loop.limits import Limits
from proxy.loop.offer import make_offer
from proxy.loop.prompts import ANSWER_NOW, BUDGET_USED, REPEATED
from proxy.loop.results import ToolOutput, ToolResult, failure, success
from proxy.loop.run import Run
from proxy.loop.tally import sum_of
from proxy.turn.json_mode import JsonMode
from proxy.turn.request import Buffering
from proxy.wire.chat import NATIVE_REASON, WINDOW_EXCEEDED
from proxy.wire.errors import ContextFull, NoFinalAnswer
from tests.playbook import (
    SEARCH,
    TIME,
    Playbook,
    asks,
    call,
    calls,
    last_message,
    responds,
    results,
    run_of,
    runs,
    says,
    searched,
    told,
    turn_of,
)

ASSISTANT_AS_RECEIVED = {
    "role": "assistant",
    "content": "Let me look.",
    "reasoning_content": "I need the weather.",
    "tool_calls": [
        {
            "id": "call_-78",
            "index": 0,
            "type": "function",
            "function": {"name": "web_search", "arguments": '{"query":"a"}'},
        }
    ],
    "vendor": {"extra": 1},
}
DECLARED = {"type": "function", "function": {"name": "web_search", "parameters": {}}}
OPEN_DOOR = {"type": "function", "function": {"name": "open_door", "parameters": {}}}


def test_an_answer_without_calls_ends_the_run():
    Playbook(run_of()) << asks("user", number=1) >> says("Hello") << responds("Hello", stop="answer", step=None)


def test_the_assistant_message_goes_back_as_received_and_its_results_follow_at_once():
    play = Playbook(run_of()) << asks("user") >> turn_of(ASSISTANT_AS_RECEIVED, "tool_calls") << runs("web_search")
    play >> results("found") << asks("user", "assistant", "tool", number=2)
    sent = play.pending.body["messages"]
    assert sent[1] == ASSISTANT_AS_RECEIVED
    assert sent[2] == {"role": "tool", "tool_call_id": "call_-78", "content": "found"}


def test_results_stand_in_call_order():
    first, second = call(id="a"), call("current_time", "{}", id="b")
    play = Playbook(run_of()) << asks() >> calls(first, second) << runs("web_search", "current_time")
    play >> results("one", "two") << told("one", "two") >> says("Done") << responds("Done")


def test_calls_can_follow_calls():
    play = Playbook(run_of()) << asks() >> calls(call()) << runs("web_search") >> results("one")
    play << asks() >> calls(call(arguments='{"query":"y"}')) << runs("web_search") >> results("two")
    play << asks("user", "assistant", "tool", "assistant", "tool") >> says("Done") << responds("Done", stop="answer")


def test_a_call_by_an_alias_runs_the_tool_under_its_own_name():
    Playbook(run_of()) << asks() >> calls(call("browser.search")) << runs("web_search")


def test_a_call_of_an_unknown_name_is_told_and_the_conversation_goes_on():
    play = Playbook(run_of()) << asks() >> calls(call("rm_rf")) << told("There is no tool named 'rm_rf'")
    play >> says("Sorry") << responds("Sorry", stop="answer")


def test_the_clients_own_calls_end_the_run_and_are_the_clients():
    run = run_of({"tools": [OPEN_DOOR]})
    play = Playbook(run) << asks(tools=["open_door", "web_search", "current_time"]) >> calls(call("open_door", "{}"))
    play << responds(stop="client_tool_calls", finish_reason="tool_calls")
    assert play.pending.message["tool_calls"][0]["function"]["name"] == "open_door"


RUN = "0" * 32
MIXED = [call(id="s1"), call("open_door", '{"door":1}', id="c1"), call("current_time", "{}", id="s2")]


def test_in_a_mixed_turn_the_servers_calls_are_run_and_the_client_gets_its_own_only():
    play = Playbook(run_of({"tools": [OPEN_DOOR]})) << asks() >> calls(*MIXED) << runs("web_search", "current_time")
    play >> results("found", "noon") << responds(stop="client_tool_calls", finish_reason="tool_calls")
    (entry,) = play.pending.message["tool_calls"]
    assert (entry["id"], entry["function"]["name"]) == (f"call_{RUN}_0", "open_door")


def test_what_a_mixed_turn_hides_can_be_put_back_with_everything_that_led_to_it():
    play = Playbook(run_of({"tools": [OPEN_DOOR]})) << asks() >> calls(call(id="s0")) << runs("web_search")
    play >> results("first") << asks() >> calls(*[replace(one, arguments='{"n":1}') for one in MIXED])
    play << runs("web_search", "current_time") >> results("found", "noon") << responds(stop="client_tool_calls")
    visible = play.pending.message
    answer = {"role": "tool", "tool_call_id": visible["tool_calls"][0]["id"], "content": "opened"}
    history = [{"role": "user", "content": "Hi"}, visible, answer]
    restored = put_back(history, {RUN: play.pending.continuation})
    roles = [message["role"] for message in restored]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "tool", "tool"]
    assert [message.get("tool_call_id") for message in restored[4:]] == ["s1", "c1", "s2"]
    assert [message["content"] for message in restored[4:]] == ["found", "opened", "noon"]


def test_a_turn_of_the_clients_calls_alone_is_restored_with_the_upstreams_own_ids():
    play = Playbook(run_of({"tools": [OPEN_DOOR]})) << asks() >> calls(call("open_door", "{}", id="up")) << responds()
    answer = {"role": "tool", "tool_call_id": f"call_{RUN}_0", "content": "opened"}
    restored = put_back([play.pending.message, answer], {RUN: play.pending.continuation})
    assert restored[0]["tool_calls"][0]["id"] == restored[1]["tool_call_id"] == "up"


def test_in_a_mixed_turn_beyond_the_budget_the_servers_calls_are_refused_and_kept_so():
    play = Playbook(run_of({"tools": [OPEN_DOOR]}, max_tool_calls=1)) << asks() >> calls(*MIXED) << runs("web_search")
    play >> results("found") << responds(stop="client_tool_calls")
    assert BUDGET_USED in play.pending.continuation.results[2]


def test_what_is_kept_of_a_run_does_not_hold_a_later_one_to_its_budget():
    play = searched({"tools": [OPEN_DOOR]}, max_turns=2) << told(ANSWER_NOW)
    play >> calls(call("open_door", "{}")) << responds(stop="client_tool_calls")
    assert ANSWER_NOW not in str(play.pending.continuation.before)


def test_a_call_of_another_kind_is_the_clients_where_it_declared_it_and_nobodys_otherwise():
    declared = {"type": "custom", "custom": {"name": "x"}}
    custom = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "x"}}],
    }
    play = Playbook(run_of({"tools": [declared]})) << asks() >> turn_of(custom, "tool_calls")
    play << responds(stop="client_tool_calls", finish_reason="tool_calls")
    reported = {"role": "assistant", "content": "Done", "tool_calls": [{"id": "m", "type": "mcp", "mcp": {}}]}
    Playbook(run_of()) << asks() >> turn_of(reported, "stop") << responds("Done", stop="answer", finish_reason="stop")


def test_a_turn_cut_off_by_length_runs_nothing():
    play = Playbook(run_of()) << asks() >> turn_of(ASSISTANT_AS_RECEIVED, "length")
    play << responds("Let me look.", finish_reason="length")
    assert "tool_calls" not in play.pending.message


def test_a_forced_choice_of_a_server_tool_holds_for_the_first_turn_only():
    forced = {"type": "function", "function": {"name": "web_search"}}
    play = Playbook(run_of({"tools": [DECLARED], "tool_choice": forced})) << asks(tool_choice=forced)
    play >> calls(call()) << runs("web_search") >> results("found") << asks(tool_choice="auto")


def test_a_choice_left_to_the_model_stays_as_it_was():
    play = Playbook(run_of()) << asks(tool_choice=None) >> calls(call()) << runs("web_search")
    play >> results("found") << asks(tool_choice=None)


def test_usage_is_the_sum_over_all_turns():
    play = Playbook(run_of()) << asks() >> calls(call(), tokens=10) << runs("web_search") >> results("found")
    play << asks() >> says("Done", tokens=5) << responds("Done")
    assert play.pending.tally.as_usage() == {
        "prompt_tokens": 15,
        "completion_tokens": 0,
        "total_tokens": 15,
        "server_tool_use": {"turns": 2, "tool_calls": 1, "web_search_requests": 0, "web_search": 1},
    }


def test_calls_of_searches_are_counted_beside_the_calls_of_each_tool():
    tools = (replace(SEARCH, searches=True), replace(SEARCH, name="news", aliases=(), searches=True), TIME)
    wanted = [call(id="a"), call("news", id="b"), call("current_time", "{}", id="c")]
    play = Playbook(run_of(tools=tools)) << asks() >> calls(*wanted) << runs("web_search", "news", "current_time")
    play >> results("a", "b", "c") << asks() >> says("Done") << responds("Done")
    use = {"turns": 2, "tool_calls": 3, "web_search_requests": 2, "web_search": 1, "news": 1, "current_time": 1}
    assert play.pending.tally.as_usage()["server_tool_use"] == use
    assert sum_of([play.pending.tally] * 2).web_searches == 4


# -- limits --


def test_the_last_permitted_turn_is_kept_for_the_answer():
    play = searched(max_turns=2)
    play << asks(step="notice") << told(ANSWER_NOW) >> says("Done") << responds("Done", stop="max_turns", step="notice")


def test_calls_beyond_the_budget_are_refused_each_with_a_result_of_its_own():
    wanted = [call(arguments=f'{{"query":"{n}"}}', id=f"c{n}") for n in range(3)]
    play = Playbook(run_of(max_tool_calls=2)) << asks() >> calls(*wanted) << runs("web_search", "web_search")
    play >> results("one", "two") << told("one", "two", BUDGET_USED) << asks(step="notice")
    play >> says("Done") << responds("Done", stop="max_tool_calls")


def test_a_budget_that_is_just_used_up_permits_no_further_round():
    play = searched(max_tool_calls=1)
    play << asks(step="notice") << told(ANSWER_NOW) >> says("Done") << responds("Done", stop="max_tool_calls")


def test_a_required_choice_is_freed_when_the_model_is_made_to_answer():
    run = run_of({"tools": [DECLARED], "tool_choice": "required"}, max_turns=2)
    play = Playbook(run) << asks(tool_choice="required") >> calls(call()) << runs("web_search") >> results("found")
    play << asks(step="notice", tool_choice="auto")


def test_a_tools_own_limit_refuses_only_its_own_calls():
    run = run_of(tools=[replace(SEARCH, max_calls=1), TIME])
    wanted = [call(id="a"), call(arguments='{"query":"y"}', id="b"), call("current_time", "{}", id="c")]
    play = Playbook(run) << asks() >> calls(*wanted) << runs("web_search", "current_time")
    play >> results("one", "noon") << told("one", BUDGET_USED, "noon") << asks(step=None)


def test_tokens_are_a_limit_too_and_no_pending_call_is_run_beyond_it():
    run = run_of(max_total_tokens=100)
    play = Playbook(run) << asks() >> calls(call(), tokens=60) << runs("web_search") >> results("found")
    play << asks() >> calls(call(arguments='{"query":"y"}'), tokens=60) << told("found", BUDGET_USED)
    play << asks(step="notice") >> says("Done") << responds(stop="max_total_tokens")


def test_after_the_deadline_no_tool_is_begun():
    play = Playbook(run_of()) << asks()
    play.run.expire()
    play >> calls(call()) << told(BUDGET_USED) << asks(step="notice") >> says("Done") << responds(stop="deadline")


def test_after_the_deadline_no_further_round_is_begun():
    play = Playbook(run_of()) << asks() >> calls(call()) << runs("web_search")
    play.run.expire()
    play >> results("found") << asks(step="notice") >> says("Done") << responds(stop="deadline")


def test_a_repeated_call_is_answered_from_the_first_result_and_then_refused():
    again = call(arguments='{ "query": "x" }', id="again")
    play = searched() << asks() >> calls(again) << told(REPEATED) << told("found") << asks(step=None)
    play >> calls(again) << told(REPEATED) << asks(step="notice") >> says("Done") << responds(stop="repeated_call")
    assert play.pending.tally.total_tool_calls == 1


def test_the_same_call_twice_in_one_turn_is_run_once_and_answered_twice():
    play = Playbook(run_of()) << asks() >> calls(call(id="a"), call(id="b")) << runs("web_search")
    play >> results("found") << told("found", "found")


def test_the_same_call_twice_in_one_turn_beyond_the_budget_is_refused_twice():
    run = run_of(max_tool_calls=1)
    other = [call("current_time", "{}", id="t"), call(id="a"), call(id="b")]
    play = Playbook(run) << asks() >> calls(*other) << runs("current_time")
    play >> results("noon") << told("noon", BUDGET_USED, BUDGET_USED)


# -- making the model answer --

NOTICE, WITHDRAW, RETELL = AnswerStep
KEEPS_TOOLS = (NOTICE, NOTICE, RETELL)
GIVES_TOOLS_UP = (NOTICE, WITHDRAW, RETELL)


def test_a_model_that_never_stops_calling_is_made_to_answer_step_by_step():
    play = searched(max_turns=2)
    play << asks(step="notice", tools=["web_search", "current_time"], number=2) >> calls(call(arguments="{}"))
    play << asks(step="withdraw", tools=[], number=3) << told(BUDGET_USED) >> calls(call(arguments="[]"))
    play << asks("user", "user", step="retell", tools=[], number=4) << last_message(lambda m: "found" in m["content"])
    play >> says("Done") << responds("Done", stop="max_turns", step="retell")


def test_when_every_step_fails_there_is_no_final_answer():
    play = searched(max_turns=2)
    for _ in range(2):
        play << asks() >> calls(call(arguments="{}"))
    with pytest.raises(NoFinalAnswer):
        play >> says("  ")


def test_withdrawing_leaves_the_clients_own_tools():
    play = searched(
        {"tools": [OPEN_DOOR], "parallel_tool_calls": True}, max_turns=2, steps=(WITHDRAW, WITHDRAW, RETELL)
    )
    play << asks(step="withdraw", tools=["open_door"]) >> calls(call("open_door", "{}"))
    play << responds(stop="client_tool_calls", finish_reason="tool_calls")


def test_no_empty_list_of_tools_and_nothing_about_tools_is_sent_without_tools():
    play = searched({"parallel_tool_calls": True}, max_turns=2, steps=(WITHDRAW, WITHDRAW, RETELL))
    play << asks(step="withdraw")
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & play.made.body.keys()


def after_a_first_attempt_in_vain(steps):
    """A run at its limit whose first attempt at making the model answer has brought one more call."""
    play = Playbook(run_of(max_turns=2), steps=steps) << asks() >> calls(call()) << runs("web_search")
    return play >> results("found") << asks(step="notice") >> calls(call(arguments="{}"))


def test_after_a_fallback_the_steps_are_those_of_the_upstream_that_answers():
    play = after_a_first_attempt_in_vain(KEEPS_TOOLS) << asks(step="notice", tools=["web_search", "current_time"])
    play.falls_back(GIVES_TOOLS_UP) << asks(step="withdraw", tools=[]) >> says(" ")
    play << asks(step="retell", tools=[]) >> says("Done") << responds("Done", step="retell")


def test_after_a_fallback_no_tools_are_withdrawn_that_the_upstream_that_answers_has_to_keep():
    play = after_a_first_attempt_in_vain(GIVES_TOOLS_UP) << asks(step="withdraw", tools=[])
    play.falls_back(KEEPS_TOOLS) << asks(step="notice", tools=["web_search", "current_time"]) >> says("Done")
    play << responds("Done", step="notice")


def test_a_blank_answer_after_a_result_is_asked_for_again():
    play = searched() << asks() >> says("\n") << asks("user", "assistant", "tool", "user", step="notice")
    play >> says(None) << asks("user", "assistant", "tool", "user", step="withdraw")
    play >> says("Done") << responds("Done", stop="answer", step="withdraw")


def test_a_blank_first_answer_is_asked_for_once_more_as_it_was():
    play = Playbook(run_of()) << asks("user", number=1)
    first = play.pending.body
    play >> says("\n") << asks("user", step=None, number=2)
    assert play.pending.body == first
    play >> calls(call()) << runs("web_search") >> results("found") << asks() >> says("Done")
    play << responds("Done", stop="answer", step=None)


def test_a_model_that_is_blank_twice_is_made_to_answer():
    play = Playbook(run_of()) << asks() >> says(None) << asks("user", step=None)
    play >> says("") << asks("user", "user", step="notice") >> says("Done") << responds("Done", stop="answer")


@pytest.mark.parametrize("limit", [{"max_turns": 2}, {"max_total_tokens": 5}])
def test_a_blank_first_answer_at_a_limit_is_made_an_answer_at_once(limit):
    play = Playbook(run_of(**limit)) << asks() >> says("", tokens=9) << asks("user", "user", step="notice")
    play >> says("Done") << responds("Done", stop="answer")


@pytest.mark.parametrize(
    "said",
    [
        {"refusal": "I can't help with that."},
        {"audio": {"id": "a"}},
        {"images": [{"type": "image_url"}]},
        {"tool_calls": [{"id": "m", "type": "mcp", "mcp": {}}]},
    ],
)
def test_an_answer_that_is_no_text_is_not_blank(said):
    (
        Playbook(run_of())
        << asks()
        >> turn_of({"role": "assistant", "content": None, **said}, "stop")
        << responds(stop="answer")
    )


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_a_blank_first_answer_that_says_why_is_handed_on(reason):
    Playbook(run_of()) << asks() >> says("", finish_reason=reason) << responds("", finish_reason=reason)


def test_without_a_server_tool_in_play_a_blank_answer_is_handed_on():
    Playbook(run_of(tools=())) << asks() >> says("") << responds("", stop="answer")


def test_a_model_that_calls_what_does_not_exist_again_and_again_is_made_to_answer():
    play = Playbook(run_of(max_turns=3)) << asks() >> calls(call("python", '{"code":"1"}'))
    play << told("There is no tool named 'python'") >> calls(call("python", '{"code":"2"}'))
    play << told("There is no tool named 'python'") << asks(step="notice") >> says("Done") << responds("Done")
    assert play.pending.tally.total_tool_calls == 0


def test_a_refusal_is_a_forced_answer():
    play = searched(max_turns=2)
    refused = turn_of({"role": "assistant", "content": None, "refusal": "I cannot."}, "stop")
    play << asks(step="notice") >> refused << responds(stop="max_turns")


def test_the_hidden_part_of_a_turn_that_was_broken_off_behind_a_clients_call_is_kept():
    play = Playbook(run_of({"tools": [OPEN_DOOR]})) << asks() >> calls(call()) << runs("web_search") >> results("a")
    cut = calls(call(id="u1"), call("open_door", "{}", id="u2"))
    play << asks() >> replace(cut, finish_reason="length")
    hidden = play.pending.continuation
    assert [message["role"] for message in hidden.before] == ["assistant", "tool"]
    assert "broken off" in hidden.results[0]
    assert play.pending.finish_reason == "length"


@pytest.mark.parametrize("text", ["<tool_call>web_search<tool_call>", "Well. <|end|>", "So <|channel|>"])
def test_a_forced_answer_that_holds_raw_format_is_none(text):
    play = searched(max_turns=2)
    play << asks(step="notice") >> says(text) << asks(step="withdraw") >> says("`<tool_call>` is GLM's.")
    play << responds("`<tool_call>` is GLM's.")


NAMED = '{"name": "web_search", "arguments": {"query": "zz"}}'


@pytest.mark.parametrize(
    "text",
    [
        '{"query": "zz", "topn": 5}',
        '{"id": 3}',
        '{"query": "zz"}',
        '{"name": "web_search", "arguments": {"query": "zz"}}',
        '```json\n{"query": "zz"}\n```',
        'functions.web_search({"query": "zz"})',
        "web_search(query='zz')",
        'commentary to=functions.web_search {"query": "zz"}',
        'assistantcommentary to=functions.web_search json{"query": "zz"}',
        "```\n<tool_call>web_search</tool_call>\n```",
        "<function=web_search>",
        '[TOOL_CALLS][{"name": "web_search"}]',
        "<|python_tag|>web_search.call()",
        '<invoke name="web_search">',
        "<\uff5ctool\u2581calls\u2581begin\uff5c>",
        "<\uff5cDSML\uff5cfunction_calls>",
        '<minimax:tool_call>\n<invoke name="web_search">',
        '<|tool_call>call:web_search{query:"zz"}<tool_call|>',
        '[web_search(query="zz"), web_search(query="yy")]',
        'functions.web_search:0{"query": "zz"}',
        "Thought: I should search.\nAction: web_search\nAction Input: zz",
        '{"tool": "web_search", "count": 2}',
        '{"function": "web_search", "parameters": {"query": "zz"}}',
        "analysisWe need to search.assistantfinalIt rains.",
        f"[{NAMED}]",
        f"[{NAMED}, {NAMED}]",
        f"{NAMED}\n{NAMED}",
        f"```json\n[{NAMED}]\n```",
        f'{{"tool_calls": [{{"id": "x", "type": "function", "function": {NAMED}}}]}}',
        f'{{"function": {NAMED}}}',
        r'{"function": {"name": "web_search", "arguments": "{\"query\": \"zz\"}"}}',
        '{"parameters": {"query": "zz"}, "name": "web_search"}',
        f"I will call: {NAMED}",
        f"I will look it up.\n```json\n{NAMED}\n```",
        f'I have {{"a": 1}} only. {NAMED}',
        "<think>I should search.</think>",
        "<think>I should",
        f"<think>I should search.</think>\n\n{NAMED}",
        "<|observation|>",
        '<|observation|>\n{"organic": []}',
        "<|im_start|>assistant",
        "<|im_end|>\n<|im_start|>assistant\n",
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.web_search:0<|tool_call_argument_begin|>{"query":"zz"}',
        "Let me see. <|tool_calls_section_begin|>",
    ],
)
def test_a_forced_answer_that_is_a_call_in_whatever_syntax_is_none(text):
    play = searched(max_turns=2)
    play << asks(step="notice") >> says(text) << asks(step="withdraw") >> says("It rains.") << responds("It rains.")


SURELY_CALLS = ['{"cursor": 2, "id": 2}', NAMED, f"[{NAMED}]"]


@pytest.mark.parametrize("text", [*SURELY_CALLS, f"Let me see. {NAMED}", '{"query": "zz"}'])
def test_a_forced_answer_that_is_a_call_is_none_where_the_client_forbids_json(text):
    play = searched({"messages": [{"role": "user", "content": "Never show raw JSON to the user."}]}, max_turns=2)
    play << asks(step="notice") >> says(text) << asks(step="withdraw") >> says("It rains.") << responds("It rains.")


@pytest.mark.parametrize("text", SURELY_CALLS)
def test_a_forced_answer_that_is_sure_to_be_a_call_is_one_only_where_the_format_is_json(text):
    in_words = {"messages": [{"role": "user", "content": "Answer in JSON."}]}
    play = searched(in_words, max_turns=2)
    play << asks(step="notice") >> says(text) << asks(step="withdraw") >> says("{}") << responds("{}")
    play = searched({"response_format": {"type": "json_object"}, "web_search_options": {}}, max_turns=2)
    play << asks(step="notice") >> says(text) << responds(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"id": 3}',
        '{"name": "x", "arguments": {}}',
        '{"query": "zz"}',
        '{"cursor": "abc", "id": 5}',
        '{"loc": "Paris"}',
        '{"name": "web_search", "parameters": {"type": "object", "properties": {"query": {}}}}',
        f"Call it thus:\n```json\n{NAMED}\n```",
    ],
)
def test_a_forced_answer_in_json_is_one_where_the_client_asked_for_json(text):
    play = searched({"messages": [{"role": "user", "content": "Answer in JSON."}]}, max_turns=2)
    play << asks(step="notice") >> says(text) << responds(text)


@pytest.mark.parametrize(
    "text",
    [
        "web_search found nothing (yet).",
        '{"city": "Nanaimo"}',
        "Use `web_search(x)`.",
        "analysis: it rains",
        f"It is called as in `{NAMED}`.",
        f"One calls it as {NAMED}, and it finds something.",
        f"{'It rains. ' * 16}For more: {NAMED}",
        f"{NAMED} was the call.",
        '[{"name": "Ann", "arguments": {}}]',
        f'[{NAMED}, {{"name": "Ann"}}]',
        '[{"name": "web_search", "description": "Searches.", "parameters": {}}]',
        'She wrote: {"name": "web_search"}',
        '{"tool_calls": []}',
        "[]",
        "Its user is <|nobody|>",
        "<|nobody|>",
        "assistant",
        "<|assistant|>Hello there.",
        "<think>Hm.</think>It rains.",
        "In its format `<|tool_call_begin|>` begins a call.",
    ],
)
def test_a_forced_answer_that_only_speaks_of_a_call_is_one(text):
    searched(max_turns=2) << asks(step="notice") >> says(text) << responds(text)


def test_a_forced_turn_that_a_filter_stopped_is_told_as_it_is():
    play = searched(max_turns=2)
    play << asks(step="notice") >> says("", finish_reason="content_filter") << responds(finish_reason="content_filter")


def test_a_choice_is_freed_when_the_model_is_made_to_answer_without_results():
    play = Playbook(run_of({"tools": [DECLARED], "tool_choice": "required"})) << asks(tool_choice="required")
    play >> says("", garbled=True) << asks(step="notice", tool_choice="auto")


def test_words_that_ask_for_json_are_heard():
    play = Playbook(run_of({"messages": [{"role": "user", "content": "Reply in JSON"}]})) << asks()
    assert play.pending.view.json_mode() is JsonMode.BY_PROMPT
    assert play.pending.view.buffering == "none"


def test_a_blank_forced_answer_that_was_cut_off_is_no_answer_and_one_with_words_is():
    play = searched(max_turns=2) << asks(step="notice") >> says("", finish_reason="length") << asks(step="withdraw")
    play >> says("Half", finish_reason="length") << responds("Half", finish_reason="length", stop="max_turns")


def test_a_forced_turn_that_was_cut_off_runs_nothing_beside_the_clients_calls():
    play = Playbook(run_of({"tools": [OPEN_DOOR]})) << asks() >> says("") << asks() >> says("") << asks(step="notice")
    cut_off = calls(call("open_door", "{}", id="a"), call(arguments='{"query":"x', id="b"))
    play >> replace(cut_off, finish_reason="length") << responds(finish_reason="length")


def test_a_call_that_failed_may_be_tried_again():
    play = Playbook(run_of()) << asks() >> calls(call()) << runs("web_search") >> [failure("busy")]
    play << asks() >> calls(call(id="again")) << runs("web_search") >> results("found") << told("busy", "found")


def test_the_same_call_under_an_alias_is_the_same_call():
    searched() << asks() >> calls(call("browser.search")) << told(REPEATED)


def test_a_model_that_calls_when_it_was_asked_again_is_told_that_it_can_call_no_more():
    play = searched(guidance=True)
    play << asks() >> says("") << asks(step="notice") >> calls(call(arguments='{"query":"y"}'))
    play << asks(step="withdraw") << told(BUDGET_USED)
    assert "Left for this answer" not in play.pending.body["messages"][-1]["content"]
    assert ANSWER_NOW in play.pending.body["messages"][-1]["content"]


def test_a_first_answer_of_nothing_but_raw_format_is_asked_for_again():
    play = Playbook(run_of()) << asks() >> says("", garbled=True) << asks("user", "user", step="notice")
    play >> says("Done") << responds("Done", stop="answer")


def test_every_name_that_may_be_called_is_known_with_its_schema_even_when_the_tools_are_withdrawn():
    play = searched({"tools": [OPEN_DOOR]}, max_turns=2, steps=(RETELL, RETELL, RETELL)) << asks(step="retell")
    assert set(play.pending.view.tools) == {"web_search", "browser.search", "current_time", "open_door"}


def test_a_call_says_whether_the_format_of_its_answer_is_json():
    play = Playbook(run_of({"response_format": {"type": "json_object"}})) << asks()
    assert play.pending.view.json_mode() is JsonMode.BY_FORMAT


def test_retelling_keeps_what_the_model_wrote_beside_its_calls():
    play = Playbook(run_of(max_turns=2), steps=(RETELL, RETELL, RETELL)) << asks() >> calls(call(), text="Looking.")
    play << runs("web_search") >> results("found") << asks("user", "assistant", "user", step="retell")
    assert play.made.body["messages"][1] == {"role": "assistant", "content": "Looking."}


# -- the beginning and the seams --


def test_the_clients_request_is_not_changed_and_unknown_fields_go_on():
    request = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "vendor_flag": 7, "max_tool_calls": 3}
    before = repr(request)
    run = run_of(request, guidance=True)
    play = Playbook(run) << asks("system", "user")
    assert repr(request) == before
    assert play.pending.body["vendor_flag"] == 7
    assert "max_tool_calls" not in play.pending.body


def test_guidance_names_the_tools_and_the_budget_in_the_clients_own_system_message():
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    play = Playbook(run_of({"messages": messages}, guidance=True, max_tool_calls=3, max_turns=4))
    play << asks("system", "user")
    told_to_model = play.pending.body["messages"][0]["content"]
    assert told_to_model.startswith("Be brief.\n\n")
    assert "web_search, current_time" in told_to_model
    assert "3 tool calls in at most 3 rounds" in told_to_model


def test_a_failure_stays_one_json_object_whatever_is_told_with_it():
    play = Playbook(run_of(max_turns=2)) << asks() >> calls(call()) << runs("web_search") >> [failure("busy")]
    play << asks(step="notice")
    assert orjson.loads(play.pending.body["messages"][-1]["content"]) == {"error": "busy", "note": ANSWER_NOW}


def test_what_is_left_of_the_budget_is_told_with_the_results():
    play = searched(guidance=True, max_tool_calls=3, max_turns=4)
    play << told("(Left for this answer: 2 tool calls in 2 more rounds.)")


@pytest.mark.parametrize(
    ("shown", "separator"), [("Text", "\n\n"), ("Text\n", "\n"), ("Text\n\n", ""), ("Text\n \n\n\n", ""), ("\n", None)]
)
def test_text_of_the_next_turn_is_set_apart_by_one_blank_line(shown, separator):
    play = Playbook(run_of()) << asks() >> calls(call(), text=shown) << runs("web_search") >> results("found")
    play << asks()
    assert play.pending.view.separator == separator


def test_text_that_was_held_back_needs_no_separator():
    turn = calls(call(), text="Held", buffered=({"choices": []},))
    play = Playbook(run_of()) << asks() >> turn << runs("web_search") >> results("found") << asks()
    assert play.pending.view.separator is None


# -- calls that start while their turn is still being written --


def would_run(run, *calls):
    """What would be run of the last of these calls."""
    return [run.would_run(one) for one in calls][-1]


def test_a_call_that_would_be_run_is_announced_under_its_tools_own_name():
    assert would_run(run_of(), call("browser.search")) == call()


@pytest.mark.parametrize("unknown", [call("rm_rf"), call("open_door", "{}")])
def test_a_call_that_is_not_the_servers_is_not_announced(unknown):
    assert would_run(run_of({"tools": [OPEN_DOOR]}), unknown) is None


def test_no_more_calls_are_announced_than_the_budget_permits_and_none_twice():
    other = call(arguments='{"query":"y"}')
    assert would_run(run_of(max_tool_calls=1), call(), other) is None
    assert would_run(run_of(tools=[replace(SEARCH, max_calls=1)]), call(), other) is None
    assert would_run(run_of(), call(), call("browser.search")) is None
    assert would_run(run_of(), call(), other) == other


def test_a_tool_that_changes_things_waits_for_the_end_of_the_turn():
    run = run_of(tools=[replace(SEARCH, eager=False)])
    assert would_run(run, call()) == call()
    assert not run.may_start(call())
    assert run_of().may_start(call())


def test_the_result_of_a_call_that_has_ended_early_is_used_whatever_limit_is_reached_meanwhile():
    other = call(arguments='{"query":"y"}')
    run = run_of()
    run.start_turn()
    run.expire()
    assert run.receive_turn(calls(call(), other), lambda resolved: resolved == call()).calls == (call(),)
    asked = run.receive_results(results("found"))
    answers = [message["content"] for message in asked.body["messages"][-2:]]
    assert answers[0] == "found"
    assert "was not run" in answers[1]


def test_a_call_whose_result_is_known_and_one_after_the_deadline_are_not_announced():
    play = searched()
    assert would_run(play.run, call()) is None
    play.run.expire()
    assert would_run(play.run, call("current_time", "{}")) is None


@pytest.mark.parametrize(("tools", "hold"), [((SEARCH,), Buffering.TEXT), ((), Buffering.NONE)])
def test_json_is_held_to_its_end_only_where_another_turn_may_follow(tools, hold):
    run = run_of({"response_format": {"type": "json_object"}, "web_search_options": {}}, tools=tools)
    assert run.start_turn().view.buffering is hold


def test_with_json_asked_for_the_words_beside_a_call_of_the_clients_stay_hidden_but_are_kept_for_the_model():
    run = run_of({"response_format": {"type": "json_object"}, "tools": [OPEN_DOOR]})
    turn = calls(call("open_door", "{}"), text="A moment.", buffered=({"choices": []},))
    play = Playbook(run) << asks() >> turn << responds(stop="client_tool_calls", finish_reason="tool_calls")
    assert play.pending.message["content"] is None
    assert play.pending.turn.buffered == ()
    assert play.pending.continuation.message["content"] == "A moment."


@pytest.mark.parametrize(("buffered", "earlier"), [((), 1), (({"choices": []},), 0)])
def test_a_blank_first_turn_is_part_of_the_answer_if_it_was_shown(buffered, earlier):
    play = Playbook(run_of()) << asks() >> says("", buffered=buffered) << asks() >> says("Done") << responds("Done")
    assert len(play.pending.earlier_turns) == earlier


def test_an_answer_comes_with_the_turns_before_it_whose_calls_were_answered():
    first, second = calls(call(), text="One."), calls(call(arguments='{"query":"y"}'), text="Two.")
    play = Playbook(run_of()) << asks() >> first << runs("web_search") >> results("a")
    play << asks() >> second << runs("web_search") >> results("b") << asks() >> says("Done")
    play << responds("Done")
    assert [turn.text for turn in play.pending.earlier_turns] == ["One.", "Two."]


# -- what the model may write --


def wrote(turn, tokens):
    return replace(turn, usage={"prompt_tokens": 7, "completion_tokens": tokens, "total_tokens": 7 + tokens})


def may_write(tokens):
    def check(action):
        assert action.body["max_tokens"] == tokens

    return check


def test_what_the_model_may_write_is_counted_over_all_turns():
    play = Playbook(run_of({"max_tokens": 100}, max_output_tokens=100))
    play << may_write(100) >> wrote(calls(call()), 60) << runs("web_search") >> results("found")
    play << may_write(40) >> wrote(calls(call(arguments='{"query":"y"}')), 39) << runs("web_search") >> results("found")
    play << may_write(1) >> wrote(says("It"), 1) << responds("It", finish_reason="stop")


@pytest.mark.parametrize("turn", [calls(call(), text="Let me"), says("")])
def test_a_turn_that_leaves_nothing_to_write_ends_the_run(turn):
    play = Playbook(run_of(max_output_tokens=100))
    play << asks() >> wrote(turn, 100) << responds(turn.message["content"], finish_reason="length")
    assert "tool_calls" not in play.pending.message


def test_calls_of_the_clients_are_an_answer_also_where_nothing_may_be_written_any_more():
    tools = [{"type": "function", "function": {"name": "open_door"}}]
    play = Playbook(run_of({"tools": tools}, max_output_tokens=100))
    play << asks() >> wrote(calls(call("open_door")), 100) << responds(finish_reason="tool_calls")


def test_the_reasoning_details_of_each_turn_are_numbered_after_those_before():
    details = [{"type": "reasoning.text", "text": "Hm", "index": 0}, {"type": "reasoning.encrypted", "index": 1}]
    thought = turn_of({**ASSISTANT_AS_RECEIVED, "reasoning_details": details}, "tool_calls")
    play = Playbook(run_of()) << asks() >> thought << runs("web_search") >> results("found") << asks()
    assert play.pending.view.first_detail == 2


def test_the_answered_calls_of_a_turn_are_given_once_with_what_the_model_reads():
    run = run_of(max_tool_calls=1)
    first_call, second_call = call(id="a"), call(arguments='{"query":"y"}', id="b")
    play = Playbook(run) << asks() >> calls(first_call, second_call) << runs("web_search") >> results("found")
    play << asks()
    first, second = run.take_answered()
    assert (first.tool, first.counts, first.result.failed) == ("web_search", 1, False)
    assert "found" in first.content
    assert (second.counts, second.result.failed) == (False, True)
    assert run.take_answered() == []


def test_what_the_model_reads_of_calls_beside_the_clients_own_is_given_too():
    run = run_of({"tools": [OPEN_DOOR]})
    mixed = calls(call(id="a"), call("open_door", "{}", id="b"))
    Playbook(run) << asks() >> mixed << runs("web_search") >> results("found")
    [answered] = run.take_answered()
    assert (answered.call.id, answered.content) == ("a", "found")


def test_calls_that_were_started_in_vain_are_counted_with_what_their_turn_has_used():
    run = run_of(tools=(replace(SEARCH, searches=True), TIME))
    run.start_turn()
    found = ToolResult("found", cost=0.25)
    run.count_unfinished({"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6})
    run.count_dropped([(call(), found), (call(id="b"), None)])
    tally = run.tally
    assert (tally.total_tool_calls, tally.web_searches, tally.tool_cost, tally.usage["total_tokens"]) == (2, 2, 0.25, 6)
    assert tally.tool_calls == {"web_search": 2}


def test_calls_that_were_started_in_vain_leave_the_limits_to_the_turn_that_is_asked_again():
    run = run_of(tools=(replace(SEARCH, max_calls=1), TIME), max_tool_calls=1)
    play = Playbook(run) << asks()
    run.count_dropped([(call(), ToolResult("found"))])
    play >> calls(call()) << runs("web_search")
    assert run.tally.tool_calls == {"web_search": 2}


# -- a context that is full --

FULL = ContextFull("too long")
LONG = success("web_search", ToolOutput("long " * 1000), max_bytes=65536)


def after_results(*results, **limits):
    searches = [call(id=f"call_{number}", arguments=f'{{"query":"{number}"}}') for number in range(len(results))]
    play = Playbook(run_of(**limits)) << asks() >> calls(*searches) << runs(*["web_search"] * len(results))
    return play >> [*results]


def contents(play):
    return [message["content"] for message in play.pending.body["messages"] if message["role"] == "tool"]


def test_a_full_context_has_the_longest_results_cut_to_half_and_the_turn_asked_again():
    short = success("web_search", ToolOutput("short"), max_bytes=65536)
    play = after_results(LONG, short) << asks(number=2) >> FULL << asks(number=2) << told("[cut: ", "short")
    cut, kept = contents(play)
    assert len(LONG.content) / 2 < len(cut) < len(LONG.content) / 2 + 200
    assert (cut.count("</tool_result>"), kept) == (1, short.content)
    play >> says("Done") << responds("Done", stop="answer")


def test_after_three_cuts_the_model_is_made_to_answer_without_the_results():
    play = after_results(LONG, LONG) >> FULL >> FULL >> FULL << asks(step=None)
    assert all("long long" in content and content.count("[cut: ") == 1 for content in contents(play))
    play >> FULL << asks(step=AnswerStep.NOTICE) << told("[left out: ", "[left out: ")
    assert sum(map(len, contents(play))) < 1000
    play >> says("Done") << responds("Done")


@pytest.mark.parametrize(("found", "read"), [("short " * 60, "[left out: "), ("none", "none")])
def test_results_too_short_to_be_cut_leave_a_full_context_an_answer_without_them(found, read):
    play = after_results(success("web_search", ToolOutput(found), max_bytes=65536)) << asks(number=2) >> FULL
    play << asks(step=AnswerStep.NOTICE) << told(read) >> says("Done") << responds("Done")


def test_a_context_that_is_full_without_any_result_of_the_runs_own_is_the_clients_error():
    play = Playbook(run_of({"messages": [{"role": "tool", "tool_call_id": "c", "content": "long " * 1000}]}))
    with pytest.raises(ContextFull):
        play >> FULL
    play = after_results(LONG) >> FULL >> FULL >> FULL >> FULL
    with pytest.raises(ContextFull):
        play >> FULL


def test_an_answer_that_has_to_be_one_goes_on_being_asked_for_after_a_cut():
    play = after_results(LONG, max_turns=2) << asks(step=AnswerStep.NOTICE) << told(ANSWER_NOW) >> FULL
    play << asks(step=AnswerStep.NOTICE) << told(ANSWER_NOW) >> says("Done") << responds("Done", stop="max_turns")


def test_a_blank_turn_that_ended_for_want_of_room_is_asked_again_with_less():
    no_room = replace(says("", finish_reason="length"), choice={NATIVE_REASON: WINDOW_EXCEEDED})
    after_results(LONG) >> no_room << asks(number=3) << told("[cut: ") >> says("Done") << responds("Done")
    Playbook(run_of()) << asks() >> no_room << responds("", finish_reason="length")


@pytest.mark.parametrize(("buffered", "thoughts"), [((), "Hm."), (({"choices": []},), "")])
def test_thoughts_of_a_turn_without_room_are_in_a_whole_answer_only_if_a_stream_has_shown_them(buffered, thoughts):
    message = {"role": "assistant", "content": "", "reasoning_content": "Hm."}
    choice = {NATIVE_REASON: WINDOW_EXCEEDED}
    no_room = replace(turn_of(message, "length"), choice=choice, buffered=buffered)
    play = after_results(LONG) >> no_room >> says("Done") << responds("Done")
    assert "".join(turn.message.get("reasoning_content", "") for turn in play.pending.earlier_turns) == thoughts


@pytest.mark.parametrize(
    ("written", "history"),
    [
        ('{"query":  "a \\u00e9"}', '{"query":  "a \\u00e9"}'),
        ("", "{}"),
        ("null", "{}"),
        ('["a"]', "{}"),
        ("please search", "{}"),
        ('{"query": "a', "{}"),
    ],
)
def test_the_history_holds_only_objects_as_arguments_and_quotes_what_was_none(written, history):
    results = [failure("Not JSON.", outcome="invalid_arguments")]
    play = Playbook(run_of()) >> calls(call(arguments=written)) << runs("web_search") >> results << asks()
    assistant, tool = play.pending.body["messages"][-2:]
    assert assistant["tool_calls"][0]["function"]["arguments"] == history
    is_quoted = history == "{}" and written not in ("", "null")
    assert orjson.loads(tool["content"]).get("arguments") == (written if is_quoted else None)


def test_repaired_arguments_stand_in_the_history_in_the_place_of_the_written_ones():
    seen = []

    def read(one):
        seen.append(one.name)
        return '{"query":"repaired"}'

    request = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    run = Run(request, make_offer(request, (SEARCH, TIME)), Limits(guidance=False), read_arguments=read)
    turn = calls(call("browser.search", "{'query': 'a'}"), call("nobody", "x", id="b"))
    play = Playbook(run) >> turn << runs("web_search") >> results("found") << asks()
    entries = play.pending.body["messages"][-3]["tool_calls"]
    assert [entry["function"] for entry in entries] == [
        {"name": "browser.search", "arguments": '{"query":"repaired"}'},
        {"name": "nobody", "arguments": '{"query":"repaired"}'},
    ]
    assert {*seen} == {"web_search", ""}  # by the tool's own name, or by none
    assert turn.message["tool_calls"][0]["function"]["arguments"] == "{'query': 'a'}"


def test_refused_calls_of_a_turn_that_is_to_answer_have_objects_as_arguments_too():
    play = Playbook(run_of(max_turns=2)) >> calls(call()) >> results("found") >> calls(call(arguments="search a"))
    *_, assistant, tool = (one for one in play.pending.body["messages"] if one["role"] != "user")
    assert assistant["tool_calls"][0]["function"]["arguments"] == "{}"
    assert orjson.loads(tool["content"])["arguments"] == "search a"


@pytest.mark.parametrize("finish_reason", ["tool_calls", "length"])
def test_what_is_put_back_after_a_mixed_turn_has_objects_as_arguments(finish_reason):
    run = run_of({"tools": [OPEN_DOOR]})
    turn = calls(call(arguments="search a"), call("open_door", '{"door": ', id="b"))
    play = Playbook(run) >> replace(turn, finish_reason=finish_reason)
    if finish_reason == "tool_calls":
        play >> [failure("Not JSON.")]
    kept = play.pending.continuation
    assert [one["function"]["arguments"] for one in kept.message["tool_calls"]] == ["{}", "{}"]
    assert orjson.loads(kept.results[0])["arguments"] == "search a"
    (shown,) = play.pending.message["tool_calls"]
    assert shown["function"]["arguments"] == '{"door": '  # the client gets what the model wrote
