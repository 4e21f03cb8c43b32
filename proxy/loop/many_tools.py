"""Many tools: a request describes the first tools, and the model finds and calls the rest with two more.

    find_tools(query)            up to five tools that fit, each with its description and its JSON Schema
    call_tool(name, arguments)   a call of one of them, equal in every respect to a call by its name

This applies to more than `offer.search_above` server tools in play (`offer.make_offer`). The request's `tools` stay the
same whatever is found, so that the upstream's prompt cache holds. Only tools that the request would otherwise have
described can be found, suggested and called.
"""

import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from heapq import nsmallest
from typing import Final, TypeAlias

import msgspec
import orjson
from msgspec import Raw
from msgspec.structs import replace

from proxy.loop.prompts import (
    CALL_TOOL_ARGUMENTS,
    CALL_TOOL_NAME,
    CALL_TOOL_TEXT,
    CALL_TOOL_USAGE,
    FIND_TOOLS_QUERY,
    FIND_TOOLS_TEXT,
    FIND_TOOLS_USAGE,
    FOUND,
    NEAREST,
    NO_ROOM,
    NO_SUCH_TOOL,
    NO_TOOL_FITS,
    SCHEMA_TOO_LONG,
)
from proxy.loop.results import InvalidArguments, ToolResult
from proxy.wire.chat import Json, ToolCall, ToolSpec

FIND_TOOLS: Final = "find_tools"
CALL_TOOL: Final = "call_tool"
NAMES: Final = frozenset({FIND_TOOLS, CALL_TOOL})
"""Names that no configured tool may have."""

MOST_SEARCHES: Final = 8
"""The most searches for tools in one run. They do not count as tool calls, so they need their own limit."""

MOST_FOUND: Final = 5
"""The most tools in one result, as in Anthropic's and FastMCP's searches."""

FindTools: TypeAlias = Callable[[str, Collection[str]], Awaitable[Sequence[str]]]
"""Finds tools by what they do: for a query, at most `MOST_FOUND` of the given names, the best first."""

_MOST_NEAREST = 5
_LONGEST_NAME = 64  # characters of a wrong name that are compared and quoted
_LONGEST_QUERY = 1000  # characters
# Characters of the list of tools in the description of `find_tools`, and of its lines: some 500 tokens.
_LONGEST_LIST, _LONGEST_LINE, _SHORTEST_LINE = 2000, 120, 60
_BITS = 1021  # a prime number, so that groups of similar letters get different bits
_SEPARATORS = re.compile(r"[\s,;:\"'`()\[\]]+")
_FIELDS = msgspec.json.Decoder(dict[str, Raw])


_FIND_PARAMETERS: Json = {
    "type": "object",
    "properties": {"query": {"type": "string", "description": FIND_TOOLS_QUERY}},
    "required": ["query"],
}
_CALL_SPEC = ToolSpec(
    CALL_TOOL,
    CALL_TOOL_TEXT,
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": CALL_TOOL_NAME},
            "arguments": {"type": "object", "description": CALL_TOOL_ARGUMENTS},
        },
        "required": ["name", "arguments"],
    },
)


def finding_tools(hidden: Iterable[ToolSpec]) -> tuple[ToolSpec, ToolSpec]:
    """`find_tools`, whose description lists the tools that are not described, and `call_tool`."""
    text = FIND_TOOLS_TEXT.format(groups="\n".join(_lines(hidden)))
    return ToolSpec(FIND_TOOLS, text, _FIND_PARAMETERS, eager=False), _CALL_SPEC


