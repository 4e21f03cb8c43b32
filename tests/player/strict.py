"""What a strict server refuses in a history, as some real ones do with 400."""

from collections.abc import Iterator
from typing import Any

import orjson


def refusals(request: dict[str, Any], *, strict: list[str], given: dict[str, Any]) -> Iterator[str]:
    """The reasons for which a strict server would refuse a request.

    Calls without results, results without calls, ids that stand twice and an empty list of tools are always refused.
    `given` are the turns' fields that have to come back: by function name, and `reasoning_details`.
    """
    if request.get("tools") == []:
        yield "an empty list of tools"
    messages = request.get("messages") or []
    yield from _unpaired(messages)
    for message, call in _calls(messages):
        if "objects" in strict and not _is_object(call["function"]["arguments"]):
            yield f"arguments that are no JSON object: {call['function']['arguments']!r}"
        expected = given.get(call["function"]["name"])
        if "signatures" in strict and expected and call.get("extra_content") != expected:
            yield f"a call of {call['function']['name']} without its extra_content"
        details = given.get("reasoning_details")
        if "reasoning_details" in strict and details and message.get("reasoning_details") != details:
            yield "an assistant message without its reasoning_details"
    if "text_only" in strict and any(pictures(message.get("content")) for message in messages):
        yield "a picture"
    if "no_native_search" in strict and any(tool.get("type") != "function" for tool in request.get("tools") or ()):
        yield "a tool that is no function"


def to_come_back(turns: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """What of these turns a server wants back with their calls."""
    given = {}
    for turn in turns:
        for call in turn.get("calls", ()):
            if "extra_content" in call:
                given[call["name"]] = call["extra_content"]
        if "reasoning_details" in turn.get("message", {}):
            given["reasoning_details"] = turn["message"]["reasoning_details"]
    return given


def pictures(content: Any) -> int:
    """The number of pictures among the parts of a message."""
    if not isinstance(content, list):
        return 0
    return sum("image" in str(part.get("type")) for part in content)


def _unpaired(messages: list[dict[str, Any]]) -> Iterator[str]:
    """Results stand straight after their calls, one for each, in any order."""
    open_calls: list[str] = []
    seen: set[str] = set()
    for message in messages:
        if message.get("role") == "tool":
            if message.get("tool_call_id") not in open_calls:
                yield f"a result without its call: {message.get('tool_call_id')!r}"
            else:
                open_calls.remove(message["tool_call_id"])
            continue
        if open_calls:
            yield f"calls without their results: {open_calls}"
        ids = [call.get("id") for call in message.get("tool_calls") or ()]
        if not all(ids) or len({*ids}) != len(ids):
            yield f"ids that are missing or stand twice: {ids}"
        if seen & {*ids}:
            yield f"ids of an earlier turn: {seen & {*ids}}"
        seen.update(ids)
        open_calls = ids
    if open_calls:
        yield f"calls without their results: {open_calls}"


def _calls(messages: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for message in messages:
        for call in message.get("tool_calls") or ():
            yield message, call


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(orjson.loads(arguments), dict)
    except orjson.JSONDecodeError:
        return False
