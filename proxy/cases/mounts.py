"""Proxies in front of fake servers: in this process, or with the servers on a socket of loopback."""

import io
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Final, Self

import httpx
import orjson

from proxy.api.access import Caller
from proxy.api.sealed import Sealer, SealingKeys
from proxy.app.application import Application
from proxy.app.generation import Generation
from proxy.app.process import Process, start_process
from proxy.cases import in_process
from proxy.cases.fake_servers import FakeServers
from proxy.cases.played_tools import PlayedResults, played_tools
from proxy.cases.player import CaseProxy, Received
from proxy.cases.replies import content_of
from proxy.cases.requests import Request
from proxy.cases.settings import CLIENT_KEY, settings_of
from proxy.config.loaded import Loaded
from proxy.config.model import TelemetryConfig
from proxy.config.redaction import masked
from proxy.ports import Clock
from proxy.server.serving import serving
from proxy.telemetry import log
from proxy.tools.tool import Tool
from proxy.wire.chat import Json
from proxy.wire.credentials import BOUND

FAKES: Final = "http://world.invalid"
"""The address of the fake servers where every request ends in it; no name is looked up."""

_PATIENCE: Final = 30.0  # seconds for which an application may take to end after its client has left


class InProcess:
    """Mounts proxies without sockets. Implements `player.Mount`; a context manager."""

    def __init__(self, servers: FakeServers, results: PlayedResults) -> None:
        self._servers = servers
        self._results = results
        self._stack = AsyncExitStack()
        self._proxies: dict[str, _ProxyInProcess] = {}

    async def __aenter__(self) -> Self:
        silence()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def proxy(self, name: str, config: Json, began_at: float) -> CaseProxy:
        """The proxy of that name. Raises `ConfigurationError`."""
        if name not in self._proxies:
            loaded = settings_of(config, FAKES, name, is_closed=True)
            tools = [*played_tools(config.get("tools", {}), self._results)]
            addresses = {one.base_url: f"/{key}/v1" for key, one in loaded.config.upstreams.items()}
            transport = in_process.FakeTransport(self._servers, addresses)
            self._proxies[name] = await self._mounted(loaded, tools, transport, in_process.PlayedClock(began_at))
        return self._proxies[name]

    async def _mounted(
        self, loaded: Loaded, tools: Iterable[Tool], transport: httpx.AsyncBaseTransport | None, clock: Clock | None
    ) -> "_ProxyInProcess":
        """A running proxy with that configuration."""
        process = start_process(loaded, tools=tools, transport=transport, clock=clock, lifecycle=None)
        app = Application(process, Generation(process, loaded))
        await self._stack.enter_async_context(in_process.lifespan_of(app))
        return _ProxyInProcess(app, process, loaded)


class OverSockets(InProcess):
    """Mounts proxies whose servers are served on loopback, for cases with servers that only sockets reach."""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._url = await self._stack.enter_async_context(serving(self._servers, lifespan="off"))
        return self

    async def proxy(self, name: str, config: Json, began_at: float) -> CaseProxy:  # noqa: ARG002 - sockets take real time
        """The proxy of that name. Raises `ConfigurationError`."""
        if name not in self._proxies:
            loaded = settings_of(config, self._url, name, is_closed=False)
            tools = [*played_tools(config.get("tools", {}), self._results)]
            self._proxies[name] = await self._mounted(loaded, tools, None, None)
        return self._proxies[name]


class _ProxyInProcess:
    """A proxy that is called directly. Implements `player.CaseProxy`."""

    def __init__(self, app: Application, process: Process, loaded: Loaded) -> None:
        self._app = app
        self._process = process
        self._config = loaded.config
        clients = loaded.config.clients
        key = CLIENT_KEY if self._config.forwards_client_keys else None
        self._caller = Caller(clients[0].name) if clients else Caller(upstream_key=key)

    async def seed(self, state: list[Json], request: Request) -> Request:
        """Put what was read from the state store where it will be read; the request with texts that open here."""
        store, now = self._process.state.continuations, self._process.clock.time
        keys = SealingKeys(self._process.state.secrets, self._config, now=now).for_caller(self._caller)
        sealer = Sealer(keys, self._caller.scope)
        resealed: dict[str, str] = {}
        for entry in state:
            value = entry.get("value")
            if isinstance(value, dict):  # the credential that it was kept for is not in the case
                value = {key: held for key, held in value.items() if key != BOUND}
            if "sealed" in entry:
                resealed[entry["sealed"]] = sealer.seal(value or {})
            elif value is not None or "raw" in entry or "base64" in entry:
                content = orjson.dumps(value) if "value" in entry else content_of(entry)
                await store.put(self._caller.scope, entry["key"], content)
        if not resealed or "body" not in request:
            return request
        return {**request, "body": masked(request["body"], lambda text: resealed.get(text, text), names=False)}

    async def send(self, request: Request) -> Received:
        """Send a request, and read the answer to its end."""
        path, _, query = request["path"].partition("?")
        body = content_of({key: request[key] for key in ("body", "raw", "base64") if request.get(key) is not None})
        given = {name.lower(): value for name, value in request["headers"].items()}
        headers = {
            "content-type": "application/json",
            "host": "127.0.0.1",
            **given,
            "authorization": f"Bearer {CLIENT_KEY}",
        }
        lines = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers.items()]
        scope = {"method": request["method"], "path": path, "query_string": query.encode(), "headers": lines}
        pieces: list[bytes] = []
        failure = None
        try:
            response = await in_process.send(self._app, scope, body)
        except httpx.RemoteProtocolError:
            return Received(None, {}, b"")
        try:
            async for piece in response.pieces():
                pieces.append(piece)  # noqa: PERF401 - those before a failure are kept
        except httpx.RemoteProtocolError as exc:
            failure = str(exc)
        finally:
            await response.aclose(patience=_PATIENCE)
        named = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
        return Received(response.status, named, b"".join(pieces), failure)


def silence() -> None:
    """Keep the log of played proxies to itself."""
    log.configure(TelemetryConfig(log_level="error"), stream=io.StringIO())
