"""The composition root: the only place that names concrete adapters; its lifespan closes what it opened."""

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpx
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from proxy import __version__
from proxy.api.body_memory import BodyMemory, available_memory
from proxy.api.chat_completions import ChatCompletions
from proxy.api.debug.endpoint import Debug
from proxy.api.endpoints import Healthz, Metrics, Models, Readyz, Root, WrongMethod
from proxy.api.messages.endpoint import CountTokens, CreateMessage
from proxy.api.middleware.admission import Admission
from proxy.api.middleware.clients import Auth, Quota, is_limited
from proxy.api.middleware.cors import Cors
from proxy.api.middleware.request_id import RequestId
from proxy.api.passthrough import Passthrough
from proxy.api.responses.endpoint import CreateResponse
from proxy.api.responses.stored import CancelResponse, InputItems, NotServed, ResponseById
from proxy.breaker import Breaker
from proxy.breaker import State as BreakerState
from proxy.config import Config, ServerConfig, UpstreamConfig
from proxy.http.client import HttpClient
from proxy.http.connect import client_context
from proxy.http.transport import Http1Transport, HttpxTransport
from proxy.loop.errors import ConfigurationError, NotFound
from proxy.loop.results import Cause
from proxy.ports import Caches, Clock, ExtraHeaders, Lifecycle, Observer, Ports, Readiness
from proxy.stores import State, open_state
from proxy.telemetry import build_telemetry, log
from proxy.tools.browser import Browser
from proxy.tools.catalog import Resources, answered_by_fallback, sources_of, tools_of
from proxy.tools.registry import Registry, Source, local_caches, sources_running
from proxy.tools.tool import Tool
from proxy.upstreams.connection import Connection
from proxy.upstreams.router import ConfigRouter


class SystemClock:
    """The real time. Implements `ports.Clock`."""

    monotonic = staticmethod(time.monotonic)
    time = staticmethod(time.time)
    sleep = staticmethod(asyncio.sleep)


def create_app(
    config: Config,
    *,
    tools: Iterable[Tool] = (),
    transport: httpx.AsyncBaseTransport | None = None,
    clock: Clock | None = None,
    lifecycle: Lifecycle | None = None,
) -> ASGIApp:
    """The proxy as an ASGI application: middleware of its own around Starlette's router.

    Args:
        config: the configuration, as `config_file.load` reads it.
        tools: more tools, beside those of the configuration.
        transport: carries every request to upstreams and tools; None: each has one of its own.
        clock: the time; tests give one that they move.
        lifecycle: where the server notes that it is about to stop.

    Raises:
        ConfigurationError: a tool cannot be made, or two have the same name.
    """
    clock = clock or SystemClock()
    telemetry = build_telemetry(config, clock, version=__version__)
    observe = telemetry.observe
    client = tool_client(transport, telemetry.extra_headers)
    connections = _connections_of(config, transport, telemetry.extra_headers)
    breakers = _breakers_of(config)
    state = _state_of(config, clock, observe)
    registry = registry_of(config, client, tools, clock=clock, observe=observe, caches=state.caches)
    sources = sources_of(config, clock, observe)
    ports = Ports(
        config=config,
        router=ConfigRouter(config, connections, breakers=breakers, observe=observe, clock=clock),
        toolset=registry,
        dialect=Browser,
        store=state.continuations,
        observe=observe,
        clock=clock,
        upstream_states=lambda: _upstream_states(config, breakers),
        tool_states=lambda: _tool_states(config, sources, registry.skipped()),
        state=state.readiness,
        lifecycle=lifecycle or Lifecycle(),
        scrape=telemetry.scrape,
        history=telemetry.history,
    )
    closing = [client.aclose, *(connection.aclose for connection in connections.values())]

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        try:
            async with state.running(), sources_running(sources, registry.put_group):
                yield
        finally:
            for close in closing:
                await close()
            await asyncio.to_thread(telemetry.close)

    layers = [*([telemetry.incoming] if telemetry.incoming else []), *_layers(ports, state)]
    return _wrapped(_router_of(ports, lifespan), layers)


def _connections_of(
    config: Config, transport: httpx.AsyncBaseTransport | None, extra_headers: ExtraHeaders | None
) -> dict[str, Connection]:
    return {
        name: Connection(
            name,
            http_client_for(upstream, transport, extra_headers),
            headers=upstream.headers,
            forward_headers=upstream.forward_headers,
        )
        for name, upstream in config.upstreams.items()
    }


