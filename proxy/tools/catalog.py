"""From the entries of `tools:` to tools: the one place that knows every type."""
# ruff: noqa: PLC0415 - see `make_tool`

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import httpx

from proxy.config import (
    ClockConfig,
    Config,
    HttpToolConfig,
    McpConfig,
    OfferMode,
    PythonToolConfig,
    SerperConfig,
    SerperScrapeConfig,
    ToolConfig,
    WebFetchConfig,
    ZaiSearchConfig,
)
from proxy.loop import browser
from proxy.loop.chat import Json, ToolOutput
from proxy.loop.errors import ToolError
from proxy.ports import Clock, Observer
from proxy.tools.sources import Source
from proxy.tools.tool import Tool


@dataclass(frozen=True, slots=True)
class Resources:
    """What tools are made of. `client` carries their HTTP requests, without redirects, cookies and time limits."""

    client: httpx.AsyncClient
    clock: Clock


def tools_of(config: Config, resources: Resources) -> Iterator[Tool]:
    """Every tool of the configuration that can do something, by itself or through its fallback.

    Those of MCP servers are not known yet: see `sources_of`.
    """
    stand_ins = dict(answered_by_fallback(config))
    entries = {**config.tools, **stand_ins}
    taken = {*entries, *(alias for entry in entries.values() for alias in entry.aliases)}
    for name, entry in entries.items():
        if isinstance(entry, McpConfig):
            continue
        made = make_tool(name, entry, resources)
        if name in stand_ins:
            made = replace(made, run=_not_usable)
        # Names that the configuration did not ask for are the first tool's that would have them.
        own = tuple(alias for alias in made.aliases if not (alias in browser.NAMES and alias in taken))
        taken.update(own)
        yield replace(made, **_terms(made, entry, config), aliases=(*entry.aliases, *own))


def sources_of(config: Config, clock: Clock, observe: Observer) -> list[Source]:
    """Every server of the configuration whose tools come and go."""
    servers = {name: entry for name, entry in config.tools.items() if isinstance(entry, McpConfig)}
    if not servers:
        return []
    from proxy.tools.mcp.client import McpServer

    def terms_of(entry: McpConfig) -> Callable[[Tool], Tool]:
        return lambda tool: replace(tool, **_terms(tool, entry, config))

    return [
        McpServer(name, entry, terms=terms_of(entry), clock=clock, observe=observe) for name, entry in servers.items()
    ]


def make_tool(name: str, entry: ToolConfig, resources: Resources) -> Tool:  # noqa: PLR0911 - one for each type
    """One entry as a tool. The configuration's schema knows no type that is not handled here.

    A type is imported where there is a tool of it: all of them take a quarter of a second.
    """
    match entry:
        case SerperConfig():
            from proxy.tools.search.serper import serper_tool

            return serper_tool(name, entry, resources.client)
        case SerperScrapeConfig():
            from proxy.tools.web.serper_scrape import serper_scrape_tool

            return serper_scrape_tool(name, entry, resources.client)
        case ZaiSearchConfig():
            from proxy.tools.search.zai import zai_search_tool

            return zai_search_tool(name, entry, resources.client)
        case WebFetchConfig():
            from proxy.tools.web.fetch import web_fetch_tool

            return web_fetch_tool(name, entry, resources.clock)
        case ClockConfig():
            from proxy.tools.clock import clock_tool

            return clock_tool(name, resources.clock)
        case HttpToolConfig():
            from proxy.tools.http.api import http_tool

            return http_tool(name, entry, resources.client)
        case PythonToolConfig():
            from proxy.tools.python.function import python_tool

            return python_tool(name, entry)
        case _:
            raise NotImplementedError(type(entry).__name__)


def _terms(tool: Tool, entry: ToolConfig, config: Config) -> dict[str, Any]:
    """The terms that an entry sets for its tool, whatever its type is; what it leaves open is the tool's own."""
    return {
        "offer": entry.offer or _mode_of_all(config),
        "max_calls": entry.max_calls or tool.max_calls,
        "eager": entry.eager and tool.eager,
        "timeout": entry.timeout or tool.timeout,
        "retries": entry.retries or tool.retries,
        "max_concurrent": entry.max_concurrent_calls or tool.max_concurrent,
        "cache_seconds": entry.cache_seconds or tool.cache_seconds,
        "fallback": entry.fallback or tool.fallback,
    }


def _mode_of_all(config: Config) -> OfferMode:
    """The mode of tools without one of their own. `never` for all of them leaves a request free to name them."""
    return "declared" if config.offer.mode == "never" else config.offer.mode


def answered_by_fallback(config: Config) -> Iterator[tuple[str, ToolConfig]]:
    """Tools without a key of their own whose fallback has one: they are offered, and it does the work."""
    for where, disabled in config.disabled.items():
        section, _, name = where.partition(".")
        if section == "tools" and disabled.entry is not None and disabled.entry.fallback in config.tools:
            yield name, disabled.entry


async def _not_usable(_: Json) -> ToolOutput:
    raise ToolError("This tool is not configured.")
