"""The application of one configuration, with its upstream connections, tools and MCP servers.

An entry that is the same in the previous configuration keeps its state: an upstream its connections and its breaker, a
tool its cache, its breaker and its slots, an MCP server its session.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.types import ASGIApp

from proxy.api.known import KnownMessages
from proxy.api.middleware.admission import Admission
from proxy.api.middleware.clients import Auth
from proxy.api.middleware.cors import Cors, PageGuard
from proxy.api.middleware.recording import RecordRequests
from proxy.api.middleware.request_id import RequestId
from proxy.api.middleware.use import UseMeter
from proxy.api.middleware.user_sessions import UserSessions
from proxy.api.ports import Ports
from proxy.app.adapters import http_client_for, registry_of
from proxy.app.process import Process
from proxy.app.routes import error_shape, router_of
from proxy.config.loaded import Loaded
from proxy.config.model import UpstreamConfig
from proxy.kit.breaker import Breaker, BreakerState
from proxy.kit.readiness import KeyState, Readiness
from proxy.recording.recorded import RecordedStore
from proxy.tools.browser import Browser
from proxy.tools.catalog import tool_servers_of
from proxy.tools.registry import Registry
from proxy.tools.servers import SharedToolServer, UserToolsets
from proxy.tools.state import ToolState
from proxy.upstreams.endpoint import Endpoint
from proxy.upstreams.router import ConfigRouter

# Of the memory for bodies, what may be kept of the conversations that clients have sent; and the most, in bytes, which
# are some 75 conversations of 100 rounds with a tool.
_SHARE_OF_HISTORIES, _MOST_OF_HISTORIES = 16, 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class UpstreamLink:
    """An upstream's entry, with its connections and its breaker."""

    entry: UpstreamConfig
    endpoint: Endpoint
    breaker: Breaker


