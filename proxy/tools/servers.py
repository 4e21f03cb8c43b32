"""Servers whose tools may change, such as MCP servers, each kept for as long as a configuration has its entry.

The tools of most servers are the same for everybody, and are published to the registries. Those of a server that is
reached with the credentials of users are asked for by each request, and are in the registry of that user alone.
"""

import asyncio
from asyncio import gather
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol, TypeAlias
from weakref import WeakKeyDictionary

from proxy.kit.readiness import Readiness
from proxy.ports import MayUse
from proxy.tools.registry import Registry
from proxy.tools.state import ToolState
from proxy.tools.tool import Tool
from proxy.wire.chat import ToolSpec
from proxy.wire.credentials import Credentials

# Seconds: the first request should have the tools, but need not wait for a slow server.
_START_PATIENCE = 5.0
# The most states of tools that a server may have. If it invents names of tools without end, all states are reset.
_MOST_STATES = 1024

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

    @property
    def unlisted(self) -> ToolSpec | None:
        """The placeholder of tools that differ by user: they are listed only for requests with the headers it `needs`.

        Its name is the prefix of theirs, and it is never shown. None: the tools are the same for everybody.
        """
        ...

    async def tools_for(self, credentials: Credentials) -> "UserTools | None":
        """The tools that the server lists for a user, who has all credentials that it needs; None: none are known."""
        ...


class UserTools:
    """The tools that a server lists for a user; another object whenever they have changed."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.tools = tools


class SharedToolServer:
    """A tool server whose tools are in the registries of all configurations that have its entry."""

    def __init__(self, server: ToolServer) -> None:
        self.server = server
        self._states_of_users: dict[str, ToolState] = {}
        self._registries: list[Registry] = []
        self._tools: Sequence[Tool] | None = None  # the tools as last published
        self._serving: asyncio.Task[None] | None = None

    def start(self, group: asyncio.TaskGroup) -> None:
        """Serve the server's tools in a task of the group, unless they are served already."""
        if self._serving is None:
            self._serving = group.create_task(self._serve())

    async def aclose(self) -> None:
        """End the session with the server."""
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait([self._serving])

    def publish_to(self, registry: Registry) -> None:
        """Publish the tools, the known ones and later changes, to another registry."""
        self._registries.append(registry)
        if (unlisted := self.server.unlisted) is not None:
            registry.unlisted[self.server.name] = unlisted
        if self._tools is not None:
            registry.put_group(self.server.name, self._tools)

    def forget(self, registry: Registry) -> None:
        """Stop publishing to a registry."""
        self._registries.remove(registry)

    def add_to(self, registry: Registry, found: UserTools) -> Registry:
        """A registry for one user, which has the tools that this server lists for the user as well."""
        if len(self._states_of_users) > _MOST_STATES:
            self._states_of_users.clear()
        return registry.for_user(self.server.name, found.tools, self._states_of_users)

    async def _serve(self) -> None:
        with suppress(Exception):  # a failure at the end of a server affects only its own tools
            await self.server.serve(self._publish)

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
            for shared in servers:
                await shared.server.tried.wait()


class UserToolsets:
    """The tools of users: those of a registry, and those that servers list for the credentials of a request.

    Args:
        registry: the tools that are the same for everybody.
        servers: the servers; those that need no credentials are not asked.
    """

    def __init__(self, registry: Registry, servers: Iterable[SharedToolServer]) -> None:
        self._registry = registry
        self._servers = [(shared, unlisted) for shared in servers if (unlisted := shared.server.unlisted) is not None]
        # By the tools that were added to a registry: the registry with them, and what `specs` it was made of.
        self._made: WeakKeyDictionary[Registry, WeakKeyDictionary[UserTools, tuple[Registry, Mapping[str, ToolSpec]]]]
        self._made = WeakKeyDictionary()

    async def toolset_for(self, credentials: Credentials, may_use: MayUse = lambda _: True) -> Registry:
        """The tools of a request with these credentials.

        A server whose tools the request may not use is not asked; one whose list is not known is waited for a while.
        """
        asked = [
            shared for shared, unlisted in self._servers if unlisted.needs <= credentials.names and may_use(unlisted)
        ]
        registry = self._registry
        lists = await gather(*(shared.server.tools_for(credentials) for shared in asked))
        for shared, found in zip(asked, lists, strict=True):
            if found is not None:
                registry = self._with(registry, shared, found)
        return registry

    def _with(self, registry: Registry, server: SharedToolServer, found: UserTools) -> Registry:
        made = self._made.setdefault(registry, WeakKeyDictionary())
        own, made_of = made.get(found, (None, None))
        if own is None or made_of is not registry.specs:  # the tools of everybody may have changed
            own = server.add_to(registry, found)
            made[found] = own, registry.specs
        return own
