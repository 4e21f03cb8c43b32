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
    listed = messages if isinstance(messages, list) else ()
    systems = [at for at, one in enumerate(listed) if isinstance(one, dict) and one.get("role") == "system"]
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


class OfferedTools(Struct, frozen=True):
    """The tools that are offered at the end of a history, each with its place in the request.

    Attributes:
        declared: those of the request's `tools` that have stayed.
        late: those that came later, in the order of their coming.
    """

    declared: Sequence[tuple[str, Json]]
    late: Sequence[tuple[str, Json]] = ()


def offered_tools(declared: Sequence[Json], changes: Sequence[ToolChange]) -> OfferedTools:
    """The tools that are offered: those declared, as changed since. Changes of unknown tools do nothing."""
    listed = [(f"tools.{at}", tool) for at, tool in enumerate(declared)]
    if not changes:
        return OfferedTools(listed)
    stayed = {_name_of(tool) or place: (place, tool) for place, tool in listed}
    known = dict(stayed)
    late: dict[str, tuple[str, Json]] = {}
    for change in changes:
        if change.definition is not None:
            known[change.name] = change.definition
        elif change.adds and (change.name in stayed or change.name in late or change.name not in known):
            continue
        stayed.pop(change.name, None)
        late.pop(change.name, None)
        if change.adds:
            late[change.name] = known[change.name]
    return OfferedTools([*stayed.values()], [*late.values()])


def _is_said(message: Any) -> bool:
    """Whether a message is a user's own, not only the results of calls."""
    if not isinstance(message, dict) or message.get("role") != "user":
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


def _name_of(tool: object) -> str | None:
    return name if isinstance(tool, dict) and isinstance(name := tool.get("name"), str) else None
