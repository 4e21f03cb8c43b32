"""Folds a whole answer or a stream into one form that is the same for every surface."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from proxy.wire.chat import Json
from proxy.wire.json_text import read_json

# The words of the surfaces for the reasons of chat completions.
_REASONS: Final = {
    "responses": {"completed": "stop", "max_output_tokens": "length", "content_filter": "content_filter"},
    "messages": {"end_turn": "stop", "max_tokens": "length", "refusal": "content_filter", "tool_use": "tool_calls"},
}
_DONE: Final = "[DONE]"
_WHOLE: Final = frozenset({"role", "id", "type"})  # texts that a chunk has whole
_ENDS: Final = frozenset({"response.completed", "response.incomplete", "message_stop", "message_delta"})


class ExpectationFailed(AssertionError):
    """Raised where an answer or a case does not meet an expectation."""


def expect(holds: object, message: object) -> None:
    """Raise `ExpectationFailed` unless it holds."""
    if not holds:
        raise ExpectationFailed(str(message))


@dataclass(slots=True)
class Answer:
    """A finished answer.

    Attributes:
        text: the last text.
        reasoning: the thoughts.
        finish: the reason of the end, in the words of chat completions.
        calls: the client's calls: `id`, `name`, and `arguments` as text.
        history: the answer as the next request repeats it.
        response_id: the id on the Responses API.
        error: the error in the place of an answer.
        whole: the answer as the surface gives it whole, or as a client folds it from a stream.
    """

    text: str = ""
    reasoning: str = ""
    finish: str | None = None
    calls: list[Json] = field(default_factory=list)
    history: list[Json] = field(default_factory=list)
    response_id: str | None = None
    error: Json | None = None
    whole: Any = None


def events(raw: bytes) -> list[Any]:
    """The data of a stream's events. Raises `ExpectationFailed` where a client would stumble.

    A comment stands between events, never inside one. Once an event has had an id, openai-python takes every blank line
    for the end of one.
    """
    found: list[Any] = []
    data: list[str] = []
    begun = named = False
    for line in raw.decode().replace("\r\n", "\n").removesuffix("\n").split("\n"):
        if line.startswith(":"):
            expect(not begun, f"a comment between the lines of an event: {line!r}")
        elif not line:
            expect(data or not (begun or named), "a blank line that gives out an event without data")
            if data:
                text = "\n".join(data)
                expect(text, "an event with empty data")
                found.append(text if text == _DONE else orjson.loads(text))
                expect(text == _DONE or isinstance(found[-1], dict), f"an event that is no object: {text!r}")
            data, begun = [], False
        else:
            begun = True
            key, _, value = line.partition(":")
            named |= key == "id"
            if key == "data":
                data.append(value.removeprefix(" "))
    expect(not begun, "a stream that ends inside an event")
    return found


def fold(raw: bytes, surface: str, *, streamed: bool) -> Answer:
    """The answer in a response's body.

    Args:
        raw: the body.
        surface: the surface of the format, or the beginning of its name; `other` for what is passed through.
        streamed: whether the body is a stream of events.

    Raises:
        ExpectationFailed: it is not what a client of that surface can read.
    """
    kind = "chat" if surface == "relay" else surface.partition("-")[0]
    body = _of_stream(events(raw), kind) if streamed else _json(raw)
    if not isinstance(body, dict) or not (body.get("error") or body.get("type") == "error"):
        return _READERS.get(kind, _other)(body)
    error = body.get("error")
    expect(isinstance(error, dict), f"an error outside of its envelope: {body}")
    expect(kind != "messages" or body.get("type") == "error", f"not Anthropic's envelope: {body}")
    return Answer(error=error, whole=body)


def _of_stream(found: Sequence[Any], kind: str) -> Any:
    """The answer or the error in the events of a stream; the events themselves where nobody knows how to fold them."""
    error = next((one for one in found if one != _DONE and (one.get("type") == "error" or one.get("error"))), None)
    if error is not None:
        _check_unsuccessful(found)
        return error
    expect(found or kind == "other", "a stream without events")
    return _FOLDS[kind](found)


def _other(body: Any) -> Answer:
    return Answer(whole=body)


def _json(raw: bytes) -> Any:
    """A whole body: JSON, or as text if it is something else."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return raw.decode("utf-8", "backslashreplace")


def _check_unsuccessful(found: Sequence[Any]) -> None:
    """Expect that a stream with an error has no end that an SDK would take for success."""
    for one in found:
        if one == _DONE:
            expect(found[-2].get("type") == "response.failed", "[DONE] after an error")
            continue
        expect(one.get("type") not in _ENDS, f"an error, and {one.get('type')}")
        ends = [choice.get("finish_reason") for choice in one.get("choices") or ()]
        expect(not any(ends), f"an error, and the finish_reason {ends}")


# -- chat completions --


def _chat(body: Any) -> Answer:
    choice = body["choices"][0]
    message = choice["message"]
    calls = []
    for index, call in enumerate(message.get("tool_calls") or ()):
        expect(call.pop("index", index) == index, f"indices with gaps: {message['tool_calls']}")
        function = call["function"]
        calls.append({"id": call.get("id"), "name": function["name"], "arguments": function["arguments"]})
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    text = message.get("content")
    return Answer(
        text if isinstance(text, str) else "", reasoning, choice["finish_reason"], calls, [message], whole=body
    )


