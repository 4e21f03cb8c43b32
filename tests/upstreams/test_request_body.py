"""A turn's request is the same whether it is serialized anew or extends the request of the turn before it."""

import itertools

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.loop.actions import CallUpstream
from proxy.loop.forcing import AnswerStep
from proxy.upstreams.profile import GLM, GPT_OSS, OPENAI
from proxy.upstreams.request_body import MOST_KEPT, serialize
from proxy.wire.errors import InvalidJson
from tests.playbook import SEARCH, Playbook, call, calls, results, run_of

USER = {"role": "user", "content": "Hi"}
ASKS = {
    "role": "assistant",
    "content": None,
    "reasoning": "Hm.",
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "web_search", "arguments": "{}"}}],
}
EMPTY = {"role": "tool", "tool_call_id": "c", "content": ""}
FOUND = {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "found ü"}]}
CALLS_BADLY = {
    "role": "assistant",
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "büro.öffnen", "arguments": "{}"}}],
}
PROFILES = [OPENAI, GLM, GPT_OSS]
profiles = pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)


def turn(*messages, number=1, step=None, **fields):
    return CallUpstream({"messages": list(messages), "model": "theirs", **fields}, number=number, step=step)


def sent(call, profile=OPENAI, model="m", latest=None):
    content, names = serialize(call, profile, model, {} if latest is None else latest)
    return orjson.loads(content), names


@profiles
def test_a_tool_that_is_demanded_has_the_name_under_which_it_is_offered(profile):
    tools = [{"type": "function", "function": {"name": name}} for name in ("x" * 65, "other")]
    body, names = sent(turn(USER, tools=tools, tool_choice=tools[0]), profile)
    assert names.originals == {"x" * 64: "x" * 65}
    assert body["tools"][0]["function"]["name"] == "x" * 64
    assert "x" * 65 not in str(body)
    assert str(body).count("x" * 64) > 1


