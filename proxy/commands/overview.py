"""The output of `toolproxy check`: the parts of a configuration that are usable, and why the others are not."""

from collections.abc import Mapping
from types import MappingProxyType

from proxy.config.model import ClientConfig, Config
from proxy.kit.terminal import Style
from proxy.tools.catalog import answered_by_fallback
from proxy.tools.kinds import kind_of
from proxy.tools.kinds.python import unused_entry_points


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
        state, *more = kind_of(tool).describe(tool, origins.get(name, "built in"))
        lines += [f"  {name}: {state}", *(f"    {line}" for line in more)]
    instead = {f"tools.{name}": " or ".join(tool.fallbacks) for name, tool in answered_by_fallback(config)}
    lines += _disabled("tools", config, instead)
    lines += [f"  installed, not configured: {origin}" for origin in unused_entry_points(config.tools.items())]
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
