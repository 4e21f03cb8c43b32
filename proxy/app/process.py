"""The parts that live as long as the process, under every configuration: state, telemetry, capacity, clock."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx

from proxy import __version__
from proxy.api.body_memory import available_memory
from proxy.api.middleware.admission import Capacity, Lifecycle
from proxy.app.adapters import SystemClock, tool_client
from proxy.config.loaded import Loaded
from proxy.config.model import ServerConfig
from proxy.config.redaction import secrets_of
from proxy.keys.pool import KeyPools
from proxy.ports import Clock
from proxy.stores import State, open_state
from proxy.telemetry import Telemetry, build_telemetry
from proxy.tools.result_cache import local_caches
from proxy.tools.tool import Tool
from proxy.tools.tool_type import Resources
from proxy.wire.errors import ConfigurationError


@dataclass(slots=True)
class Process:
    """The parts of a process that outlive a configuration.

    Attributes:
        transport: replaces the transports of upstreams and tools, in tests.
        tools: further tools, in addition to the tools of the configuration.
        tasks: the background tasks, while the process serves.
    """

    clock: Clock
    lifecycle: Lifecycle
    telemetry: Telemetry
    state: State
    capacity: Capacity
    resources: Resources
    key_pools: KeyPools
    transport: httpx.AsyncBaseTransport | None
    tools: tuple[Tool, ...]
    tasks: asyncio.TaskGroup | None = field(default=None)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.TaskGroup]:
        """Run the background tasks, and close everything at the end."""
        try:
            async with self.state.running(), asyncio.TaskGroup() as self.tasks:
                yield self.tasks
        finally:
            await self.resources.client.aclose()
            await asyncio.to_thread(self.telemetry.close)

    def apply(self, loaded: Loaded, *others: Loaded) -> None:
        """Go on under a configuration, and mask the secrets of the others too, under which requests are open."""
        server = loaded.config.server
        self.telemetry.apply(loaded.config, frozenset().union(*map(secrets_of, (loaded, *others))))
        self.capacity.change(server, body_bytes=_body_bytes(server))


def start_process(
    loaded: Loaded,
    *,
    tools: Iterable[Tool],
    transport: httpx.AsyncBaseTransport | None,
    clock: Clock | None,
    lifecycle: Lifecycle | None,
) -> Process:
    """The process under its first configuration; the arguments are those of `create_app`."""
    config = loaded.config
    clock = clock or SystemClock()
    telemetry = build_telemetry(config, secrets_of(loaded), clock, version=__version__)
    memory = _memory_of_worker(config.server) // 8
    caches = local_caches(clock)
    try:
        state = open_state(config.state, clock=clock, observe=telemetry.observe, caches=caches, memory=memory)
    except ConfigurationError as exc:
        raise ConfigurationError([*map(loaded.place_of, exc.faults)]) from exc
    key_pools = KeyPools(clock=clock, observe=telemetry.observe)
    return Process(
        clock=clock,
        lifecycle=lifecycle or Lifecycle(),
        telemetry=telemetry,
        state=state,
        capacity=Capacity(config.server, body_bytes=_body_bytes(config.server)),
        resources=Resources(
            tool_client(transport, telemetry.extra_headers),
            clock,
            state.caches,
            telemetry.observe,
            key_pools=key_pools,
        ),
        key_pools=key_pools,
        transport=transport,
        tools=tuple(tools),
    )


def _body_bytes(server: ServerConfig) -> int:
    return server.max_body_memory or _memory_of_worker(server) // 2


def _memory_of_worker(server: ServerConfig) -> int:
    """The memory of one worker in bytes: half is for the bodies of open requests, an eighth for stored entries.

    A sixteenth of the half at most is for messages that clients have sent lately (`proxy.api.known`). The rest is for
    the interpreter (60 MB), for answers, and for whatever the estimates do not cover.
    """
    return available_memory() // server.workers
