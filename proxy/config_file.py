"""YAML and environment -> Config; every fault names its file, line and path.

    node (it knows its line) --> `${NAME}` replaced --> typed by the classes of `config` --> references checked

All faults of a file are found in one go. `${NAME}` without a value disables the upstream, tool or client that it stands
in, so that one configuration serves users who have only some of the keys; anywhere else it is a fault.
"""

import importlib.util
import re
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
import yaml

from proxy import config as c
from proxy.core.errors import ConfigurationError
from proxy.tools import http_template
from proxy.tools.arguments import schema_fault
from proxy.tools.url_guard import UrlGuard

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_FAULTY: Final = object()  # stands for a value that could not be read; its fault is on the list
_NOT_IN_FILE = ("disabled", "secrets")


def load(path: Path, environ: Mapping[str, str]) -> c.Config:
    """Read and check a configuration file.

    Raises:
        ConfigurationError: with one line per fault, `config.yaml:LINE: path: what is wrong`.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as exc:
        raise ConfigurationError([f"{path}: cannot be read: {exc.strerror}"]) from exc
    except UnicodeDecodeError as exc:
        raise ConfigurationError([f"{path}: is not UTF-8"]) from exc
    return parse(text, environ, name=path.name)


def parse(text: str, environ: Mapping[str, str], *, name: str = "config.yaml") -> c.Config:
    """The same for a text; `name` stands in the faults. Raises `ConfigurationError`."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as exc:
        line = exc.problem_mark.line + 1 if exc.problem_mark else 1
        raise ConfigurationError([f"{name}:{line}: {exc.problem}"]) from exc
    except (yaml.YAMLError, RecursionError) as exc:
        raise ConfigurationError([f"{name}: cannot be read as YAML: {' '.join(str(exc).split())}"]) from exc
    if root is None:
        return c.Config()
    reader = _Reader(environ)
    try:
        read = reader.value(root, c.Config, _Path("", 1))
    except RecursionError as exc:
        raise ConfigurationError([f"{name}: is nested too deep, or refers to itself"]) from exc
    if read is not _FAULTY:
        _check_references(read, reader)
    if reader.faults:
        raise ConfigurationError([f"{name}:{line}: {message}" for line, message in sorted(set(reader.faults))])
    secrets = frozenset(reader.secrets)
    config: c.Config = msgspec.structs.replace(read, disabled=reader.disabled, secrets=secrets)
    return config


@dataclass(frozen=True, slots=True)
class _Path:
    """Where a value stands: `tools.web_search.type`, and on which line."""

    name: str
    line: int

    def key(self, key: str, line: int) -> "_Path":
        return _Path(f"{self.name}.{key}" if self.name else key, line)

    def item(self, index: int, line: int) -> "_Path":
        return _Path(f"{self.name}[{index}]", line)


