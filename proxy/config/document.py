"""YAML text -> a tree of immutable nodes, with `${NAME}` replaced. No types: see `conversion`.

    Leaf    a single value, and the variables in it
    Branch  a mapping, with its `<<` resolved; each entry knows its line
    Items   a list; each item knows its line

A fault of a node is kept in the node, because parts of a file may never be read.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import yaml

from proxy.config.syntax import VARIABLE, explained, unreadable
from proxy.wire.credentials import HEADER_OF_REQUEST, headers_in
from proxy.wire.errors import ConfigurationError

_BEGUN: Final = re.compile(r"\$\{[A-Za-z0-9_]{0,64}")
UNSET_MARK: Final = "\0"  # no variable of the environment can hold it
_NULL: Final = "tag:yaml.org,2002:null"
_UNREADABLE: Final = "cannot be read as the value that its form or its tag says it is"
_TOO_DEEP: Final = "is nested too deep, or refers to itself"
_MOST_LEVELS: Final = 100  # no configuration has a tenth of them, and the parser takes seconds for some thousands
_NO_SINGLE_KEY: Final = "a key must be a single value (is there a brace too many?)"


@dataclass(frozen=True, slots=True)
class Variable:
    """A `${NAME}` or `${NAME:-default}` in a text; without a value if it has neither one nor a default."""

    name: str
    value: str | None
    is_default: bool = False


@dataclass(frozen=True, slots=True)
class Leaf:
    """A single value.

    Attributes:
        value: the value as YAML reads it, or the text in which the variables have been replaced.
        text: the same as text; a variable without a value is an `UNSET_MARK` there.
        variables: the variables in the text.
        refers_to: the headers of requests that the text refers to, each as `${request.headers.NAME}`.
        is_null: whether the file says null.
        fault: why there is no value.
    """

    value: Any
    text: str = ""
    variables: tuple[Variable, ...] = ()
    refers_to: frozenset[str] = frozenset()
    is_null: bool = False
    fault: str | None = None

    @property
    def unset(self) -> list[str]:
        """The names of the variables without a value."""
        return [variable.name for variable in self.variables if variable.value is None]

    def as_text_of(self, kind: object) -> Any:
        """The text of variables, or the truth value that it is in YAML, such as `no`, in upper or lower case."""
        return yaml.SafeLoader.bool_values.get(self.text.lower(), self.text) if kind is bool else self.text


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a mapping: its key as it is written, the key's line, its value, and its key as YAML reads it."""

    key: str
    line: int
    node: "Node"
    name: Leaf


@dataclass(frozen=True, slots=True)
class Branch:
    """A mapping.

    Attributes:
        entries: its entries, those merged by `<<` first. Of several with the same key, the last.
        twice: keys that are given again, with their lines.
        fault: why it has no entries.
    """

    entries: tuple[Entry, ...]
    twice: tuple[tuple[str, int], ...] = ()
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Items:
    """A list, each item with its line."""

    items: tuple[tuple[int, "Node"], ...]


Node: TypeAlias = Leaf | Branch | Items


def read(text: str, *, name: str, environ: Mapping[str, str] | None = None) -> Node | None:
    """The tree of the text of a file, which messages call `name`; None: the text is empty.

    `environ` has the values of variables; without it, a text holds no variables.

    Raises:
        ConfigurationError: the text is not YAML, or a part of it contains itself.
    """
    try:
        root = yaml.compose(text, Loader=_Loader)
        return None if root is None else _Builder(environ).node(root)
    except yaml.MarkedYAMLError as exc:
        line, mistake = explained(text, exc)
        raise ConfigurationError([f"{name}:{line}: is not YAML: {mistake}"]) from exc
    except yaml.YAMLError as exc:
        raise ConfigurationError([unreadable(text, exc, name)]) from exc
    except RecursionError as exc:
        raise ConfigurationError([f"{name}: {_TOO_DEEP}"]) from exc


class _Loader(yaml.SafeLoader):
    """PyYAML's loader, which stops at a depth that no file needs."""

    _level = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._level += 1
        if self._level > _MOST_LEVELS:
            raise RecursionError
        node: yaml.Node | None = super().compose_node(parent, index)
        self._level -= 1
        return node


def leaves(node: Node) -> Iterator[Leaf]:
    """The single values in a node, its keys included. The fault of a mapping is one of a value."""
    match node:
        case Leaf():
            yield node
        case Branch(entries=entries, fault=fault):
            if fault:
                yield Leaf(None, fault=fault)
            for entry in entries:
                yield entry.name
                yield from leaves(entry.node)
        case Items(items=items):
            for _, item in items:
                yield from leaves(item)