def _completion(found: Sequence[Any]) -> Json:
    """The completion that a client folds from the chunks; fields that it does not know are kept as they come."""
    expect(found[-1] == _DONE, "a stream without its end")
    whole: Json = {}
    choices: dict[int, Json] = {}
    for chunk in found[:-1]:
        whole |= {key: value for key, value in chunk.items() if key not in ("choices", "tool_event")}
        if "tool_event" in chunk:
            whole.setdefault("tool_events", []).append(chunk["tool_event"])
        for choice in chunk.get("choices") or ():
            known = choices.setdefault(choice.get("index", 0), {"message": {}})
            known |= {key: value for key, value in choice.items() if key != "delta" and value is not None}
            _add(known["message"], choice.get("delta") or {})
    expect(choices, "a stream without a choice")
    for choice in choices.values():
        expect(choice.get("finish_reason"), "a stream without a finish_reason")
        if calls := choice["message"].get("tool_calls"):
            expect(sorted(calls) == list(range(len(calls))), f"indices with gaps: {sorted(calls)}")
            choice["message"]["tool_calls"] = [calls[index] for index in sorted(calls)]
    return {**whole, "object": "chat.completion", "choices": [choices[index] for index in sorted(choices)]}


def _add(known: Json, delta: Json) -> None:
    """Add what a delta says to a message, or to one of its calls: texts grow, other values are replaced."""
    for key, value in delta.items():
        if key == "tool_calls":
            for part in value:
                _add(known.setdefault(key, {}).setdefault(part["index"], {}), part)
        elif key == "function":
            _add(known.setdefault(key, {"name": "", "arguments": ""}), value)
        elif isinstance(value, str) and key not in _WHOLE:
            known[key] = (known.get(key) or "") + value
        elif value is not None or key not in known:
            known[key] = value


# -- Responses --


def _responses(body: Any) -> Answer:
    output = body.get("output") or ()
    texts = ["".join(part.get("text", "") for part in one["content"]) for one in _of_type(output, "message")]
    thoughts = [part["text"] for one in _of_type(output, "reasoning") for part in one.get("content") or ()]
    calls = [
        {"id": one["call_id"], "name": one["name"], "arguments": one["arguments"]}
        for one in _of_type(output, "function_call")
    ]
    status = body.get("status")
    reason = body["incomplete_details"]["reason"] if status == "incomplete" else status
    finish = "tool_calls" if calls and reason == "completed" else _REASONS["responses"].get(reason, reason)
    text = texts[-1] if texts else ""
    return Answer(text, "".join(thoughts), finish, calls, [*output], body.get("id"), whole=body)


def _response(found: Sequence[Any]) -> Json:
    """The response in a stream's last event."""
    ends = [one for one in found if one != _DONE and one["type"] in {"response.completed", "response.incomplete"}]
    expect(len(ends) == 1, "a stream without its end")
    return dict(ends[0]["response"])


# -- Messages --


def _messages(body: Any) -> Answer:
    blocks = body.get("content") or ()
    texts = [block["text"] for block in _of_type(blocks, "text")]
    thoughts = [block["thinking"] for block in _of_type(blocks, "thinking")]
    calls = [
        {"id": block["id"], "name": block["name"], "arguments": orjson.dumps(block["input"]).decode()}
        for block in _of_type(blocks, "tool_use")
    ]
    finish = _REASONS["messages"].get(body.get("stop_reason"), body.get("stop_reason"))
    history = [{"role": "assistant", "content": blocks}]
    return Answer(texts[-1] if texts else "", "".join(thoughts), finish, calls, history, whole=body)


def _message(found: Sequence[Any]) -> Json:
    """The message that a client folds from the events."""
    expect(found[-1]["type"] == "message_stop", "a stream without its end")
    message: Json = {}
    blocks: list[Json] = []
    for one in found:
        match one["type"]:
            case "message_start":
                message = {**one["message"]}
            case "content_block_start":
                expect(one["index"] == len(blocks), "blocks with gaps")
                blocks.append({**one["content_block"]})
            case "content_block_delta":
                _add_delta(blocks[one["index"]], one["delta"])
            case "content_block_stop" if "json" in blocks[one["index"]]:
                text = blocks[one["index"]].pop("json")
                blocks[one["index"]]["input"] = _input(text)
            case "message_delta":
                message |= one["delta"]
                message["usage"] = {**message["usage"], **one["usage"]}
    return {**message, "content": blocks}


def _input(text: str) -> Any:
    """The arguments of a call; what cannot be parsed stands as it does in a whole answer."""
    try:
        return read_json(text or "{}")
    except orjson.JSONDecodeError:
        return {"INVALID_JSON": text}


def _add_delta(block: Json, delta: Json) -> None:
    match delta["type"]:
        case "signature_delta":
            block["signature"] = delta["signature"]
        case "input_json_delta":
            block["json"] = block.get("json", "") + delta["partial_json"]
        case "citations_delta":
            block["citations"] = [*(block.get("citations") or ()), delta["citation"]]
        case "text_delta" | "thinking_delta" as kind:
            field = kind.removesuffix("_delta")
            block[field] += delta[field]


def _of_type(items: Iterable[Any], kind: str) -> list[Json]:
    return [one for one in items if one.get("type") == kind]


_READERS: Final[dict[str, Callable[[Any], Answer]]] = {
    "chat": _chat, "responses": _responses, "messages": _messages,
}  # fmt: skip
_FOLDS: Final[dict[str, Callable[[Sequence[Any]], Any]]] = {
    "chat": _completion, "responses": _response, "messages": _message, "other": list,
}  # fmt: skip
