"""What real servers sent, replayed over a real socket through the real SDK: it comes out as it was recorded."""

import random

import httpx
import openai
import orjson
import pytest

from proxy.tools.tool import Tool
from tests.conformance import recordings
from tests.fakes import Reply
from tests.serving import proxy_of

pytestmark = pytest.mark.skipif(not recordings.FOLDER.is_dir(), reason="no recordings beside the project")

SEEDS = range(3)
CONFIG = """
upstreams: {{up: {{base_url: "{upstream}/v1", api_key: k, profile: PROFILE, retries: 0}}}}
models: {{"*": {{upstream: up, tools: TOOLS}}}}
limits: {{guidance: false}}
"""


def config_for(name, *, tools="null"):
    profile = "glm" if name.startswith("glm") else "gpt_oss" if name.startswith("gptoss") else "openai"
    return CONFIG.replace("PROFILE", profile).replace("TOOLS", tools)


def cut(body, seed, *, most=700):
    """The same bytes as they were (seed 0), or in pieces of up to so many, cut anywhere."""
    if seed == 0:
        return [body]
    dice = random.Random(seed)
    pieces, at = [], 0
    while at < len(body):
        size = dice.randint(1, most)
        pieces.append(body[at : at + size])
        at += size
    return pieces


def replies(exchanges, seed=0):
    return [Reply(cut(one.body, seed), status=one.status, content_type=one.content_type) for one in exchanges]


async def ask(client, request):
    """The recorded request through the SDK, whatever fields it has."""
    named = {key: request[key] for key in ("model", "messages", "stream") if key in request}
    rest = {key: value for key, value in request.items() if key not in named}
    completion = await client.chat.completions.create(**named, extra_body=rest)
    return await _streamed(completion) if request.get("stream") else _whole(completion)


def _whole(completion):
    (choice,) = completion.choices
    return choice, choice.message.content, completion.usage


async def _streamed(completion):
    """Folds a stream, and checks that it is one completion."""
    chunks = [chunk async for chunk in completion]
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert len({(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in chunks}) == 1
    assert [choice.delta.role for choice in choices].count("assistant") == 1
    assert choices[0].delta.role == "assistant"
    assert [choice.finish_reason is None for choice in choices] == [True] * (len(choices) - 1) + [False]
    assert not any(chunk.usage for chunk in chunks[:-1])
    return choices[-1], "".join(choice.delta.content or "" for choice in choices), chunks[-1].usage


def tools_of(first, second):
    """The recorded functions as server tools that return the recorded results."""
    results = {
        message["tool_call_id"]: message["content"]
        for message in second.request["messages"]
        if message["role"] == "tool"
    }
    by_name = {call["function"]["name"]: results[call["id"]] for call in first.calls}

    def runs(name):
        async def run(_):
            return by_name[name]

        return run

    return [
        Tool(
            name=tool["function"]["name"],
            description=tool["function"]["description"],
            parameters=tool["function"]["parameters"],
            run=runs(tool["function"]["name"]),
        )
        for tool in first.request["tools"]
    ]


def essence(message):
    """What has to be the same in a message, whether it was folded by us, by a recorder or not at all."""
    calls = [
        (call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls") or ()
    ]
    thoughts = message.get("reasoning_content") or message.get("reasoning")
    return message["role"], message.get("content") or None, thoughts, calls


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "at"), recordings.conversations())
async def test_a_recorded_tool_conversation_ends_in_its_recorded_answer(upstream, sdk, name, at, seed):
    first, second = recordings.load(name)[at : at + 2]
    upstream.replies = replies((first, second), seed)
    async with proxy_of(upstream, config=config_for(name), tools=tools_of(first, second)) as url, sdk(url) as client:
        choice, content, usage = await ask(client, first.request)
    assert choice.finish_reason == "stop"
    shown_before = first.message.get("content") if first.request.get("stream") else None
    assert content == _joined(shown_before, second.message["content"])
    if usage is not None:
        total = first.usage["total_tokens"] + second.usage["total_tokens"]
        assert (usage.total_tokens, usage.server_tool_use["turns"]) == (total, 2)
    assert (usage is None) == (bool(first.request.get("stream")) and "stream_options" not in first.request)
    _check_history(upstream.requests[1]["messages"], first, second)


def _joined(before, answer):
    """A stream shows what was written before the calls too, set apart by a blank line."""
    if not (before or "").strip():
        return answer
    return before.rstrip("\n") + "\n\n" + answer.lstrip("\n")


def _check_history(messages, first, second):
    """The assistant message as received, and one result per call straight after it, in call order."""
    asked = first.request["messages"]
    assert [essence(message) for message in messages[: len(asked)]] == [essence(message) for message in asked]
    assistant, *results = messages[len(asked) :]
    assert essence(assistant) == essence(first.message)
    recorded = {message["tool_call_id"]: message for message in second.request["messages"] if message["role"] == "tool"}
    assert [message["tool_call_id"] for message in results] == [call["id"] for call in first.calls]
    for result in results:
        assert result["role"] == "tool"
        assert recorded[result["tool_call_id"]]["content"] in result["content"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "at"), recordings.plain())