def plain(node: Node) -> Any:
    """A node without faults, as a dict, a list or a single value."""
    match node:
        case Branch(entries=entries):
            return {entry.name.value: plain(entry.node) for entry in entries}
        case Items(items=items):
            return [plain(item) for _, item in items]
        case _:
            return node.value


def kind_of(node: Node) -> str:
    """A node in plain words."""
    match node:
        case Items():
            return "a list"
        case Branch():
            return "a mapping"
        case _:
            return "empty" if node.is_null else "a single value"


@dataclass(slots=True)
class _Builder:
    """Makes the nodes of YAML's, each of which becomes one node, however often the file refers to it."""

    environ: Mapping[str, str] | None
    loader: yaml.SafeLoader = field(default_factory=lambda: yaml.SafeLoader(""))
    made: dict[int, Node | None] = field(default_factory=dict)  # id of YAML's node -> ours; None: it is being made

    def node(self, node: yaml.Node) -> Node:
        if id(node) in self.made:
            if (known := self.made[id(node)]) is None:
                raise RecursionError
            return known
        self.made[id(node)] = None
        made = self.made[id(node)] = self._made(node)
        return made

    def _made(self, node: yaml.Node) -> Node:
        match node:
            case yaml.MappingNode(tag=self.loader.DEFAULT_MAPPING_TAG):
                return self._branch(node)
            case yaml.SequenceNode(tag=self.loader.DEFAULT_SEQUENCE_TAG):
                return Items(tuple([(item.start_mark.line + 1, self.node(item)) for item in node.value]))
            case yaml.ScalarNode():
                return self._leaf(node)
            case _:
                return Leaf(None, fault=_UNREADABLE)

    def _branch(self, node: yaml.MappingNode) -> Branch:
        if any(not isinstance(key, yaml.ScalarNode) for key, _ in node.value):
            return Branch((), fault=_NO_SINGLE_KEY)
        seen: set[str] = set()
        twice = [
            (key.value, key.start_mark.line + 1)
            for key, _ in node.value
            if key.value in seen or seen.add(key.value)  # type: ignore[func-returns-value]
        ]
        try:
            self.loader.flatten_mapping(node)
        except yaml.MarkedYAMLError as exc:
            return Branch((), tuple(twice), fault=str(exc.problem))
        # Merged keys come first, so the mapping's own keys replace them.
        last = {(key.tag, key.value): (key, value) for key, value in node.value}
        entries = [
            Entry(key.value, key.start_mark.line + 1, self.node(value), self._leaf(key)) for key, value in last.values()
        ]
        return Branch(tuple(entries), tuple(twice))

    def _leaf(self, node: yaml.ScalarNode) -> Leaf:
        text = node.value
        if self.environ is not None and "${" in text:
            if fault := _variable_fault(HEADER_OF_REQUEST.sub("", text)):
                return Leaf(None, text, fault=fault)
            variables = tuple([self._variable(*match.groups()) for match in VARIABLE.finditer(text)])
            values = iter(variables)
            text = VARIABLE.sub(lambda _: UNSET_MARK if (value := next(values).value) is None else value, text)
            return Leaf(text, text, variables, headers_in([text]))
        try:
            value = self.loader.construct_object(node, deep=True)
        except (yaml.YAMLError, ValueError, KeyError, AttributeError):
            return Leaf(None, text, fault=_UNREADABLE)
        return Leaf(value, text, is_null=node.tag == _NULL)

    def _variable(self, name: str, default: str | None) -> Variable:
        value = (self.environ or {}).get(name)
        return Variable(name, value) if value else Variable(name, default, is_default=True)


def _variable_fault(text: str) -> str | None:
    """The fault of a `${NAME}` in a text, if it has one."""
    if any("${" in (match[2] or "") for match in VARIABLE.finditer(text)):
        return "the default of a variable cannot hold another variable"
    begun = _BEGUN.search(VARIABLE.sub("", text))
    if begun is None:
        return None
    if "}" not in VARIABLE.sub("", text)[begun.end() :]:
        return f"{begun[0]} has no closing brace: write ${{NAME}} or ${{NAME:-default}}"
    return f"{begun[0]}...}} is not a variable: a name has letters, digits and '_'"
