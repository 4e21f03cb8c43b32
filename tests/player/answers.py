"""What the client got, folded from a whole answer or a stream into the same few words for every surface."""

from dataclasses import dataclass, field
from typing import Any

import orjson

WORDS = {  # of the surfaces, for the reasons of chat completions
    "responses": {"completed": "stop", "max_output_tokens": "length", "content_filter": "content_filter"},
    "messages": {"end_turn": "stop", "max_tokens": "length", "refusal": "content_filter", "tool_use": "tool_calls"},
}


@dataclass
class Answer:
    """A finished answer: its last text, why it ended, the client's calls, and what stands in the next request for it."""

    text: str = ""
    reasoning: str = ""
    finish: str | None = None
    calls: list[dict[str, Any]] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    response_id: str | None = None
    error: dict[str, Any] | None = None
    items: Any = None  # items or blocks, usage, status and model, to be compared


def events(raw: bytes) -> list[Any]:
    """The data of a stream's events. Raises `AssertionError` where a client would stumble.

    A comment stands between events, never inside one. Once an event has had an id, openai-python takes every blank line
    for the end of one.
    """
    found, data, begun, named = [], [], False, False
    for line in raw.decode().replace("\r\n", "\n").removesuffix("\n").split("\n"):
        if line.startswith(":"):
            assert not begun, f"a comment between the lines of an event: {line!r}"
        elif line == "":
            assert data or not (begun or named), "a blank line that gives out an event without data"
            if data:
                found.append(_parsed("\n".join(data)))
            data, begun = [], False
        else:
            begun = True
            key, _, value = line.partition(":")
            named |= key == "id"
            if key == "data":
                data.append(value.removeprefix(" "))
    assert not begun, "a stream that ends inside an event"
    return found


def _parsed(data: str) -> Any:
    assert data, "an event with empty data"
    if data == "[DONE]":
        return data
    parsed = orjson.loads(data)
    assert isinstance(parsed, dict), f"an event that is no object: {data!r}"
    return parsed


def fold(raw: bytes, surface: str, *, streamed: bool) -> Answer:
    """The answer in a response's body."""
    if not streamed:
        body = orjson.loads(raw)
        return _failed(body, surface) if body.get("error") else _WHOLE[surface](body)
    found = events(raw)
    error = next((one for one in found if one != "[DONE]" and (one.get("type") == "error" or one.get("error"))), None)
    if error is not None:
        _check_unsuccessful(found)
        return _failed(error, surface)
    assert found, "a stream without events"
    if surface in {"chat", "relay"}:
        assert found[-1] == "[DONE]", "a stream without its end"
        return _chat(_chat_message([one for one in found if one != "[DONE]"]))
    if surface.startswith("responses"):
        ends = [
            one for one in found if one != "[DONE]" and one["type"] in {"response.completed", "response.incomplete"}
        ]
        assert len(ends) == 1, "a stream without its end"
        return _responses(ends[0]["response"])
    assert found[-1]["type"] == "message_stop", "a stream without its end"
    return _messages(_message(found))


def _failed(error: dict[str, Any], surface: str) -> Answer:
    inner = error.get("error")
    assert isinstance(inner, dict), f"an error outside of its envelope: {error}"
    if surface.startswith("messages"):
        assert error.get("type") == "error", f"not Anthropic's envelope: {error}"
    return Answer(error=inner)


def _check_unsuccessful(found: list[Any]) -> None:
    """A stream with an error has no end that an SDK would take for success."""
    for one in found:
        if one == "[DONE]":
            assert found[-2].get("type") == "response.failed", "[DONE] after an error"
            continue
        assert one.get("type") not in {"response.completed", "response.incomplete", "message_stop", "message_delta"}
        assert not any(choice.get("finish_reason") for choice in one.get("choices") or ()), (
            "a finish_reason and an error"
        )


def _chat(body: dict[str, Any]) -> Answer:
    choice = body["choices"][0]
    message = choice["message"]
    for index, call in enumerate(message.get("tool_calls") or ()):
        assert call.pop("index", index) == index, f"indices with gaps: {message['tool_calls']}"
    calls = [
        {"id": call["id"], "name": call["function"]["name"], "arguments": call["function"]["arguments"]}
        for call in message.get("tool_calls") or ()
    ]
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    return Answer(message.get("content") or "", reasoning, choice["finish_reason"], calls, [message])