def _breakers_of(config: Config) -> dict[str, Breaker]:
    return {
        name: Breaker(threshold=upstream.breaker.failures, seconds=upstream.breaker.seconds)
        for name, upstream in config.upstreams.items()
    }


def _state_of(config: Config, clock: Clock, observe: Observer) -> State:
    memory = _memory_of_worker(config.server) // 8
    return open_state(config.state, clock=clock, observe=observe, caches=local_caches(clock), memory=memory)


def _router_of(ports: Ports, lifespan: Callable[[Any], AbstractAsyncContextManager[None]]) -> Router:
    hot = _hot_paths(ports)
    # Starlette would make redirects from the Host header.
    return _Router(hot, _routes(ports, hot), default=_not_routed, lifespan=lifespan, redirect_slashes=False)


class _Router(Router):
    """Starlette's router, past which a POST to one of a few paths goes at once: 4 % of a request's instructions.

    Args:
        posts: the endpoints of these paths.
        routes: all other routes.
        options: of Starlette's router.
    """

    def __init__(self, posts: Mapping[str, ASGIApp], routes: Sequence[Route], **options: Any) -> None:
        super().__init__(routes, **options)
        self._posts = posts

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:  # type: ignore[override]
        """Implements ASGI."""
        endpoint = self._posts.get(scope["path"]) if scope.get("method") == "POST" else None
        return endpoint(scope, receive, send) if endpoint else super().__call__(scope, receive, send)


def _memory_of_worker(server: ServerConfig) -> int:
    """Bytes. Half of them are for the bodies of open requests and an eighth for what is kept between requests.

    The rest is for the interpreter (60 MB), answers, and what no estimate knows.
    """
    return available_memory() // server.workers


def _wrapped(app: ASGIApp, layers: Sequence[Callable[[ASGIApp], ASGIApp]]) -> ASGIApp:
    """The app with layers around it, the first one outermost."""
    for layer in reversed(layers):
        app = layer(app)
    return app


def registry_of(
    config: Config,
    client: httpx.AsyncClient,
    tools: Iterable[Tool] = (),
    *,
    clock: Clock,
    observe: Observer,
    caches: Caches | None = None,
) -> Registry:
    """The tools of the configuration and further ones. Raises `ConfigurationError`, as `create_app` does."""
    try:
        return Registry(
            [*tools_of(config, Resources(client, clock)), *tools], clock=clock, observe=observe, caches=caches
        )
    except ValueError as exc:
        raise ConfigurationError([f"tools: {exc}"]) from exc


def origins_of(config: Config) -> dict[str, str]:
    """Where each tool of the configuration comes from, for `toolproxy check`. Raises `ConfigurationError`."""
    return registry_of(config, tool_client(), clock=SystemClock(), observe=log.LogObserver()).origins


def tool_client(
    transport: httpx.AsyncBaseTransport | None = None, extra_headers: ExtraHeaders | None = None
) -> httpx.AsyncClient:
    """For calls of other people's servers: no redirects, nothing from the environment, no cookie kept between calls.

    The registry bounds each call, so the client does not.
    """

    async def add_headers(request: httpx.Request) -> None:
        request.headers.update(list(extra_headers() if extra_headers else ()))

    return httpx.AsyncClient(
        # Not the stock transport, which keeps connections of calls that were given up, as those of clients that leave.
        transport=transport or Http1Transport(),
        timeout=httpx.Timeout(None),
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        trust_env=False,
        event_hooks={"request": [add_headers] if extra_headers else []},
    )


def http_client_for(
    upstream: UpstreamConfig,
    transport: httpx.AsyncBaseTransport | None = None,
    extra_headers: ExtraHeaders | None = None,
) -> HttpClient:
    """The client for an upstream: over the transport that its entry chooses, or over one that is injected."""
    if transport is None and upstream.transport == "auto":
        own = Http1Transport(max_connections=upstream.max_connections)
        return HttpClient(own, upstream.base_url, upstream.timeouts, extra_headers=extra_headers)
    # As many idle connections as there may be: httpcore closes a surplus, and has closed ones just handed out (#1110).
    limits = httpx.Limits(max_connections=upstream.max_connections, max_keepalive_connections=upstream.max_connections)
    stock = transport or httpx.AsyncHTTPTransport(verify=client_context(), limits=limits, trust_env=False)
    return HttpClient(HttpxTransport(stock), upstream.base_url, upstream.timeouts, extra_headers=extra_headers)