def _lines(tools: Iterable[ToolSpec]) -> list[str]:
    """A line for each server, and one for the tools of no server, with some of the names, always in the same order."""
    groups: dict[str, list[str]] = {}
    for tool in tools:
        groups.setdefault(tool.group or "", []).append(tool.name)
    most = max(_SHORTEST_LINE, min(_LONGEST_LINE, _LONGEST_LIST // max(1, len(groups))))
    return [f"- {group or 'others'}: {_shortened(sorted(groups[group]), most)}" for group in sorted(groups)]


def _shortened(names: Sequence[str], most: int) -> str:
    """The first names, in about `most` characters, and the number of the others."""
    shown = [names[0]]
    room = most - len(names[0])
    for name in names[1:]:
        room -= len(name) + 2
        if room < 0:
            return f"{', '.join(shown)} and {len(names) - len(shown)} more"
        shown.append(name)
    return ", ".join(shown)


def called_by(written: str | None, call: ToolCall) -> ToolCall:
    """The call that a call of `call_tool` asks for. Its name may be the name of no tool.

    `written` is the arguments of `call` as a JSON object, or None if they are no object.

    Raises:
        InvalidArguments: the call names no tool.
    """
    try:
        fields = _FIELDS.decode(written or "{}")
        name = msgspec.json.decode(fields.pop("name", Raw(b"null")), type=str)
        given = bytes(fields.pop("arguments")) if "arguments" in fields else _as_object(fields)
        # Some models write the arguments as a string, as they do in a call itself.
        arguments = msgspec.json.decode(given, type=str) if given.startswith(b'"') else given.decode()
    except (msgspec.DecodeError, UnicodeEncodeError) as exc:  # the second for half a character
        raise InvalidArguments(CALL_TOOL_USAGE) from exc
    return replace(call, name=name.strip(), arguments=arguments.strip())


def _as_object(fields: Mapping[str, Raw]) -> bytes:
    """The fields next to the name: some models write arguments there instead of in `arguments`."""
    return b"{%b}" % b",".join(orjson.dumps(name) + b":" + bytes(value) for name, value in fields.items())


def query_of(written: str | None) -> str:
    """The query of a call of `find_tools` with these arguments, an object or None. Raises `InvalidArguments`."""
    try:
        query = msgspec.json.decode(_FIELDS.decode(written or "{}").get("query", Raw(b"null")), type=str)
    except (msgspec.DecodeError, UnicodeEncodeError) as exc:
        raise InvalidArguments(FIND_TOOLS_USAGE) from exc
    if not query.strip():
        raise InvalidArguments(FIND_TOOLS_USAGE)
    return query.strip()[:_LONGEST_QUERY]


def ranked(query: str, fitting: Sequence[str], tools: Collection[str]) -> list[str]:
    """The names in a result: tools that the query names, then tools that fit, the best first."""
    exact = [name for name in _SEPARATORS.split(query) if name in tools]
    return list(dict.fromkeys([*exact, *fitting]))[:MOST_FOUND]


def found(query: str, names: Sequence[str], tools: Mapping[str, ToolSpec], *, most_bytes: int) -> str:
    """The result of `find_tools`, with the `names` of the tools that fit, the best first.

    The result has at most `most_bytes`. Schemas are not cut: a tool without room is only named.
    """
    if not names:
        return NO_TOOL_FITS.format(names=", ".join(nearest(query, tools)))
    blocks, without_room = [FOUND], list[str]()
    room = most_bytes - len(FOUND)
    for name in names:
        tool = tools[name]
        block = f"{name}\n{tool.description}\nArguments: {orjson.dumps(tool.parameters).decode()}"
        size = len(block.encode("utf-8", "replace")) + 2
        if size <= room:
            blocks.append(block)
            room -= size
        elif len(names) == 1:
            blocks.append(f"{name}\n{tool.description}\nArguments: {SCHEMA_TOO_LONG}")
        else:
            without_room.append(name)
    if without_room:
        blocks.append(NO_ROOM.format(names=", ".join(without_room)))
    return "\n\n".join(blocks)


def no_such_tool(name: str, tools: Collection[str]) -> str:
    """The answer to a call of a tool that does not exist, with the nearest names among `tools`."""
    said = NO_SUCH_TOOL.format(name=name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}...")
    return f"{said} {NEAREST.format(names=', '.join(nearest(name, tools)))}" if tools else said


def nearest(text: str, names: Iterable[str]) -> list[str]:
    """The names most similar to a text, by their letters and groups of letters, the best first."""
    wanted = _groups(text[:_LONGEST_NAME])
    ranked = nsmallest(_MOST_NEAREST, ((-_likeness(wanted, _groups(name)), name) for name in names))
    return [name for _, name in ranked]


def _likeness(wanted: tuple[int, int], given: tuple[int, int]) -> float:
    """Dice's coefficient of two sets."""
    return 2 * (wanted[0] & given[0]).bit_count() / (wanted[1] + given[1])


@lru_cache(maxsize=32_768)  # of the names of tools: more than any configuration has, at 200 bytes each
def _groups(text: str) -> tuple[int, int]:
    """The letters of a text, and its groups of two and of three, as bits of a number, and how many bits there are.

    Groups of one and two letters are needed because short names share no group of three. Two groups can have the same
    bit, which makes two names a little more alike than they are. Comparing five thousand names takes two milliseconds;
    with sets it took fifty.
    """
    codes = [32, 32, *text.lower().encode("utf-8", "replace"), 32]
    bits = 0
    for one, two, three in zip(codes, codes[1:], codes[2:], strict=False):
        bits |= 1 << two % _BITS | 1 << (two * 31 + three) % _BITS | 1 << (one * 961 + two * 31 + three) % _BITS
    return bits, bits.bit_count()


def with_schema(result: ToolResult, tool: ToolSpec, *, most_bytes: int) -> ToolResult:
    """The answer to a call with wrong arguments, with the tool's schema added if there is room."""
    schema = orjson.dumps(tool.parameters)
    if len(schema) > most_bytes:
        return result
    return replace(result, content=f'{result.content[:-1]},"parameters":{schema.decode()}}}')
