"""What the system messages within a conversation change, folded over the whole history.

The client sends the history again with every request, so the outcome depends on nothing else: which tools are offered,
which effort is asked for, and which system messages have had their time.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from proxy.wire.chat import Json

TOOL_CHANGES = ("tool_addition", "tool_removal")


class ToolChange(Struct, frozen=True):
    """A tool that comes or goes; `definition` has its entry in `tools` and its place, if that is new."""

    name: str
    adds: bool
    definition: tuple[str, Json] | None = None


class HistoryChanges(Struct, frozen=True):
    """The changes by a conversation's system messages.

    Attributes:
        left_out: the positions of messages that are left out.
        tools: the changes of the tools, in order.
        effort: the effort that was asked for last; None: none was.
    """

    left_out: frozenset[int] = frozenset()
    tools: tuple[ToolChange, ...] = ()
    effort: str | None = None


NO_CHANGES = HistoryChanges()


def changes_in(messages: Any) -> HistoryChanges:
    """The changes by the system messages of a request, which need not be well formed."""
    if not isinstance(messages, list):
        return NO_CHANGES
    systems = [at for at, message in enumerate(messages) if _role_of(message) == "system"]
    if not systems:
        return NO_CHANGES
    last_said = next((at for at in range(len(messages) - 1, -1, -1) if _is_said(messages[at])), -1)
    left_out: set[int] = set()
    tools: list[ToolChange] = []
    effort: str | None = None
    for at in systems:
        message = messages[at]
        tools += _tool_changes(message.get("content"), f"messages.{at}.content")
        if message.get("clear_at") == "next_user_message" and at < last_said:
            left_out.add(at)
            continue
        config = message.get("output_config")
        wanted = config.get("effort") if isinstance(config, dict) else None
        effort = wanted if isinstance(wanted, str) else effort
    return HistoryChanges(frozenset(left_out), tuple(tools), effort)


def offered_tools(declared: Sequence[Json], changes: Sequence[ToolChange]) -> list[tuple[str, Json]]:
    """The tools that are offered, each with its place in the request: those declared, as changed since.

    A tool that comes later stands at the end, in the order of its coming. Changes of unknown tools do nothing.
    """
    listed = [(f"tools.{at}", tool) for at, tool in enumerate(declared)]
    if not changes:
        return listed
    known = {_name_of(tool) or place: (place, tool) for place, tool in listed}
    offered = dict(known)
    for change in changes:
        if not change.adds:
            offered.pop(change.name, None)
        elif change.definition is not None:
            offered.pop(change.name, None)
            known[change.name] = offered[change.name] = change.definition
        elif change.name in known:
            offered.setdefault(change.name, known[change.name])
    return list(offered.values())


def _role_of(message: Any) -> Any:
    return message.get("role") if isinstance(message, dict) else None


def _is_said(message: Any) -> bool:
    """Whether a message is a user's own, not only the results of calls."""
    if _role_of(message) != "user":
        return False
    content = message.get("content")
    if not isinstance(content, list):
        return bool(content)
    return any(isinstance(block, dict) and block.get("type") != "tool_result" for block in content)


def _tool_changes(content: Any, where: str) -> Iterator[ToolChange]:
    for at, block in enumerate(content if isinstance(content, list) else ()):
        tool = block.get("tool") if isinstance(block, dict) and block.get("type") in TOOL_CHANGES else None
        if not isinstance(tool, dict):
            continue
        adds = block["type"] == "tool_addition"
        definition = tool.get("definition")
        if adds and tool.get("type") == "tool_definition" and isinstance(definition, dict):
            place = f"{where}.{at}.tool.definition"
            yield ToolChange(_name_of(definition) or place, adds, (place, definition))
        elif tool.get("type") == "tool_reference" and (name := _name_of(tool)) is not None:
            yield ToolChange(name, adds)


def _name_of(tool: Json) -> str | None:
    return name if isinstance(name := tool.get("name"), str) else None
