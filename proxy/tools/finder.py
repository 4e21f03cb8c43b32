"""Finds tools by what they do: an index of their names, descriptions, servers and parameters."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from proxy.tools.bm25 import Index, best_first, terms
from proxy.wire.chat import Json, ToolSpec

# A word of the name says more about what a tool does than one of its description.
_WEIGHT_OF_NAME = 3
# Characters that are read of a tool's description, and of the texts of its parameters; of many tools, fewer of each, so
# that an index is made within half a second, whatever servers say of their tools.
_LONGEST_TEXT, _SHORTEST_TEXT, _ALL_TEXTS = 2048, 256, 512 * 1024
_MOST_PARAMETERS = 100

SIZE_OF_TOOL = 2048
"""About how many characters of a tool are read for an index."""


class ToolIndex:
    """The tools of a registry, which do not change."""

    def __init__(self, tools: Iterable[ToolSpec]) -> None:
        self._tools = [*tools]
        most = max(_SHORTEST_TEXT, min(_LONGEST_TEXT, _ALL_TEXTS // max(1, len(self._tools))))
        self._index = Index(_terms_of(tool, most) for tool in self._tools)

    def best(self, query: str, among: Collection[str], *, most: int) -> list[str]:
        """The names of at most `most` tools, of those with the names in `among`, that fit a query; the best first."""
        ranked = [self._tools[place].name for place in best_first(self._index.scores(terms(query)))]
        return [name for name in ranked if name in among][:most]


def _terms_of(tool: ToolSpec, most: int) -> Sequence[str]:
    parameters = " ".join(islice(_texts_in(tool.parameters), _MOST_PARAMETERS))
    rest = " ".join((tool.description[:most], tool.group or "", *tool.aliases, parameters[:most]))
    return terms(tool.name) * _WEIGHT_OF_NAME + terms(rest)


def _texts_in(schema: Json) -> Iterator[str]:
    """The names and descriptions of the properties in a schema, also of objects in objects and lists, breadth first."""
    level: list[Any] = [schema]
    while level:
        below: list[Any] = []
        for part in level:
            if not isinstance(part, dict):
                continue
            properties = part.get("properties")
            for name, detail in properties.items() if isinstance(properties, dict) else ():
                yield str(name)
                if isinstance(detail, dict) and isinstance(text := detail.get("description"), str):
                    yield text[:_LONGEST_TEXT]
                below.append(detail)
            below.append(part.get("items"))
        level = below
