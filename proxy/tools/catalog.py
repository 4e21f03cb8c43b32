"""From the entries of `tools:` to tools: the one place that knows every type."""
# ruff: noqa: PLC0415 - see `make_tool`

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import httpx
from msgspec.structs import replace

from proxy.config import (
    ClockConfig,
    Config,
    HttpToolConfig,
    McpConfig,
    PythonToolConfig,
    SerperConfig,
    SerperScrapeConfig,
    ToolConfig,
    WebFetchConfig,
    ZaiSearchConfig,
)
from proxy.loop.chat import Json, ToolOutput
from proxy.loop.errors import ToolError
from proxy.ports import Clock, Observer
from proxy.tools import browser
from proxy.tools.sources import Source
from proxy.tools.tool import Tool


@dataclass(frozen=True, slots=True)
class Resources:
    """What tools need. `client` sends their HTTP requests, without redirects, cookies and time limits."""

    client: httpx.AsyncClient
    clock: Clock


def tools_of(config: Config, resources: Resources) -> Iterator[Tool]:
    """Every tool of the configuration that can do something, by itself or through its fallback.

    The tools of MCP servers are not known yet: see `sources_of`.
    """
    by_fallback = dict(answered_by_fallback(config))
    entries = {**config.tools, **by_fallback}
    taken = {*entries, *(alias for entry in entries.values() for alias in entry.aliases)}
    for name, entry in entries.items():
        if isinstance(entry, McpConfig):
            continue
        made = make_tool(name, entry, resources)
        if name in by_fallback:
            made = replace(made, run=_not_configured)
        # The names of gpt-oss's browser are the first fitting tool's, unless the configuration gives them to another.
        own = tuple(alias for alias in made.aliases if not (alias in browser.NAMES and alias in taken))
        taken.update(own)
        yield replace(made, **_settings(made, entry, config), aliases=(*entry.aliases, *own))


def sources_of(config: Config, clock: Clock, observe: Observer) -> list[Source]:
    """The MCP servers of the configuration: their tools come and go."""
    servers = {name: entry for name, entry in config.tools.items() if isinstance(entry, McpConfig)}
    if not servers:
        return []
    from proxy.tools.mcp.client import McpServer

    def configured_by(entry: McpConfig) -> Callable[[Tool], Tool]:
        return lambda tool: replace(tool, **_settings(tool, entry, config))

    return [
        McpServer(name, entry, configured=configured_by(entry), clock=clock, observe=observe)
        for name, entry in servers.items()
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
            return clock_tool(name, resources.clock)
        case HttpToolConfig():
            from proxy.tools.http.api import http_tool

            return http_tool(name, entry, resources.client)
        case PythonToolConfig():
            from proxy.tools.python.entry_points import python_tool

            return python_tool(name, entry)
        case _:
            raise NotImplementedError(type(entry).__name__)


def _settings(tool: Tool, entry: ToolConfig, config: Config) -> dict[str, Any]:
    """The fields of `Tool` that an entry of any type may set; what it leaves open is the tool's own."""
    return {
        # `offer.mode: never` leaves a request free to name the tools without a mode of their own.
        "offer": entry.offer or ("declared" if config.offer.mode == "never" else config.offer.mode),
        "max_calls": entry.max_calls or tool.max_calls,
        "eager": entry.eager and tool.eager,
        "timeout": entry.timeout or tool.timeout,
        "retries": entry.retries or tool.retries,
        "max_concurrent": entry.max_concurrent_calls or tool.max_concurrent,
        "cache_seconds": entry.cache_seconds or tool.cache_seconds,
        "fallback": entry.fallback or tool.fallback,
    }


def answered_by_fallback(config: Config) -> Iterator[tuple[str, ToolConfig]]:
    """Tools without a key of their own whose fallback has one: they are offered, and the fallback does the work."""
    for where, disabled in config.disabled.items():
        section, _, name = where.partition(".")
        if section == "tools" and disabled.entry is not None and disabled.entry.fallback in config.tools:
            yield name, disabled.entry


async def _not_configured(_: Json) -> ToolOutput:
    raise ToolError("This tool is not configured.")


_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_TIME_ZONE = "IANA name such as Europe/Berlin or America/Vancouver; UTC if left out"


def clock_tool(name: str, clock: Clock) -> Tool:
    """`type: clock`: the current time, which models do not know and guess."""

    async def run(arguments: Json) -> str:
        zone_name = arguments.get("timezone") or "UTC"
        try:
            zone = UTC if zone_name.upper() == "UTC" else ZoneInfo(zone_name)
        except (ZoneInfoNotFoundError, ValueError, OSError) as exc:
            message = f"There is no time zone named {zone_name!r}; use an IANA name such as Europe/Berlin."
            raise ToolError(message) from exc
        now = datetime.fromtimestamp(clock.time(), zone)
        written = now.isoformat(" ", "seconds")  # 2026-01-31 09:30:00-08:00
        moment, offset = written[:19], written[19:].replace(":", "")
        return f"{_DAYS[now.weekday()]}, {moment} {zone_name} (UTC{offset})"

    return Tool(
        name=name,
        description="The current date, time and day of the week.",
        parameters={"type": "object", "properties": {"timezone": {"type": "string", "description": _TIME_ZONE}}},
        run=run,
    )
