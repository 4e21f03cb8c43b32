"""What real servers sent, replayed over a real socket: the answer, the history and the usage come out as recorded."""

import random

import pytest

from proxy.core.chat import ToolSpec
from proxy.tools.registry import Tool
from tests.conformance import recordings
from tests.fakes import Reply
from tests.serving import proxy_of

NAMES = recordings.names("glm_zai_coding__*tool*", "glm45_zai__*tool*", "openai_gpt4o__*tool*")
SEEDS = range(3)

CONFIG = """
upstreams: {{up: {{base_url: "{upstream}/v1", api_key: k, profile: PROFILE, retries: 0}}}}
models: {{"*": {{upstream: up}}}}
limits: {{guidance: false}}
"""

pytestmark = pytest.mark.skipif(not recordings.FOLDER.is_dir(), reason="no recordings beside the project")


def cut(body, seed):
    """The same bytes in pieces: as they were, one line at a time, or cut anywhere."""
    if seed == 0:
        return [body]
    dice = random.Random(seed)
    pieces, at = [], 0
    while at < len(body):
        size = dice.randint(1, 700)
        pieces.append(body[at : at + size])
        at += size
    return pieces


def tools_of(exchanges):
    """The recorded functions as server tools that return the recorded results."""
    results = {
        message["tool_call_id"]: message["content"]
        for message in exchanges[1].request["messages"]
        if message["role"] == "tool"
    }
    by_name = {call["function"]["name"]: results[call["id"]] for call in exchanges[0].message["tool_calls"]}

    def runs(name):
        async def run(_):
            return by_name[name]

        return run

    return [
        Tool(
            spec=ToolSpec(
                name=tool["function"]["name"],
                description=tool["function"]["description"],
                parameters=tool["function"]["parameters"],
            ),
            run=runs(tool["function"]["name"]),
        )
        for tool in exchanges[0].request["tools"]
    ]


def essence(message):
    """What has to be the same in a message, whether it was folded by us, by a recorder or not at all."""
    calls = [
        (call["id"], call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())
    ]
    return message["role"], message.get("content") or None, message.get("reasoning_content"), calls


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", NAMES)
async def test_a_recorded_tool_conversation_ends_in_its_recorded_answer(upstream, sdk, name, seed):
    exchanges = recordings.load(name)
    first, second = exchanges
    upstream.replies = [Reply(cut(one.body, seed), content_type=one.content_type) for one in exchanges]
    config = CONFIG.replace("PROFILE", "openai" if name.startswith("openai") else "glm")
    async with proxy_of(upstream, config=config, tools=tools_of(exchanges)) as url, sdk(url) as client:
        completion = await client.chat.completions.create(**first.request)
        content, usage = await (_streamed if first.request.get("stream") else _whole)(completion)
    shown_before = first.message.get("content") if first.request.get("stream") else None
    assert content == _joined(shown_before, second.message["content"])
    total = first.usage["total_tokens"] + second.usage["total_tokens"]
    assert (usage.total_tokens, usage.server_tool_use["turns"]) == (total, 2)
    _check_history(upstream.requests[1]["messages"], exchanges)


async def _whole(completion):
    (choice,) = completion.choices
    assert (choice.finish_reason, choice.message.tool_calls) == ("stop", None)
    return choice.message.content, completion.usage


async def _streamed(completion):
    chunks = [chunk async for chunk in completion]
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert len({(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in chunks}) == 1
    assert [choice.delta.role for choice in choices].count("assistant") == 1
    assert choices[0].delta.role == "assistant"
    assert not any(choice.delta.tool_calls for choice in choices)
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["stop"]
    assert [bool(chunk.usage) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    return "".join(choice.delta.content or "" for choice in choices), chunks[-1].usage


def _joined(before, answer):
    """A stream shows what was written before the calls too, set apart by a blank line."""
    if not (before or "").strip():
        return answer
    return before.rstrip("\n") + "\n\n" + answer.lstrip("\n")


def _check_history(messages, exchanges):
    """The assistant message as received, and one result per call straight after it, in call order."""
    first, second = exchanges
    asked = first.request["messages"]
    assert messages[: len(asked)] == asked
    assistant, *results = messages[len(asked) :]
    assert essence(assistant) == essence(first.message)
    recorded = [message for message in second.request["messages"] if message["role"] == "tool"]
    assert [message["tool_call_id"] for message in results] == [call["id"] for call in first.message["tool_calls"]]
    for result, expected in zip(results, recorded, strict=True):
        assert result["role"] == "tool"
        assert expected["content"] in result["content"]


def test_recordings_were_there_to_be_replayed():
    assert len(NAMES) == 12, NAMES
