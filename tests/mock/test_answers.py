"""What the scripted model writes within the bounds of a request, what it counts, and when it writes it."""

import time
from random import Random

import httpx
import openai
import pytest
from msgspec import convert

from proxy.mock.answer import ChatAnswer, example
from proxy.mock.pieces import made_up, pieces_of
from proxy.mock.script import ScriptedTurn
from proxy.mock.server import Pace


def answer(turn, **request):
    asked = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **request}
    return ChatAnswer(ScriptedTurn(**turn), asked, seed=0)


@pytest.mark.parametrize("text", ["Hello, world! It has 12345 words.", "  a_b\n\n  c", "ünï 漢字", "x" * 100, ""])
def test_the_pieces_of_a_text_are_the_text(text):
    assert "".join(pieces_of(text)) == text


def test_a_made_up_text_has_as_many_pieces_as_it_should():
    text = made_up(500, Random(1))
    assert pieces_of("".join(text)) == text
    assert len(text) == 500


@pytest.mark.parametrize(
    ("turn", "request_", "text", "finish", "count"),
    [
        ({"text": "It rains today."}, {}, "It rains today.", "stop", 4),
        ({"text": "It rains today."}, {"max_tokens": 2}, "It rains", "length", 2),
        ({"text": "It rains today."}, {"max_completion_tokens": 0}, None, "length", 0),
        ({"text": "It rains today."}, {"max_tokens": 4}, "It rains today.", "stop", 4),
        ({"text": "It rains today."}, {"stop": [" to", "zz"]}, "It rains", "stop", 2),
        ({"text": "It rains today."}, {"stop": "It"}, None, "stop", 0),
        ({"text": "It rains."}, {"min_tokens": 3}, "It rains.", "stop", 3),
        ({"text": "It rains today.", "finish_reason": "content_filter"}, {}, "It rains today.", "content_filter", 4),
        ({"text": "It rains."}, {"n": 3}, "It rains.", "stop", 9),
        ({}, {}, None, "stop", 0),
    ],
)
def test_an_answer_keeps_within_the_bounds_of_its_request_and_counts_what_it_writes(
    turn, request_, text, finish, count
):
    found = answer(turn, **request_)
    choice = found.whole()["choices"][-1]
    assert (choice["message"]["content"], choice["finish_reason"]) == (text, finish)
    usage = found.whole()["usage"]
    assert usage["completion_tokens"] == count
    assert usage["total_tokens"] == usage["prompt_tokens"] + count
    chunks = [chunk for together in found.chunks() for chunk in together]
    last = [one["choices"][0] for one in chunks if one["choices"][0]["index"] == choice["index"]]
    assert "".join(one["delta"].get("content") or "" for one in last) == (text or "")
    assert [one["finish_reason"] for one in last] == [None] * (len(last) - 1) + [finish]


@pytest.mark.parametrize(("more", "length"), [({"min_tokens": 30}, 30), ({"ignore_eos": True, "max_tokens": 40}, 40)])
def test_a_request_may_demand_a_length(more, length):
    found = answer({"text": "It rains."}, **more)
    assert found.whole()["usage"]["completion_tokens"] == length == found.length
    assert found.whole()["choices"][0]["message"]["content"].startswith("It rains.")


@pytest.mark.parametrize("model", ["glm-4.7", "gpt-oss-120b", "gpt-4o"])
def test_thoughts_calls_and_usage_come_in_the_manner_of_the_model(model):
    turn = {"reasoning": "Hm hm.", "text": "Hi.", "calls": ({"name": "f", "arguments": {"a": 1}},)}
    tools = [{"type": "function", "function": {"name": "f"}}]
    found = ChatAnswer(
        convert(turn, ScriptedTurn),
        {"model": model, "messages": [{"role": "user", "content": "x"}], "tools": tools},
        seed=0,
    )
    message, chunks = found.whole()["choices"][0]["message"], [one for slot in found.chunks() for one in slot]
    thoughts = {"glm-4.7": "reasoning_content", "gpt-oss-120b": "reasoning"}.get(model)
    assert {key: value for key, value in message.items() if "reasoning" in key} == (
        {thoughts: "Hm hm."} if thoughts else {}
    )
    calls = [one["choices"][0]["delta"]["tool_calls"] for one in chunks if "tool_calls" in one["choices"][0]["delta"]]
    assert (len(calls) == 1) == (model == "glm-4.7")
    assert "".join(call[0]["function"]["arguments"] for call in calls) == '{"a":1}'
    assert ("usage" in chunks[-1]) == (model == "glm-4.7")
    assert found.whole()["usage"].get("completion_tokens_details") == ({"reasoning_tokens": 3} if thoughts else None)


@pytest.mark.parametrize(("usage", "expected"), [(None, False), ({"prompt_tokens": 1}, {"prompt_tokens": 1})])
def test_a_script_may_set_the_usage_or_leave_it_out(usage, expected):
    assert answer({"text": "x", "usage": usage}).whole().get("usage", False) == expected


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "object", "required": ["a", "b"], "properties": {"a": {"enum": ["x", "y"]}, "b": {"type": "integer", "minimum": 5}}}, {"a": "x", "b": 5}),
        ({"type": ["boolean", "null"]}, True),
        ({"anyOf": [{"type": "array", "minItems": 1, "items": {"type": "string"}}, {"type": "null"}]}, ["text"]),
        ({"type": "array"}, []),
        ({"type": "string", "default": "d"}, "d"),
        (None, {}),
        ({"enum": "x", "type": [], "required": "ab", "properties": []}, {}),
        ({"type": "object", "required": ["a", 1, {}], "properties": {"a": True}}, {"a": {}}),
        ({"anyOf": {}, "oneOf": [], "type": {"a": 1}}, {}),
        ({"type": "integer", "minimum": "5"}, 1),
        ({"type": "string", "minimum": 5}, "text"),
    ],
)  # fmt: skip
def test_arguments_that_are_made_up_fit_their_schema(schema, value):
    assert example(schema) == value


