"""What a strict server refuses in a history, as some real ones do with 400."""

from collections.abc import Iterator, Sequence
from typing import Any

import orjson


def refusals(request: dict[str, Any], *, strict: Sequence[str], given: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The reasons for which a strict server would refuse a request.

    Calls without results, results without calls, ids that stand twice and an empty list of tools are always refused.
    `given` are the turns that the server has written: what they carried has to come back with them.
    """
    if request.get("tools") == []:
        yield "an empty list of tools"
    messages = request.get("messages") or []
    yield from _unpaired(messages)
    for message in messages:
        calls = message.get("tool_calls") or ()
        for call in calls if "objects" in strict else ():
            if not _is_object(call["function"]["arguments"]):
                yield f"arguments that are no JSON object: {call['function']['arguments']!r}"
        if calls:
            yield from _lost(message, strict, given)
    if "text_only" in strict and any(pictures(message.get("content")) for message in messages):
        yield "a picture"
    if "no_native_search" in strict and any(tool.get("type") != "function" for tool in request.get("tools") or ()):
        yield "a tool that is no function"


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


def _lost(message: dict[str, Any], strict: Sequence[str], given: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The parts of its turn that an assistant message lacks; of several turns with its calls, one has to match."""
    calls = [{**call, "name": call["function"]["name"]} for call in message["tool_calls"]]
    turns = [turn for turn in given if _named(turn["calls"]) == _named(calls)]
    if "turns" in strict and not turns:
        yield f"calls that no turn has made together: {_named(calls)}"
    if "signatures" in strict and turns and _signed(calls) not in [_signed(turn["calls"]) for turn in turns]:
        yield f"calls without their extra_content: {_signed(calls)}"
    details = message.get("reasoning_details")
    known = [turn.get("message", {}).get("reasoning_details") for turn in turns]
    if "reasoning_details" in strict and turns and details not in known:
        yield f"an assistant message without its reasoning_details: {details}"


def _named(calls: Sequence[dict[str, Any]]) -> list[str]:
    return sorted(call["name"] for call in calls)


def _signed(calls: Sequence[dict[str, Any]]) -> list[str]:
    return sorted(repr((call["name"], call.get("extra_content"))) for call in calls)


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(orjson.loads(arguments), dict)
    except orjson.JSONDecodeError:
        return False
