from copy import deepcopy
from dataclasses import replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.upstreams.answers import fill_in, mend
from proxy.upstreams.profile import GLM, GPT_OSS, OPENAI
from proxy.upstreams.request_body import prepare
from proxy.wire.errors import InvalidJson, RequestError, UpstreamError
from tests import hostile
from tests.documents import CHUNKS, WHOLE

DEEP = orjson.loads(b"[" * 300 + b"]" * 300)  # can be read, and not written

USER = {"role": "user", "content": "Hi"}
EMPTY = {"type": "object", "properties": {}}
TOOL = {"type": "function", "function": {"name": "a", "description": "A", "parameters": EMPTY}}
OTHER = {"type": "function", "function": {"name": "b", "description": "B", "parameters": EMPTY}}


def fitted(profile, **request):
    """The request without its messages, as it goes out; with None for what is left out."""
    prepared = prepare({"messages": [USER], **request}, profile)
    return {key: prepared.get(key) for key in {**prepared, **request} if key != "messages"}


def test_a_request_that_fits_is_not_even_copied():
    body = {"messages": [USER], "tool_choice": "auto", "max_tokens": 5, "temperature": 1, "unknown": {"x": 1}, "n": 1}
    for profile in (GLM, GPT_OSS, OPENAI):
        assert prepare(body, profile) is body


def test_openais_own_words_are_taken_as_they_are():
    """Everything that another profile changes: the short way for this one leaves nothing out."""
    changed = {
        "messages": [{"role": "developer", "content": "x"}, {"role": "tool", "content": []}],
        "max_completion_tokens": 5,
        "temperature": 9,
        "stop": "x",
        "logprobs": True,
        "n": 2,
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
        "response_format": {"type": "json_schema", "json_schema": {"schema": {}}},
    }
    alike = replace(OPENAI, name="another")  # the same profile, but for who it is: goes the long way
    for name, value in changed.items():
        body = {"messages": [USER], name: value}
        assert prepare(body, OPENAI) is body
        assert prepare(body, alike) is body


@pytest.mark.parametrize(
    ("request_", "sent"),
    [
        ({"max_completion_tokens": 5}, {"max_completion_tokens": None, "max_tokens": 5}),
        ({"max_completion_tokens": 5, "max_tokens": 7}, {"max_completion_tokens": None, "max_tokens": 7}),
        ({"max_completion_tokens": None}, {"max_completion_tokens": None}),
        ({"temperature": 1.7}, {"temperature": 1}),
        ({"temperature": 0}, {"temperature": 0}),
        ({"top_p": 1}, {"top_p": 0.99}),
        ({"top_p": 0.0}, {"top_p": 0.01}),
        ({"stop": "END"}, {"stop": ["END"]}),
        ({"tools": []}, {"tools": None}),
        ({"user": "bob"}, {"user": "bob"}),
        ({"logprobs": False, "n": 1}, {"logprobs": False, "n": 1}),
    ],
)
def test_glm_gets_what_it_takes(request_, sent):
    assert fitted(GLM, **request_) == sent


@pytest.mark.parametrize("profile", [GLM, GPT_OSS, OPENAI])
def test_an_empty_list_of_tools_is_not_sent_anywhere(profile):
    sent = fitted(profile, tools=[], tool_choice="auto", parallel_tool_calls=True, seed=1)
    assert sent == {"tools": None, "tool_choice": None, "parallel_tool_calls": None, "seed": 1}


@pytest.mark.parametrize(
    ("profile", "effort", "sent"),
    [
        (GLM, "none", {"reasoning_effort": None, "thinking": {"type": "disabled"}}),
        (GLM, "minimal", {"reasoning_effort": None, "thinking": {"type": "disabled"}}),
        (GLM, "medium", {"reasoning_effort": "high"}),
        (GLM, "xhigh", {"reasoning_effort": "max"}),
        (GLM, "low", {"reasoning_effort": "low"}),
        (GPT_OSS, "minimal", {"reasoning_effort": "low"}),
        (GPT_OSS, "medium", {"reasoning_effort": "medium"}),
        (GPT_OSS, "xhigh", {"reasoning_effort": "high"}),
        (OPENAI, "minimal", {"reasoning_effort": "minimal"}),
    ],
)
def test_an_effort_is_said_as_the_upstream_takes_it(profile, effort, sent):
    assert fitted(profile, reasoning_effort=effort) == sent


def test_what_the_request_says_of_thinking_itself_holds():
    thinking = {"type": "enabled"}
    sent = fitted(GLM, reasoning_effort="none", thinking=thinking)
    assert sent == {"reasoning_effort": None, "thinking": thinking}


