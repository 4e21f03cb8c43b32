"""Recorded answers of real servers, replayed through `/v1/messages`: the texts come out as they were recorded."""

import pytest

from tests.api.messages.asking import ask
from tests.api.messages.blocks_of import conversation
from tests.conformance import recordings
from tests.conformance.test_recordings import config_for, replies, tools_of
from tests.serving import proxy_of

pytestmark = pytest.mark.skipif(not recordings.FOLDER.is_dir(), reason="no recordings beside the project")


def body_of(request):
    plain = [message for message in request["messages"] if isinstance(message.get("content"), str | None)]
    system, messages = conversation(plain, shown=())
    return {
        "model": request["model"],
        "max_tokens": 30_000,
        "messages": messages,
        **({"system": system} if system else {}),
    }


def texts(message):
    return [block["text"] for block in message["content"] if block["type"] == "text"]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("name", "at"), recordings.conversations())
async def test_a_recorded_tool_conversation_ends_in_its_recorded_answer(upstream, name, at, seed):
    first, second = recordings.load(name)[at : at + 2]
    upstream.replies = replies((first, second), seed)
    streaming = bool(first.request.get("stream"))
    async with proxy_of(upstream, config=config_for(name), tools=tools_of(first, second)) as url:
        message = await ask(url, streaming=streaming, thinking={"type": "adaptive"}, **body_of(first.request))
    said = [text for text in (first.message.get("content"), second.message["content"]) if (text or "").strip()]
    assert [text.strip() for text in texts(message)] == [text.strip() for text in said]
    thoughts = [one.message.get("reasoning_content") or one.message.get("reasoning") for one in (first, second)]
    assert [block["thinking"] for block in message["content"] if block["type"] == "thinking"] == [
        one for one in thoughts if one
    ]
    assert message["stop_reason"] == "end_turn"
    assert [one["id"] for one in upstream.requests[1]["messages"][-1 - len(first.calls)]["tool_calls"]] == [
        call["id"] for call in first.calls
    ]


@pytest.mark.parametrize(("name", "at"), recordings.plain())
async def test_a_recorded_answer_is_one_text(upstream, name, at):
    exchange = recordings.load(name)[at]
    if any(message["role"] not in ("system", "user", "assistant") for message in exchange.request["messages"]):
        pytest.skip("results of tools are the test above")
    upstream.replies = replies([exchange])
    async with proxy_of(upstream, config=config_for(name, tools="[]")) as url:
        message = await ask(url, streaming=bool(exchange.request.get("stream")), **body_of(exchange.request))
    assert "".join(texts(message)).strip() == (exchange.message.get("content") or "").strip()