async def test_a_recorded_answer_comes_out_as_it_is_with_a_server_tool_in_play(upstream, sdk, name, at, seed):
    exchange = recordings.load(name)[at]
    upstream.replies = replies([exchange], seed)
    described = {"name": "never_called", "description": "", "parameters": {"type": "object"}}
    request = {key: value for key, value in exchange.request.items() if key != "tool_choice"}
    async with (
        proxy_of(upstream, config=config_for(name), tools=[Tool(**described, run=None)]) as url,
        sdk(url) as client,
    ):
        choice, content, usage = await ask(client, request)
    assert content == exchange.message.get("content")
    assert choice.finish_reason == "stop"
    assert usage is None or usage.total_tokens == exchange.usage["total_tokens"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "at"), recordings.plain())
async def test_a_recorded_answer_is_handed_through_byte_for_byte_without_one(upstream, name, at, seed):
    exchange = recordings.load(name)[at]
    upstream.replies = replies([exchange], seed)
    async with proxy_of(upstream, config=config_for(name, tools="[]")) as url, httpx.AsyncClient() as client:
        response = await client.post(f"{url}/v1/chat/completions", json=exchange.request)
    if b'"object":' in exchange.body or b'"object": ' in exchange.body:
        assert response.content == exchange.body.replace(b"\r\n", b"\n")
    elif exchange.request.get("stream"):  # 2025's GLM left it out, and an SDK wants it
        lines = [line for line in response.text.split("\n") if line.startswith("data: {")]
        assert lines
        assert [orjson.loads(line[6:]).pop("object") for line in lines] == ["chat.completion.chunk"] * len(lines)
    else:
        mended = response.json()
        assert mended.pop("object") == "chat.completion"
        assert mended == orjson.loads(exchange.body)


@pytest.mark.parametrize(("name", "at"), recordings.broken())
async def test_a_recorded_failure_is_a_clear_error_and_never_an_answer(upstream, sdk, name, at):
    exchange = recordings.load(name)[at]
    upstream.replies = replies([exchange])
    async with proxy_of(upstream, config=config_for(name)) as url, sdk(url) as client:
        with pytest.raises(openai.APIError) as raised:
            await ask(client, exchange.request)
    if exchange.status != 200:
        assert raised.value.status_code == exchange.status
    assert raised.value.message
    assert raised.value.body["message"] in exchange.body.decode().replace('\\"', '"')


@pytest.mark.skipif(not recordings.FOLDER.is_dir(), reason="no recordings beside the project")
async def test_gmis_recorded_errors_keep_their_status_and_their_inner_message(upstream, sdk):
    bodies = orjson.loads((recordings.FOLDER / "gmicloud__error_bodies.json").read_bytes())
    recordings.replayed.add("gmicloud__error_bodies")
    upstream.replies = [
        Reply([one["body"].encode()], status=one["status"], content_type=one["content_type"]) for one in bodies
    ]
    async with proxy_of(upstream, config=config_for("gptoss")) as url, sdk(url) as client:
        for one in bodies:
            with pytest.raises(openai.APIStatusError) as raised:
                await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
            assert raised.value.status_code == one["status"]
            assert raised.value.body["message"] in one["body"].replace("\\", "")
            assert raised.value.body["message"] != "Backend request failed with status 400"
            assert raised.value.body["code"] is None or isinstance(raised.value.body["code"], str)


async def test_content_and_a_repeat_of_the_same_call_together_run_it_once(upstream, sdk):
    body = (recordings.FOLDER / "glm47_cerebras__content_and_repeat_tool_call.2.json").read_bytes()
    recordings.replayed.add("glm47_cerebras__content_and_repeat_tool_call.2")
    message = orjson.loads(body)["choices"][0]["message"]
    (call,) = message["tool_calls"]
    runs = []

    async def run(arguments):
        runs.append(arguments)
        return "done"

    described = {"name": call["function"]["name"], "description": "", "parameters": {"type": "object"}}
    final = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "End."}, "finish_reason": "stop"}]}
    upstream.replies = [Reply([body]), Reply([body]), Reply([body]), Reply([orjson.dumps(final)])]
    config = config_for("glm")
    async with proxy_of(upstream, config=config, tools=[Tool(**described, run=run)]) as url, sdk(url) as client:
        answer = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
    assert (answer.choices[0].message.content, len(runs)) == ("End.", 1)


def test_all_the_recorded_conversations_were_there_to_be_replayed():
    assert (len(recordings.conversations()), len(recordings.plain()), len(recordings.broken())) == (17, 30, 6)
