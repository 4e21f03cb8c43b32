"""Recorded traffic of real servers, where the folder with it exists: ../shared/recordings beside the project."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "recordings"

replayed: set[str] = set()  # the recordings that this run has loaded


@dataclass(frozen=True)
class Exchange:
    """One request and what came back."""

    request: dict[str, Any]
    status: int
    content_type: str
    body: bytes

    @property
    def message(self) -> dict[str, Any]:
        """The assistant message, folded the plain way if it was streamed."""
        if not self.request.get("stream"):
            return orjson.loads(self.body)["choices"][0]["message"]
        return _fold(self.chunks)

    @property
    def chunks(self) -> list[dict[str, Any]]:
        lines = self.body.decode().replace("\r\n", "\n").split("\n")
        return [orjson.loads(line[6:]) for line in lines if line.startswith("data: {")]

    @property
    def calls(self) -> list[dict[str, Any]]:
        return self.message.get("tool_calls") or []

    @property
    def is_good(self) -> bool:
        return self.status == 200 and b"event: error" not in self.body and b'"error":{' not in self.body

    @property
    def usage(self) -> dict[str, Any]:
        if not self.request.get("stream"):
            return orjson.loads(self.body)["usage"]
        return next(chunk["usage"] for chunk in reversed(self.chunks) if chunk.get("usage"))


def _fold(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant"}
    calls: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for choice in chunk.get("choices") or ():
            delta = choice["delta"]
            for key in ("content", "reasoning_content", "reasoning"):
                if delta.get(key):
                    message[key] = message.get(key, "") + delta[key]
            for call in delta.get("tool_calls") or ():
                known = calls.setdefault(call["index"], {"type": "function", "function": {"name": "", "arguments": ""}})
                known["id"] = call.get("id") or known["id"]
                known["function"]["name"] = known["function"]["name"] or call["function"].get("name", "")
                known["function"]["arguments"] += call["function"].get("arguments", "")
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return message


def names(*patterns: str) -> list[str]:
    """The recordings that fit; none where the folder does not exist."""
    return sorted({path.stem for pattern in patterns for path in FOLDER.glob(f"{pattern}.json")})


def ordinary() -> list[str]:
    """The recordings of servers that do as they should, or fail in an orderly way; the others are in test_faults."""
    return [name for name in names("*") if not name.startswith("fault_")]


def conversations() -> list[tuple[str, int]]:
    """Where a recorded answer of tool calls is followed by what the model said to their results: (name, position)."""
    found = []
    for name in ordinary():
        exchanges = _exchanges(name)
        for at, (first, second) in enumerate(pairwise(exchanges)):
            answered = {
                message.get("tool_call_id") for message in second.request["messages"] if message["role"] == "tool"
            }
            if first.is_good and second.is_good and first.calls and {call["id"] for call in first.calls} <= answered:
                found.append((name, at))
    return found


def plain() -> list[tuple[str, int]]:
    """Good answers without tool calls."""
    return [
        (name, at)
        for name in ordinary()
        for at, exchange in enumerate(_exchanges(name))
        if exchange.is_good and not exchange.calls
    ]


def broken() -> list[tuple[str, int]]:
    """Answers that are errors, whole or in the middle of a stream."""
    return [(name, at) for name in ordinary() for at, exchange in enumerate(_exchanges(name)) if not exchange.is_good]


def _exchanges(name: str) -> list[Exchange]:
    recorded = orjson.loads((FOLDER / f"{name}.json").read_bytes())
    if not isinstance(recorded, list) or "request" not in recorded[0]:
        return []
    return [_exchange(one) for one in recorded]


def load(name: str) -> list[Exchange]:
    replayed.add(name)
    return _exchanges(name)


def _exchange(recorded: dict[str, Any]) -> Exchange:
    request, response = recorded["request"], recorded["response"]
    content_type = response["headers"].get("content-type", "application/json")
    return Exchange(request["json"], response["status"], content_type, response["body"].encode())
