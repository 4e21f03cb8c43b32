"""Items that this proxy gives no meaning of their own, as text for the model.

Calls of hosted tools that it does not have, and what they have returned, are told as JSON, so that the model knows what
has happened. Of other items there is a note that they were there.
"""

import re
from typing import Any

from proxy.api.unshown import note, type_of
from proxy.wire import rawjson
from proxy.wire.chat import Json

UNREADABLE = "unreadable"
"""The type of an item in the place of a broken one, or of a reference to an item that is not stored."""

SILENT = frozenset(
    {
        "compaction",
        "compaction_trigger",
        "configuration_update",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_list_tools",
    }
)
"""The types of items that say nothing to a model. What a compaction holds can be read by its maker alone."""

_TOLD = re.compile(
    r"((apply_patch|computer|file_search|image_generation|local_shell|mcp|shell)_call|program)(_output)?"
)
_NOT_TOLD = frozenset({"type", "id", "call_id", "status", "encrypted_content", "fingerprint", "caller"})
_LONGEST_WORD = 1000  # characters; a longer text without a blank in it is that of a file or a picture
_LEVELS = 8  # of what is told


def broken(item: Json, kind: str) -> Json:
    """The item in the place of one of that type which cannot be read."""
    identity = {"id": item["id"]} if isinstance(item.get("id"), str) else {}
    return {"type": UNREADABLE, "was": kind, **identity}


def told(item: Json) -> str:
    """The text in the place of an item."""
    kind = type_of(item)
    if not _TOLD.fullmatch(kind.removesuffix("_output")):
        was = item.get("was") if kind == UNREADABLE else kind
        text: str = note(str(was))["text"]
        return text
    fields = {key: _shown(value, _LEVELS) for key, value in item.items() if key not in _NOT_TOLD and value is not None}
    return f"[{kind}] {rawjson.dumps(fields).decode()}"


def _shown(value: Any, levels: int) -> Any:
    """A value without the contents of files, and without what is nested very deep."""
    match value:
        case str() if value.startswith("data:") or (len(value) > _LONGEST_WORD and len(value.split(None, 1)) == 1):
            return "..."
        case dict() | list() if not levels:
            return "..."
        case dict():
            return {key: _shown(one, levels - 1) for key, one in value.items()}
        case list():
            return [_shown(one, levels - 1) for one in value]
        case _:
            return value