@dataclass(slots=True)
class _Reader:
    """Turns nodes into values, and collects what is wrong with them."""

    environ: Mapping[str, str]
    faults: list[tuple[int, str]] = field(default_factory=list)
    disabled: dict[str, c.Disabled] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    unset: list[str] | None = None  # variables without a value in the entry that is being read
    substituted: dict[int, list[str]] = field(default_factory=dict)  # nodes with variables, and what these were
    from_environment: list[str] = field(default_factory=list)  # the same of the entry that is being read
    secrets: set[str] = field(default_factory=set)  # values of variables that, by their names, hold secrets
    loader: yaml.SafeLoader = field(default_factory=lambda: yaml.SafeLoader(""))

    def fault(self, path: _Path, message: str) -> Any:
        self.faults.append((path.line, f"{path.name}: {message}" if path.name else message))
        return _FAULTY

    def value(self, node: yaml.Node, kind: Any, path: _Path) -> Any:
        """The value of a node as `kind`, or `_FAULTY`."""
        self.lines[path.name] = path.line
        if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
            if node.tag == "tag:yaml.org,2002:null":
                return None
            (kind,) = (option for option in typing.get_args(kind) if option is not type(None))
        if isinstance(kind, type) and issubclass(kind, c.Value):
            return self.section(node, kind, path)
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin is dict:
            return self.mapping(node, *arguments, path=path)
        if origin is tuple:
            return self.sequence(node, arguments[0], path)
        return self.leaf(node, kind, path)

    def section(self, node: yaml.Node, kind: type[c.Value], path: _Path) -> Any:
        """A mapping with a class of its own."""
        if kind is c.RequestLimits:
            said = self.struct(node, c.LimitsConfig, path)
            return said if said is _FAULTY else c.RequestLimits().overridden(said)
        if kind is c.ToolConfig:
            return self.entry(node, path, self.tool)
        if kind in (c.UpstreamConfig, c.ClientConfig):
            return self.entry(node, path, lambda node, path: self.struct(node, kind, path))
        return self.struct(node, kind, path)

    def entry(self, node: yaml.Node, path: _Path, read: Callable[[yaml.Node, _Path], Any]) -> Any:
        """An upstream, tool or client: disabled, not faulty, when a variable in it has no value."""
        self.unset, self.from_environment, before = [], [], len(self.faults)
        value = read(node, path)
        missing, self.unset = dict.fromkeys(self.unset), None
        if len(self.faults) > before:
            return _FAULTY
        if isinstance(value, c.HttpToolConfig):
            value = msgspec.structs.replace(value, secrets=tuple(dict.fromkeys(self.from_environment)))
        why = None
        if missing:
            why = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set"
        elif empty := next((name for name in ("api_key", "key") if getattr(value, name, None) == ""), None):
            why = f"{empty} is empty"
        if why:
            entry = None if value is _FAULTY else value
            self.disabled[path.name] = c.Disabled(where=path.name, why=why, variables=tuple(missing), entry=entry)
            return None
        return value

    def pairs(self, node: yaml.Node, path: _Path) -> Iterator[tuple[str, yaml.Node, _Path]]:
        """The entries of a mapping."""
        if not isinstance(node, yaml.MappingNode):
            self.fault(path, f"must be a mapping, not {_kind_of(node)}")
            return
        if any(not isinstance(key_node, yaml.ScalarNode) for key_node, _ in node.value):
            self.fault(path, "a key must be a single value (is there a brace too many?)")
            return
        seen: set[str] = set()
        for key_node, _ in node.value:
            if (key := str(key_node.value)) in seen:
                self.fault(path.key(key, key_node.start_mark.line + 1), "stands here twice")
            seen.add(key)
        try:
            self.loader.flatten_mapping(node)
        except yaml.MarkedYAMLError as exc:
            self.fault(path, str(exc.problem))
            return
        for key_node, value_node in node.value:
            key = str(key_node.value)
            yield key, value_node, path.key(key, key_node.start_mark.line + 1)

    def struct(self, node: yaml.Node, kind: type[c.Value], path: _Path, *, skip: tuple[str, ...] = ()) -> Any:
        fields = {info.name: info for info in msgspec.structs.fields(kind) if info.name not in _NOT_IN_FILE}
        before = len(self.faults)
        values: dict[str, Any] = {}
        for key, value_node, at in self.pairs(node, path):
            if key in skip:
                continue
            if key not in fields:
                self.fault(at, f"unknown key; known are {', '.join(sorted((*fields, *skip)))}")
                continue
            values[key] = self.value(value_node, fields[key].type, at)
        for name, info in fields.items():
            if info.required and name not in values and isinstance(node, yaml.MappingNode):
                self.fault(path.key(name, path.line), "is missing")
        if len(self.faults) > before or _FAULTY in values.values():
            return _FAULTY
        return kind(**values)

    def tool(self, node: yaml.Node, path: _Path) -> Any:
        """An entry of `tools:`, whose `type` says which keys it may have."""
        if not isinstance(node, yaml.MappingNode):
            return self.fault(path, f"must be a mapping, not {_kind_of(node)}")
        named = [(value, key.start_mark.line + 1) for key, value in node.value if key.value == "type"]
        if not named:
            return self.fault(path.key("type", path.line), f"is missing; known are {', '.join(c.TOOL_TYPES)}")
        value, line = named[0]
        at = path.key("type", line)
        kind = self.leaf(value, str, at)
        if kind is not _FAULTY and kind not in c.TOOL_TYPES:
            return self.fault(at, f"unknown type {kind!r}; known are {', '.join(c.TOOL_TYPES)}")
        if kind is _FAULTY:
            return _FAULTY
        return self.struct(node, c.TOOL_TYPES[kind], path, skip=("type",))

    def mapping(self, node: yaml.Node, key_kind: Any, kind: Any, *, path: _Path) -> Any:
        values: dict[str, Any] = {}
        for key, value_node, at in self.pairs(node, path):
            try:
                msgspec.convert(key, key_kind)
            except msgspec.ValidationError:
                self.fault(at, _PATTERNS[key_kind])
                continue
            values[key] = self.value(value_node, kind, at)
        return _without_disabled(values, path, self.disabled)

    def sequence(self, node: yaml.Node, kind: Any, path: _Path) -> Any:
        if not isinstance(node, yaml.SequenceNode):
            return self.fault(path, f"must be a list, not {_kind_of(node)}")
        items = [self.value(item, kind, path.item(at, item.start_mark.line + 1)) for at, item in enumerate(node.value)]
        if any(item is _FAULTY for item in items):
            return _FAULTY
        return tuple(item for at, item in enumerate(items) if path.item(at, 0).name not in self.disabled)

    def leaf(self, node: yaml.Node, kind: Any, path: _Path) -> Any:
        before = len(self.unset or ())
        substituted = self.substitute(node, path)
        if substituted is None:
            return _FAULTY
        if len(self.unset or ()) > before:  # a key that is not set is read as none; nothing else can be read at all
            return "" if kind in (c.Key, c.HeaderValue) else _FAULTY
        strict = not (substituted and isinstance(node, yaml.ScalarNode))
        try:
            value = node.value if not strict else self.loader.construct_object(node, deep=True)
        except (yaml.YAMLError, ValueError, KeyError, AttributeError):
            return self.fault(path, "cannot be read as the value that its form or its tag says it is")
        try:
            return msgspec.convert(value, kind, strict=strict)
        except UnicodeEncodeError:  # an escaped one, say
            return self.fault(path, "holds half of a character")
        except msgspec.ValidationError as exc:
            return self.fault(path, _in_plain_words(str(exc), kind))

    def substitute(self, node: yaml.Node, path: _Path) -> bool | None:
        """Replace the variables in a node and below; True where there were any, None after a fault."""
        if isinstance(node, yaml.ScalarNode):
            if not _VARIABLE.search(node.value):
                self.from_environment += self.substituted.get(id(node), ())
                return id(node) in self.substituted
            missing: list[str] = []
            found = self.substituted[id(node)] = []
            node.value = _VARIABLE.sub(lambda match: self.lookup(match, missing, found), node.value)
            self.from_environment += found
            if missing and self.unset is None:
                self.fault(path, f"{', '.join(missing)} is not set")
                return None
            if self.unset is not None:
                self.unset += missing
            return True
        children = (
            [child for pair in node.value for child in pair] if isinstance(node, yaml.MappingNode) else node.value
        )
        below = {self.substitute(child, path) for child in children}
        return None if None in below else True in below

    def lookup(self, match: re.Match[str], missing: list[str], found: list[str]) -> str:
        name, default = match.groups()
        value = self.environ.get(name, "") or default
        if self.environ.get(name):
            found.append(self.environ[name])
        if value is None:
            missing.append(name)
            return ""
        if c.SECRET_NAME.search(name):
            self.secrets.add(value)
        return value


