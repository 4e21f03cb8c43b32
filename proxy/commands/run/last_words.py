"""The sentences for the person at the terminal when an agent has ended: refused keys, and what the run has used.

Both are read from the log of the run's proxy. An agent shows an error of its model in its own words, if at all, and no
error of a search.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from shlex import quote
from typing import Any, Final

import orjson

from proxy.config.loaded import Loaded
from proxy.kit.counted import counted
from proxy.kit.terminal import printable, shortened

_CODES: Final = frozenset({"upstream_auth_failed", "upstream_quota_exceeded"})
_CAUSES: Final = frozenset({"key", "quota"})  # of a tool's service that refuses all calls
_LONGEST: Final = 300  # characters of a service's words


def refusals_in(log: Iterable[bytes]) -> dict[str, str]:
    """The entry of the configuration whose key was refused, such as `upstreams.zai` -> what its service has said."""
    found: dict[str, str] = {}
    of_tools: dict[str, str] = {}
    for line in log:
        event = _event(line)
        match event.get("event"):
            case "turn.failed" | "relay.failed" if event.get("code") in _CODES:
                found[f"upstreams.{event.get('upstream')}"] = str(event.get("why") or event["code"])
            case "tool.failed" | "tool.fell_back":
                of_tools[f"tools.{event.get('tool')}"] = str(event.get("why") or "")
            case "tool.breaker_opened" if event.get("cause") in _CAUSES:
                path = f"tools.{event.get('tool')}"
                found[path] = of_tools.get(path, "")
    return {path: why or of_tools.get(path, "") for path, why in found.items()}


def sentences(refusals: dict[str, str], loaded: Loaded, configuration: Path) -> Iterator[str]:
    """A line on each refusal, and one with the cure."""
    for path, why in refusals.items():
        said = shortened(printable(why), _LONGEST)
        yield f"{loaded.place_of(f'{path}.api_key')}: the key was refused{f': {said}' if said else ''}"
    if refusals:
        yield f"set another key, and try it: toolproxy check --probe --config {quote(str(configuration))}"


def use_in(log: Iterable[bytes]) -> str:
    """The requests, searches and tokens of a run as a sentence; empty if no model has answered."""
    requests, counts = 0, dict.fromkeys(("searches", "prompt_tokens", "completion_tokens"), 0)
    for line in log:
        event = _event(line)
        if event.get("event") == "request.completed":
            requests += "model" in event  # a search by /mcp has none
            for name in counts:
                counts[name] += event.get(name, 0)
    searches, read, written = counts.values()
    if not (read or written):
        return ""
    searched = f"{searches} search{'' if searches == 1 else 'es'}"
    return f"{counted(requests, 'request')}, {searched}, {read:,} tokens read and {written:,} written"


def _event(line: bytes) -> dict[str, Any]:
    """A line of the log; {} if it is none, as where a library has written it."""
    try:
        event = orjson.loads(line)
    except orjson.JSONDecodeError:
        return {}
    return event if isinstance(event, dict) else {}
