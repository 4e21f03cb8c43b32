"""Values of records as text for the debug pages."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import orjson

from proxy.wire.chat import Json
from proxy.wire.errors import CLIENT_CLOSED_REQUEST
from proxy.wire.json_text import json_object, json_value

_SHORT_ID = 8  # characters
_DURATIONS = frozenset({"seconds", "first", "first_byte", "wait"})
_FIRST_BAD_STATUS = 400


def outcome_of(record: Json) -> str:
    """`open`, `ok`, `left` (the client has left) or `error`."""
    status = record.get("status")
    if status is None:
        return "open"
    if status == CLIENT_CLOSED_REQUEST:
        return "left"
    return "error" if status >= _FIRST_BAD_STATUS or record.get("error") else "ok"


def tools_of(record: Json) -> list[str]:
    """The tools that a request has called, each once."""
    return list(dict.fromkeys(str(step.get("tool")) for step in record["steps"] if step["kind"] == "tool"))


def short_id(request_id: str) -> str:
    """The beginning of a long id."""
    return request_id if len(request_id) <= _SHORT_ID + 4 else f"{request_id[:_SHORT_ID]}…"


def name_of(step: Json) -> str:
    """A step in a few words: a turn with its model, a tool, a page that it reads."""
    model = " via ".join(str(step[key]) for key in ("upstream_model", "upstream") if step.get(key))
    match step["kind"]:
        case "tool":
            query = _query_of(step.get("arguments"))
            return f"{step.get('tool')} “{query}”" if query else str(step.get("tool"))
        case "page":
            return f"page {step.get('page')} {step.get('url') or ''}".rstrip()
        case "turn":
            return f"turn {step.get('turn')}: {model}"
        case _:
            return f"{step.get('path') or model}"


def _query_of(arguments: object) -> str | None:
    """The query of a search; None if the arguments of calls are not recorded."""
    query = (json_object(arguments) or {}).get("query") if isinstance(arguments, str) else None
    return query if isinstance(query, str) else None


def messages_of(value: object) -> list[tuple[str, str]]:
    """The role and the text of each message in a JSON text, calls included; empty if the text is something else."""
    found = json_value(value) if isinstance(value, str) else None
    entries = found if isinstance(found, list) else [found]
    messages = [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("role"), str)]
    if len(messages) < len(entries):
        return []
    return [(message["role"], "\n".join(_parts_of(message))) for message in messages]


def _parts_of(message: Json) -> Iterator[str]:
    for name in ("reasoning_content", "reasoning", "content"):
        if value := message.get(name):
            text = value if isinstance(value, str) else orjson.dumps(value).decode()
            yield text if name == "content" else f"({text})"
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            yield f"→ {function.get('name')}({function.get('arguments')})"


def note_words(note: Json) -> str:
    """The fields of a note in one line."""
    fields = {name: value for name, value in note.items() if name not in ("at", "event", "level")}
    return ", ".join(f"{name.replace('_', ' ')} {field(name, value)}" for name, value in fields.items())


def field(name: str, value: Any) -> str:
    """The value of a field as text."""
    return seconds(value) if name in _DURATIONS and isinstance(value, (int, float)) else plain(value)


def seconds(value: float | None) -> str:
    """A duration, rounded to the digits that matter."""
    if value is None:
        return ""
    if value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.2f} s" if value < 100 else f"{value:.0f} s"  # noqa: PLR2004


def tokens(record: Json) -> str | None:
    """The input and output tokens; None if they are not known."""
    counts = [record.get(f"{kind}_tokens") for kind in ("prompt", "completion")]
    return None if counts == [None, None] else " + ".join(f"{count or 0:,}" for count in counts)


def clock_of(began_at: float) -> str:
    """The time of day, in UTC."""
    return datetime.fromtimestamp(began_at, UTC).strftime("%H:%M:%S")


def day_of(began_at: float) -> str:
    """Date and time, in UTC."""
    return datetime.fromtimestamp(began_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def plain(value: Any) -> str:
    """A value as text."""
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {plain(inner)}" for name, inner in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
