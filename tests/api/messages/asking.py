"""Asking `/v1/messages` through the real SDK, whole and streamed, with every event checked on its way."""

import anthropic
import httpx
import orjson
from anthropic.types.beta import BetaMessage, BetaRawMessageStreamEvent
from pydantic import TypeAdapter

EVENT = TypeAdapter(BetaRawMessageStreamEvent)
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
FETCH = {"type": "web_fetch_20250910", "name": "web_fetch"}
DOOR = {"name": "open_door", "description": "Opens.", "input_schema": {"type": "object", "properties": {"door": {}}}}
ASK = {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "What is new?"}]}
SEARCH_CALL = ("u1", "web_search", {"query": "news"})
DOOR_CALL = ("u2", "open_door", {"door": 1})


def client(url, **options):
    """The real SDK, pointed at a proxy."""
    return anthropic.AsyncAnthropic(base_url=url, **{"api_key": "client-key", "max_retries": 0, **options})


async def raw(url, body, *, path="/v1/messages", **headers):
    """One request as it is."""
    async with httpx.AsyncClient() as http:
        return await http.post(f"{url}{path}", json=body, headers=headers)


def events_in(text):
    """The events of a stream: named by their types, known to the SDK, in the order that the API promises."""
    events = []
    for block in text.split("\n\n"):
        if not block:
            continue
        name, data = block.split("\n")
        event = orjson.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        if event["type"] not in ("ping", "error"):
            EVENT.validate_python(event)
        events.append(event)
    return events


def folded(events):
    """The message that the events describe, put together the plain way."""
    assert events[0]["type"] != "ping"
    events = [event for event in events if event["type"] != "ping"]
    assert [events[0]["type"], *(event["type"] for event in events[-2:])] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]
    message, inputs = events[0]["message"], []
    assert message["usage"]["input_tokens"] > 0
    is_open = False
    for event in events[1:-2]:
        match event:
            case {"type": "content_block_start", "index": index, "content_block": block}:
                assert not is_open
                assert index == len(message["content"])
                is_open, inputs = True, []
                message["content"].append(block)
            case {"type": "content_block_delta", "index": index, "delta": delta}:
                assert is_open
                assert index == len(message["content"]) - 1
                _apply(message["content"][-1], delta, inputs)
            case {"type": "content_block_stop", "index": index}:
                assert is_open
                assert index == len(message["content"]) - 1
                is_open = False
                if inputs:
                    message["content"][-1]["input"] = _input("".join(inputs))
    assert not is_open
    ending = events[-2]
    return {**message, **ending["delta"], "usage": ending["usage"]}


def _input(text):
    """What is no JSON is given on as it is."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return {"INVALID_JSON": text}


def _apply(block, delta, inputs):
    match delta:
        case {"type": "text_delta", "text": text}:
            block["text"] += text
        case {"type": "thinking_delta", "thinking": text}:
            block["thinking"] += text
        case {"type": "signature_delta", "signature": signature}:
            block["signature"] = signature
        case {"type": "citations_delta", "citation": citation}:
            block["citations"] = [*block.get("citations", ()), citation]
        case {"type": "input_json_delta", "partial_json": text}:
            inputs.append(text)
        case _:
            raise AssertionError(delta)


async def ask(url, *, streaming, headers=None, **body):
    """One request, whole or streamed: the message."""
    response = await raw(url, {**ASK, **body, "stream": streaming}, **(headers or {}))
    assert response.status_code == 200, response.text
    message = folded(events_in(response.text)) if streaming else response.json()
    BetaMessage.model_validate(message)
    assert all(block.get("text", "-") for block in message["content"]), "a text block is empty"
    return message


def kinds(message):
    """The types of a message's blocks."""
    return [block["type"] for block in message["content"]]


def follow_up(message, *answer):
    """The conversation with an answer, and what the user says next."""
    return [
        *ASK["messages"],
        {"role": "assistant", "content": message["content"]},
        {"role": "user", "content": [*answer]},
    ]
