"""Recorded traffic of real servers, where the folder with it exists: ../shared/recordings beside the project."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "recordings"


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


def load(name: str) -> list[Exchange]:
    return [
        Exchange(
            exchange["request"]["json"],
            exchange["response"]["status"],
            exchange["response"]["headers"].get("content-type", "application/json"),
            exchange["response"]["body"].encode(),
        )
        for exchange in orjson.loads((FOLDER / f"{name}.json").read_bytes())
    ]
