"""A turn's request as its upstream gets it."""

import orjson
import pytest

from proxy.loop.actions import CallUpstream
from proxy.loop.forcing import AnswerStep
from proxy.upstreams.profile import GLM, GPT_OSS, OPENAI
from proxy.upstreams.request_body import serialize
from proxy.wire.errors import InvalidJson

USER = {"role": "user", "content": "Hi"}
ASKS = {
    "role": "assistant",
    "content": None,
    "reasoning": "Hm.",
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "web_search", "arguments": "{}"}}],
}
FOUND = {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "found ü"}]}
CALLS_BADLY = {
    "role": "assistant",
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "büro.öffnen", "arguments": "{}"}}],
}
PROFILES = [OPENAI, GLM, GPT_OSS]
profiles = pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)


def turn(*messages, number=1, step=None, **fields):
    return CallUpstream({"messages": list(messages), "model": "theirs", **fields}, number=number, step=step)


def sent(call, profile=OPENAI, model="m"):
    content, names = serialize(call, profile, model)
    return orjson.loads(content), names


@profiles
def test_a_tool_that_is_demanded_has_the_name_under_which_it_is_offered(profile):
    tools = [{"type": "function", "function": {"name": name}} for name in ("x" * 65, "other")]
    body, names = sent(turn(USER, tools=tools, tool_choice=tools[0]), profile)
    assert names.originals == {"x" * 64: "x" * 65}
    assert body["tools"][0]["function"]["name"] == "x" * 64
    assert "x" * 65 not in str(body)
    assert str(body).count("x" * 64) > 1


@pytest.mark.parametrize("model", ["o3", "o4-mini", "gpt-5", "openai/gpt-5.1-codex"])
def test_openais_reasoning_models_get_the_bound_of_an_answer_under_the_name_that_they_take(model):
    body, _ = sent(turn(USER, ASKS, FOUND, max_tokens=90), OPENAI, model)
    assert (body["max_completion_tokens"], len(body["messages"])) == (90, 3)
    assert "max_tokens" not in body


@pytest.mark.parametrize("model", ["gpt-4o", "openai/gpt-oss-120b", "olmo-3", "grok-5", "glm-5", "solo1"])
@profiles
def test_other_models_get_the_bound_as_max_tokens(model, profile):
    assert sent(turn(USER, max_tokens=100), profile, model)[0]["max_tokens"] == 100


def test_a_client_that_sends_both_bounds_sends_both():
    body, _ = sent(turn(USER, max_tokens=100, max_completion_tokens=90), OPENAI, "o3")
    assert (body["max_tokens"], body["max_completion_tokens"]) == (100, 90)


def test_a_tool_that_was_called_is_renamed_in_each_later_turn():
    for messages in ([USER, CALLS_BADLY, FOUND], [USER, CALLS_BADLY, FOUND, ASKS, FOUND]):
        body, names = sent(turn(*messages))
        assert body["messages"][1]["tool_calls"][0]["function"]["name"] == "b_ro__ffnen"
        assert names is not None
        assert len(body["messages"]) == len(messages)
    assert sent(turn(USER))[1] is None


@profiles
@pytest.mark.parametrize("fields", [{}, {"stream_options": {"x": 1}}], ids=["no options", "options"])
def test_a_stream_is_asked_for_its_usage(profile, fields):
    body, _ = sent(turn(USER, stream=True, **fields), profile)
    assert body["stream_options"] == {**fields.get("stream_options", {}), "include_usage": True}
    assert "stream_options" not in sent(turn(USER), profile)[0]


def test_the_last_step_adds_the_profiles_own_fields():
    plain, retelling = sent(turn(USER), GLM), sent(turn(USER, step=AnswerStep.RETELL), GLM)
    assert retelling[0] == {**plain[0], "thinking": {"type": "disabled"}}


def test_a_request_that_is_nested_too_deep_is_refused():
    deep = {"role": "tool", "tool_call_id": "c", "content": orjson.loads(b"[" * 300 + b"]" * 300)}
    with pytest.raises(InvalidJson):
        sent(turn(USER, deep))
