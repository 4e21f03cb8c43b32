"""The output of `toolproxy check`: the parts of a configuration, whether each has its key, and the verdict."""

from collections.abc import Iterable, Mapping
from typing import Final

from proxy.api.middleware.use import kinds_of
from proxy.commands.probe import Finding
from proxy.config.loaded import Loaded
from proxy.config.model import ClientConfig, ToolConfig, UpstreamConfig, keys_of
from proxy.http.forward_proxy import environment_proxies
from proxy.kit.counted import counted
from proxy.kit.terminal import Style
from proxy.loop.tally import Use
from proxy.tools.kinds import kind_of
from proxy.tools.kinds.python import unused_entry_points

_VALID: Final = "is valid: the proxy would start"


def describe(loaded: Loaded, origins: Mapping[str, str]) -> list[str]:
    """The lines of `toolproxy check`: models, upstreams and tools, and whether the key of each is set.

    Whether a key is accepted, only its server knows: see `probe`.
    """
    config = loaded.config
    lines = ["upstreams:"]
    for name, entry in config.upstreams.items():
        lines += [f"  {name}: {_key(entry)}, {entry.base_url} ({entry.profile})", *_way(entry.base_url)]
        lines += _keys(name, entry.api_key)
    lines += _disabled("upstreams", loaded)
    lines.append("models:")
    for name, model in config.models.items():
        state = f"disabled, because its upstream {model.upstream} is disabled"
        if upstream := config.upstreams.get(model.upstream):
            state = f"{_key(upstream)}, at {model.upstream} as {model.model or _own_name(name)}"
        lines.append(f"  {name}: {state}")
    lines.append("tools:")
    for name, tool in config.tools.items():
        state, *more = kind_of(tool).describe(tool, origins.get(name, "built in"))
        lines += [f"  {name}: {_key(tool)}, {state}", *(f"    {line}" for line in more)]
        lines += _way(kind_of(tool).address(tool), is_direct=kind_of(tool).page_rules is not None)
        lines += _keys(name, getattr(tool, "api_key", None))
    lines += _disabled("tools", loaded)
    lines += [f"  installed, not configured: {origin}" for origin in unused_entry_points(config.tools.items())]
    if (endpoint := config.telemetry.otlp_endpoint) and (way := _way(endpoint)):
        lines += ["traces:", *way]
    lines.append("clients:")
    lines += [f"  {client.name}: key set{_budget(client)}" for client in config.clients] or [f"  {loaded.callers}"]
    lines += [*_disabled("clients", loaded), *_disabled("clients_file", loaded)]
    return lines


def _way(url: str | None, *, is_direct: bool = False) -> list[str]:
    """A line on how requests to a URL travel, if the environment names a forward proxy; `is_direct`: past any proxy."""
    proxies = environment_proxies()
    if not proxies.named or (url is None and not is_direct):
        return []
    proxy = proxies.proxy_for(url) if url else None
    return [f"    through the proxy {proxy}" if proxy else "    directly, not through a proxy"]


def _key(entry: UpstreamConfig | ToolConfig) -> str:
    """Whether the key of an entry is set. Entries that lack one are disabled, and stand elsewhere."""
    keys = keys_of(getattr(entry, "api_key", None))
    match list(keys.values()):
        case []:
            return "no key needed"
        case ["from_client"]:
            return "key of each client"
        case ["none"]:
            return "no key"
        case [_]:
            return "key set"
        case _:
            return f"{len(keys)} keys set"


def verdict(file: str, faults: int, asked: int | None) -> str:
    """The last line of `toolproxy check`.

    Args:
        file: the name of the configuration.
        faults: how many faults the configuration has; of a valid one, how many servers cannot be used.
        asked: how many servers were asked; None: none.
    """
    if asked is None:
        return f"{file} has {counted(faults, 'fault')}: the proxy would not start" if faults else f"{file} {_VALID}"
    if faults:
        return f"{file} is valid, but {faults} of {counted(asked, 'server')} cannot be used"
    return f"{file} is valid, and every server that was asked can be used"


def answers(findings: Iterable[Finding]) -> list[str]:
    """A line on each server that a probe has asked without a fault; a fault is told elsewhere."""
    fine = [one for one in findings if not one.is_fault]
    said = [f"  {one.path}: {'usable, ' if one.is_tried else ''}{one.message}" for one in fine]
    return ["probes:", *said] if said else []


def _keys(name: str, api_key: str | tuple[str, ...] | None) -> list[str]:
    """A line for each of several keys."""
    keys = keys_of(api_key)
    return [f"    {name} key {number}: set" for number in keys] if len(keys) > 1 else []


def _budget(client: ClientConfig) -> str:
    """A client's budget, in words."""
    if (budget := client.budget) is None:
        return ""
    amounts = [f"{kind.replace('_', ' ')} {limit:,}" for kind, limit, _ in kinds_of(budget, Use())]
    return f", budget per {budget.per}: {', '.join(amounts)}"


def _own_name(name: str) -> str:
    """The upstream's name for a model whose entry has no `model`."""
    return {"*": "any name"}.get(name, "any such name" if "*" in name else name)


def _disabled(section: str, loaded: Loaded) -> list[str]:
    """The entries of a section that cannot be used, with the fallback that is used instead, if there is one."""
    return [
        f"  {name}: {'answered by its fallback ' + ' or '.join(one.instead) if one.instead else 'disabled'}, {one.why}"
        for name, one in loaded.disabled_in(section).items()
    ]


def tinted(line: str, style: Style) -> str:
    """A line of `describe` in colours: headings, parts with and without their keys differ."""
    name, colon, state = line.partition(": ")
    if line.startswith("    "):
        return line
    if not colon:
        return style(line, "bold")
    return f"{name}: {style(state, 'yellow' if state.startswith('disabled') else 'green')}"
