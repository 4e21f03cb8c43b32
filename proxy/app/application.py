"""The ASGI application, which passes each request to the configuration in force when the request begins.

reload --> the next generation is made and its MCP servers are started --> it gets all new requests
       --> when the last request of the previous generation has ended, the parts that only that one used are closed
"""

import asyncio
import gc
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import httpx
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from proxy.api.middleware.admission import Lifecycle
from proxy.app.generation import Generation
from proxy.app.process import Process, start_process
from proxy.config.loaded import Loaded
from proxy.config.model import Config
from proxy.ports import Clock, Observer
from proxy.tools.servers import start_tool_servers
from proxy.tools.tool import Tool

_ROOT = b"/v1"
_TWICE = b"/v1/v1/"  # from a base URL that ends in /v1 and an SDK that appends /v1, as Anthropic's do


def create_app(
    config: Config | Loaded,
    *,
    tools: Iterable[Tool] = (),
    transport: httpx.AsyncBaseTransport | None = None,
    clock: Clock | None = None,
    lifecycle: Lifecycle | None = None,
) -> "Application":
    """The proxy as an ASGI application: its own middleware around Starlette's router.

    Args:
        config: the configuration, as `app.configuration.load` reads it, or only its contents.
        tools: further tools, besides those of the configuration.
        transport: carries all requests to upstreams and tools; None: each has its own transport.
        clock: the clock; tests pass one that they control.
        lifecycle: the state in which the server notes that it is about to stop.

    Raises:
        ConfigurationError: a tool cannot be made, or two have the same name.
    """
    loaded = config if isinstance(config, Loaded) else Loaded(config)
    process = start_process(loaded, tools=tools, transport=transport, clock=clock, lifecycle=lifecycle)
    return Application(process, Generation(process, loaded))


class Application:
    """Answers every request by the configuration that was in force when the request began.

    Attributes:
        current: the generation that answers new requests.
    """

    def __init__(self, process: Process, first: Generation) -> None:
        self.current = first
        self._process = process
        self._replaced: list[Generation] = []  # generations that still have open requests
        self._lifespan = Router(lifespan=self._running).lifespan

    @property
    def observe(self) -> Observer:
        """The observer of the process."""
        return self._process.telemetry.observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection. What is no HTTP request never gets to the middleware, which knows nothing else.

        Raises:
            ValueError: the server offers a connection of an unknown type.
        """
        match scope["type"]:
            case "http":
                pass
            case "lifespan":
                await self._lifespan(scope, receive, send)
                return
            case "websocket":
                await send({"type": "websocket.close"})  # before it is accepted: the client gets a 403
                return
            case other:
                raise ValueError(f"connections of the type {other!r} are not served")
        raw_path = scope.get("raw_path") or b""  # optional in ASGI
        if raw_path.startswith(_TWICE):
            scope["path"], scope["raw_path"] = scope["path"][len(_ROOT) :], raw_path[len(_ROOT) :]
        generation = self.current
        generation.open_requests += 1
        try:
            await generation.app(scope, receive, send)
        finally:
            generation.open_requests -= 1
            if generation is not self.current:
                self._close_if_idle(generation)

    async def reload(self, loaded: Loaded) -> None:
        """Answer new requests by another configuration. To be called while the process serves.

        Keys in `needs_restart` of their sections remain as they were at the start.

        Raises:
            ConfigurationError: a tool cannot be made, or two have the same name; nothing has changed.
        """
        process, before = self._process, self.current
        process.apply(loaded, before.loaded, *(other.loaded for other in self._replaced))
        try:
            following = Generation(process, loaded, before)
        except BaseException:
            self._apply_current()
            raise
        try:
            if process.tasks is not None:
                await start_tool_servers(following.tool_servers.values(), process.tasks)
        except asyncio.CancelledError:  # the process is stopping
            await following.aclose([before, *self._replaced])
            raise
        self.current = following
        following.report_closed_breakers(process, before)
        self._replaced.append(before)
        self._close_if_idle(before)

    def _apply_current(self) -> None:
        self._process.apply(self.current.loaded, *(other.loaded for other in self._replaced))

    def _close_if_idle(self, generation: Generation) -> None:
        """Close a replaced generation, in a task of the process, once it has no open requests."""
        if generation.open_requests or self._process.tasks is None or generation not in self._replaced:
            return
        self._replaced.remove(generation)
        self._process.tasks.create_task(self._close(generation))

    async def _close(self, generation: Generation) -> None:
        await generation.aclose([self.current, *self._replaced])
        self._apply_current()
        gc.collect()  # the generation has many reference cycles, and the collector runs rarely

    @asynccontextmanager
    async def _running(self, _: object) -> AsyncIterator[None]:
        async with self._process.running() as tasks:
            await start_tool_servers(self.current.tool_servers.values(), tasks)
            try:
                yield
            finally:
                generations = [*self._replaced, self.current]
                while generations:
                    await generations.pop().aclose(generations)
