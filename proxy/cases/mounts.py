"""Proxies in front of fake servers: in this process, or with the servers on a socket of loopback."""

import io
from contextlib import AsyncExitStack
from typing import Final, Self

import orjson

from proxy.api.access import Caller
from proxy.api.sealed import Sealer, SealingKeys
from proxy.app.application import Application
from proxy.app.generation import Generation
from proxy.app.process import Process, start_process
from proxy.cases.expectations import Received
from proxy.cases.fake_servers import FakeServers
from proxy.cases.in_process import FakeTransport, PlayedClock, lifespan_of, response_of
from proxy.cases.played_tools import PlayedResults, played_tools
from proxy.cases.player import CaseProxy
from proxy.cases.replies import content_of
from proxy.cases.requests import Request
from proxy.cases.settings import CLIENT_KEY, settings_of
from proxy.config.loaded import Loaded
from proxy.config.model import TelemetryConfig
from proxy.config.redaction import masked
from proxy.server.serving import serving
from proxy.telemetry import log
from proxy.wire.chat import Json
from proxy.wire.credentials import BOUND

FAKES: Final = "http://world.invalid"
"""The address of the fake servers where every request ends in it; no name is looked up."""


class Mount:
    """Starts proxies in front of fake servers; a context manager.

    Args:
        servers: what stands behind the proxies.
        results: the results of tools that are not the proxy's own.
        over_sockets: whether the servers are served on loopback, for cases with servers that only sockets reach.
    """

    def __init__(self, servers: FakeServers, results: PlayedResults, *, over_sockets: bool) -> None:
        self._servers = servers
        self._results = results
        self._over_sockets = over_sockets
        self._stack = AsyncExitStack()
        self._url = FAKES

    async def __aenter__(self) -> Self:
        silence()
        if self._over_sockets:
            self._url = await self._stack.enter_async_context(serving(self._servers, lifespan="off"))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def start(self, name: str, config: Json, began_at: float) -> CaseProxy:
        """Start the proxy of that name. Implements `player.StartProxy`. Raises `ConfigurationError`."""
        loaded = settings_of(config, self._url, name, is_closed=not self._over_sockets)
        addresses = {one.base_url: f"/{key}/v1" for key, one in loaded.config.upstreams.items()}
        process = start_process(
            loaded,
            tools=[*played_tools(config.get("tools", {}), self._results)],
            transport=None if self._over_sockets else FakeTransport(self._servers, addresses),
            clock=None if self._over_sockets else PlayedClock(began_at),
            lifecycle=None,
        )
        app = Application(process, Generation(process, loaded))
        await self._stack.enter_async_context(lifespan_of(app))
        return _ProxyInProcess(app, process, loaded)


class _ProxyInProcess:
    """A proxy that is called directly. Implements `player.CaseProxy`."""

    def __init__(self, app: Application, process: Process, loaded: Loaded) -> None:
        self._app = app
        self._process = process
        self._config = loaded.config
        clients = loaded.config.clients
        key = CLIENT_KEY if self._config.forwards_client_keys else None
        self._caller = Caller(clients[0].name) if clients else Caller(upstream_key=key)

    async def _seeded(self, request: Request, state: list[Json]) -> Request:
        """Store the recorded state. Returns the request with sealed texts that this proxy can open."""
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

    async def send(self, request: Request, state: list[Json]) -> Received:
        """Send a request and read its answer to the end, with `state` of the exchange in the state store."""
        request = await self._seeded(request, state)
        path, _, query = request["path"].partition("?")
        body = content_of({key: request[key] for key in ("body", "raw", "base64") if request.get(key) is not None})
        given = {name.lower(): value for name, value in request["headers"].items()}
        own = {"content-type": "application/json", "host": "127.0.0.1"}
        headers = {**own, **given, "authorization": f"Bearer {CLIENT_KEY}"}
        lines = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers.items()]
        asked = {"method": request["method"], "path": path, "query_string": query.encode(), "headers": lines}
        return await response_of(self._app, asked, body)


def silence() -> None:
    """Keep the log of played proxies to itself."""
    log.configure(TelemetryConfig(log_level="error"), stream=io.StringIO())
