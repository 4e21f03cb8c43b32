"""Servers whose tools may change, such as MCP servers, each kept for as long as a configuration has its entry."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Protocol, TypeAlias

from proxy.kit.readiness import Readiness
from proxy.tools.registry import Registry
from proxy.tools.tool import Tool

# Seconds: the first request should have the tools, but need not wait for a slow server.
_START_PATIENCE = 5.0

Publish: TypeAlias = Callable[[str, Sequence[Tool]], Sequence[str]]
"""Takes a group's name and all of its tools, and returns why any were refused, as `Registry.put_group` does."""


class ToolServer(Protocol):
    """A server whose tools may change at any time."""

    @property
    def name(self) -> str:
        """The name of the server's entry, and of the group of its tools."""
        ...

    @property
    def tried(self) -> asyncio.Event:
        """Set when the first attempt to reach the server has ended."""
        ...

    async def serve(self, publish: Publish) -> None:
        """Keep the server's tools published, until cancelled. Raises nothing."""
        ...

    def state(self) -> Readiness:
        """Whether the server's tools can be used now."""
        ...


class SharedToolServer:
    """A tool server whose tools are in the registries of all configurations that have its entry.

    Args:
        server: the server that is shared.
    """

    def __init__(self, server: ToolServer) -> None:
        self.state = server.state
        self._server = server
        self._registries: list[Registry] = []
        self._tools: Sequence[Tool] | None = None  # the tools as last published
        self._serving: asyncio.Task[None] | None = None

    def start(self, group: asyncio.TaskGroup) -> None:
        """Serve the server's tools in a task of the group, unless they are served already."""
        if self._serving is None:
            self._serving = group.create_task(self._serve())

    async def tried(self) -> None:
        """Wait for the end of the first attempt to reach the server."""
        await self._server.tried.wait()

    async def aclose(self) -> None:
        """End the session with the server."""
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait([self._serving])

    def publish_to(self, registry: Registry) -> None:
        """Publish the tools, the known ones and later changes, to another registry."""
        self._registries.append(registry)
        if self._tools is not None:
            registry.put_group(self._server.name, self._tools)

    def forget(self, registry: Registry) -> None:
        """Stop publishing to a registry."""
        self._registries.remove(registry)

    async def _serve(self) -> None:
        with suppress(Exception):  # a failure at the end of a server affects only its own tools
            await self._server.serve(self._publish)

    def _publish(self, group: str, tools: Sequence[Tool]) -> list[str]:
        """Publish to all registries, and return why the latest registry refused any tools."""
        self._tools = tools
        refused: list[str] = []
        for registry in self._registries:
            refused = registry.put_group(group, tools)
        return refused


async def start_tool_servers(
    servers: Iterable[SharedToolServer], group: asyncio.TaskGroup, *, patience: float = _START_PATIENCE
) -> None:
    """Serve tool servers in tasks of a group, and wait at most `patience` seconds for the first attempt of each."""
    servers = [*servers]
    for server in servers:
        server.start(group)
    with suppress(TimeoutError):
        async with asyncio.timeout(patience):
            for server in servers:
                await server.tried()
