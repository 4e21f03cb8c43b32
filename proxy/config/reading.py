"""YAML, environment and `.env` -> Loaded; every fault names its file, line and path.

    node (it knows its line) --> `${NAME}` replaced --> typed by the classes of `config` --> references checked

All faults of a file are found at once: the references in readable parts are checked even if other parts are faulty.
`${NAME}` without a value disables the upstream, tool or client that contains it, so that one configuration serves users
who have only some of the keys. Anywhere else it is a fault.
"""

import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from proxy.config import model as c
from proxy.config.env_file import read_env_file
from proxy.config.keys import why_no_key
from proxy.config.loaded import ClientsFile, Disabled, Loaded
from proxy.config.messages import PATTERNS, VARIABLE, in_plain_words, kind_of, unknown_key, variable_fault, yaml_hint
from proxy.config.rules import Parts, ToolKinds, faults_in
from proxy.config.warnings import warnings_in
from proxy.kit.header_names import SECRET_NAME
from proxy.loop.limits import LimitOverrides, LimitsConfig
from proxy.wire.credentials import headers_in
from proxy.wire.errors import ConfigurationError

_FAULTY: Final = object()  # in place of a value that could not be read; its fault is in `_Reader.faults`
_NULL: Final = "tag:yaml.org,2002:null"
_CLIENTS_FILE: Final = "clients_file"  # the path of its entries: `clients_file[0]`
_NULL_WORDS: Final = ("", "~", "null", "Null", "NULL")
_ONE_KEY: Final = c.Keys | c.ApiKey


def load(path: Path, environ: Mapping[str, str], *, kinds: ToolKinds, env_file: Path | None = None) -> Loaded:
    """Read and check a configuration file.

    Args:
        path: the file.
        environ: the values of its variables.
        kinds: the types of tools.
        env_file: a file with values of variables that are not set, or empty, in `environ`; it need not exist.

    Raises:
        ConfigurationError: with one line per fault, `config.yaml:LINE: path: what is wrong`.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as exc:
        raise ConfigurationError(
            [f"{path}: cannot be read: no such file; `toolproxy init` writes one to start from"]
        ) from exc
    except OSError as exc:
        raise ConfigurationError([f"{path}: cannot be read: {exc.strerror}"]) from exc
    except UnicodeDecodeError as exc:
        raise ConfigurationError([f"{path}: is not UTF-8"]) from exc
    if env_file is None:
        return parse(text, environ, kinds=kinds, name=path.name, folder=path.parent)
    beside = read_env_file(env_file)
    loaded = parse(text, beside.under(environ), kinds=kinds, name=path.name, folder=path.parent)
    return msgspec.structs.replace(loaded, warnings=(*beside.warnings, *loaded.warnings))


def parse(
    text: str,
    environ: Mapping[str, str],
    *,
    kinds: ToolKinds,
    name: str = "config.yaml",
    folder: Path | None = None,
) -> Loaded:
    """Read and check the text of a file, which messages call `name`. Raises `ConfigurationError`.

    The `clients_file` is looked for in `folder`; without a folder it is not read.
    """
    root = _compose(text, name)
    if root is None:
        return Loaded(c.Config())
    reader = _Reader(environ, kinds)
    clients = None
    try:
        read = reader.value(root, c.Config, _Path("", 1))
        if read.clients_file is not None and folder is not None:
            clients, held = _read_clients_file(folder / read.clients_file)
            read = msgspec.structs.replace(read, clients=(*read.clients, *reader.more_clients(held)))
    except RecursionError as exc:
        raise ConfigurationError([f"{name}: is nested too deep, or refers to itself"]) from exc
    needs_key = bool(read.clients) or (clients is not None and clients.closes)
    parts = Parts(kinds, read, reader.entries, reader.names, reader.disabled, reader.faulty, needs_key)
    for path, message in faults_in(parts):
        reader.fault(_Path(path, _line_of(path, reader.lines)), message)

    def placed(found: Iterable[tuple[str, int, str]]) -> list[str]:
        """The messages about paths with their files and lines, in the order of these."""
        ordered = sorted(set(found), key=lambda one: (_is_in_clients_file(one[0]), *one[1:]))
        return [f"{place(path, line)}: {message}" for path, line, message in ordered]

    def place(path: str, line: int) -> str:
        return f"{Path(clients.path).name if clients and _is_in_clients_file(path) else name}:{line}"

    if reader.faults:
        raise ConfigurationError(placed(reader.faults))
    doubtful = [*warnings_in(parts), *reader.omitted]
    warnings = placed((path, _line_of(path, reader.lines), f"{path}: {message}") for path, message in doubtful)
    places = {path: place(path, line) for path, line in reader.lines.items()}
    secrets = {path: frozenset(values) for path, values in reader.secrets.items()}
    refers_to = frozenset(reader.refers_to)
    return Loaded(read, reader.disabled, places, tuple(warnings), secrets, refers_to, clients)


def _compose(text: str, name: str) -> yaml.Node | None:
    """The node of a YAML text; None if it is empty. Raises `ConfigurationError`."""
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as exc:
        line = exc.problem_mark.line + 1 if exc.problem_mark else 1
        raise ConfigurationError([f"{name}:{line}: is not YAML: {exc.problem}{yaml_hint(text, exc)}"]) from exc
    except (yaml.YAMLError, RecursionError) as exc:
        raise ConfigurationError([f"{name}: cannot be read as YAML: {' '.join(str(exc).split())}"]) from exc
    return node


def _read_clients_file(path: Path) -> tuple[ClientsFile, yaml.Node | None]:
    """What is known of a file of clients, and its content; None: it is empty, or not there.

    Raises:
        ConfigurationError: it cannot be read.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return ClientsFile(str(path.absolute()), digest=None, closes=False), None
    except OSError as exc:
        raise ConfigurationError([f"{path}: cannot be read: {exc.strerror}"]) from exc
    found = ClientsFile(str(path.absolute()), sha256(data).digest(), closes=True)
    try:
        return found, _compose(data.decode(), path.name)
    except UnicodeDecodeError as exc:
        raise ConfigurationError([f"{path}: is not UTF-8"]) from exc