@pytest.mark.parametrize(("name", "value"), [("n", 2), ("logprobs", True), ("top_logprobs", 3)])
def test_what_glm_cannot_do_is_a_clear_error(name, value):
    with pytest.raises(RequestError) as raised:
        prepare({"messages": [USER], name: value}, GLM)
    assert (raised.value.status, raised.value.param) == (400, name)
    assert prepare({"messages": [USER], name: value}, OPENAI)[name] == value


def test_a_role_that_glm_does_not_know_becomes_the_nearest():
    body = {"messages": [{"role": "developer", "content": "Be brief."}, USER]}
    assert prepare(body, GLM)["messages"] == [{"role": "system", "content": "Be brief."}, USER]
    assert body["messages"][0]["role"] == "developer"


@pytest.mark.parametrize(
    ("content", "sent"),
    [("", "(nothing)"), (None, "(nothing)"), ([{"type": "text", "text": "a"}, {"text": "b"}], "a\nb"), ("x", "x")],
)
def test_a_tool_message_has_text_for_glm(content, sent):
    message = {"role": "tool", "tool_call_id": "c", "content": content}
    assert prepare({"messages": [message]}, GLM)["messages"][0]["content"] == sent


def test_a_picture_in_a_tool_message_follows_it_for_glm():
    picture = {"type": "image_url", "image_url": {"url": "data:,"}}
    result = {"role": "tool", "content": [{"type": "text", "text": "a"}, picture]}
    messages = prepare({"messages": [result]}, GLM)["messages"]
    assert [message["role"] for message in messages] == ["tool", "user"]
    assert (messages[0]["content"], messages[1]["content"][-1]) == ("a", picture)


@pytest.mark.parametrize(
    ("profile", "message", "sent"),
    [
        (GLM, {"reasoning": "Hm"}, {"reasoning": "Hm", "reasoning_content": "Hm"}),
        (GLM, {"reasoning_content": "Hm"}, {"reasoning_content": "Hm"}),
        (GPT_OSS, {"reasoning_content": "Hm"}, {"reasoning_content": "Hm", "reasoning": "Hm"}),
        (GPT_OSS, {"content": "x"}, {"content": "x"}),
        (OPENAI, {"reasoning": "Hm"}, {"reasoning": "Hm"}),
    ],
)
def test_thoughts_go_back_under_the_name_that_the_upstream_reads(profile, message, sent):
    assert prepare({"messages": [{"role": "assistant", **message}]}, profile)["messages"] == [
        {"role": "assistant", **sent}
    ]


def test_a_named_choice_is_said_to_glm_by_what_it_is_offered_and_told():
    sent = prepare({"messages": [USER], "tools": [TOOL, OTHER], "tool_choice": OTHER}, GLM)
    assert (sent["tools"], sent.get("tool_choice")) == ([OTHER], None)
    assert "Call the tool b now" in sent["messages"][0]["content"]


def test_a_required_choice_is_said_to_glm_in_words():
    sent = prepare({"messages": [USER], "tools": [TOOL, OTHER], "tool_choice": "required"}, GLM)
    assert (sent["tools"], sent.get("tool_choice")) == ([TOOL, OTHER], None)
    assert "Call one of your tools now" in sent["messages"][0]["content"]


@pytest.mark.parametrize(("mode", "demanded"), [("auto", False), ("required", True)])
def test_allowed_tools_narrow_what_glm_is_offered(mode, demanded):
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [OTHER]}}
    sent = prepare({"messages": [USER], "tools": [TOOL, OTHER], "tool_choice": choice}, GLM)
    assert sent["tools"] == [OTHER]
    assert ("Call one of your tools now" in str(sent["messages"])) is demanded


@pytest.mark.parametrize(("mode", "choice"), [("auto", "auto"), ("required", "required")])
def test_allowed_tools_narrow_what_gpt_oss_is_offered(mode, choice):
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [OTHER]}}
    body = {"messages": [USER], "tools": [TOOL, OTHER], "tool_choice": allowed}
    sent = prepare(body, GPT_OSS)
    assert (sent["tools"], sent["tool_choice"]) == ([OTHER], choice)
    assert prepare(body, OPENAI) is body


def test_an_object_without_properties_gets_empty_ones_for_openai():
    bare = {"type": "function", "function": {"name": "a", "parameters": {"type": "object"}}}
    others = [TOOL, {"type": "function", "function": {"name": "b"}}, {"type": "custom"}]
    sent = prepare({"messages": [USER], "tools": [*others, bare]}, OPENAI)["tools"]
    assert sent == [*others, {"type": "function", "function": {"name": "a", "parameters": EMPTY}}]
    assert "properties" not in bare["function"]["parameters"]


def test_a_function_without_description_or_parameters_gets_both_for_glm():
    bare = {"type": "function", "function": {"name": "a"}}
    assert prepare({"messages": [USER], "tools": [bare]}, GLM)["tools"][0]["function"] == {
        "name": "a",
        "description": "a",
        "parameters": EMPTY,
    }
    assert prepare({"messages": [USER], "tools": [bare]}, OPENAI)["tools"] == [bare]


