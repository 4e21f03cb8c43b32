"""YAML, environment and `.env` -> Loaded; every fault names its file, line and path.

    text --> nodes that know their lines, `${NAME}` replaced (`document`) --> typed by the classes of `model`
    (`conversion`) --> references checked (`rules`)

All faults of a file are found at once: the references in readable parts are checked even if other parts are faulty.
`${NAME}` without a value disables the upstream, tool or client that contains it, so that one configuration serves users
who have only some of the keys. Anywhere else it is a fault.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path as File
from typing import Any, Final

import msgspec

from proxy.config import document
from proxy.config import model as c
from proxy.config.conversion import FAULTY, LEFT_OUT, UNSET, Converter, Fault, Path, line_of
from proxy.config.document import UNSET_MARK, Branch, Items, Leaf, Node, kind_of, leaves
from proxy.config.env_file import read_env_file
from proxy.config.files import read_file
from proxy.config.keys import meant_variable, why_no_key
from proxy.config.loaded import ClientsFile, Disabled, Loaded
from proxy.config.messages import unknown_key, unknown_type
from proxy.config.removed import removed_at
from proxy.config.rules import ReadableConfig, ToolKinds, faults_in
from proxy.config.syntax import VARIABLE
from proxy.config.warnings import warnings_in
from proxy.kit.header_names import SECRET_NAME
from proxy.loop.limits import LimitOverrides, LimitsConfig
from proxy.wire.errors import ConfigurationError

_NEARLY_THE_SAME: Final = 0.85  # ZAI_API_KEYY and ZAI_API_KEY, but not GMI_API_KEY: difflib's ratios are 0.96 and 0.82
_CLIENTS_FILE: Final = "clients_file"  # the path of its entries: `clients_file[0]`
_CLIENTS_FILE_PARTS: Final = (f"{_CLIENTS_FILE}[", f"{_CLIENTS_FILE}.")
# The keys of an entry of a list `api_key:` that was a mapping.
_KEY_ENTRY: Final = ("key", "max_concurrent", "weight")
_ONLY_IN_HEADERS: Final = "${request.headers.NAME} may stand only in the headers of a tool of type http or mcp"
_EMPTY_IF_UNSET: Final = (c.Key, c.Keys, c.HeaderValue, c.ToolHeaderValue)
_NEVER_NAMES: Final = (*_EMPTY_IF_UNSET, c.Url)


def load(path: File, environ: Mapping[str, str], *, kinds: ToolKinds, env_file: File | None = None) -> Loaded:
    """Read and check a configuration file.

    A variable that is not set, or empty, in `environ` has its value from `env_file`, which need not exist.

    Raises:
        ConfigurationError: with one line per fault, `config.yaml:LINE: path: what is wrong`.
    """
    text = _text_of(path)
    if text is None:
        raise ConfigurationError([f"{path}: cannot be read: no such file; `toolproxy init` writes one to start from"])
    if env_file is None:
        return parse(text, environ, kinds=kinds, name=path.name, folder=path.parent)
    values, warnings = read_env_file(env_file)
    both = {**values, **{name: value for name, value in environ.items() if value}}
    loaded = parse(text, both, kinds=kinds, name=path.name, folder=path.parent)
    return msgspec.structs.replace(loaded, warnings=(*warnings, *loaded.warnings))


def _text_of(path: File) -> str | None:
    """The text of a file; None: it does not exist. Raises `ConfigurationError`: it cannot be read."""
    try:
        return read_file(path).decode()
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise ConfigurationError([f"{path}: cannot be read: {exc.strerror}"]) from exc
    except UnicodeDecodeError as exc:
        raise ConfigurationError([f"{path}: is not UTF-8"]) from exc


def parse(
    text: str,
    environ: Mapping[str, str],
    *,
    kinds: ToolKinds,
    name: str = "config.yaml",
    folder: File | None = None,
) -> Loaded:
    """Read and check the text of a file, which messages call `name`. Raises `ConfigurationError`.

    The `clients_file` is looked for in `folder`; without a folder it is not read.
    """
    root = document.read(text, name=name, environ=environ)
    if root is None:
        return Loaded(c.Config())
    reader, clients = _ConfigReader(kinds=kinds), None
    read = reader.value(root, c.Config, Path("", 1))
    if read.clients_file is not None and folder is not None:
        clients, held = _read_clients_file(folder / read.clients_file, environ)
        read = msgspec.structs.replace(read, clients=(*read.clients, *reader.more_clients(held)))
    needs_key = bool(read.clients) or (clients is not None and clients.closes)
    faulty = {fault.path.name for fault in reader.faults}
    parts = ReadableConfig(kinds, read, reader.entries_read, reader.names, reader.disabled, faulty, needs_key)

    def at(path: str) -> Path:
        return Path(path, line_of(path, reader.lines))

    def file_of(path: Path) -> str:
        return File(clients.path).name if clients and path.name.startswith(_CLIENTS_FILE_PARTS) else name

    def placed(found: Iterable[Fault]) -> list[str]:
        """The messages with their files and lines, in the order of these."""
        ordered = sorted({(file_of(one.path) != name, one.path.line, str(one), file_of(one.path)) for one in found})
        return [f"{file}:{line}: {message}" for _, line, message, file in ordered]

    if faults := placed([*reader.faults, *(Fault(at(path), message) for path, message in faults_in(parts))]):
        raise ConfigurationError(faults)
    doubtful = [*warnings_in(parts), *reader.doubtful, *_misspelt(reader.disabled, text, environ)]
    return Loaded(
        read,
        disabled={path: _with_fallbacks(one, read) for path, one in reader.disabled.items()},
        places={path: f"{file_of(Path(path, line))}:{line}" for path, line in reader.lines.items()},
        warnings=tuple(placed([Fault(at(path), message) for path, message in doubtful])),
        secrets={path: frozenset(values) for path, values in reader.secrets.items()},
        refers_to=frozenset(reader.refers_to),
        clients_file=clients,
        key_variables={path: tuple(dict.fromkeys(names)) for path, names in reader.key_variables.items()},
        client_paths=tuple(path for path in parts.clients if path not in reader.disabled),
    )


def _with_fallbacks(disabled: Disabled, config: c.Config) -> Disabled:
    """An entry that cannot be used, with the fallbacks that answer for it if one of them can."""
    instead = disabled.entry.fallbacks if isinstance(disabled.entry, c.ToolConfig) else ()
    is_answered = not config.tools.keys().isdisjoint(instead)
    return msgspec.structs.replace(disabled, instead=instead) if is_answered else disabled


def _misspelt(disabled: Mapping[str, Disabled], text: str, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The path of each entry without a key for whose variable there is one of nearly the same name, and a warning."""
    others = environ.keys() - {name for name, _ in VARIABLE.findall(text)}
    for path, entry in disabled.items():
        for name in entry.variables:
            if near := get_close_matches(name, others, 1, _NEARLY_THE_SAME):
                yield path, f"{name} is not set, but {near[0]} is: did you mean that?"


