"""A model's turn in the short form of a case, as the bytes that a server sends for it: whole, or in pieces.

{"reasoning": "Hm.", "text": "I look.", "calls": [{"id": "c1", "name": "web_search", "arguments": {"query": "x"}}]}
"""

import base64
from collections.abc import Iterator
from typing import Any

import orjson

USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
DONE = "data: [DONE]\n\n"
_CHARACTERS = 7  # of text in a piece, where the turn says nothing else


def whole(turn: dict[str, Any], model: str) -> dict[str, Any]:
    """The turn as a whole answer."""
    message: dict[str, Any] = {"role": "assistant", "content": "".join(turn["text"]) if "text" in turn else None}
    if "reasoning" in turn:
        message["reasoning_content"] = turn["reasoning"]
    if turn.get("calls"):
        message["tool_calls"] = [_call(call) for call in turn["calls"]]
    choice = {"index": 0, "message": message | turn.get("message", {}), "finish_reason": _finish_reason(turn)}
    return {**_head(model, "chat.completion"), "choices": [choice], "usage": turn.get("usage", USAGE)}


def pieces(turn: dict[str, Any]) -> Iterator[Any]:
    """The turn as pieces of a stream, each a chunk in short or text as it is written."""
    yield {"delta": {"role": "assistant", "content": ""}}
    size = turn.get("characters", _CHARACTERS)
    yield from ({"delta": {"reasoning_content": part}} for part in _cut(turn.get("reasoning", ""), size))
    yield from ({"delta": {"content": part}} for part in _cut(turn.get("text", ""), size))
    if turn.get("message"):
        yield {"delta": turn["message"]}
    for index, call in enumerate(turn.get("calls", ())):
        yield from _call_pieces(call, index)
    usage = {"usage": turn.get("usage", USAGE)} if turn.get("usage", USAGE) else {}
    yield {"delta": {}, "finish_reason": _finish_reason(turn), **usage}
    yield DONE


def written(piece: Any, model: str) -> bytes:
    """The bytes of one piece of a stream: text as it stands, a chunk in short, or a list of them in one write."""
    if isinstance(piece, str):
        return piece.encode()
    if isinstance(piece, list):
        return b"".join(written(part, model) for part in piece)
    if "base64" in piece:
        return base64.b64decode(piece["base64"])
    choice = {"index": 0, "delta": piece["delta"], "finish_reason": piece.get("finish_reason")}
    rest = {key: value for key, value in piece.items() if key not in {"delta", "finish_reason"}}
    chunk = {**_head(model, "chat.completion.chunk"), "choices": [choice], **rest}
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


def _finish_reason(turn: dict[str, Any]) -> str:
    return turn.get("finish_reason") or ("tool_calls" if turn.get("calls") else "stop")


def _arguments(call: dict[str, Any]) -> str:
    """The arguments as the model writes them; a case gives them as text where they may be malformed."""
    arguments = call.get("arguments", {})
    return arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = {"name": call["name"], "arguments": _arguments(call)}
    kept = {key: value for key, value in call.items() if key not in {"name", "arguments", "characters"}}
    return {"type": "function", "function": function, **kept}  # with further fields, such as `extra_content`


def _call_pieces(call: dict[str, Any], index: int) -> Iterator[Any]:
    full = {"index": index, **_call(call)}
    if "characters" not in call:
        yield {"delta": {"tool_calls": [full]}}
        return
    yield {"delta": {"tool_calls": [{**full, "function": {"name": call["name"], "arguments": ""}}]}}
    for part in _cut(_arguments(call), call["characters"]):
        yield {"delta": {"tool_calls": [{"index": index, "function": {"arguments": part}}]}}


def _head(model: str, kind: str) -> dict[str, Any]:
    return {"id": "up-1", "created": 1770000000, "model": model, "object": kind}


def _cut(text: Any, size: int) -> list[str]:
    """The text in pieces of so many characters; a list of texts is in pieces already."""
    return [text[at : at + size] for at in range(0, len(text), size)] if isinstance(text, str) else text
