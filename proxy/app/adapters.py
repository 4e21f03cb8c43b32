"""The tools, and the HTTP clients for upstreams and tools, made from the entries of a configuration."""

import asyncio
import time
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import httpx

from proxy.config.loaded import Loaded
from proxy.config.model import UpstreamConfig
from proxy.http.client import HttpClient, ServiceClient, Transport
from proxy.http.connect import client_context
from proxy.http.forward_proxy import environment_proxies
from proxy.http.transport import Http1Transport, HttpxTransport
from proxy.http.tunnel import EnvironmentTransport, ProxiedTransport
from proxy.ports import ExtraHeaders, Observer
from proxy.telemetry import log
from proxy.tools.catalog import tools_of
from proxy.tools.check import check_of
from proxy.tools.kinds import kind_of
from proxy.tools.registry import Registry
from proxy.tools.state import ToolState
from proxy.tools.tool import Tool
from proxy.tools.tool_type import Resources
from proxy.wire.errors import ConfigurationError


class SystemClock:
    """The real time. Implements `ports.Clock`."""

    monotonic = staticmethod(time.monotonic)
    time = staticmethod(time.time)
    sleep = staticmethod(asyncio.sleep)


def registry_of(
    loaded: Loaded,
    resources: Resources,
    tools: Iterable[Tool] = (),
    *,
    observe: Observer,
    states: Mapping[str, ToolState] = MappingProxyType({}),
) -> Registry:
    """The registry of the configuration's tools and of `tools`. Raises `ConfigurationError`, as `create_app` does."""
    for entry in loaded.config.tools.values():
        if address := kind_of(entry).address(entry):
            environment_proxies().proxy_for(address)  # raises for a proxy that cannot be used
    try:
        check = check_of(loaded.config.tools_check, "tools_check")
    except ConfigurationError as exc:
        raise ConfigurationError([loaded.place_of(fault) for fault in exc.faults]) from exc
    try:
        return Registry(
            [*tools_of(loaded, resources), *tools],
            clock=resources.clock,
            observe=observe,
            caches=resources.caches,
            states=states,
            check=check,
        )
    except ValueError as exc:
        raise ConfigurationError([loaded.place_of(f"tools: {exc}")]) from exc


def origins_of(loaded: Loaded) -> dict[str, str]:
    """The origin of each tool of the configuration, for `toolproxy check`. Raises `ConfigurationError`."""
    return registry_of(loaded, Resources(tool_client(), SystemClock()), observe=log.LogObserver()).origins


def tool_client(
    transport: httpx.AsyncBaseTransport | None = None, extra_headers: ExtraHeaders | None = None
) -> ServiceClient:
    """The HTTP client of tools, for servers of third parties.

    Of the environment, the client obeys only the variables that name a forward proxy. It has no timeout, because the
    registry bounds each call.
    """
    proxies = environment_proxies()
    own: Transport
    if transport is not None:
        own = HttpxTransport(transport)
    else:
        own = EnvironmentTransport(proxies) if proxies.named else Http1Transport()
    return ServiceClient(own, extra_headers)


def http_client_for(
    upstream: UpstreamConfig,
    transport: httpx.AsyncBaseTransport | None = None,
    extra_headers: ExtraHeaders | None = None,
) -> HttpClient:
    """The client for an upstream, over the transport that its entry chooses, or over `transport` if it is given.

    Raises:
        ConfigurationError: the environment names a proxy for the upstream that cannot be used.
    """
    proxy = environment_proxies().proxy_for(upstream.base_url)
    most = upstream.max_connections
    own: Transport
    if transport is not None:
        own = HttpxTransport(transport)
    elif upstream.transport == "httpx":
        # All may be idle: httpcore closes surplus idle ones, some of which it has just assigned (issue #1110).
        limits = httpx.Limits(max_connections=most, max_keepalive_connections=most)
        through = httpx.Proxy(**proxy.options) if proxy else None
        stock = httpx.AsyncHTTPTransport(verify=client_context(), limits=limits, trust_env=False, proxy=through)
        own = HttpxTransport(stock)
    else:
        own = ProxiedTransport(proxy, max_connections=most) if proxy else Http1Transport(max_connections=most)
    return HttpClient(own, upstream.base_url, upstream.timeouts, extra_headers=extra_headers)