def test_the_times_of_pieces_are_absolute_and_in_order():
    assert Pace(0.5, 0.1, 0).times(4, Random(1)) == pytest.approx([0.5, 0.6, 0.7, 0.8])
    shaken = Pace(0.5, 0.1, 0.3).times(200, Random(1))
    assert shaken == sorted(shaken)
    assert all(abs(due - 0.5 - number * 0.1) <= 0.5 for number, due in enumerate(shaken))
    assert shaken[-1] == pytest.approx(20.4, abs=0.3)


def test_a_whole_answer_takes_as_long_as_its_stream(toolproxy_mock):
    toolproxy_mock.script({"tokens": 5, "delay": 0.03, "pace": 0.01})
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    with httpx.Client() as client:
        for stream in (False, True):
            began = time.monotonic()
            client.post(f"{toolproxy_mock.url}/chat/completions", json={**body, "stream": stream})
            assert time.monotonic() - began >= 0.07 - 0.002


def test_completions_embeddings_models_and_health(toolproxy_mock):
    toolproxy_mock.script("One two three.")
    root = toolproxy_mock.url.removesuffix("/v1")
    with openai.OpenAI(base_url=toolproxy_mock.url, api_key="k", max_retries=0) as sdk:
        whole = sdk.completions.create(model="m", prompt=["Count", [1, 2]], n=2, max_tokens=2, echo=True, logprobs=1)
        assert [choice.text for choice in whole.choices] == ["CountOne two"] * 2 + ["token tokenOne two"] * 2
        assert whole.choices[0].logprobs.text_offset == [0, 5, 8]
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (3, 8)
        chunks = list(
            sdk.completions.create(model="m", prompt="x", stream=True, stream_options={"include_usage": True})
        )
        assert "".join(one.choices[0].text for one in chunks if one.choices) == "One two three."
        assert [one.choices[0].finish_reason for one in chunks if one.choices][-1] == "stop"
        assert chunks[-1].usage.completion_tokens == 4
        vectors = sdk.embeddings.create(model="m", input=["a", "b", "a"], dimensions=8).data  # asks for base64
        assert vectors[0].embedding == vectors[2].embedding != vectors[1].embedding
        assert sum(one * one for one in vectors[0].embedding) == pytest.approx(1, abs=1e-5)
        assert sdk.models.retrieve("any").id == "any"
        assert "glm-4.7" in [model.id for model in sdk.models.list()]
    with httpx.Client(base_url=root) as client:
        assert client.get("/health").status_code == 200
        assert [entry["path"] for entry in client.get("/journal").json()][:2] == ["/v1/completions"] * 2
        assert {entry["headers"]["authorization"] for entry in client.get("/journal").json()} == {"***"}
        assert client.delete("/journal").status_code == 204
        assert client.get("/journal").json() == []


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/chat/completions", {"model": "m", "messages": []}, 400),
        ("POST", "/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": "5"}, 400),
        ("POST", "/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "x"}], "stop": [5]}, 400),
        ("POST", "/v1/completions", {"model": "m", "prompt": {}}, 400),
        ("POST", "/v1/completions", {"model": "m", "prompt": [[]]}, 400),
        ("POST", "/v1/completions", {"model": "m", "prompt": [[["x"]]]}, 400),
        ("POST", "/v1/completions", {"model": "m", "prompt": "x", "stream_options": [1]}, 400),
        ("POST", "/v1/embeddings", {"model": "m", "input": []}, 400),
        ("POST", "/v1/embeddings", {"model": "m", "input": "x", "dimensions": 0}, 400),
        ("POST", "/v1/nothing", {}, 404),
        ("GET", "/v1/chat/completions", None, 405),
    ],
)  # fmt: skip
def test_what_no_upstream_would_take_is_refused_in_openais_envelope(toolproxy_mock, method, path, body, status):
    response = httpx.request(method, toolproxy_mock.url.removesuffix("/v1") + path, json=body)
    assert response.status_code == status
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_a_function_without_a_name_is_not_called():
    tools = [{"type": "function", "function": {}}, {"type": "function", "function": {"name": "f"}}]
    message = answer({"text": "x"}, tools=tools, tool_choice="required").whole()["choices"][0]["message"]
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["f"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_takes_the_place_of_the_text(toolproxy_mock, stream):
    toolproxy_mock.script({"refusal": "I will not."})
    with openai.OpenAI(base_url=toolproxy_mock.url, api_key="k", max_retries=0) as sdk:
        asked = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
        if stream:
            with sdk.chat.completions.stream(**asked) as events:
                message = events.get_final_completion().choices[0].message
        else:
            message = sdk.chat.completions.create(**asked).choices[0].message
    assert (message.content or None, message.refusal) == (None, "I will not.")
