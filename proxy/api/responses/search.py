"""What the searches of a response looked for, and the pages that they found."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

from proxy.loop.chat import ToolCall, ToolSpec
from proxy.loop.results import ToolOutput
from proxy.loop.search import SearchFilters
from proxy.ports import Toolset

_QUERY_NAMES = ("query", "q")


@dataclass(frozen=True, slots=True)
class RecordingToolset:
    """The server tools, and a record of the pages that their calls return. Implements `ports.Toolset`.

    Attributes:
        inner: the server tools.
        found: by call id, the pages that calls have found: URL -> title.
    """

    inner: Toolset
    found: dict[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def specs(self) -> Mapping[str, ToolSpec]:
        """Every usable tool by its own name."""
        return self.inner.specs

    async def execute(
        self, call: ToolCall, *, default_timeout: float, max_timeout: float, scope: str, filters: SearchFilters
    ) -> ToolOutput:
        """Run one call. Raises `ToolError`."""
        output = await self.inner.execute(
            call, default_timeout=default_timeout, max_timeout=max_timeout, scope=scope, filters=filters
        )
        self.found[call.id] = output.sources
        return output


def query_of(arguments: str) -> str:
    """The query in a search's arguments; empty where there is none."""
    try:
        parsed = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return ""
    if not isinstance(parsed, dict):
        return ""
    return next((parsed[name] for name in _QUERY_NAMES if isinstance(parsed.get(name), str)), "")