@profiles
@given(
    added=st.lists(st.lists(st.sampled_from([USER, ASKS, EMPTY, FOUND]), min_size=1, max_size=3), max_size=4),
    fields=st.fixed_dictionaries(
        {},
        optional={
            "stream": st.booleans(),
            "max_completion_tokens": st.just(5),
            "response_format": st.just({"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}),
            "tools": st.just([SEARCH.definition()]),
            "stream_options": st.just({"x": 1}),
        },
    ),
)
def test_each_turn_sends_what_it_would_send_if_it_were_the_first(profile, added, fields):
    latest = {}
    for number in range(len(added) + 1):
        messages = [USER, *itertools.chain(*added[:number])]
        extended = sent(turn(*messages, number=number + 1, **fields), profile, latest=latest)
        assert extended == sent(turn(*messages, number=number + 1, **fields), profile)


@profiles
def test_a_turn_with_more_messages_extends_the_request_before_it(profile):
    latest = {}
    first, _ = serialize(turn(USER, ASKS, FOUND), profile, "m", latest)
    request = latest[""]
    second, _ = serialize(turn(USER, ASKS, FOUND, ASKS, EMPTY, number=2), profile, "m", latest)
    assert latest[""] is request
    assert second.startswith(first.removesuffix(b"]}"))
    assert len(orjson.loads(second)["messages"]) == 5


@profiles
@pytest.mark.parametrize("more", [(), (ASKS, EMPTY)], ids=["another attempt", "more messages"])
@pytest.mark.parametrize("fields", [{}, {"max_completion_tokens": 7}], ids=["one length", "two lengths"])
def test_a_turn_that_may_write_less_extends_the_request_before_it(profile, more, fields):
    latest = {}
    serialize(turn(USER, ASKS, FOUND, max_tokens=900, **fields), profile, "m", latest)
    request = latest[""]
    second = turn(USER, ASKS, FOUND, *more, number=2, max_tokens=50, **fields)
    assert sent(second, profile, latest=latest) == sent(second, profile)
    assert latest[""] is request
    assert sent(second, profile)[0]["max_tokens"] == 50


@profiles
def test_another_attempt_at_a_turn_sends_the_same_bytes(profile):
    latest = {}
    call = turn(USER, ASKS, FOUND)
    assert serialize(call, profile, "m", latest) == serialize(call, profile, "m", latest)


@pytest.mark.parametrize("model", ["o3", "o4-mini", "gpt-5", "openai/gpt-5.1-codex"])
def test_openais_reasoning_models_get_the_bound_of_an_answer_under_the_name_that_they_take(model):
    latest = {}
    for number, (added, most) in enumerate([((), 100), ((ASKS, FOUND), 90)], 1):
        call = turn(USER, *added, number=number, max_tokens=most)
        body, _ = sent(call, OPENAI, model, latest)
        assert body == sent(call, OPENAI, model)[0]
        assert (body["max_completion_tokens"], len(body["messages"])) == (most, 1 + len(added))
        assert "max_tokens" not in body


@pytest.mark.parametrize("model", ["gpt-4o", "openai/gpt-oss-120b", "olmo-3", "grok-5", "glm-5", "solo1"])
@profiles
def test_other_models_get_the_bound_as_max_tokens(model, profile):
    assert sent(turn(USER, max_tokens=100), profile, model)[0]["max_tokens"] == 100


def test_a_client_that_sends_both_bounds_sends_both():
    body, _ = sent(turn(USER, max_tokens=100, max_completion_tokens=90), OPENAI, "o3")
    assert (body["max_tokens"], body["max_completion_tokens"]) == (100, 90)


def test_runs_of_one_request_do_not_share_their_messages():
    latest = {}
    for message in (FOUND, EMPTY):
        for run_id in ("one", "two"):
            call = msgspec.structs.replace(turn(USER, ASKS, message, {**USER, "content": run_id}), run_id=run_id)
            assert sent(call, latest=latest) == sent(call)


@pytest.mark.parametrize(
    "call",
    [
        turn(USER),
        turn({**USER, "content": "Ho"}, ASKS, FOUND, ASKS),
        turn(USER, ASKS, FOUND, ASKS, tools=[SEARCH.definition()]),
        turn(USER, ASKS, FOUND, ASKS, max_tokens=5),
        turn(USER, ASKS, FOUND, ASKS, step=AnswerStep.RETELL),
    ],
    ids=["fewer messages", "other messages", "another field", "a length", "another step"],
)
@profiles
def test_a_request_that_differs_in_more_than_its_last_messages_is_serialized_anew(profile, call):
    latest = {}
    sent(turn(USER, ASKS, FOUND), profile, latest=latest)
    assert sent(call, profile, latest=latest) == sent(call, profile)


def test_a_request_for_another_upstream_or_model_is_serialized_anew():
    latest = {}
    call = turn(USER, ASKS, FOUND)
    for profile, model in ((GLM, "m"), (GPT_OSS, "m"), (GPT_OSS, "n")):
        body, _ = sent(call, profile, model, latest)
        assert body == sent(call, profile, model)[0]
        assert body["model"] == model


def test_a_request_with_a_renamed_tool_is_serialized_anew_in_each_turn():
    latest = {}
    for messages in ([USER], [USER, CALLS_BADLY, FOUND], [USER, CALLS_BADLY, FOUND, ASKS, EMPTY]):
        body, names = sent(turn(*messages), latest=latest)
        assert (names is None) == (len(messages) == 1)
    assert body["messages"][1]["tool_calls"][0]["function"]["name"] == "b_ro__ffnen"
    assert latest == {}
    assert len(body["messages"]) == 5


def test_a_large_request_is_not_kept():
    large = {"role": "user", "content": "x" * MOST_KEPT}
    latest = {}
    sent(turn(large), latest=latest)
    assert latest == {}
    assert sent(turn(large, ASKS, FOUND), latest=latest) == sent(turn(large, ASKS, FOUND))


def test_a_request_that_has_become_large_is_not_kept_any_longer():
    latest = {}
    found = {**FOUND, "content": "x" * MOST_KEPT}
    for messages in ([USER], [USER, ASKS, found], [USER, ASKS, found, ASKS, EMPTY]):
        assert sent(turn(*messages), latest=latest) == sent(turn(*messages))
        assert bool(latest) == (len(messages) == 1)


def test_after_an_extended_request_a_fallback_is_sent_all_messages():
    latest = {}
    for messages in ([USER], [USER, ASKS, EMPTY]):
        sent(turn(*messages), latest=latest)
    assert sent(turn(USER, ASKS, EMPTY), GLM, latest=latest) == sent(turn(USER, ASKS, EMPTY), GLM)


@pytest.mark.parametrize("depth", range(245, 256))
def test_a_later_turn_may_be_nested_as_deep_as_a_first_one(depth):
    deep = {**ASKS, "extra": orjson.loads(b"[" * depth + b"]" * depth)}

    def outcome(latest):
        try:
            return sent(turn(USER, deep, FOUND), latest=latest)
        except InvalidJson:
            return InvalidJson

    latest = {}
    sent(turn(USER), latest=latest)
    assert outcome(latest) == outcome({})


def test_the_last_step_adds_the_profiles_own_fields():
    plain, retelling = sent(turn(USER), GLM), sent(turn(USER, step=AnswerStep.RETELL), GLM)
    assert retelling[0] == {**plain[0], "thinking": {"type": "disabled"}}


@pytest.mark.parametrize("number", [1, 2])
def test_a_request_that_is_nested_too_deep_is_refused_in_any_turn(number):
    deep = {"role": "tool", "tool_call_id": "c", "content": orjson.loads(b"[" * 300 + b"]" * 300)}
    latest = {}
    if number > 1:
        sent(turn(USER), latest=latest)
    with pytest.raises(InvalidJson):
        sent(turn(USER, deep), latest=latest)
    assert sent(turn(USER, ASKS), latest=latest) == sent(turn(USER, ASKS))


@profiles
@pytest.mark.parametrize(
    ("request_fields", "limits"),
    [
        ({}, {}),
        ({"tools": [SEARCH.definition()], "tool_choice": "required"}, {}),
        ({}, {"max_turns": 2}),
        ({"max_tokens": 50}, {}),
    ],
    ids=["same request", "a demand for a tool that is met", "made to answer", "a budget of tokens"],
)
def test_every_turn_of_a_run_is_sent_as_if_it_were_its_first(profile, request_fields, limits):
    play, latest = Playbook(run_of(request_fields, **limits), steps=profile.answer_steps), {}
    for query in ("a", "b", "c"):
        assert sent(play.made, profile, latest=latest) == sent(play.made, profile)
        play >> calls(call(arguments=f'{{"query":"{query}"}}'))
        if not isinstance(play.pending, CallUpstream):
            play >> results("found")
    assert sent(play.made, profile, latest=latest) == sent(play.made, profile)
