"""The nodes of a document -> values of the types that a class declares, with every fault at its path and line. No YAML.

    converter = Converter()
    script = converter.value(document.read(text, name="script.yaml"), Script, Path("", 1))
    if converter.faults: ...

A part without a value is `FAULTY` if its fault is known, and `UNSET` if a variable in it has no value.
"""

import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import UnionType
from typing import Annotated, Any, Final

import msgspec

from proxy.config.document import Branch, Entry, Items, Leaf, Node, leaves, plain
from proxy.config.messages import unknown_key, why_not, wrong_form

FAULTY: Final = object()
UNSET: Final = object()
LEFT_OUT: Final = object()
"""In place of an entry that cannot be used, and is not part of the mapping or list that has it."""

_NULL_WORDS: Final = ("", "~", "null", "Null", "NULL")
_NONE: Final = type(None)


@dataclass(frozen=True, slots=True)
class Path:
    """The place of a value in a document: its path, such as `tools.web_search.type`, and its line."""

    name: str
    line: int

    def key(self, key: str, line: int) -> "Path":
        """The place of an entry of a mapping."""
        return Path(f"{self.name}.{key}" if self.name else key, line)

    def item(self, index: int, line: int) -> "Path":
        """The place of an item of a list."""
        return Path(f"{self.name}[{index}]", line)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a value. The message does not quote the value, because it may be a secret."""

    path: Path
    message: str

    def __str__(self) -> str:
        return f"{self.path.name}: {self.message}" if self.path.name else self.message


@dataclass
class Converter:
    """Turns nodes into values, and collects their faults.

    Attributes:
        faults: the faults.
        lines: the path of each part that was read -> its line.
        unset: the variables without a value, if they are no faults.
    """

    faults: list[Fault] = field(default_factory=list)
    lines: dict[str, int] = field(default_factory=dict)
    unset: list[str] | None = None

    def fault(self, path: Path, message: str) -> Any:
        """Note a fault; returns `FAULTY`."""
        self.faults.append(Fault(path, message))
        return FAULTY

    def value(self, node: Node, kind: Any, path: Path) -> Any:
        """The value of a node as `kind`, `FAULTY` or `UNSET`."""
        self.lines[path.name] = path.line
        if not isinstance(kind, UnionType) and typing.get_origin(kind) is not typing.Union:
            return self.read(node, kind, path)
        options = [option for option in typing.get_args(kind) if option is not msgspec.UnsetType]
        nullable = _NONE in options
        if nullable and isinstance(node, Leaf) and node.is_null:
            return None
        options = [option for option in options if option is not _NONE]
        suitable = next((option for option in options if isinstance(node, _node_of(option))), options[0])
        return self.read(node, suitable, path, nullable=nullable)

    def read(self, node: Node, kind: Any, path: Path, *, nullable: bool = False) -> Any:
        """The value of a node as a `kind` that is no union, or one option of a union, which may be `nullable`."""
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return self.struct(node, kind, path)
        whole, arguments = _unwrapped(kind), typing.get_args(_unwrapped(kind))
        if typing.get_origin(whole) is dict:
            return self.mapping(node, *arguments, path=path)
        if typing.get_origin(whole) is not tuple:
            return self.leaf(node, kind, path, nullable=nullable)
        # All that a type says about its lists is that they must not be empty.
        is_too_short = whole is not kind and isinstance(node, Items) and not node.items
        return self.fault(path, "must not be empty") if is_too_short else self.sequence(node, arguments[0], path)

    def struct(self, node: Node, kind: type[msgspec.Struct], path: Path, *, skip: tuple[str, ...] = ()) -> Any:
        """The value of a mapping with a class of its own; `skip`: further keys, which somebody else reads."""
        fields = {info.name: info for info in msgspec.structs.fields(kind)}
        values = self.fields(node, {name: info.type for name, info in fields.items()}, path, skip=skip)
        for name, info in fields.items():
            if info.required and name not in values and isinstance(node, Branch):
                self.fault(path.key(name, path.line), "is missing")
        if _is_unset(values.values()):
            return UNSET
        read = {name: value for name, value in values.items() if value is not FAULTY}
        return kind(**read) if all(name in read for name, info in fields.items() if info.required) else FAULTY

    def fields(self, node: Node, kinds: Mapping[str, Any], path: Path, *, skip: tuple[str, ...] = ()) -> dict[str, Any]:
        """The values of a mapping with known keys."""
        values: dict[str, Any] = {}
        for entry, at in self.entries(node, path):
            if entry.key in kinds:
                values[entry.key] = self.value(entry.node, kinds[entry.key], at)
            elif entry.key not in skip:
                self.unknown(at, unknown_key(entry.key, (*kinds, *skip)), entry.node)
        return values

    def unknown(self, path: Path, message: str, _: Node) -> None:
        """Note that a mapping has a key that it cannot have."""
        self.fault(path, message)

    def mapping(self, node: Node, key_kind: Any, kind: Any, *, path: Path) -> Any:
        """The value of a mapping with any keys."""
        values: dict[str, Any] = {}
        for entry, at in self.entries(node, path):
            try:
                msgspec.convert(entry.key, key_kind)
            except msgspec.ValidationError:
                self.fault(at, why_not(entry.key, key_kind))
            else:
                values[entry.key] = self.value(entry.node, kind, at)
        if _is_unset(values.values()):
            return UNSET
        return {key: value for key, value in values.items() if value is not FAULTY and value is not LEFT_OUT}

    def sequence(self, node: Node, kind: Any, path: Path) -> Any:
        """The value of a list."""
        items = self.items(node, kind, path)
        if items is FAULTY or _is_unset(items):
            return FAULTY if items is FAULTY else UNSET
        return tuple(item for item in items if item is not FAULTY and item is not LEFT_OUT)

    def items(self, node: Node, kind: Any, path: Path) -> Any:
        """The values of the items of a list; `FAULTY` if it is no list."""
        if not isinstance(node, Items):
            return self.fault(path, wrong_form(path.name, "a list", node))
        return [self.value(item, kind, path.item(at, line)) for at, (line, item) in enumerate(node.items)]

    def entries(self, node: Node, path: Path) -> Iterator[tuple[Entry, Path]]:
        """The entries of a mapping, with their places."""
        if not isinstance(node, Branch) or node.fault:
            self.no_mapping(node, path)
            return
        for key, line in node.twice:
            self.fault(path.key(key, line), "is given twice")
        for entry in node.entries:
            at = path.key(entry.key, entry.line)
            if entry.name.variables:  # names appear in messages and metrics, so they must not contain secrets
                self.fault(at, "a key cannot hold a variable")
            else:
                yield entry, at

    def no_mapping(self, node: Node, path: Path) -> Any:
        """Note that a node cannot be read as a mapping; returns `FAULTY`."""
        why = node.fault if isinstance(node, Branch) else None
        return self.fault(path, why or wrong_form(path.name, "a mapping", node))

    def leaf(self, node: Node, kind: Any, path: Path, *, nullable: bool = False) -> Any:
        """The value of a node that is read as a single value, or as whatever it is."""
        self.note_lines(node, path)
        found = [*leaves(node)]
        if fault := next((leaf.fault for leaf in found if leaf.fault), None):
            return self.fault(path, fault)
        if unset := [name for leaf in found for name in leaf.unset]:
            if self.unset is None:
                return self.fault(path, f"{', '.join(dict.fromkeys(unset))} is not set")
            self.unset += unset
            return UNSET
        if isinstance(node, Leaf) and node.variables:
            is_left_out = nullable and node.text in _NULL_WORDS
            return None if is_left_out else self.converted(node.as_text_of(kind), kind, path, strict=False)
        return self.converted(plain(node), kind, path, strict=True)

    def converted(self, value: object, kind: Any, path: Path, *, strict: bool) -> Any:
        """A value as one of a type; unless it is `strict`, a text may stand for a number or a truth value."""
        try:
            return msgspec.convert(value, kind, strict=strict)
        except UnicodeEncodeError:  # such as an escaped surrogate
            return self.fault(path, "holds half of a character")
        except msgspec.ValidationError:
            return self.fault(path, why_not(value, kind))

    def note_lines(self, node: Node, path: Path) -> None:
        """Record the lines of all parts of a node, for the messages of later checks."""
        self.lines[path.name] = path.line
        match node:
            case Branch(entries=entries):
                for entry in entries:
                    self.note_lines(entry.node, path.key(entry.key, entry.line))
            case Items(items=items):
                for at, (line, item) in enumerate(items):
                    self.note_lines(item, path.item(at, line))


def line_of(path: str, lines: Mapping[str, int]) -> int:
    """The line of a part, or of the part in which it is missing."""
    while path and path not in lines:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return lines.get(path, 1)


def _unwrapped(kind: Any) -> Any:
    """The type itself, without what is said about it."""
    return typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind


def _node_of(kind: Any) -> type:
    """The node that a value of a type is read from."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return Branch
    return {dict: Branch, tuple: Items}.get(typing.get_origin(_unwrapped(kind)), Leaf)


def _is_unset(values: Any) -> bool:
    return any(value is UNSET for value in values)
