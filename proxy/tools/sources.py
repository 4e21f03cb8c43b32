"""Servers whose tools come and go: kept in session for as long as the app lives."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Protocol, TypeAlias

from proxy.ports import Readiness
from proxy.tools.tool import Tool

# The first request should see the tools; a server that needs longer comes when it comes.
START_PATIENCE = 5.0

Publish: TypeAlias = Callable[[str, Sequence[Tool]], Sequence[str]]
"""Called with a group's name and all its tools of now; returns why some were refused. `Registry.put_group` is one."""


class Source(Protocol):
    """A server whose tools come and go."""

    @property
    def name(self) -> str:
        """The name of its entry, and of the group of its tools."""
        ...

    @property
    def tried(self) -> asyncio.Event:
        """Set when it has been reached, or found out of reach, for the first time."""
        ...

    async def serve(self, publish: Publish) -> None:
        """Keep its tools published, until cancelled. Raises nothing."""
        ...

    def state(self) -> Readiness:
        """Whether its tools can be used now."""
        ...


@asynccontextmanager
async def kept_in_session(
    sources: Sequence[Source], publish: Publish, *, patience: float = START_PATIENCE
) -> AsyncIterator[None]:
    """Serve all sources inside; waits up to `patience` seconds for the first word of each."""
    async with asyncio.TaskGroup() as sessions:
        tasks = [sessions.create_task(source.serve(publish)) for source in sources]
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    for source in sources:
                        await source.tried.wait()
            yield
        finally:
            for task in tasks:
                task.cancel()