def _read_clients_file(path: File, environ: Mapping[str, str]) -> tuple[ClientsFile, Node | None]:
    """A file of clients and its parsed content; None: the file is empty, or does not exist."""
    text = _text_of(path)
    if text is None:
        return ClientsFile(str(path.absolute()), digest=None, closes=False), None
    found = ClientsFile(str(path.absolute()), sha256(text.encode()).digest(), closes=True)
    return found, document.read(text, name=path.name, environ=environ)


@dataclass(kw_only=True)
class _ConfigReader(Converter):
    """Reads the parts of a configuration that are more than values of their types.

    Attributes:
        kinds: the types of tools.
        disabled: the path of each entry that cannot be used -> why.
        names: the path of each mapping with any keys -> its keys, those of faulty entries included.
        entries_read: the readable part of each upstream, tool and client, even of a disabled or faulty one.
        given: the values that variables in the current entry got from the environment.
        doubtful: what is a warning, such as an option that is gone: path, message.
        key_variables: the path of an entry with an `api_key` -> the variables that gave its keys.
        secrets: as in `Loaded`.
        refers_to: as in `Loaded`.
    """

    kinds: ToolKinds
    disabled: dict[str, Disabled] = field(default_factory=dict)
    names: dict[str, list[str]] = field(default_factory=dict)
    entries_read: dict[str, Any] = field(default_factory=dict)
    given: set[str] = field(default_factory=set)
    doubtful: list[tuple[str, str]] = field(default_factory=list)
    key_variables: dict[str, list[str]] = field(default_factory=dict)
    secrets: dict[str, set[str]] = field(default_factory=lambda: {"": set()})
    refers_to: set[str] = field(default_factory=set)

    def read(self, node: Node, kind: Any, path: Path, *, nullable: bool = False) -> Any:
        if kind in (LimitsConfig, LimitOverrides):
            return self.limits(node, kind, path)
        if kind is c.ToolConfig:
            return self.entry(path, lambda: self.tool(node, path))
        if kind in (c.UpstreamConfig, c.ClientConfig):
            return self.entry(path, lambda: self.struct(node, kind, path))
        return super().read(node, kind, path, nullable=nullable)

    def entry(self, path: Path, read: Callable[[], Any]) -> Any:
        """An upstream, tool or client, which is disabled, not faulty, if a variable in it has no value."""
        self.unset, self.given, before = [], set(), len(self.faults)
        value = read()
        missing, self.unset = tuple(dict.fromkeys(self.unset)), None
        entry = None if value is FAULTY or value is UNSET else value
        if entry is not None:
            self.entries_read[path.name] = entry
        if isinstance(entry, c.ToolConfig) and self.kinds[entry.type].variables_are_secrets:
            self.secrets[path.name] = self.given
        if len(self.faults) > before:
            return FAULTY if entry is None else entry
        unset = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set"
        if why := unset if missing else why_no_key(entry):
            name = f"client {entry.name}" if isinstance(entry, c.ClientConfig) else path.name.partition(".")[2]
            self.disabled[path.name] = Disabled(name=name or path.name, why=why, variables=missing, entry=entry)
            return LEFT_OUT
        return entry

    def tool(self, node: Node, path: Path) -> Any:
        """An entry of `tools:`, whose `type` determines its keys."""
        if not isinstance(node, Branch) or node.fault:
            return self.no_mapping(node, path)
        named = next((entry for entry in node.entries if entry.key == "type"), None)
        if named is None:
            return self.fault(path.key("type", path.line), f"is missing; known are {', '.join(self.kinds)}")
        at = path.key("type", named.line)
        kind = self.leaf(named.node, str, at)
        if not isinstance(kind, str):
            return kind
        if kind not in self.kinds:
            instead = {name: keys for one in self.kinds.values() for name, keys in one.instead.items()}
            return self.fault(at, unknown_type(kind, self.kinds, instead))
        return self.struct(node, self.kinds[kind].config, path, skip=("type",))

    def limits(self, node: Node, kind: Any, path: Path) -> Any:
        """The `limits:` of the file as `LimitsConfig`, or those of a model or client; null is treated as absent."""
        kinds = {info.name: info.type | None for info in msgspec.structs.fields(LimitsConfig)}
        values = self.fields(node, kinds, path)
        if any(value is UNSET for value in values.values()):
            return UNSET
        own = {name: value for name, value in values.items() if value is not FAULTY and value is not None}
        return LimitsConfig(**own) if kind is LimitsConfig else own

    def unknown(self, path: Path, message: str, node: Node) -> None:
        if (removed := removed_at(path.name)) is None:
            self.fault(path, message)
        elif removed.level == "fault" and not (isinstance(node, Leaf) and node.text in removed.harmless):
            self.fault(path, removed.sentence)
        else:
            self.doubtful.append((path.name, removed.sentence))
            self.lines[path.name] = path.line

    def mapping(self, node: Node, key_kind: Any, kind: Any, *, path: Path) -> Any:
        if isinstance(node, Branch):
            self.names[path.name] = [entry.key for entry in node.entries if not entry.name.variables]
        return super().mapping(node, key_kind, kind, path=path)

    def sequence(self, node: Node, kind: Any, path: Path) -> Any:
        if kind is c.ClientConfig and isinstance(node, Leaf) and node.is_null:  # all clients are commented out
            return ()
        if kind not in (c.Key, c.Sha256, c.Keys) or self.unset is None:
            return super().sequence(node, kind, path)
        outer, self.unset = self.unset, []
        items = self.items(self.without_key_options(node, path) if kind == c.Keys else node, kind, path)
        unset, self.unset = self.unset, outer
        if items is FAULTY:
            return FAULTY
        items = [item for item in items if item is not FAULTY]
        if kind == c.Keys:  # each key is known by its place, so the places stay
            items = ["" if item is UNSET else item for item in items]
        elif unset:
            items = [item for item in items if item is not UNSET and item]
        keys = c.keys_of(tuple(items)) if kind == c.Keys else items
        if keys:  # during a rotation, one of them may not be set
            self.omit(unset, path)
        else:
            self.unset += unset
        return tuple(items)

    def without_key_options(self, node: Node, path: Path) -> Node:
        """A list of keys in which each entry is its key, also one that is a mapping with further options."""
        if not isinstance(node, Items):
            return node
        keys = [(line, self.key_in(item, path.item(at, line))) for at, (line, item) in enumerate(node.items)]
        return Items(tuple(keys))

    def key_in(self, node: Node, path: Path) -> Node:
        """The key in an entry of a list of keys."""
        if not isinstance(node, Branch) or "key" not in (given := {entry.key: entry.node for entry in node.entries}):
            return node
        for entry in node.entries:
            if entry.key not in _KEY_ENTRY:
                self.fault(path.key(entry.key, entry.line), unknown_key(entry.key, _KEY_ENTRY))
        self.unknown(path, "must be text, not a mapping", node)
        return given["key"]

    def omit(self, unset: Iterable[str], path: Path) -> None:
        """Note that keys are left out whose variables have no value, because there are others."""
        self.doubtful += [(path.name, f"{name} is not set, and is left out") for name in unset]

    def leaf(self, node: Node, kind: Any, path: Path, *, nullable: bool = False) -> Any:
        if isinstance(node, Leaf) and (gone := removed_at(path.name, node.text)):
            return self.fault(path, gone.sentence)
        for leaf in leaves(node):
            self.note(leaf)
            if kind in _NEVER_NAMES and not leaf.variables and (name := meant_variable(leaf.text)):
                return self.fault(path, f"is the name of a variable, and not its value: write ${{{name}}}")
            if kind == c.ToolHeaderValue:
                self.refers_to |= leaf.refers_to
            elif leaf.refers_to:
                return self.fault(path, _ONLY_IN_HEADERS)
        if kind == c.Keys and isinstance(node, Leaf):
            given = [one.name for one in node.variables if one.value and not one.is_default]
            self.key_variables.setdefault(path.name.partition(".api_key")[0], []).extend(given)
        if kind == c.Keys and self.unset is not None and isinstance(node, Leaf) and node.unset:
            node = self.without_unset_keys(node, path)
        value = super().leaf(node, kind, path, nullable=nullable and kind not in (c.Key, c.Keys))
        if value is UNSET and kind in _EMPTY_IF_UNSET:  # and disables its entry
            return ""
        if kind in (c.Url, c.StateUrl) and isinstance(value, str) and (fault := c.address_fault(value)):
            return self.fault(path, fault)
        return value

    def without_unset_keys(self, node: Leaf, path: Path) -> Leaf:
        """A text of several keys without those that need a variable without a value, if any is left."""
        text = ",".join("" if UNSET_MARK in key else key for key in node.text.split(","))
        if not c.keys_of(text):
            return node
        self.omit(node.unset, path)
        return replace(
            node, value=text, text=text, variables=tuple(one for one in node.variables if one.value is not None)
        )

    def note(self, leaf: Leaf) -> None:
        """Note the values of variables that are secrets, or may be."""
        for variable in leaf.variables:
            if variable.value is not None and not variable.is_default:
                self.given.add(variable.value)
            if variable.value is not None and SECRET_NAME.search(variable.name):
                self.secrets[""].add(variable.value)

    def more_clients(self, node: Node | None) -> tuple[c.ClientConfig, ...]:
        """The clients of `clients_file`, which is a list of them, or a mapping with that list as `clients`."""
        path, line = Path(_CLIENTS_FILE, 1), 1
        if isinstance(node, Branch):
            entries, node = node.entries, None
            for entry in entries:
                if entry.key == "clients":
                    node, line = entry.node, entry.line
                else:
                    self.fault(path.key(entry.key, entry.line), "unknown key; known is clients")
        if node is None or (isinstance(node, Leaf) and node.is_null):
            return ()
        if not isinstance(node, Items):
            self.fault(Path(f"{_CLIENTS_FILE}[]", line), f"must be a list of clients, not {kind_of(node)}")
            return ()
        read: tuple[c.ClientConfig, ...] = self.sequence(node, c.ClientConfig, path)
        return read
