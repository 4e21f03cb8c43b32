"""Makes tools from the entries of `tools:`; no other module knows every type of tool."""
# ruff: noqa: PLC0415 - see `make_tool`

import importlib
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import httpx
from msgspec.structs import replace

from proxy.config.model import (
    ClockConfig,
    Config,
    HttpToolConfig,
    McpConfig,
    PythonToolConfig,
    SearchConfig,
    SerperConfig,
    SerperScrapeConfig,
    ToolConfig,
    WebFetchConfig,
    ZaiSearchConfig,
    place_of,
)
from proxy.loop.results import NotConfigured, ToolError, ToolOutput
from proxy.ports import Caches, Clock, Observer
from proxy.tools import browser
from proxy.tools.result_cache import local_caches
from proxy.tools.servers import ToolServer
from proxy.tools.tool import RunTool, Tool
from proxy.wire.chat import Json
from proxy.wire.errors import ConfigurationError

if TYPE_CHECKING:
    from proxy.tools.web.pages import PageCache

ENTRY_POINTS = "toolproxy.tools"


@dataclass(frozen=True)
class Resources:
    """The resources that tools share.

    client   sends HTTP requests, without redirects, cookies and time limits
    clock    the time
    caches   makes the caches of results and pages; None: in this process
    """

    client: httpx.AsyncClient
    clock: Clock
    caches: Caches | None = None

    @cached_property
    def pages(self) -> "PageCache":
        """The cache of the pages that tools have recently read or found, shared by all tools."""
        from proxy.tools.web.pages import PageCache

        return PageCache(self.caches or local_caches(self.clock))


def tools_of(config: Config, resources: Resources) -> Iterator[Tool]:
    """Every tool of the configuration that can answer, by itself or through its fallback.

    The tools of MCP servers are not known yet: see `tool_servers_of`.

    Raises:
        ConfigurationError: some tools cannot be made; raised after the others, with the faults of all of them.
    """
    by_fallback = dict(answered_by_fallback(config))
    entries = {**config.tools, **by_fallback}
    taken = {*entries, *(alias for entry in entries.values() for alias in entry.aliases)}
    faults: list[str] = []
    for name, entry in entries.items():
        if isinstance(entry, McpConfig):
            continue
        try:
            made = make_tool(name, entry, resources)
        except ConfigurationError as exc:
            faults += [place_of(fault, config) for fault in exc.faults]
            continue
        if name in by_fallback:
            made = replace(made, run=_refusing_run(config.disabled[f"tools.{name}"].why), run_filtered=None)
        # The first suitable tool gets the names of gpt-oss's browser, unless the configuration gives them to another.
        own = tuple(alias for alias in made.aliases if not (alias in browser.NAMES and alias in taken))
        taken.update(own)
        yield replace(made, **_settings(made, entry, config), aliases=(*entry.aliases, *own))
    if faults:
        raise ConfigurationError(faults)


def tool_servers_of(
    config: Config, clock: Clock, observe: Observer, *, leave_out: Container[str] = ()
) -> list[ToolServer]:
    """The MCP servers of the configuration, whose tools may change at any time."""
    entries = ((name, entry) for name, entry in config.tools.items() if name not in leave_out)
    servers = {name: entry for name, entry in entries if isinstance(entry, McpConfig)}
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
    """The tool of an entry, of any type in the configuration's schema.

    The module of a type is imported only if there is a tool of that type: importing all takes a quarter of a second.
    """
    match entry:
        case SearchConfig():
            from proxy.tools.search.tool import search_tool

            return search_tool(name, entry, resources.client, resources.clock, resources.pages)
        case SerperConfig():
            from proxy.tools.search.serper import serper_tool

            return serper_tool(name, entry, resources.client, resources.clock, resources.pages)
        case SerperScrapeConfig():
            from proxy.tools.search.serper_scrape import serper_scrape_tool

            return serper_scrape_tool(name, entry, resources.client, resources.pages)
        case ZaiSearchConfig():
            from proxy.tools.search.zai import zai_search_tool

            return zai_search_tool(name, entry, resources.client, resources.clock, resources.pages)
        case WebFetchConfig():
            from proxy.tools.web.fetch import web_fetch_tool

            return web_fetch_tool(name, entry, resources.clock, pages=resources.pages)
        case ClockConfig():
            return clock_tool(name, resources.clock)
        case HttpToolConfig():
            from proxy.tools.http.api import http_tool

            return http_tool(name, entry, resources.client)
        case PythonToolConfig():
            return python_tool(name, entry)
        case _:
            raise NotImplementedError(type(entry).__name__)