def _states(section: str, usable: Iterable[str], config: Config) -> list[Readiness]:
    disabled = [
        Readiness(where.removeprefix(f"{section}."), usable=False, why_not=entry.why)
        for where, entry in config.disabled.items()
        if where.startswith(f"{section}.")
    ]
    return [*(Readiness(name, usable=True) for name in usable), *disabled]


def _upstream_states(config: Config, breakers: Mapping[str, Breaker]) -> list[Readiness]:
    states = _states("upstreams", config.upstreams, config)
    return [replace(state, breaker=breakers[state.name].state) if state.usable else state for state in states]


def _tool_states(config: Config, sources: Sequence[Source], skipped: Mapping[str, Cause]) -> list[Readiness]:
    states = {state.name: state for state in (source.state() for source in sources)}
    states |= {name: Readiness(name, usable=True) for name, _ in answered_by_fallback(config)}
    found = [states.get(state.name, state) for state in _states("tools", config.tools, config)]
    return [
        replace(state, breaker=BreakerState.OPEN, cause=cause) if (cause := skipped.get(state.name)) else state
        for state in found
    ]


def _hot_paths(ports: Ports) -> dict[str, ASGIApp]:
    """The paths that most requests ask for, each with its application."""
    chat = ChatCompletions(ports)
    create = CreateResponse(ports)
    return {
        "/v1/chat/completions": chat,
        "/chat/completions": chat,
        "/v1/responses": create,
        "/responses": create,
        "/v1/messages": CreateMessage(ports),
        "/v1/messages/count_tokens": CountTokens(ports),
    }


def _routes(ports: Ports, hot: Iterable[str]) -> list[Route]:
    models = Models(ports)
    debug = Debug(ports, ports.history) if ports.history else None
    return [
        *(Route(path, WrongMethod("POST")) for path in hot),
        *(route for root in ("/v1/responses", "/responses") for route in _below_responses(root, ports)),
        *(Route(f"/v1/conversations{rest}", NotServed(ports)) for rest in ("", "/{rest:path}")),
        Route("/v1/messages/{rest:path}", NotServed(ports)),
        Route("/", Root()),
        *_own("/v1/models", models, "GET"),
        *_own("/v1/models/{id:path}", models, "GET"),
        *_own("/healthz", Healthz(), "GET"),
        *_own("/readyz", Readyz(ports), "GET"),
        *(_own("/metrics", Metrics(ports.scrape), "GET") if ports.scrape else ()),
        *(_own("/debug", debug, "GET") if debug else ()),
        *(_own("/debug/requests/{id}", debug, "GET") if debug else ()),
        Route("/v1/{path:path}", Passthrough(ports)),
    ]


def _below_responses(root: str, ports: Ports) -> list[Route]:
    """What there is of kept responses, and what there is not."""
    nothing = NotServed(ports)
    return [
        *(Route(f"{root}/{name}", nothing) for name in ("compact", "input_tokens")),
        *_own(f"{root}/{{id}}", ResponseById(ports), "GET", "DELETE"),
        *_own(f"{root}/{{id}}/input_items", InputItems(ports), "GET"),
        *_own(f"{root}/{{id}}/cancel", CancelResponse(ports), "POST"),
        Route(f"{root}/{{rest:path}}", nothing),
    ]


def _own(path: str, endpoint: ASGIApp, *methods: str) -> tuple[Route, Route]:
    """A path of ours; with another method it is not handed to an upstream either."""
    return Route(path, endpoint, methods=list(methods)), Route(path, WrongMethod(", ".join(methods)))


def _layers(ports: Ports, state: State) -> list[Callable[[ASGIApp], ASGIApp]]:
    """The middleware, from the outside in."""
    server, clients = ports.config.server, ports.config.clients
    limited = [client for client in clients if is_limited(client)]
    bodies = BodyMemory(server.max_body_memory or _memory_of_worker(server) // 2)
    return [
        *([functools.partial(Cors, cors=server.cors)] if server.cors else []),
        functools.partial(RequestId, observe=ports.observe, clock=ports.clock),
        functools.partial(Admission, server=server, lifecycle=ports.lifecycle, bodies=bodies),
        functools.partial(Auth, clients=clients),
        *([functools.partial(Quota, clients=limited, rates=state.rates, leases=state.leases)] if limited else []),
    ]


async def _not_routed(scope: Scope, _: Receive, send: Send) -> None:
    """A path that is nobody's."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1000})
        return
    raise NotFound(f"There is no {scope['path']} here.")
