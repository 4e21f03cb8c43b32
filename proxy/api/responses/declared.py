"""The tools that a Responses request declares in its `tools`, in `additional_tools` items, and as found by the client.

What a client's `tool_search` has found stands at the end, in the order found: an upstream may have cached the others.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from proxy.loop.chat import Json
from proxy.loop.errors import RequestError

ADDITIONAL, FOUND = "additional_tools", "tool_search_output"  # items that hold tools
_LONGEST_NAME = 128  # OpenAI's own limit for some of its tools; upstreams get at most 64


def declared_in(request: Json, *, before: Iterable[Json], own: Iterable[Json]) -> list[Json]:
    """All declared tools of a request, the latest last; of two with the same name, the later one counts.

    Args:
        request: the fields of the request.
        before: the items of the conversation that the request continues.
        own: the items of the request.

    Raises:
        RequestError: the `tools` of the request are not well formed. (Items are checked when they are read.)
    """
    items = [*before], [*own]
    found = [tool for listed in items for tool in _in_items(listed, FOUND)]
    added = [_in_items(listed, ADDITIONAL) for listed in items]
    return [*added[0], *checked_tools(request, "tools"), *added[1], *found]


def _in_items(items: Iterable[Json], kind: str) -> list[Json]:
    return [tool for item in items if item["type"] == kind for tool in item.get("tools") or ()]


def flat_names_of(tools: Iterable[Json]) -> list[str]:
    """The names of the client's own tools as a model has them, those in namespaces included."""
    names: list[str] = []
    for tool in tools:
        match tool["type"]:
            case "function" | "custom":
                names.append(tool["name"])
            case "namespace":
                names += [flat_name(name, tool["name"]) for name in flat_names_of(tool.get("tools") or ())]
    return names


def flat_name(name: str, namespace: str | None) -> str:
    """The name of a tool for a model, which knows no namespaces."""
    return f"{namespace}__{name}" if namespace else name


def checked_tools(holder: Json, where: str) -> Sequence[Json]:
    """The `tools` of a request, of an item or of a namespace.

    Args:
        holder: the request, item or namespace.
        where: the place of the tools in the request, for errors.

    Raises:
        RequestError: a tool has no type, or needs a name and has none.
    """
    tools = objects_with_types(holder.get("tools"), where)
    for tool in tools:
        if tool["type"] in ("function", "custom", "namespace"):
            _check_name(tool, where)
        if tool["type"] == "namespace":
            checked_tools(tool, where)
    return tools


def _check_name(tool: Json, where: str) -> None:
    name = tool.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME:
        message = f"A tool of type {tool['type']!r} needs a name of at most {_LONGEST_NAME} characters."
        raise RequestError(message, param=where)


def objects_with_types(listed: Any, where: str) -> Sequence[Json]:
    """A list of objects that have a type; None is an empty list. Raises `RequestError`."""
    listed = [] if listed is None else listed
    if not isinstance(listed, list) or not all(
        isinstance(one, dict) and isinstance(one.get("type"), str) for one in listed
    ):
        raise RequestError(f"'{where}' must be a list of objects, each with a type.", param=where)
    return listed