def _settings(tool: Tool, entry: ToolConfig, config: Config) -> dict[str, Any]:
    """The fields of `Tool` that an entry of any type may set, with the tool's own values where it does not."""
    return {
        # With `offer.mode: never`, a request may still name the tools without a mode of their own.
        "offer": entry.offer or ("declared" if config.offer.mode == "never" else config.offer.mode),
        "max_calls": entry.max_calls or tool.max_calls,
        "eager": entry.eager and tool.eager,
        "price": tool.price if entry.price is None else entry.price,
        "timeout": entry.timeout or tool.timeout,
        "retries": entry.retries or tool.retries,
        "max_concurrent": entry.max_concurrent_calls or tool.max_concurrent,
        "cache_seconds": entry.cache_seconds or tool.cache_seconds,
        "fallback": entry.fallback or tool.fallback,
        "version": sha256(repr(entry).encode()).hexdigest()[:16],
    }


def answered_by_fallback(config: Config) -> Iterator[tuple[str, ToolConfig]]:
    """Tools without a key of their own whose fallback has one: they are offered, and the fallback answers."""
    for where, disabled in config.disabled.items():
        section, _, name = where.partition(".")
        if section == "tools" and disabled.entry is not None and config.tools.keys() & set(disabled.entry.fallbacks):
            yield name, disabled.entry


def _refusing_run(why: str) -> RunTool:
    async def run(_: Json) -> ToolOutput:
        raise NotConfigured("This tool is not configured.", why=why)

    return run


_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_TIME_ZONE = "IANA name such as Europe/Berlin or America/Vancouver; UTC if left out"


def clock_tool(name: str, clock: Clock) -> Tool:
    """`type: clock`: the current time, at which models would otherwise guess."""

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


def python_tool(name: str, config: PythonToolConfig) -> Tool:
    """`type: python`: the function or `Tool` that an entry names, as a tool with the entry's name.

    Raises:
        ConfigurationError: there is no such object, it cannot be imported, or no model could call it.
    """
    set_by_entry = {"description": config.description, "parameters": config.parameters}
    fields: dict[str, Any] = {key: value for key, value in set_by_entry.items() if value is not None}
    try:
        found, origin = _find_python(config.function or name)
        if isinstance(found, Tool):
            return replace(found, name=name, origin=origin, **fields)
        return Tool.from_function(found, name=name, origin=origin, **fields)
    except ValueError as exc:
        raise ConfigurationError([f"tools.{name}.function: {' '.join(str(exc).split())}"]) from exc


def unused_entry_points(config: Config) -> list[str]:
    """The origins of the installed entry points that no tool of the configuration uses."""
    entries = [(name, tool) for name, tool in config.tools.items() if isinstance(tool, PythonToolConfig)]
    used = {tool.function or name for name, tool in entries}
    return [_origin(found) for found in entry_points(group=ENTRY_POINTS) if found.name not in used]


def _find_python(reference: str) -> tuple[Any, str]:
    """The object that a reference names, `module:attribute` or the name of an entry point, and its origin."""
    if ":" in reference:
        return _load(EntryPoint(reference, reference, ENTRY_POINTS)), reference
    points = [*entry_points(group=ENTRY_POINTS, name=reference)]
    if not points:
        raise ValueError(f"there is no entry point {reference!r} of {ENTRY_POINTS}; a function is module:function")
    if len(points) > 1:
        raise ValueError(f"there are several: {', '.join(_origin(point) for point in points)}")
    return _load(points[0]), _origin(points[0])


def _load(point: EntryPoint) -> Any:
    importlib.invalidate_caches()
    try:
        return point.load()
    except (Exception, SystemExit) as exc:  # importing runs the module, which may fail in any way
        raise ValueError(f"{point.value} cannot be imported: {type(exc).__name__}: {exc}") from exc


def _origin(point: EntryPoint) -> str:
    found = f"entry point {point.name}"
    return f"{found} of {point.dist.name} {point.dist.version}" if point.dist else found
