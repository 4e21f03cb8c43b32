"""What changes in the definitions that an MCP server gives of its tools: descriptions and schemas. Pure.

A changed definition is offered, because models have to make calls as the server takes them now. The log says what has
changed, so that an operator sees a server that turns on its users.
"""

from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import takewhile
from typing import Final, NamedTuple

import orjson
from mcp_types import Tool as ListedTool

from proxy.loop.fence import INVISIBLE

_SHOWN: Final = 200  # characters of a definition, from the first difference on
_MOST_KNOWN: Final = 1024  # names of one server: one that lists ever new ones does not fill the memory


class Change(NamedTuple):
    """A tool whose definition has changed: its name, the hashes of both definitions, and the first difference."""

    tool: str
    before: str
    after: str
    change: str


class KnownDefinitions:
    """The definitions of a server's tools as they were last listed, also of tools that it lists no more."""

    def __init__(self) -> None:
        self._known: dict[str, ListedTool] = {}

    def changes_in(self, listed: Iterable[ListedTool]) -> Iterator[Change]:
        """The tools of a further list whose definitions have changed since they were last listed."""
        for tool in listed:
            before = self._known.pop(tool.name, tool)
            self._known[tool.name] = tool  # the names of the last list come last
            old, new = definition_of(before), definition_of(tool)
            if old != new:
                yield Change(tool.name, hash_of(old), hash_of(new), _difference(old, new))
        while len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]


def definition_of(listed: ListedTool) -> str:
    """What a model reads of a tool: its description, and its schema in one form for all orders of its keys."""
    schema = orjson.dumps(listed.input_schema, option=orjson.OPT_SORT_KEYS).decode()
    return f"{listed.description or listed.title or ''}\n{schema}"


def hash_of(definition: str) -> str:
    """The hash of a definition, short enough for the log."""
    return sha256(definition.encode("utf-8", "replace")).hexdigest()[:16]


def _difference(old: str, new: str) -> str:
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))
    return f'"{_visible(old[same : same + _SHOWN])}" -> "{_visible(new[same : same + _SHOWN])}"'


def _visible(text: str) -> str:
    """A text in which nothing is hidden from people who read the log."""
    return INVISIBLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
