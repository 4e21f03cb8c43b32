"""Makes tools, and servers of tools, from the entries of `tools:`."""

from collections.abc import Callable, Container, Iterator
from dataclasses import replace as with_fields
from hashlib import sha256
from typing import Any

from msgspec.structs import replace

from proxy.config.loaded import Loaded
from proxy.config.model import Config, ToolConfig
from proxy.loop.results import NotConfigured, ToolOutput
from proxy.tools import browser
from proxy.tools.check import Check, check_of
from proxy.tools.kinds import kind_of
from proxy.tools.servers import ToolServer
from proxy.tools.tool import RunTool, Tool
from proxy.tools.tool_type import Resources
from proxy.wire.chat import Json
from proxy.wire.errors import ConfigurationError


def tools_of(loaded: Loaded, resources: Resources) -> Iterator[Tool]:
    """Every tool of the configuration that can answer, by itself or through its fallback.

    The tools of servers that list them are not known yet: see `tool_servers_of`.

    Raises:
        ConfigurationError: some tools cannot be made; raised after the others, with the faults of all of them.
    """
    config = loaded.config
    rules = next((rules(entry) for entry in config.tools.values() if (rules := kind_of(entry).page_rules)), None)
    resources = with_fields(resources, page_rules=rules)
    by_fallback = loaded.answered_by_fallback
    entries = {**config.tools, **by_fallback}
    taken = {*entries, *(alias for entry in entries.values() for alias in entry.aliases)}
    faults: list[str] = []
    for name, entry in entries.items():
        make = kind_of(entry).make
        try:
            check = check_of(entry.check, f"tools.{name}.check")
            secrets = loaded.secrets.get(f"tools.{name}", frozenset())
            made = make(name, entry, with_fields(resources, secrets=secrets)) if make else None
        except ConfigurationError as exc:
            faults += map(loaded.place_of, exc.faults)
            continue
        if made is None:
            continue
        if name in by_fallback:
            run = _refusing_run(loaded.disabled[f"tools.{name}"].why)
            made = replace(made, run=run, run_filtered=None, run_in_call=None)
        # The first suitable tool gets the names of gpt-oss's browser, unless the configuration gives them to another.
        own = tuple(alias for alias in made.aliases if not (alias in browser.NAMES and alias in taken))
        taken.update(own)
        yield replace(made, **_settings(made, entry, check, config), aliases=(*entry.aliases, *own))
    if faults:
        raise ConfigurationError(faults)


def tool_servers_of(loaded: Loaded, resources: Resources, *, leave_out: Container[str] = ()) -> list[ToolServer]:
    """The servers of the configuration whose tools may change at any time. Raises `ConfigurationError`."""
    resources = with_fields(resources, secrets=loaded.secrets.get("", frozenset()))

    def configured_by(name: str, entry: ToolConfig) -> Callable[[Tool], Tool]:
        check = check_of(entry.check, f"tools.{name}.check")
        return lambda tool: replace(tool, **_settings(tool, entry, check, loaded.config))

    return [
        serve(name, entry, configured_by(name, entry), resources)
        for name, entry in loaded.config.tools.items()
        if name not in leave_out and (serve := kind_of(entry).serve)
    ]


def _settings(tool: Tool, entry: ToolConfig, check: Check | None, config: Config) -> dict[str, Any]:
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
        "check": check or tool.check,
        "version": sha256(repr(entry).encode()).hexdigest()[:16],
    }


def _refusing_run(why: str) -> RunTool:
    async def run(_: Json) -> ToolOutput:
        raise NotConfigured("This tool is not configured.", why=why)

    return run
