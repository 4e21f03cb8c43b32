"""Plays an agent's day against the proxy: the agent's requests as they were, with today's ids in the places of the old.

recorded request, ids replaced --> proxy --> scripted upstream, which answers as on that day
recorded answer, today's answer --> the same but for ids and what is sealed; which of today's stands for which old one
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson

from proxy.cases.answers import Answer, fold
from proxy.mock.running import RunningMock
from tests.agents import days, recording

CONFIG = """
upstreams: {{up: {{base_url: "{mock}", api_key: k, profile: glm}}}}
models: {{{model}: {{upstream: up}}}}
tools: {{web_search: {{type: serper, api_key: k, base_url: "{search}", aliases: [WebSearch]}}}}
telemetry: {{log_level: error}}
"""
"""The configuration that the days were recorded with."""
_OPAQUE = frozenset(
    {"id", "call_id", "tool_use_id", "signature", "encrypted_content", "encrypted_index", "retrieved_at"}
)


@dataclass(slots=True)
class Played:
    """What became of a day.

    Attributes:
        rounds: the exchanges that were the same as on that day.
        differences: a line on each that was not.
        asked: the bodies of the agent's requests, as it would send them today.
        upstream: the bodies of the upstream's requests.
    """

    rounds: int = 0
    differences: list[str] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    upstream: list[dict[str, Any]] = field(default_factory=list)


def config_for(mock: RunningMock) -> str:
    """The text of a configuration whose upstream is a mock."""
    return CONFIG.format(mock=mock.url, search=mock.url.removesuffix("/v1"), model=days.MODEL)


def play(agent: str, url: str, mock: RunningMock) -> Played:
    """Play a day against the proxy at a URL, whose upstream is the mock."""
    mock.script(days.script(agent))
    played = Played()
    today: dict[str, str] = {}
    with httpx.Client(base_url=url, timeout=60) as client:
        for number, one in enumerate(recording.read(agent)):
            surface = recording.surface_of(one["path"]) or ""
            body = _replaced(one["body"], today)
            played.asked.append(body)
            response = client.post(one["path"], content=orjson.dumps(body), headers=one["headers"])
            if response.status_code != httpx.codes.OK:
                played.differences.append(f"{number}: {response.status_code} {response.text[:300]}")
                continue
            streamed = bool(body.get("stream"))
            then, now = (fold(raw, surface, streamed=streamed) for raw in (one["answer"].encode(), response.content))
            found = list(_differences(_seen(then), _seen(now), today, ""))
            played.differences += [f"{number}: {difference}" for difference in found]
            played.rounds += not found
    played.upstream = [entry["body"] for entry in mock.requests if entry["path"].endswith("/chat/completions")]
    return played


def cached_share(prompts: list[bytes]) -> float:
    """The share of all bytes that an upstream has cached, which keeps the beginnings of all prompts."""
    cached = 0
    for number, prompt in enumerate(prompts):
        longest = 0
        for other in reversed(prompts[:number]):
            if prompt.startswith(other[: longest + 1]):
                longest = max(longest, _shared(prompt, other))
        cached += longest
    return cached / sum(map(len, prompts))


def prompt_of(body: dict[str, Any]) -> bytes:
    """A request as a model reads it: tools, instructions, then the conversation. Marks of the cache are not read."""
    said = body.get("system") or body.get("instructions") or ""
    if isinstance(said, list):  # the first block differs in every request, and Anthropic's own servers take it off
        said = [block for block in said if not block.get("text", "").startswith("x-anthropic-billing-header")]
    parts = [body.get("tools") or [], said, *(body.get("messages") or body.get("input") or [])]
    return b"\n".join(orjson.dumps(_without_marks(part)) for part in parts)


def _without_marks(value: Any) -> Any:
    match value:
        case dict():
            return {key: _without_marks(inner) for key, inner in value.items() if key != "cache_control"}
        case list():
            return list(map(_without_marks, value))
        case _:
            return value


def _shared(one: bytes, other: bytes) -> int:
    """The length of the beginning that two texts share."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one.startswith(other[:middle]) else (low, middle - 1)
    return low


def _replaced(value: Any, today: dict[str, str]) -> Any:
    match value:
        case dict():
            return {key: _replaced(inner, today) for key, inner in value.items()}
        case list():
            return [_replaced(inner, today) for inner in value]
        case str():
            return today.get(value, value)
        case _:
            return value


def _seen(answer: Answer) -> dict[str, Any]:
    return {"text": answer.text, "reasoning": answer.reasoning, "finish": answer.finish, "history": answer.history}


def _differences(then: Any, now: Any, today: dict[str, str], where: str) -> Iterator[str]:
    """What differs, ids and sealed texts apart, whose counterparts are remembered."""
    if isinstance(then, dict) and isinstance(now, dict) and then.keys() == now.keys():
        for key in then:
            if key in _OPAQUE and isinstance(then[key], str) and isinstance(now[key], str):
                today[then[key]] = now[key]
            else:
                yield from _differences(then[key], now[key], today, f"{where}.{key}")
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        for at, (old, new) in enumerate(zip(then, now, strict=True)):
            yield from _differences(old, new, today, f"{where}[{at}]")
    elif then != now:
        yield f"{where}: was {str(then)[:200]}, is {str(now)[:200]}"