def _without_disabled(values: dict[str, Any], path: _Path, disabled: Mapping[str, c.Disabled]) -> Any:
    if any(value is _FAULTY for value in values.values()):
        return _FAULTY
    return {key: value for key, value in values.items() if path.key(key, 0).name not in disabled}


def _kind_of(node: yaml.Node) -> str:
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    return "empty" if node.tag == "tag:yaml.org,2002:null" else "a single value"


def _in_plain_words(message: str, kind: Any) -> str:
    message = message.replace("`", "").split(" - at ")[0]
    if typing.get_origin(kind) is typing.Literal:
        return f"must be one of {', '.join(map(str, typing.get_args(kind)))}"
    if "matching regex" in message:
        return _PATTERNS.get(kind, "has characters that cannot stand there")
    return message[:1].lower() + message[1:]


_PATTERNS: Mapping[Any, str] = {
    c.Url: "must be an http:// or https:// URL of a host, without user, query or fragment",
    c.StateUrl: "must be memory://, or redis:// or rediss:// with [user:password@]host[:port][/db]",
    c.Key: "must be printable ASCII without blanks: it has to fit into a header",
    c.HeaderName: "has characters that no header's name may have",
    c.HeaderValue: "must be printable ASCII: it has to fit into a header",
    c.ToolName: "a tool's name may have letters, digits, '_' and '-', at most 64 of them",
}


