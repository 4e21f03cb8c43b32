"""The output of `toolproxy check`: the parts of a configuration that are usable, and why the others are not."""

from collections.abc import Mapping
from datetime import date
from types import MappingProxyType
from urllib.parse import urlsplit

from msgspec.structs import replace

from proxy.config.model import (
    TOOL_TYPES,
    ClientConfig,
    Config,
    McpConfig,
    SearchConfig,
    SerperConfig,
    ToolConfig,
    ZaiSearchConfig,
)
from proxy.kit.terminal import Style
from proxy.tools.catalog import answered_by_fallback, unused_entry_points
from proxy.tools.search import serper, zai
from proxy.tools.search import tool as described
from proxy.tools.search.provider import Provider
from proxy.tools.search.query import SearchQuery
from proxy.wire.search import SearchFilters


def describe(config: Config, origins: Mapping[str, str]) -> list[str]:
    """The lines of `toolproxy check`: models, upstreams and tools, and whether each is usable.

    Args:
        config: the configuration.
        origins: the origin of each tool.
    """
    lines = ["upstreams:"]
    lines += [f"  {name}: usable, {entry.base_url} ({entry.profile})" for name, entry in config.upstreams.items()]
    lines += _disabled("upstreams", config)
    lines.append("models:")
    for name, model in config.models.items():
        state = f"usable, at {model.upstream} as {model.model or _own_name(name)}"
        if model.upstream not in config.upstreams:
            state = f"not usable: upstream {model.upstream} is disabled"
        lines.append(f"  {name}: {state}")
    lines.append("tools:")
    for name, tool in config.tools.items():
        lines.append(f"  {name}: {_tool_state(name, tool, origins)}")
        if isinstance(tool, SearchConfig) and isinstance(tool.provider, dict):
            lines.append(f"    example request with every filter: {_example(tool)}")
    instead = {f"tools.{name}": " or ".join(tool.fallbacks) for name, tool in answered_by_fallback(config)}
    lines += _disabled("tools", config, instead)
    lines += [f"  installed, not configured: {origin}" for origin in unused_entry_points(config)]
    lines.append("clients:")
    anyone = "  none: anyone may call" + ("" if config.server.allow_anonymous else ", on loopback only")
    lines += [f"  {client.name}: usable{_budget(client)}" for client in config.clients] or [anyone]
    lines += _disabled("clients", config)
    return lines


def _budget(client: ClientConfig) -> str:
    """A client's budget, in words."""
    if (budget := client.budget) is None:
        return ""
    amounts = {"tokens": budget.tokens, "tool calls": budget.tool_calls, "cost": budget.cost}
    return f", budget per {budget.per}: " + ", ".join(
        f"{kind} {amount:,}" for kind, amount in amounts.items() if amount
    )


def _own_name(name: str) -> str:
    """The upstream's name for a model whose entry has no `model`."""
    return {"*": "any name"}.get(name, "any such name" if "*" in name else name)


def _tool_state(name: str, tool: ToolConfig, origins: Mapping[str, str]) -> str:
    """Whether a tool is usable, and its origin; for an MCP server only its address or command."""
    if isinstance(tool, McpConfig):
        where = urlsplit(tool.url).netloc if tool.url else (tool.command or ("",))[0]
        return f"{_type_name(tool)}, {where}, tools are listed at start"
    is_described = isinstance(tool, SearchConfig) and isinstance(tool.provider, dict)
    origin = "described in this file" if is_described else origins.get(name, "built in")
    state = f"usable, {_type_name(tool)}, {origin}"
    provider = _provider_of(tool)
    if provider is not None and (lacking := provider.cannot()):
        state += f"; its provider cannot filter by {', '.join(lacking)}"
    return state


def _provider_of(tool: ToolConfig) -> Provider | None:
    """The provider of a search; None for any other tool."""
    match tool:
        case SearchConfig():
            return described.provider_of(tool)
        case SerperConfig():
            return serper.provider_of(tool)
        case ZaiSearchConfig():
            return zai.provider_of(tool)
        case _:
            return None


def _example(tool: SearchConfig) -> str:
    """An example request of a search that the file describes, to be compared with the service's documentation."""
    where = SearchFilters(("example.org",), ("example.com",), "ca", "British Columbia", "Nanaimo", "medium")
    query = SearchQuery("WORDS", 5, "week", "ca", "en", where)
    sent = described.provider_of(replace(tool, api_key=tool.api_key and "KEY")).request(query, date(2026, 1, 8))
    return " ".join(part for part in (sent.method, sent.url, (sent.body or b"").decode()) if part)


def _type_name(tool: object) -> str:
    """The `type:` of a tool's configuration."""
    names: Mapping[type, str] = {kind: name for name, kind in TOOL_TYPES.items()}
    return names[type(tool)]


def _disabled(section: str, config: Config, instead: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """The entries of a section that cannot be used, with the fallback that is used `instead`, if there is one."""
    return [
        f"  {where.removeprefix(f'{section}.')}: "
        + (
            f"usable through its fallback {instead[where]}: {entry.why}"
            if where in instead
            else f"disabled, {entry.why}"
        )
        for where, entry in config.disabled.items()
        if where.startswith(section)
    ]


def tinted(line: str, style: Style) -> str:
    """A line of `describe` in colours: headings, usable parts and unusable ones differ."""
    name, colon, state = line.partition(": ")
    if line.startswith("    "):
        return line
    if not colon:
        return style(line, "bold")
    return f"{name}: {style(state, 'green' if state.startswith('usable') else 'yellow')}"
