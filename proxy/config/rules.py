"""Checks across the parts of a configuration: names without a target, options that cannot be combined.

`config.reading` has read all parts that could be read, so a fault in one part hides no faults in others.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib.util import find_spec
from typing import Any, Final, Generic, TypeAlias, TypeVar

from proxy.config import model as c
from proxy.config.keys import FROM_CLIENT, is_placeholder
from proxy.config.messages import did_you_mean
from proxy.kit.header_names import READ_BY_US, WRITTEN_BY_US
from proxy.loop.many_tools import NAMES

_OF_OUR_OWN = "is the name of one of the proxy's own tools (see offer.search_above)"
_TWO_USES = "from_client cannot be combined with clients: both use the key of the request"
_TRACES = "opentelemetry.proto"  # what the extra otel installs
Faults: TypeAlias = Iterator[tuple[str, str]]
"""The path of each fault, or its key in an entry, and its message."""


Entry = TypeVar("Entry", bound=c.ToolConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolKind(Generic[Entry]):
    """What the reader of a configuration has to know of a type of tools: see `tools.tool_type.ToolType`.

    Attributes:
        config: the keys of an entry: their types, defaults and descriptions.
        faults: finds what is wrong in an entry beyond the types of its keys; each fault has the key, such as
            `headers.Host`, empty for the whole entry.
        instead: names that people write for this type -> what to write in the place of each.
        judges_parts: whether `faults` also takes entries with keys that could not be read, and have their defaults.
        variables_are_secrets: whether the values of all variables in an entry are secrets, because a key may stand in
            any of its keys.
        warnings: finds what is permitted in an entry, but probably a mistake, given the rest of the configuration.
    """

    config: type[Entry]
    faults: Callable[[Entry], Faults] = lambda _: iter(())
    instead: Mapping[str, str] = field(default_factory=dict)
    judges_parts: bool = False
    variables_are_secrets: bool = False
    warnings: Callable[[Entry, c.Config], Faults] = lambda _, __: iter(())


ToolKinds: TypeAlias = Mapping[str, ToolKind[Any]]
"""The types of tools, by the `type:` of their entries."""


@dataclass(frozen=True, slots=True)
class ReadableConfig:
    """The parts of a file that could be read.

    Attributes:
        kinds: the types of tools.
        config: the parts that are neither disabled nor faulty.
        entries: every upstream, tool and client by its path, in the order of the file, including disabled and partly
            faulty ones.
        names: the keys of each section, including those of entries that could not be read at all.
        disabled: the paths of disabled entries.
        faulty: the paths of the faults that are known already.
        needs_key: whether callers need a key: see `loaded.Loaded`.
    """

    kinds: ToolKinds
    config: c.Config
    entries: Mapping[str, Any]
    names: Mapping[str, Collection[str]]
    disabled: Collection[str]
    faulty: Collection[str]
    needs_key: bool

    @property
    def upstreams(self) -> dict[str, c.UpstreamConfig]:
        """The entries of `upstreams:` that could be read, by name."""
        return self._section("upstreams")

    @property
    def tools(self) -> dict[str, c.ToolConfig]:
        """The entries of `tools:` that could be read, by name."""
        return self._section("tools")

    @property
    def clients(self) -> dict[str, c.ClientConfig]:
        """The entries of `clients:` and of `clients_file` that could be read, by path: in the files they are lists."""
        return {path: entry for path, entry in self.entries.items() if isinstance(entry, c.ClientConfig)}

    def _section(self, section: str) -> dict[str, Any]:
        paths = {f"{section}.{name}": name for name in self.names_in(section)}
        return {paths[path]: entry for path, entry in self.entries.items() if path in paths}

    def names_in(self, section: str) -> set[str]:
        """Every name that a section defines."""
        return set(self.names.get(section, ()))

    def unknown_tools(self, names: Collection[str] | None) -> list[str]:
        """The names that no tool has, except names with the prefix of an MCP server, whose tools are not known yet."""
        defined, tools = self.names_in("tools"), self.tools
        servers = (tool.prefix_of(name) for name, tool in tools.items())
        unread = (f"{name}_" for name in defined - set(tools))
        prefixes = (*(prefix for prefix in servers if prefix is not None), *unread)
        return sorted(name for name in set(names or ()) - defined if not name.startswith(prefixes))

    def is_faulty(self, path: str) -> bool:
        """Whether a value, or a part of it, is known to have a fault."""
        return any(name == path or name.startswith((f"{path}.", f"{path}[")) for name in self.faulty)


def faults_in(parts: ReadableConfig) -> list[tuple[str, str]]:
    """The path of each fault and its message, without faults in values that are known to be faulty."""
    found = (
        *_model_faults(parts),
        *_client_faults(parts),
        *_key_faults(parts),
        *_alias_faults(parts),
        *_fallback_faults(parts),
        *_address_faults(parts),
        *_header_faults(parts),
        *_package_faults(parts.config),
        *_state_faults(parts.config),
        *_tool_faults(parts),
        *_served_faults(parts),
    )
    return [(path, message) for path, message in found if not parts.is_faulty(path)]


def _there_is_no(what: str, name: str, names: Collection[str]) -> str:
    return f"there is no {what} {name!r}{did_you_mean(name, sorted(names))}"


def _model_faults(parts: ReadableConfig) -> Faults:
    for name, model in parts.config.models.items():
        if model.upstream not in parts.names_in("upstreams"):
            yield f"models.{name}.upstream", _there_is_no("upstream", model.upstream, parts.names_in("upstreams"))
        for tool in parts.unknown_tools(model.tools):
            yield f"models.{name}.tools", _there_is_no("tool", tool, parts.names_in("tools"))
        if "*" in (model.vision_model or ""):
            yield f"models.{name}.vision_model", "must be the name of one model"
        if "*" in (model.model or ""):
            yield f"models.{name}.model", "must be the name of one model"
        # Without `*`, which would match every misspelt name.
        patterns = parts.names_in("models") - {"*", name}
        for other in model.fallbacks:
            if other == name:
                yield f"models.{name}.fallbacks", "must not contain the model itself"
            elif "*" in other or not any(fnmatchcase(other, pattern) for pattern in patterns):
                yield f"models.{name}.fallbacks", _there_is_no("other model", other, patterns)


def _client_faults(parts: ReadableConfig) -> Faults:
    names: set[str] = set()
    keys: set[str] = set()
    for path, client in parts.clients.items():
        if (client.key is None) == (client.key_sha256 is None):
            yield path, "needs key or key_sha256, and not both"
        for tool in parts.unknown_tools(client.tools):
            yield f"{path}.tools", _there_is_no("tool", tool, parts.names_in("tools"))
        if (budget := client.budget) is not None and {budget.tokens, budget.tool_calls, budget.cost} == {None}:
            yield f"{path}.budget", "needs tokens, tool_calls or cost"
        if client.name in names:
            yield f"{path}.name", f"there is another client named {client.name!r}"
        names.add(client.name)
        if path in parts.disabled:
            continue
        if keys & client.digests:
            yield path, "another client has the same key"
        keys |= client.digests
    for name, upstream in parts.config.upstreams.items():
        if upstream.api_key == FROM_CLIENT and parts.needs_key:
            yield f"upstreams.{name}.api_key", _TWO_USES


def _address_faults(parts: ReadableConfig) -> Faults:
    """Base URLs that already end with the path that is appended to them."""
    for name, upstream in parts.upstreams.items():
        if fault := c.appended_path_fault(upstream.base_url, "/chat/completions", "/completions", "/responses"):
            yield f"upstreams.{name}.base_url", fault


def _key_faults(parts: ReadableConfig) -> Faults:
    """Keys that cannot be beside others."""
    for path, entry in parts.entries.items():
        keys = c.keys_of(getattr(entry, "api_key", None))
        numbers: dict[str, int] = {}
        for number, key in keys.items() if len(keys) > 1 else ():
            if key == FROM_CLIENT:
                yield f"{path}.api_key", "from_client cannot be combined with other keys"
            elif (before := numbers.setdefault(key, number)) != number:
                yield f"{path}.api_key", f"key {number} is the same as key {before}"


# `authorization` is for `api_key`.
_NOT_OF_UPSTREAMS: Final = WRITTEN_BY_US | {"authorization"}
# Headers that concern only the client and the proxy.
_OF_CLIENTS: Final = _NOT_OF_UPSTREAMS | {"accept", "api-key", "content-type", "cookie", "x-api-key"}


def _header_faults(parts: ReadableConfig) -> Faults:
    for name, upstream in parts.upstreams.items():
        forwarded = f"upstreams.{name}.forward_headers"
        for header in upstream.headers:
            if header.lower() in _NOT_OF_UPSTREAMS:
                yield f"upstreams.{name}.headers.{header}", "is written by the proxy itself"
        for header in upstream.forward_headers:
            if header.lower() in _OF_CLIENTS:
                yield forwarded, f"must not forward {header!r}: it concerns only the client and the proxy"
            for tool in (tool for tool, entry in parts.tools.items() if header.lower() in entry.user_headers):
                fault = f"must not forward {header!r}: it holds a user's credential for the tool {tool!r} alone"
                yield forwarded, fault
    for name, entry in parts.tools.items():
        for header in sorted(entry.user_headers & READ_BY_US):
            yield f"tools.{name}.headers", f"cannot refer to {header!r}, which the proxy itself reads"


def _package_faults(config: c.Config) -> Faults:
    needed = (
        ("state.url", c.BACKENDS[config.state.backend].package, "needs"),
        ("server.mcp", "mcp" if config.server.mcp else None, "needs"),
        ("telemetry.otlp_endpoint", _TRACES if config.telemetry.otlp_endpoint else None, "traces need"),
    )
    for key, package, needs in needed:
        if package is not None and not _is_installed(package):
            yield key, f"{needs} a package that is not installed: pip install {package.replace('.', '-')}"


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # the package around it
        return False


def _state_faults(config: c.Config) -> Faults:
    if config.state.url.endswith("/:memory:"):
        yield "state.url", "is not a file; to keep state in memory, write memory://"
    if any(map(is_placeholder, config.state.secrets)):
        yield "state.secret", "is a placeholder, not a secret"


def _fallback_faults(parts: ReadableConfig) -> Faults:
    servers = {name for name, tool in parts.tools.items() if tool.prefix_of(name) is not None}
    for name, tool in parts.tools.items():
        for other in tool.fallbacks:
            if other not in parts.names_in("tools") or other == name:
                yield f"tools.{name}.fallback", _there_is_no("other tool", other, parts.names_in("tools") - {name})
            elif other in servers:
                yield f"tools.{name}.fallback", f"{other!r} is a server of several tools"


def _tool_faults(parts: ReadableConfig) -> Faults:
    """The faults that each type of tool finds in its entries."""
    for name, tool in parts.tools.items():
        where, kind = f"tools.{name}", parts.kinds[tool.type]
        if kind.judges_parts or not parts.is_faulty(where):
            yield from ((f"{where}.{key}" if key else where, fault) for key, fault in kind.faults(tool))


def _served_faults(parts: ReadableConfig) -> Faults:
    """Hosted tools in whose place two tools would stand."""
    serving: dict[str, str] = {}
    for name, tool in parts.tools.items():
        for hosted in tool.served:
            if serving.setdefault(hosted, name) != name:
                yield f"tools.{name}.serves", f"{serving[hosted]!r} serves {hosted} already"


def _alias_faults(parts: ReadableConfig) -> Faults:
    owners = {name: name for name in parts.names_in("tools")}
    for name in sorted(NAMES.intersection(owners)):
        yield f"tools.{name}", _OF_OUR_OWN
    for name, tool in parts.tools.items():
        for alias in tool.aliases:
            if alias in NAMES:
                yield f"tools.{name}.aliases", f"{alias!r} {_OF_OUR_OWN}"
            owner = owners.setdefault(alias, name)
            if owner != name:
                of_whom = "is the name of another tool" if owner == alias else f"is an alias of {owner!r} too"
                yield f"tools.{name}.aliases", f"{alias!r} {of_whom}"
