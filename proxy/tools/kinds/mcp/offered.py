"""The tools of an MCP server as tools of ours: those that can be offered, and why the others are refused."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from mcp_types import Tool as ListedTool
from msgspec.structs import replace

from proxy.config.redaction import Redact
from proxy.loop.call_context import CallContext
from proxy.loop.results import ToolOutput
from proxy.ports import Observer
from proxy.tools.kinds.mcp.content import is_repeatable, tool_of
from proxy.tools.kinds.mcp.entry import McpConfig
from proxy.tools.kinds.mcp.repair import MOST_TOOLS
from proxy.tools.schema import schema_fault, serving_fault
from proxy.tools.tool import Tool
from proxy.wire.chat import Json

_LONGEST_REASON = 200  # characters of a server's own words in the log
_MOST_REASONS = 20


class CallTool(Protocol):
    """Makes a call of a server's tool; `runs_code` as in `output_of`. Raises `ToolError`."""

    def __call__(self, name: str, arguments: Json, call: CallContext, /, *, runs_code: bool) -> Awaitable[ToolOutput]:
        """The output of the call, whose context is `call`."""
        ...


class ToolFactory:
    """Makes the tools of one entry of the configuration; `configured` applies the settings of the entry to a tool."""

    def __init__(
        self, name: str, config: McpConfig, *, configured: Callable[[Tool], Tool], call: CallTool, observe: Observer
    ) -> None:
        self._name = name
        self._prefix = config.prefix_of(name)
        self._serves = {own: hosted for hosted, own in config.serves.items()}
        self._configured = configured
        self._call = call
        self._observe = observe

    async def made_of(self, listed: Sequence[ListedTool]) -> tuple[list[Tool], list[str]]:
        """The tools that can be offered, and why each of the others cannot. Other tasks have their turn meanwhile."""
        tools, refused = list[Tool](), list[str]()
        for one in listed[:MOST_TOOLS]:
            try:
                tools.append(self._tool(one, refused))
            except ValueError as exc:
                refused.append(f"{one.name}: {exc}")
            else:
                schema_fault(tools[-1].parameters)  # compiles it, which takes up to 50 ms, before all are published
            await asyncio.sleep(0)
        unknown = self._serves.keys() - {one.name for one in listed}
        refused += [f"{name}: the server has no such tool, to serve {self._serves[name]}" for name in sorted(unknown)]
        refused += [f"{one.name}: there are more than {MOST_TOOLS} tools" for one in listed[MOST_TOOLS:]]
        return tools, refused

    def tell(self, refused: Iterable[str], mask: Redact) -> None:
        """Say in the log why tools are refused."""
        reasons = [mask(why)[:_LONGEST_REASON] for why in refused]
        if more := reasons[_MOST_REASONS:]:
            reasons[_MOST_REASONS:] = [f"and {len(more)} more"]
        for why in reasons:
            self._observe("mcp.tool_refused", server=self._name, why=why)

    def _tool(self, listed: ListedTool, refused: list[str]) -> Tool:
        """A server's tool as one of ours; why it serves no hosted tool, if it cannot, is added to `refused`."""
        serves = self._serves.get(listed.name)

        async def run(arguments: Json, call: CallContext) -> ToolOutput:
            return await self._call(listed.name, arguments, call, runs_code=serves is not None)

        tool = self._configured(tool_of(listed, prefix=self._prefix, origin=f"mcp server {self._name}", run=run))
        if serves is not None and (fault := serving_fault(tool.parameters)):
            refused.append(f"{listed.name}: {fault}")
            serves = None
        return replace(tool, serves=serves, retries=tool.retries if is_repeatable(listed) else 0)