def test_a_schema_is_asked_of_glm_in_words():
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "required": ["a"]}}}
    sent = prepare({"messages": [USER], "response_format": wanted}, GLM)
    assert sent["response_format"] == {"type": "json_object"}
    assert '{"type":"object","required":["a"]}' in sent["messages"][0]["content"]


def test_a_schema_that_is_nested_too_deep_to_be_said_is_refused():
    wanted = {"type": "json_schema", "json_schema": {"schema": {"items": DEEP}}}
    with pytest.raises(InvalidJson):
        prepare({"messages": [USER], "response_format": wanted}, GLM)


@pytest.mark.parametrize("profile", [GLM, GPT_OSS])
def test_a_model_is_kept_from_its_tools_by_not_being_told_of_any(profile):
    body = {"messages": [USER], "tool_choice": "none", "tools": [{}], "parallel_tool_calls": True}
    assert prepare(body, profile) == {"messages": [USER]}


def test_a_choice_that_is_an_object_is_no_auto():
    body = {"messages": [USER], "tool_choice": {"type": "function", "function": {"name": "auto"}}}
    assert prepare(body, GLM) == {"messages": [USER]}
    assert prepare(body, OPENAI) is body


@pytest.mark.parametrize(
    ("reason", "mended"),
    [
        ("sensitive", "content_filter"),
        ("SAFETY", "content_filter"),
        ("guardrail_intervened", "content_filter"),
        ("content_filtered", "content_filter"),
        ("ERROR_TOXIC", "content_filter"),
        ("IMAGE_SAFETY", "content_filter"),
        ("refusal", "content_filter"),
        ("ERROR_LIMIT", "length"),
        ("model_context_window_exceeded", "length"),
        ("eos", "stop"),
        ("end_turn", "stop"),
        ("max_tokens", "length"),
        ("MAX_TOKENS", "length"),
        ("STOP", "stop"),
        ("tool_call", "tool_calls"),
        ("stop", "stop"),
        (None, None),
        ("", None),
    ],
)
@pytest.mark.parametrize("profile", [GLM, OPENAI])
def test_finish_reasons_are_openais(reason, mended, profile):
    answer = {"choices": [{"finish_reason": reason}], "object": "chat.completion"}
    mend(answer, profile, kind="chat.completion")
    assert answer["choices"][0]["finish_reason"] == mended


@pytest.mark.parametrize("choice", [{"finish_reason": "error"}, {"error": {"message": "gone"}, "message": {}}])
def test_a_choice_that_failed_is_a_failure(choice):
    with pytest.raises(UpstreamError):
        mend({"choices": [choice]}, OPENAI, kind="chat.completion")


def test_a_choices_error_keeps_its_meaning():
    error = {"code": 429, "message": "slow down"}
    with pytest.raises(UpstreamError) as raised:
        mend({"choices": [{"error": error, "finish_reason": None}]}, OPENAI, kind="chat.completion")
    assert (raised.value.status, raised.value.message) == (429, "slow down")


HELLO = {"role": "assistant", "content": "Hello"}


@pytest.mark.parametrize(
    ("choice", "completed"),
    [
        ({"finish_reason": "content_filter"}, {"message": {"role": "assistant", "content": ""}}),
        ({"message": HELLO}, {"finish_reason": "stop"}),
        ({"message": HELLO, "finish_reason": None}, {"finish_reason": "stop"}),
        ({"message": HELLO, "finish_reason": "stop"}, {}),
        ({"message": {}, "finish_reason": None}, {}),
    ],
)
def test_what_a_whole_answer_lacks_is_filled_in(choice, completed):
    answer = {"choices": [dict(choice)]}
    fill_in(answer, {})
    assert answer == {"choices": [{**choice, **completed}]}


def test_a_count_of_several_choices_says_nothing_of_one_of_them():
    answer = {"choices": [{"message": HELLO}, {"message": HELLO}], "usage": {"completion_tokens": 9}}
    fill_in(answer, {"max_tokens": 5})
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["stop", "stop"]


@pytest.mark.parametrize("answer", [{"choices": []}, {"choices": [{}]}, {"choices": [{"finish_reason": "stop"}]}])
def test_an_answer_without_a_message_is_none(answer):
    with pytest.raises(UpstreamError):
        fill_in(answer, {})


@pytest.mark.parametrize("profile", [GLM, OPENAI])
@pytest.mark.parametrize(
    "reason",
    ["abort", "ABORT", "cancelled", "engine_error", "MALFORMED_FUNCTION_CALL", "network_error", "insufficient_system_resource"],
)  # fmt: skip
def test_a_finish_reason_that_says_the_answer_was_broken_off_is_a_failure(reason, profile):
    with pytest.raises(UpstreamError, match=reason.lower()):
        mend({"choices": [{"finish_reason": reason}]}, profile, kind="chat.completion")