_References: TypeAlias = Iterator[tuple[str, str]]


def _check_references(config: c.Config, reader: _Reader) -> None:
    """What one part of the file says of another."""
    tools = _known("tools", config.tools, reader)
    upstreams = _known("upstreams", config.upstreams, reader)
    for path, message in (
        *_model_faults(config, upstreams, tools),
        *_client_faults(config, tools),
        *_alias_faults(config, tools),
        *_fallback_faults(config, tools),
        *_state_faults(config),
        *_telemetry_faults(config),
        *_mcp_faults(config),
        *_tool_faults(config, reader.disabled),
        *_host_faults(config),
    ):
        reader.fault(_Path(path, _line_of(path, reader.lines)), message)


def _line_of(path: str, lines: Mapping[str, int]) -> int:
    """Where a key stands, or else what it would stand in."""
    while path and path not in lines:
        path = path.rpartition(".")[0]
    return lines.get(path, 1)


def _known(section: str, usable: Mapping[str, Any], reader: _Reader) -> set[str]:
    """The names that a section defines, those of disabled entries among them."""
    prefix = f"{section}."
    return {*usable, *(where.removeprefix(prefix) for where in reader.disabled if where.startswith(prefix))}


def _unknown(names: Collection[str] | None, tools: set[str], config: c.Config) -> set[str]:
    """Names that are no tool's; those of an MCP server's tools are not known before it is asked."""
    prefixes = tuple(tool.prefix_of(name) for name, tool in config.tools.items() if isinstance(tool, c.McpConfig))
    return {name for name in set(names or ()) - tools if not name.startswith(prefixes)}


def _model_faults(config: c.Config, upstreams: set[str], tools: set[str]) -> _References:
    for name, model in config.models.items():
        if model.upstream not in upstreams:
            yield f"models.{name}.upstream", f"there is no upstream {model.upstream!r}"
        for tool in sorted(_unknown(model.tools, tools, config)):
            yield f"models.{name}.tools", f"there is no tool {tool!r}"
        if model.vision_model == "*":
            yield f"models.{name}.vision_model", "must be the name of one model"
        for other in model.fallbacks:
            if other not in config.models or other in ("*", name):
                yield f"models.{name}.fallbacks", f"there is no other model {other!r}"