class Generation:
    """The application of one configuration.

    Args:
        process: the parts that all configurations share.
        loaded: the configuration.
        before: the generation that this one replaces; None at the start.

    Raises:
        ConfigurationError: a tool cannot be made, or two have the same name.
    """

    def __init__(self, process: Process, loaded: Loaded, before: "Generation | None" = None) -> None:
        self.loaded = loaded
        self.open_requests = 0
        self.registry = registry_of(
            loaded,
            process.resources,
            process.tools,
            observe=process.telemetry.observe,
            states=dict(_unchanged_states(before, loaded)) if before else {},
        )
        known = before.upstreams if before else {}
        self.upstreams: dict[str, UpstreamLink] = {
            name: link if (link := known.get(name)) and link.entry == entry else _link(process, name, entry)
            for name, entry in loaded.config.upstreams.items()
        }
        self.tool_servers = _tool_servers_of(process, loaded, before)
        for server in self.tool_servers.values():
            server.publish_to(self.registry)
        self.app = self._app_of(process)

    def report_closed_breakers(self, process: Process, before: "Generation") -> None:
        """Report the open breakers of the generation before that were not taken over as closed."""
        observe = process.telemetry.observe
        kept = {id(state.breaker) for state in self.registry.tool_states.values()}
        for name, state in before.registry.tool_states.items():
            if state.breaker.state is not BreakerState.CLOSED and id(state.breaker) not in kept:
                observe("tool.breaker_closed", tool=name)
        for name, link in before.upstreams.items():
            if link.breaker.state is not BreakerState.CLOSED and self.upstreams.get(name) is not link:
                observe("upstream.breaker_closed", upstream=name)

    async def aclose(self, others: Iterable["Generation"]) -> None:
        """Close the connections and MCP servers that no other generation uses."""
        used = {id(part) for other in others for part in (*other.upstreams.values(), *other.tool_servers.values())}
        for server in self.tool_servers.values():
            server.forget(self.registry)
            if id(server) not in used:
                await server.aclose()
        for link in self.upstreams.values():
            if id(link) not in used:
                await link.endpoint.client.aclose()

    def _app_of(self, process: Process) -> ASGIApp:
        """The middleware around the routes, the outermost layer first."""
        ports = self._ports(process)
        config = self.loaded.config
        server, needs_key = config.server, self.loaded.needs_key
        state, capacity, lifecycle = process.state, process.capacity, process.lifecycle
        timeout = server.queue_timeout_seconds
        layers: list[Callable[[ASGIApp], ASGIApp]] = [
            *([process.telemetry.incoming] if process.telemetry.incoming else []),
            *([functools.partial(Cors, cors=server.cors)] if server.cors else []),
            *([functools.partial(RecordRequests, cases=ports.cases, clock=ports.clock)] if ports.cases else []),
            functools.partial(RequestId, error_shape=error_shape, observe=ports.observe, clock=ports.clock),
            functools.partial(Admission, capacity=capacity, queue_timeout=timeout, lifecycle=lifecycle),
            *([] if needs_key else [functools.partial(PageGuard, cors=server.cors, is_public=server.allow_anonymous)]),
            functools.partial(Auth, config=config, needs_key=needs_key, rates=state.rates, leases=state.leases),
            *([functools.partial(UseMeter, ports=ports)] if config.counts_use else []),
            *([UserSessions] if self.loaded.user_headers else []),
        ]
        app: ASGIApp = router_of(ports)
        for layer in reversed(layers):
            app = layer(app)
        return app

    def _ports(self, process: Process) -> Ports:
        loaded, config, clock, telemetry = self.loaded, self.loaded.config, process.clock, process.telemetry
        endpoints = {name: link.endpoint for name, link in self.upstreams.items()}
        breakers = {name: link.breaker for name, link in self.upstreams.items()}
        observe = telemetry.observe
        names = config.upstreams if loaded.serves_operator else ()
        key_sources = {name: loaded.key_source(f"upstreams.{name}") for name in names}
        return Ports(
            config=config,
            router=ConfigRouter(
                config,
                endpoints,
                operator_calls=loaded.serves_operator,
                breakers=breakers,
                observe=observe,
                clock=clock,
                key_sources=key_sources,
            ),
            toolset=self.registry,
            dialect=Browser,
            store=RecordedStore(process.state.continuations),
            needs_key=loaded.needs_key,
            for_agent=loaded.for_agent,
            budgets=process.state.budgets,
            secrets=process.state.secrets,
            observe=observe,
            clock=clock,
            upstream_states=lambda: _upstream_states(loaded, self.upstreams),
            tool_states=lambda: _tool_states(loaded, [*self.tool_servers.values()], self.registry),
            state=process.state.readiness,
            is_draining=lambda: process.lifecycle.draining,
            user_headers=self.loaded.user_headers,
            toolset_for=UserToolsets(self.registry, self.tool_servers.values()).toolset_for,
            known=KnownMessages(min(process.capacity.bodies.limit // _SHARE_OF_HISTORIES, _MOST_OF_HISTORIES)),
            scrape=telemetry.scrape,
            recent_requests=telemetry.recent_requests(config),
            cases=telemetry.cases_under(self.loaded, lambda: self.registry.specs, process.state.secrets),
        )


def _link(process: Process, name: str, entry: UpstreamConfig) -> UpstreamLink:
    client = http_client_for(entry, process.transport, process.telemetry.extra_headers)
    keys = process.key_pools.pool_of(("upstream", name), entry.api_key, entry.base_url)
    endpoint = Endpoint.of(name, client, entry, keys)
    return UpstreamLink(entry, endpoint, Breaker(threshold=entry.breaker.failures, seconds=entry.breaker.seconds))


def _tool_servers_of(process: Process, loaded: Loaded, before: Generation | None) -> dict[str, SharedToolServer]:
    """The MCP servers of the configuration, shared with the previous one where the entries are the same."""
    kept = {
        name: server
        for name, server in (before.tool_servers if before else {}).items()
        if before and _entry(before.loaded, name) == _entry(loaded, name)
    }
    made = tool_servers_of(loaded, process.resources, leave_out=kept)
    return {**kept, **{server.name: SharedToolServer(server) for server in made}}


def _unchanged_states(before: Generation, loaded: Loaded) -> Iterator[tuple[str, ToolState]]:
    """The states of the tools whose entries have not changed."""
    for name, state in before.registry.tool_states.items():
        entry = before.registry.specs[name].group or name
        if _entry(before.loaded, entry) == _entry(loaded, entry):
            yield name, state.reloaded()


def _entry(loaded: Loaded, name: str) -> Any:
    """A tool's entry, usable or not, with the settings for it in other sections."""
    disabled = loaded.disabled.get(f"tools.{name}")
    return (
        loaded.config.tools.get(name),
        disabled and disabled.entry,
        loaded.config.offer.mode,
        loaded.secrets.get(f"tools.{name}"),
    )


def _states(section: str, usable: Iterable[str], loaded: Loaded) -> list[Readiness]:
    disabled = [Readiness(name, usable=False, why_not=entry.why) for name, entry in loaded.disabled_in(section).items()]
    return [*(Readiness(name, usable=True) for name in usable), *disabled]


def _upstream_states(loaded: Loaded, links: Mapping[str, UpstreamLink]) -> list[Readiness]:
    states = _states("upstreams", loaded.config.upstreams, loaded)
    return [_state_of(state, links[state.name]) if state.usable else state for state in states]


def _state_of(state: Readiness, link: UpstreamLink) -> Readiness:
    keys = None if link.endpoint.keys is None else link.endpoint.keys.states()
    return _with_keys(replace(state, breaker=link.breaker.state), keys)


def _with_keys(state: Readiness, keys: Sequence[KeyState] | None) -> Readiness:
    """The state of an upstream or a tool with that of its keys, if it has several."""
    state = replace(state, keys=keys)
    if not state.usable or keys is None or state.usable_keys:
        return state
    return replace(state, usable=False, why_not="all its keys are refused, or without credit or quota")


def _tool_states(loaded: Loaded, servers: Sequence[SharedToolServer], registry: Registry) -> list[Readiness]:
    skipped, keys = registry.skipped(), registry.key_states()
    states = {state.name: state for state in (shared.server.state() for shared in servers)}
    states |= {name: Readiness(name, usable=True) for name in loaded.answered_by_fallback}
    found = [states.get(state.name, state) for state in _states("tools", loaded.config.tools, loaded)]
    found = [
        replace(state, keys=keys.get(state.name))  # the fallback answers while all of them rest
        if (entry := loaded.config.tools.get(state.name)) and loaded.config.tools.keys() & set(entry.fallbacks)
        else _with_keys(state, keys.get(state.name))
        for state in found
    ]
    return [
        replace(state, breaker=BreakerState.OPEN, cause=cause) if (cause := skipped.get(state.name)) else state
        for state in found
    ]
