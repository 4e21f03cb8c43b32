"""Servers whose tools come and go, such as MCP servers, each kept for as long as a configuration has its entry."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Protocol, TypeAlias

from proxy.ports import Readiness
from proxy.tools.registry import Registry
from proxy.tools.tool import Tool

# Seconds: the first request should see the tools, and a slow server may come later.
_START_PATIENCE = 5.0

Publish: TypeAlias = Callable[[str, Sequence[Tool]], Sequence[str]]
"""Called with a group's name and all of its tools; returns why some were refused. `Registry.put_group` is one."""


class ToolServer(Protocol):
    """A server whose tools come and go."""

    @property
    def name(self) -> str:
        """The name of its entry, and of the group of its tools."""
        ...

    @property
    def tried(self) -> asyncio.Event:
        """Set when the server has been reached, or found out of reach, for the first time."""
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
        server: what is shared.
    """

    def __init__(self, server: ToolServer) -> None:
        self.state = server.state
        self._server = server
        self._registries: list[Registry] = []
        self._tools: Sequence[Tool] | None = None  # as published last
        self._serving: asyncio.Task[None] | None = None

    def start(self, group: asyncio.TaskGroup) -> None:
        """Serve it as a task of the group, unless it is served already."""
        if self._serving is None:
            self._serving = group.create_task(self._serve())

    async def tried(self) -> None:
        """Wait until the server has been reached, or found out of reach."""
        await self._server.tried.wait()

    async def aclose(self) -> None:
        """End the session with the server."""
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait([self._serving])

    def publish_to(self, registry: Registry) -> None:
        """Publish the tools to one more registry, those that are known and those to come."""
        self._registries.append(registry)
        if self._tools is not None:
            registry.put_group(self._server.name, self._tools)

    def forget(self, registry: Registry) -> None:
        """Publish nothing more to a registry."""
        self._registries.remove(registry)

    async def _serve(self) -> None:
        with suppress(Exception):  # whatever a server does at its end costs its own tools and nothing else
            await self._server.serve(self._publish)

    def _publish(self, group: str, tools: Sequence[Tool]) -> list[str]:
        """Publish to all registries; returns why the latest one refused some."""
        self._tools = tools
        refused: list[str] = []
        for registry in self._registries:
            refused = registry.put_group(group, tools)
        return refused


async def start_tool_servers(
    servers: Iterable[SharedToolServer], group: asyncio.TaskGroup, *, patience: float = _START_PATIENCE
) -> None:
    """Serve tool servers as tasks of a group, and wait until each has been tried, for at most `patience` seconds."""
    servers = [*servers]
    for server in servers:
        server.start(group)
    with suppress(TimeoutError):
        async with asyncio.timeout(patience):
            for server in servers:
                await server.tried()
