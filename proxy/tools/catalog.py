"""From the entries of `tools:` to tools: the one place that knows every type."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import httpx

from proxy.config import ClockConfig, Config, SerperConfig, ToolConfig, WebFetchConfig, ZaiSearchConfig
from proxy.core.chat import Json, ToolOutput
from proxy.core.errors import ToolError
from proxy.ports import Clock
from proxy.tools.clock import clock_tool
from proxy.tools.serper import serper_tool
from proxy.tools.tool import Tool
from proxy.tools.web_fetch import web_fetch_tool
from proxy.tools.zai_search import zai_search_tool


@dataclass(frozen=True, slots=True)
class Resources:
    """What tools are made of. `client` carries their HTTP requests, without redirects, cookies and time limits."""

    client: httpx.AsyncClient
    clock: Clock


def tools_of(config: Config, resources: Resources) -> Iterator[Tool]:
    """Every tool of the configuration that can do something, by itself or through its fallback."""
    for name, entry in config.tools.items():
        yield _with_its_terms(make_tool(name, entry, resources), entry, config)
    for name, entry in _with_a_stand_in(config):
        made = _with_its_terms(make_tool(name, entry, resources), entry, config)
        yield replace(made, run=_not_usable)


def make_tool(name: str, entry: ToolConfig, resources: Resources) -> Tool:
    """One entry as a tool. The configuration's schema knows no type that is not handled here."""
    match entry:
        case SerperConfig():
            return serper_tool(name, entry, resources.client)
        case ZaiSearchConfig():
            return zai_search_tool(name, entry, resources.client)
        case WebFetchConfig():
            return web_fetch_tool(name, entry, resources.clock)
        case ClockConfig():
            return clock_tool(name, resources.clock)
        case _:
            raise NotImplementedError(type(entry).__name__)


def _with_its_terms(tool: Tool, entry: ToolConfig, config: Config) -> Tool:
    """The tool on the terms that its entry sets, whatever its type is."""
    terms: dict[str, Any] = {
        "aliases": (*entry.aliases, *(alias for alias in tool.aliases if alias not in entry.aliases)),
        "offer": entry.offer or config.offer.mode,
        "max_calls": entry.max_calls,
        "eager": entry.eager and tool.eager,
        "timeout": entry.timeout,
        "retries": entry.retries,
        "max_concurrent": entry.max_concurrent_calls,
        "cache_seconds": entry.cache_seconds,
        "fallback": entry.fallback,
    }
    return replace(tool, **terms)


def _with_a_stand_in(config: Config) -> Iterator[tuple[str, ToolConfig]]:
    """Tools without a key of their own whose fallback has one: they are offered, and it does the work."""
    for where, disabled in config.disabled.items():
        section, _, name = where.partition(".")
        if section == "tools" and disabled.entry is not None and disabled.entry.fallback in config.tools:
            yield name, disabled.entry


async def _not_usable(_: Json) -> ToolOutput:
    raise ToolError("This tool is not configured.")