def _chat_message(chunks: list[Any]) -> dict[str, Any]:
    """The completion that a client folds from the chunks; fields that it does not know are kept as they come."""
    message: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    finish = None
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        finish = choice.get("finish_reason") or finish
        for key, value in choice["delta"].items():
            if key == "tool_calls":
                for part in value:
                    _add(calls.setdefault(part["index"], {}), part)
            elif key in {"content", "reasoning_content", "reasoning"}:
                message[key] = (message.get(key) or "") + (value or "") if message.get(key) or value else value
            else:
                message[key] = value
    assert sorted(calls) == list(range(len(calls))), f"indices with gaps: {sorted(calls)}"
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    assert finish, "a stream without a finish_reason"
    return {"choices": [{"message": message, "finish_reason": finish}]}


def _add(call: dict[str, Any], part: dict[str, Any]) -> None:
    for key, value in part.items():
        if key == "function":
            function = call.setdefault("function", {"name": "", "arguments": ""})
            function["name"] += value.get("name") or ""
            function["arguments"] += value.get("arguments") or ""
        else:
            call[key] = value


def _responses(body: dict[str, Any]) -> Answer:
    texts = [
        "".join(part.get("text", "") for part in item["content"])
        for item in body["output"]
        if item["type"] == "message"
    ]
    thoughts = [
        part["text"] for item in body["output"] if item["type"] == "reasoning" for part in item.get("content") or ()
    ]
    calls = [
        {"id": item["call_id"], "name": item["name"], "arguments": item["arguments"]}
        for item in body["output"]
        if item["type"] == "function_call"
    ]
    reason = body["incomplete_details"]["reason"] if body["status"] == "incomplete" else body["status"]
    finish = "tool_calls" if calls and reason == "completed" else WORDS["responses"].get(reason, reason)
    items = {key: body.get(key) for key in ("output", "usage", "status", "model", "incomplete_details")}
    text = texts[-1] if texts else ""
    return Answer(text, "".join(thoughts), finish, calls, body["output"], body["id"], items=items)


def _messages(body: dict[str, Any]) -> Answer:
    blocks = body["content"]
    texts = [block["text"] for block in blocks if block["type"] == "text"]
    thoughts = [block["thinking"] for block in blocks if block["type"] == "thinking"]
    calls = [
        {"id": block["id"], "name": block["name"], "arguments": orjson.dumps(block["input"]).decode()}
        for block in blocks
        if block["type"] == "tool_use"
    ]
    finish = WORDS["messages"].get(body["stop_reason"], body["stop_reason"])
    items = {key: body.get(key) for key in ("content", "usage", "stop_reason", "stop_sequence", "model")}
    history = [{"role": "assistant", "content": blocks}]
    return Answer(texts[-1] if texts else "", "".join(thoughts), finish, calls, history, items=items)


def _message(found: list[Any]) -> dict[str, Any]:
    """The message that a client folds from the events."""
    message: dict[str, Any] = {}
    blocks: list[dict[str, Any]] = []
    for one in found:
        match one["type"]:
            case "message_start":
                message = {**one["message"]}
            case "content_block_start":
                assert one["index"] == len(blocks), "blocks with gaps"
                blocks.append({**one["content_block"]})
            case "content_block_delta":
                _add_delta(blocks[one["index"]], one["delta"])
            case "content_block_stop":
                if "json" in blocks[one["index"]]:
                    text = blocks[one["index"]].pop("json")
                    blocks[one["index"]]["input"] = _input(text)
            case "message_delta":
                message |= one["delta"]
                message["usage"] = {**message["usage"], **one["usage"]}
    return {**message, "content": blocks}


def _input(text: str) -> Any:
    """The arguments of a call; what cannot be parsed stands as it does in a whole answer."""
    try:
        return orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        return {"INVALID_JSON": text}


def _add_delta(block: dict[str, Any], delta: dict[str, Any]) -> None:
    match delta["type"]:
        case "text_delta":
            block["text"] += delta["text"]
        case "thinking_delta":
            block["thinking"] += delta["thinking"]
        case "signature_delta":
            block["signature"] = delta["signature"]
        case "input_json_delta":
            block["json"] = block.get("json", "") + delta["partial_json"]
        case "citations_delta":
            block["citations"] = [*(block.get("citations") or ()), delta["citation"]]


_WHOLE = {
    "chat": _chat,
    "relay": _chat,
    "responses": _responses,
    "responses-id": _responses,
    "messages": _messages,
    "messages-thinking": _messages,
}