def _is_in_clients_file(path: str) -> bool:
    return path.startswith((f"{_CLIENTS_FILE}[", f"{_CLIENTS_FILE}."))


@dataclass(frozen=True, slots=True)
class _Path:
    """The place of a value in the file: its path, such as `tools.web_search.type`, and its line."""

    name: str
    line: int

    def key(self, key: str, line: int) -> "_Path":
        return _Path(f"{self.name}.{key}" if self.name else key, line)

    def item(self, index: int, line: int) -> "_Path":
        return _Path(f"{self.name}[{index}]", line)


@dataclass(slots=True)
class _Reader:
    """Turns nodes into values, and collects their faults."""

    environ: Mapping[str, str]
    kinds: ToolKinds
    faults: list[tuple[str, int, str]] = field(default_factory=list)  # path, line, message with the path
    disabled: dict[str, Disabled] = field(default_factory=dict)
    faulty: set[str] = field(default_factory=set)  # the paths of the faults
    lines: dict[str, int] = field(default_factory=dict)
    # The keys of each section with entries, including faulty ones.
    names: dict[str, list[str]] = field(default_factory=dict)
    # The readable part of each entry, even of a disabled or faulty one.
    entries: dict[str, Any] = field(default_factory=dict)
    unset: list[str] | None = None  # variables without a value in the current entry
    # The id of a node with variables -> their values.
    substituted: dict[int, list[str]] = field(default_factory=dict)
    from_environment: list[str] = field(default_factory=list)  # the values of variables in the current entry
    omitted: list[tuple[str, str]] = field(default_factory=list)  # keys without a value in lists of keys: path, message
    secrets: dict[str, set[str]] = field(default_factory=lambda: {"": set()})  # as in `Loaded`
    refers_to: set[str] = field(default_factory=set)  # the headers of requests that tools refer to
    loader: yaml.SafeLoader = field(default_factory=lambda: yaml.SafeLoader(""))

    def fault(self, path: _Path, message: str) -> Any:
        self.faults.append((path.name, path.line, f"{path.name}: {message}" if path.name else message))
        self.faulty.add(path.name)
        return _FAULTY

    def value(self, node: yaml.Node, kind: Any, path: _Path) -> Any:
        """The value of a node as `kind`, or `_FAULTY`."""
        self.lines[path.name] = path.line
        nullable = False
        if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
            if node.tag == _NULL:
                return None
            options = [option for option in typing.get_args(kind) if option is not type(None)]
            nullable = len(options) < len(typing.get_args(kind))
            kind = next((option for option in options if _is_for(option, node)), options[0])
        if kind in (LimitsConfig, LimitOverrides):
            return self.limits(node, kind, path)
        if isinstance(kind, type) and issubclass(kind, c.Value):
            return self.section(node, kind, path)
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin is dict:
            return self.mapping(node, *arguments, path=path)
        if origin is tuple:
            return self.sequence(node, arguments[0], path)
        return self.leaf(node, kind, path, nullable=nullable)

    def more_clients(self, node: yaml.Node | None) -> tuple[c.ClientConfig, ...]:
        """The clients of `clients_file`, which is a list of them, or a mapping with that list as `clients`."""
        if isinstance(node, yaml.MappingNode):
            for key, _ in node.value:
                if key.value != "clients":
                    at = _Path(_CLIENTS_FILE, 1).key(str(key.value), key.start_mark.line + 1)
                    self.fault(at, "unknown key; known is clients")
            node = next((value for key, value in node.value if key.value == "clients"), None)
        if node is None or node.tag == _NULL:
            return ()
        if not isinstance(node, yaml.SequenceNode):
            at = _Path(f"{_CLIENTS_FILE}[]", node.start_mark.line + 1)
            self.fault(at, f"must be a list of clients, not {kind_of(node)}")
            return ()
        read: tuple[c.ClientConfig, ...] = self.sequence(node, c.ClientConfig, _Path(_CLIENTS_FILE, 1))
        return read

    def section(self, node: yaml.Node, kind: type[c.Value], path: _Path) -> Any:
        """The value of a mapping that has a class of its own."""
        if kind is c.ToolConfig:
            return self.entry(node, path, self.tool)
        if kind in (c.UpstreamConfig, c.ClientConfig):
            return self.entry(node, path, lambda node, path: self.struct(node, kind, path))
        return self.struct(node, kind, path)

    def entry(self, node: yaml.Node, path: _Path, read: Callable[[yaml.Node, _Path], Any]) -> Any:
        """An upstream, tool or client, which is disabled, not faulty, if a variable in it has no value."""
        self.unset, self.from_environment, before = [], [], len(self.faults)
        value = read(node, path)
        missing, self.unset = dict.fromkeys(self.unset), None
        if isinstance(value, c.ToolConfig) and self.kinds[value.type].variables_are_secrets:
            self.secrets[path.name] = set(self.from_environment)
        entry = None if value is _FAULTY else value
        if entry is not None:
            self.entries[path.name] = entry
        if len(self.faults) > before:
            return value
        unset = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set"
        if why := unset if missing else why_no_key(entry):
            self.disabled[path.name] = Disabled(why=why, variables=tuple(missing), entry=entry)
            return None
        return value

    def pairs(self, node: yaml.Node, path: _Path) -> Iterator[tuple[str, yaml.Node, _Path]]:
        """The entries of a mapping."""
        if not self.flatten(node, path):
            return
        for key_node, value_node in node.value:
            key = str(key_node.value)
            at = path.key(key, key_node.start_mark.line + 1)
            if VARIABLE.search(key):  # names appear in messages and metrics, so they must not contain secrets
                self.fault(at, "a key cannot hold a variable")
            else:
                yield key, value_node, at

    def flatten(self, node: yaml.Node, path: _Path) -> bool:
        """Resolve the `<<` of a mapping; returns whether the node is a mapping that can be read."""
        if not isinstance(node, yaml.MappingNode):
            self.fault(path, f"must be a mapping, not {kind_of(node)}")
            return False
        if any(not isinstance(key_node, yaml.ScalarNode) for key_node, _ in node.value):
            self.fault(path, "a key must be a single value (is there a brace too many?)")
            return False
        seen: set[str] = set()
        for key_node, _ in node.value:
            if (key := str(key_node.value)) in seen:
                self.fault(path.key(key, key_node.start_mark.line + 1), "is given twice")
            seen.add(key)
        try:
            self.loader.flatten_mapping(node)
        except yaml.MarkedYAMLError as exc:
            self.fault(path, str(exc.problem))
            return False
        # Merged keys come first, so the mapping's own keys replace them. Duplicates are removed, because a node with an
        # anchor is read again at each alias.
        node.value = list({key_node.value: (key_node, value_node) for key_node, value_node in node.value}.values())
        return True

    def struct(self, node: yaml.Node, kind: type[c.Value], path: _Path, *, skip: tuple[str, ...] = ()) -> Any:
        fields = _fields_of(kind)
        before = len(self.faults)
        values = self.fields(node, {name: info.type for name, info in fields.items()}, path, skip=skip)
        for name, info in fields.items():
            if info.required and name not in values and isinstance(node, yaml.MappingNode):
                self.fault(path.key(name, path.line), "is missing")
        read = {name: value for name, value in values.items() if value is not _FAULTY}
        if len(read) < len(values) and len(self.faults) == before:  # a variable has no value
            return _FAULTY
        if any(info.required and name not in read for name, info in fields.items()):
            return _FAULTY
        return kind(**read)

    def limits(self, node: yaml.Node, kind: Any, path: _Path) -> Any:
        """The `limits:` of the file as `LimitsConfig`, or those of a model or client; null is treated as absent."""
        before = len(self.faults)
        values = self.fields(node, {name: info.type | None for name, info in _fields_of(LimitsConfig).items()}, path)
        if any(value is _FAULTY for value in values.values()) and len(self.faults) == before:
            return _FAULTY  # a variable has no value
        own = {name: value for name, value in values.items() if value is not _FAULTY and value is not None}
        return LimitsConfig(**own) if kind is LimitsConfig else own

    def fields(self, node: yaml.Node, kinds: Mapping[str, Any], path: _Path, *, skip: tuple[str, ...] = ()) -> Any:
        """The values of a mapping with known keys, each of its kind or `_FAULTY`."""
        values: dict[str, Any] = {}
        for key, value_node, at in self.pairs(node, path):
            if key in skip:
                continue
            if key not in kinds:
                self.fault(at, unknown_key(key, (*kinds, *skip)))
                continue
            values[key] = self.value(value_node, kinds[key], at)
        return values

    def tool(self, node: yaml.Node, path: _Path) -> Any:
        """An entry of `tools:`, whose `type` determines its keys."""
        if not self.flatten(node, path):
            return _FAULTY
        named = [(value, key.start_mark.line + 1) for key, value in node.value if key.value == "type"]
        if not named:
            return self.fault(path.key("type", path.line), f"is missing; known are {', '.join(self.kinds)}")
        value, line = named[0]
        at = path.key("type", line)
        kind = self.leaf(value, str, at)
        if kind is not _FAULTY and kind not in self.kinds:
            return self.fault(at, f"unknown type {kind!r}; known are {', '.join(self.kinds)}")
        if kind is _FAULTY:
            return _FAULTY
        return self.struct(node, self.kinds[kind].config, path, skip=("type",))

    def mapping(self, node: yaml.Node, key_kind: Any, kind: Any, *, path: _Path) -> Any:
        values: dict[str, Any] = {}
        before = len(self.faults)
        names = self.names[path.name] = []
        for key, value_node, at in self.pairs(node, path):
            names.append(key)
            try:
                msgspec.convert(key, key_kind)
            except msgspec.ValidationError:
                self.fault(at, PATTERNS[key_kind])
                continue
            values[key] = self.value(value_node, kind, at)
        if any(value is _FAULTY for value in values.values()) and len(self.faults) == before:
            return _FAULTY  # a variable has no value
        return {
            key: value
            for key, value in values.items()
            if value is not _FAULTY and path.key(key, 0).name not in self.disabled
        }

    def sequence(self, node: yaml.Node, kind: Any, path: _Path) -> Any:
        if kind is c.ClientConfig and node.tag == _NULL:  # all clients are commented out
            return ()
        if not isinstance(node, yaml.SequenceNode):
            return self.fault(path, f"must be a list, not {kind_of(node)}")
        before, unset = len(self.faults), len(self.unset or ())
        items = [self.value(item, kind, path.item(at, item.start_mark.line + 1)) for at, item in enumerate(node.value)]
        if kind in (c.Key, c.Sha256) and self.unset and len(self.faults) == before:
            items = [item for item in items if item is not _FAULTY and item]
            if items:  # during a rotation, one of the keys may not be set
                self.leave_out(unset, path)
            return tuple(items)
        if kind == _ONE_KEY and len(self.faults) == before:  # each key is known by its place, so the places stay
            items = ["" if item is _FAULTY else item for item in items]
            if c.keys_of(tuple(items)):
                self.leave_out(unset, path)
            return tuple(items)
        if any(item is _FAULTY for item in items) and len(self.faults) == before:
            return _FAULTY  # a variable has no value
        return tuple(
            item for at, item in enumerate(items) if item is not _FAULTY and path.item(at, 0).name not in self.disabled
        )

    def leave_out(self, since: int, path: _Path) -> None:
        """Take the variables that were found unset `since` then for keys that are left out beside others."""
        if self.unset is not None:
            self.omitted += [(path.name, f"{name} is not set, and left out") for name in self.unset[since:]]
            del self.unset[since:]

    def leaf(self, node: yaml.Node, kind: Any, path: _Path, *, nullable: bool = False) -> Any:
        self.note_lines(node, path)
        before = len(self.unset or ())
        substituted = self.substitute(node, path, refers_to_request=kind == c.ToolHeaderValue)
        if substituted is None:
            return _FAULTY
        if kind == c.Keys and c.keys_of(str(node.value)):
            self.leave_out(before, path)
        if len(self.unset or ()) > before:  # an unset key is read as none; any other value cannot be read
            return "" if kind in (c.Key, c.Keys, c.HeaderValue, c.ToolHeaderValue) else _FAULTY
        strict = not (substituted and isinstance(node, yaml.ScalarNode))
        # An empty key disables.
        if not strict and nullable and node.value in _NULL_WORDS and kind not in (c.Key, c.Keys):
            return None
        try:
            value = _of_text(node.value, kind) if not strict else self.loader.construct_object(node, deep=True)
        except (yaml.YAMLError, ValueError, KeyError, AttributeError):
            return self.fault(path, "cannot be read as the value that its form or its tag says it is")
        try:
            value = msgspec.convert(value, kind, strict=strict)
            fault = c.address_fault(value) if kind in (c.Url, c.StateUrl) else None
        except UnicodeEncodeError:  # such as an escaped surrogate
            fault = "holds half of a character"
        except msgspec.ValidationError as exc:
            fault = in_plain_words(str(exc), kind)
        return self.fault(path, fault) if fault else value

    def note_lines(self, node: yaml.Node, path: _Path) -> None:
        """Record the lines of all parts of a node, for the messages of later checks."""
        self.lines[path.name] = path.line
        match node:
            case yaml.MappingNode(value=pairs):
                for key, value in pairs:
                    self.note_lines(value, path.key(str(key.value), key.start_mark.line + 1))
            case yaml.SequenceNode(value=items):
                for at, item in enumerate(items):
                    self.note_lines(item, path.item(at, item.start_mark.line + 1))

    def substitute(self, node: yaml.Node, path: _Path, *, refers_to_request: bool = False) -> bool | None:
        """Replace the variables in a node and below; True if there are any, None after a fault."""
        if isinstance(node, yaml.ScalarNode):
            if id(node) in self.substituted:  # the node has an anchor and was read before
                self.from_environment += self.substituted[id(node)]
                return True
            if refers_to_request:
                self.refers_to |= headers_in([node.value])
            if fault := variable_fault(node.value, refers_to_request=refers_to_request):
                self.fault(path, fault)
                return None
            if not VARIABLE.search(node.value):
                return False
            missing: list[str] = []
            found = self.substituted[id(node)] = []
            node.value = VARIABLE.sub(lambda match: self.lookup(match, missing, found), node.value)
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
        if SECRET_NAME.search(name):
            self.secrets[""].add(value)
        return value


def _of_text(text: str, kind: Any) -> Any:
    """The text of a variable, or the truth value that it is in YAML, such as `no`, in upper or lower case."""
    return yaml.SafeLoader.bool_values.get(text.lower(), text) if kind is bool else text


def _is_for(kind: Any, node: yaml.Node) -> bool:
    """Whether a node is a mapping, a list or a single value, as the kind requires."""
    if isinstance(kind, type) and issubclass(kind, c.Value):
        return isinstance(node, yaml.MappingNode)
    nodes = {dict: yaml.MappingNode, tuple: yaml.SequenceNode}
    return isinstance(node, nodes.get(typing.get_origin(kind), yaml.ScalarNode))


def _line_of(path: str, lines: Mapping[str, int]) -> int:
    """The line of a key, or of the section in which it is missing."""
    while path and path not in lines:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return lines.get(path, 1)


def _fields_of(kind: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    return {info.name: info for info in msgspec.structs.fields(kind)}