def test_what_an_sdk_needs_is_filled_in():
    answer = {"choices": None}
    mend(answer, GLM, kind="chat.completion.chunk")
    assert answer == {"choices": [], "object": "chat.completion.chunk"}


@pytest.mark.parametrize(
    "answer",
    [
        {"choices": 5},
        {"choices": {"a": 1}},
        {"choices": [None]},
        {"choices": [[]]},
        {"choices": [{"delta": "x"}]},
        {"choices": [{"message": []}]},
        {"choices": [{"delta": {"tool_calls": "x"}}]},
        {"choices": [{"delta": {"tool_calls": [None]}}]},
        {"choices": [{"delta": {"tool_calls": [{"function": "x"}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"function": {"name": ["x"]}}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"id": {"x": 1}}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"type": ["function"]}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": DEEP}}]}}]},
    ],
)
def test_what_is_no_completion_is_an_upstream_error(answer):
    with pytest.raises(UpstreamError):
        mend(answer, OPENAI, kind="chat.completion.chunk")


@pytest.mark.parametrize(
    ("answer", "mended"),
    [
        ({"choices": [], "usage": 7}, {"choices": [], "usage": None}),
        ({"choices": [{"delta": None}]}, {"choices": [{"delta": {}}]}),
        ({"choices": [{"finish_reason": ["x"]}]}, {"choices": [{"finish_reason": "stop"}]}),
        (
            {"choices": [{"message": {"tool_calls": [{"function": {"name": "a", "arguments": "{}"}}]}}]},
            {
                "choices": [
                    {"message": {"tool_calls": [{"type": "function", "function": {"name": "a", "arguments": "{}"}}]}}
                ]
            },
        ),
        (
            {"choices": [{"delta": {"tool_calls": [{"id": "", "type": "", "function": {"arguments": "{}"}}]}}]},
            {"choices": [{"delta": {"tool_calls": [{"id": "", "function": {"arguments": "{}"}}]}}]},
        ),
        (
            {"choices": [{"message": {"tool_calls": [{"function": {"arguments": {"a": 1}}}]}}]},
            {"choices": [{"message": {"tool_calls": [{"function": {"arguments": '{"a":1}'}}]}}]},
        ),
    ],
)
def test_what_can_be_mended_is(answer, mended):
    mend(answer, OPENAI, kind="chat.completion")
    assert answer == {**mended, "object": "chat.completion"}


USUAL = {"id": "call_1", "type": "function", "function": {"name": "a", "arguments": "{}"}}


@pytest.mark.parametrize("call", [USUAL, {**USUAL, "id": 7}, {**USUAL, "function": None}, {"id": None}])
def test_a_call_that_an_sdk_reads_is_not_changed(call):
    answer = {"object": "chat.completion", "choices": [{"message": {"tool_calls": [dict(call)]}}]}
    mend(answer, OPENAI, kind="chat.completion")
    assert answer == {"object": "chat.completion", "choices": [{"message": {"tool_calls": [call]}}]}


@given(hostile.mutated(st.sampled_from([*WHOLE, *CHUNKS])), st.sampled_from([OPENAI, GLM, GPT_OSS]))
def test_an_answer_is_mended_once_and_for_all_or_is_none(answer, profile):
    try:
        answer = orjson.loads(hostile.written(answer))
    except orjson.JSONDecodeError:
        return
    if not isinstance(answer, dict) or isinstance(
        hostile.outcome(UpstreamError, lambda: mend(answer, profile, kind="k")), UpstreamError
    ):
        return
    mended = deepcopy(answer)
    mend(answer, profile, kind="k")
    assert answer == mended
    for choice in answer["choices"]:
        for call in (choice.get("message") or choice.get("delta") or {}).get("tool_calls") or ():
            assert isinstance((call.get("function") or {}).get("arguments"), str | None)
            assert isinstance(call.get("id"), str | int | None)


@pytest.mark.parametrize("profile", [OPENAI, GPT_OSS])
def test_glms_own_search_is_sent_to_no_other_upstream(profile):
    native = {"type": "web_search", "web_search": {"enable": True}}
    assert prepare({"messages": [USER], "tools": [native], "tool_choice": "auto"}, profile) == {"messages": [USER]}
    assert prepare({"messages": [USER], "tools": [native, TOOL]}, profile)["tools"] == [TOOL]
    assert prepare({"messages": [USER], "tools": [native]}, GLM)["tools"] == [native]


def test_a_chunk_with_more_choices_than_anybody_can_ask_for_is_none():
    with pytest.raises(UpstreamError):
        mend({"choices": [{"index": 0, "delta": {}}] * 129}, OPENAI, kind="chat.completion.chunk")
