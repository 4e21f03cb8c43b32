"""The pieces of an upstream's answer, streamed or whole: chunks with one tool call at most.

A chunk with several calls is cut between them, so that each call has its place in what the client is told. A whole
completion is cut like a stream that has each text and each call in one piece:

    {"message": {"content": "I look.", "tool_calls": [a, b]}, "finish_reason": "tool_calls"}

    {"delta": {"content": "I look."}}
    {"delta": {"tool_calls": [a]}}
    {"delta": {"tool_calls": [b]}, "finish_reason": "tool_calls"}
"""

from collections.abc import Iterator, Sequence
from typing import Any

from proxy.wire.chat import Json


def pieces_of(chunk: Json) -> Sequence[Json]:
    """The pieces of a chunk; most chunks are one."""
    choices: Sequence[Json] = chunk["choices"]
    calls = (choices[0].get("delta") or {}).get("tool_calls") if len(choices) == 1 else None
    if not calls or len(calls) == 1:
        return [chunk]
    first, *rest = calls
    choices[0]["delta"]["tool_calls"] = [first]
    only_calls = [{**choices[0], "delta": {"tool_calls": [call]}} for call in rest]
    return [chunk, *({**chunk, "choices": [choice]} for choice in only_calls)]


def pieces_of_whole(completion: Json) -> Iterator[Json]:
    """The pieces of a whole completion, choice by choice; its usage is the last piece."""
    fields = {key: value for key, value in completion.items() if key != "usage"}
    for choice in completion["choices"]:
        for part in _parts_of(**choice):
            yield {**fields, "choices": [part]}
    if (usage := completion.get("usage")) is not None:
        yield {**fields, "choices": [], "usage": usage}


def _parts_of(message: Json, *, index: Any = 0, finish_reason: Any = None, **fields: Any) -> Iterator[Json]:
    """The parts of a choice: its text with all other fields, and each call; the last one has the reason for its end."""
    delta = {**message}
    calls = delta.pop("tool_calls") if isinstance(message.get("tool_calls"), list) else []
    yield {**fields, "index": index, "delta": delta, "finish_reason": None if calls else finish_reason}
    for at, call in enumerate(calls, 1):
        entry = {**call, "index": at - 1} if isinstance(call, dict) else call
        reason = finish_reason if at == len(calls) else None
        yield {"index": index, "delta": {"tool_calls": [entry]}, "finish_reason": reason}
