"""A turn's request is the same whether it is written anew or goes on from the turn before it."""

import itertools

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.loop.actions import CallUpstream
from proxy.loop.errors import InvalidJson
from proxy.loop.forcing import AnswerStep
from proxy.upstreams import request_body as written
from proxy.upstreams.glm import GLM
from proxy.upstreams.gpt_oss import GPT_OSS
from proxy.upstreams.profile import OPENAI
from proxy.upstreams.request_body import request_of
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


def turn(*messages, number=1, kept=None, step=None, **fields):
    body = {"messages": list(messages), "model": "theirs", **fields}
    return CallUpstream(body, number=number, step=step, kept={} if kept is None else kept)


def sent(call, profile=OPENAI, model="m"):
    content, names = request_of(call, profile, model)
    return orjson.loads(content), names


@pytest.fixture
def fitted(monkeypatch):
    """How many messages were made to fit, each time that any were."""
    counts = []

    def counted(messages, profile):
        counts.append(len(messages))
        return fit_messages(messages, profile)

    fit_messages = written.fit_messages
    monkeypatch.setattr(written, "fit_messages", counted)
    return counts


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
    kept = {}
    for number in range(len(added) + 1):
        messages = [USER, *itertools.chain(*added[:number])]
        going_on = sent(turn(*messages, number=number + 1, kept=kept, **fields), profile)
        assert going_on == sent(turn(*messages, number=number + 1, **fields), profile)


@profiles
def test_only_what_is_new_is_made_to_fit_and_written(profile, fitted):
    first = turn(USER, ASKS, FOUND)
    sent(first, profile)
    body, _ = sent(turn(USER, ASKS, FOUND, ASKS, EMPTY, number=2, kept=first.kept), profile)
    assert fitted == [2]
    assert len(body["messages"]) == 5


def test_another_try_of_a_turn_sends_the_same(fitted):
    call = turn(USER, ASKS, FOUND)
    assert request_of(call, GLM, "m") == request_of(call, GLM, "m")
    assert fitted == [0]


def test_another_models_upstream_is_written_to_anew(fitted):
    call = turn(USER, ASKS, FOUND)
    for profile, model in ((GLM, "m"), (GPT_OSS, "m"), (GPT_OSS, "n")):
        body, _ = sent(call, profile, model)
        assert body == sent(turn(USER, ASKS, FOUND), profile, model)[0]
        assert body["model"] == model
    assert fitted == []


def test_a_name_that_the_upstream_would_refuse_makes_all_of_them_looked_at_again(fitted):
    kept = {}
    for messages in ([USER], [USER, CALLS_BADLY, FOUND], [USER, CALLS_BADLY, FOUND, ASKS, EMPTY]):
        body, names = sent(turn(*messages, kept=kept))
        assert (names is None) == (len(messages) == 1)
    assert body["messages"][1]["tool_calls"][0]["function"]["name"] == "b_ro__ffnen"
    assert kept == {}
    assert len(body["messages"]) == 5


def test_what_is_large_is_not_kept(fitted):
    large = {"role": "user", "content": "x" * written.MOST_KEPT}
    first = turn(large)
    sent(first)
    assert first.kept == {}
    assert sent(turn(large, ASKS, FOUND, kept=first.kept)) == sent(turn(large, ASKS, FOUND))
    assert fitted == []


def test_what_has_become_large_is_not_kept_any_longer():
    kept = {}
    found = {**FOUND, "content": "x" * written.MOST_KEPT}
    for messages in ([USER], [USER, ASKS, found], [USER, ASKS, found, ASKS, EMPTY]):
        assert sent(turn(*messages, kept=kept)) == sent(turn(*messages))
        assert bool(kept) == (len(messages) == 1)


def test_fewer_messages_than_before_are_written_anew():
    kept = {}
    sent(turn(USER, ASKS, FOUND, kept=kept))
    assert sent(turn(USER, kept=kept)) == sent(turn(USER))


def test_after_a_turn_that_went_on_another_upstream_is_told_everything():
    kept = {}
    for messages in ([USER], [USER, ASKS, EMPTY]):
        sent(turn(*messages, kept=kept))
    assert sent(turn(USER, ASKS, EMPTY, kept=kept), GLM) == sent(turn(USER, ASKS, EMPTY), GLM)


@pytest.mark.parametrize("depth", range(245, 256))
def test_a_later_turn_may_be_nested_as_deep_as_a_first_one(depth):
    deep = {**ASKS, "extra": orjson.loads(b"[" * depth + b"]" * depth)}

    def outcome(call):
        try:
            return sent(call)
        except InvalidJson:
            return InvalidJson

    first = turn(USER)
    sent(first)
    assert outcome(turn(USER, deep, FOUND, kept=first.kept)) == outcome(turn(USER, deep, FOUND))


def test_the_last_means_brings_its_own_fields():
    plain, retelling = sent(turn(USER), GLM), sent(turn(USER, step=AnswerStep.RETELL), GLM)
    assert retelling[0] == {**plain[0], "thinking": {"type": "disabled"}}


@pytest.mark.parametrize("number", [1, 2])
def test_what_is_nested_too_deep_is_refused_in_whatever_turn_it_comes(number):
    deep = {"role": "tool", "tool_call_id": "c", "content": orjson.loads(b"[" * 300 + b"]" * 300)}
    kept = {}
    if number > 1:
        sent(turn(USER, kept=kept))
    with pytest.raises(InvalidJson):
        sent(turn(USER, deep, kept=kept))
    assert sent(turn(USER, ASKS, kept=kept)) == sent(turn(USER, ASKS))


def test_a_run_keeps_what_was_written_while_it_asks_for_the_same():
    play = Playbook(run_of())
    first = play.pending
    play >> calls(call()) >> results("found")
    assert play.pending.kept is first.kept


def test_a_run_begins_anew_once_a_demand_for_a_tool_has_been_met():
    play = Playbook(run_of({"tools": [SEARCH.definition()], "tool_choice": "required"}))
    first = play.pending
    play >> calls(call()) >> results("found")
    assert play.pending.body["tool_choice"] == "auto"
    assert play.pending.kept is not first.kept


def test_a_run_begins_anew_when_it_makes_the_model_answer():
    play = Playbook(run_of(max_turns=2))
    first = play.pending
    play >> calls(call()) >> results("found")
    assert play.made.step is AnswerStep.NOTICE
    assert play.pending.kept is not first.kept
