"""The output of `toolproxy check`: the parts of a configuration that are usable, and why the others are not."""

from collections.abc import Mapping
from types import MappingProxyType

from proxy.config.loaded import Loaded
from proxy.config.model import ClientConfig, keys_of
from proxy.http.forward_proxy import environment_proxies
from proxy.kit.terminal import Style
from proxy.tools.catalog import answered_by_fallback
from proxy.tools.kinds import kind_of
from proxy.tools.kinds.python import unused_entry_points


def describe(loaded: Loaded, origins: Mapping[str, str]) -> list[str]:
    """The lines of `toolproxy check`: models, upstreams and tools, and whether each is usable."""
    config = loaded.config
    lines = ["upstreams:"]
    for name, entry in config.upstreams.items():
        lines += [f"  {name}: usable, {entry.base_url} ({entry.profile})", *_way(entry.base_url)]
        lines += _keys(name, entry.api_key)
    lines += _disabled("upstreams", loaded)
    lines.append("models:")
    for name, model in config.models.items():
        state = f"usable, at {model.upstream} as {model.model or _own_name(name)}"
        if model.upstream not in config.upstreams:
            state = f"not usable: upstream {model.upstream} is disabled"
        lines.append(f"  {name}: {state}")
    lines.append("tools:")
    for name, tool in config.tools.items():
        state, *more = kind_of(tool).describe(tool, origins.get(name, "built in"))
        lines += [f"  {name}: {state}", *(f"    {line}" for line in more)]
        lines += _way(kind_of(tool).address(tool), is_direct=kind_of(tool).page_rules is not None)
        lines += _keys(name, getattr(tool, "api_key", None))
    instead = {name: " or ".join(tool.fallbacks) for name, tool in answered_by_fallback(loaded)}
    lines += _disabled("tools", loaded, instead)
    lines += [f"  installed, not configured: {origin}" for origin in unused_entry_points(config.tools.items())]
    if (endpoint := config.telemetry.otlp_endpoint) and (way := _way(endpoint)):
        lines += ["traces:", *way]
    lines.append("clients:")
    anyone = "  none: anyone may call" + ("" if config.server.allow_anonymous else ", on loopback only")
    nobody = "  none in clients_file: nobody may call" if loaded.needs_key else anyone
    lines += [f"  {client.name}: usable{_budget(client)}" for client in config.clients] or [nobody]
    lines += [*_disabled("clients", loaded), *_disabled("clients_file", loaded)]
    return lines


def _way(url: str | None, *, is_direct: bool = False) -> list[str]:
    """A line on how requests to a URL travel, if the environment names a forward proxy; `is_direct`: past any proxy."""
    proxies = environment_proxies()
    if not proxies.named or (url is None and not is_direct):
        return []
    proxy = proxies.proxy_for(url) if url else None
    return [f"    through the proxy {proxy}" if proxy else "    directly, not through a proxy"]


def _keys(name: str, api_key: str | tuple[str, ...] | None) -> list[str]:
    """A line for each of several keys."""
    keys = keys_of(api_key)
    return [f"    {name} key {number}: usable" for number in keys] if len(keys) > 1 else []


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


def _disabled(section: str, loaded: Loaded, instead: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """The entries of a section that cannot be used, with the fallback that is used `instead`, if there is one."""
    return [
        f"  {name}: usable through its fallback {instead[name]}: {entry.why}"
        if name in instead
        else f"  {name}: disabled, {entry.why}"
        for name, entry in loaded.disabled_in(section).items()
    ]


def tinted(line: str, style: Style) -> str:
    """A line of `describe` in colours: headings, usable parts and unusable ones differ."""
    name, colon, state = line.partition(": ")
    if line.startswith("    "):
        return line
    if not colon:
        return style(line, "bold")
    return f"{name}: {style(state, 'green' if state.startswith('usable') else 'yellow')}"