def _client_faults(config: c.Config, tools: set[str]) -> _References:
    names: set[str] = set()
    keys: set[str] = set()
    for at, client in enumerate(config.clients):
        if (client.key is None) == (client.key_sha256 is None):
            yield f"clients[{at}]", "needs either key or key_sha256"
        for tool in sorted(_unknown(client.tools, tools, config)):
            yield f"clients[{at}].tools", f"there is no tool {tool!r}"
        if client.name in names:
            yield f"clients[{at}].name", f"there is another client named {client.name!r}"
        names.add(client.name)
        digest = client.key_sha256 or sha256((client.key or "").encode()).hexdigest()
        if digest.lower() in keys:
            yield f"clients[{at}]", "another client has the same key"
        keys.add(digest.lower())
    for name, upstream in config.upstreams.items():
        if upstream.api_key == "from_client" and config.clients:
            yield f"upstreams.{name}.api_key", "from_client does not go together with clients: both want the same key"


def _state_faults(config: c.Config) -> _References:
    if config.state.url.startswith("redis") and importlib.util.find_spec("redis") is None:
        yield "state.url", "needs what `pip install 'toolproxy[redis]'` installs"


def _fallback_faults(config: c.Config, tools: set[str]) -> _References:
    for name, tool in config.tools.items():
        if tool.fallback is not None and (tool.fallback not in tools or tool.fallback == name):
            yield f"tools.{name}.fallback", f"there is no other tool {tool.fallback!r}"


def _telemetry_faults(config: c.Config) -> _References:
    if config.telemetry.otlp_endpoint and not _can_trace():
        yield "telemetry.otlp_endpoint", "traces need an extra that is not installed: pip install 'toolproxy[otel]'"


def _can_trace() -> bool:
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False


def _mcp_faults(config: c.Config) -> _References:
    servers = {name: tool for name, tool in config.tools.items() if isinstance(tool, c.McpConfig)}
    for name, server in servers.items():
        path = f"tools.{name}"
        if (server.url is None) == (not server.command):
            yield path, "needs either url or command"
        elif server.url is None and server.headers:
            yield f"{path}.headers", "go with url; a command has env"
        elif server.url is not None and server.env:
            yield f"{path}.env", "goes with command; a url has headers"
        if server.aliases:
            yield f"{path}.aliases", "a server of several tools has none"
        if find_spec("mcp") is None:
            yield f"{path}.type", "mcp needs an extra: pip install 'toolproxy[mcp]'"
    for name, tool in config.tools.items():
        if tool.fallback in servers:
            yield f"tools.{name}.fallback", f"{tool.fallback!r} is a server of several tools"


def _tool_faults(config: c.Config, disabled: Mapping[str, c.Disabled]) -> _References:
    """What is wrong within one tool, where the types of its keys do not say it."""
    unusable = {where: entry.entry for where, entry in disabled.items()}
    for where, tool in (*((f"tools.{name}", tool) for name, tool in config.tools.items()), *unusable.items()):
        match tool:
            case c.HttpToolConfig():
                yield from ((f"{where}.{key}", message) for key, message in http_template.faults(tool))
            case c.PythonToolConfig(parameters=dict(schema)) if fault := schema_fault(schema):
                yield f"{where}.parameters", fault


def _host_faults(config: c.Config) -> _References:
    for name, tool in config.tools.items():
        if not isinstance(tool, c.WebFetchConfig):
            continue
        for option, allow, deny in (("allow_hosts", tool.allow_hosts, ()), ("deny_hosts", (), tool.deny_hosts)):
            try:
                UrlGuard(allow, deny)
            except ValueError as exc:
                yield f"tools.{name}.{option}", str(exc)


def _alias_faults(config: c.Config, tools: set[str]) -> _References:
    owners = {name: name for name in tools}
    for name, tool in config.tools.items():
        for alias in tool.aliases:
            owner = owners.setdefault(alias, name)
            if owner != name:
                yield f"tools.{name}.aliases", f"{alias!r} already means {owner!r}"
