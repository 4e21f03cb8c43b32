"""A JSON Schema for answers, and the check whether an answer fits it.

A schema comes from a client, so its cost is bounded. References are not followed during a check: those within the
schema are unfolded beforehand, breadth first, up to a number of nodes and of levels; a reference beyond these bounds
permits anything, and so does a pattern that is too expensive. Without the bounds, thirty definitions with two
references each, both to the next definition, would block the event loop for minutes.
"""

import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jsonschema_rs
import orjson

from proxy.wire.chat import Json
from proxy.wire.errors import RequestError

_MAX_BYTES = 64 * 1024
_MAX_NODES = 2000
_MAX_LEVELS = 32
# Nodes of the schema times characters of the answer; this takes 25 ms with the slowest schema that was tried.
_MAX_WORK = 2_500_000
# The engine knows no look-around or back-references, so it takes linear time. To compile a pattern of half a megabyte,
# such as `\p{L}{1,10}`, takes up to 1.5 ms; one of ten, which is the engine's own limit, takes 20 ms. All patterns of a
# schema are compiled twice, which takes 25 ms at most.
_LINEAR, _SMALL = (jsonschema_rs.RegexOptions(size_limit=size * 1024) for size in (512, 64))
_MAX_PATTERNS, _MAX_LARGE_PATTERNS = 30, 3  # in a schema; further ones are left out
# pydantic writes such a pattern for each Decimal.
_LOOK_AROUND = re.compile(r"\(\?(?:=|!|<[=!])|\\[1-9k]")
_MAX_CHARACTERS = 200
# Keywords whose values are data, not schemas.
_DATA = ("enum", "const", "default", "examples")
_DEFINITIONS = ("$defs", "definitions")
_OTHERS = ("additionalProperties", "unevaluatedProperties")  # those that no pattern matches
_OF_PATTERNS = ("pattern", "patternProperties", *_OTHERS)
_NOT_FOLLOWED = ("$dynamicRef", "$recursiveRef")


class _UnusableSchema(ValueError):
    """A schema cannot be used; the message is the end of a sentence about the schema."""


@dataclass(frozen=True, slots=True)
class SchemaCheck:
    """Checks answers against a schema."""

    schema: Json
    _validator: Any = field(repr=False)
    _nodes: int

    @classmethod
    def of(cls, schema: Any, param: str) -> "SchemaCheck":
        """The check for a schema.

        Args:
            schema: as the client sent it.
            param: its place in the request.

        Raises:
            RequestError: it is not a schema, is too large, or has a reference to something outside it.
        """
        try:
            return cls._of(schema)
        except _UnusableSchema as exc:
            raise RequestError(f"'{param}' {exc}.", param=param) from exc

    @classmethod
    def _of(cls, schema: Any) -> "SchemaCheck":
        if not isinstance(schema, dict):
            raise _UnusableSchema("must be an object")
        try:
            size = len(orjson.dumps(schema))
        except orjson.JSONEncodeError as exc:
            raise _UnusableSchema("is nested too deep") from exc
        if size > _MAX_BYTES:
            raise _UnusableSchema(f"is larger than {_MAX_BYTES} bytes")
        whole = unfolded(schema)
        try:
            validator = jsonschema_rs.validator_for(whole, retriever=_refuse, pattern_options=_LINEAR)
        except ValueError as exc:  # the errors of jsonschema_rs are among these
            raise _UnusableSchema(f"is not a JSON Schema: {_short(exc)}") from exc
        return cls(schema, validator, _size(whole))

    def fault(self, text: str) -> str | None:
        """The first fault of an answer; None if the answer fits, or would take too long to check."""
        if self._nodes * len(text) > _MAX_WORK:
            return None
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError as exc:
            return f"it is not JSON: {exc.msg}"
        try:
            self._validator.validate(value)
        except jsonschema_rs.ValidationError as exc:
            return _short(exc)
        except ValueError:  # "Recursion limit reached"
            return "it is nested too deep"
        return None


def unfolded(schema: Json) -> Json:
    """The schema with every reference replaced by its target, as far as the bounds permit.

    Raises:
        ValueError: a reference has no target in the schema.
    """
    budget = _Budget()
    root: list[Any] = [None]
    waiting: deque[_Place] = deque([_Place(root, 0, schema, 0)])
    while waiting:
        place = waiting.popleft()
        node = place.node
        if isinstance(node, dict):
            target: Json = {}
            place.holder[place.key] = target
            level = place.level + ("$ref" in node)
            inner = _resolved(node, schema, budget, level)
            target |= {name: node[name] for name in _DATA if name in node}
            waiting.extend(_Place(target, name, value, level) for name, value in inner)
        elif isinstance(node, list):
            target_list: list[Any] = [None] * len(node)
            place.holder[place.key] = target_list
            waiting.extend(_Place(target_list, at, value, place.level) for at, value in enumerate(node))
        else:
            place.holder[place.key] = node
    unfolded_schema: Json = root[0]
    return unfolded_schema


@dataclass(frozen=True, slots=True)
class _Place:
    """A node that is yet to be unfolded, its destination, and the number of references above it."""

    holder: Any
    key: Any
    node: Any
    level: int


@dataclass(slots=True)
class _Budget:
    """The number of nodes that references may still add."""

    left: int = _MAX_NODES
    patterns: int = _MAX_PATTERNS
    large_patterns: int = _MAX_LARGE_PATTERNS
    sizes: dict[str, int] = field(default_factory=dict)

    def affords_pattern(self, pattern: str) -> bool:
        """Whether a pattern can be matched in linear time and is cheap to compile; if so, it is spent."""
        if not self.patterns or _LOOK_AROUND.search(pattern):
            return False
        self.patterns -= 1
        if not _is_larger(pattern, _SMALL):
            return True
        self.large_patterns -= 1
        return self.large_patterns >= 0 and not _is_larger(pattern, _LINEAR)

    def affords(self, reference: str, target: Any) -> bool:
        """Whether enough nodes are left for a target, which are then spent."""
        if reference not in self.sizes:
            self.sizes[reference] = _size(target)
        if self.sizes[reference] > self.left:
            return False
        self.left -= self.sizes[reference]
        return True


def _size(node: Any) -> int:
    inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return 1 + sum(_size(one) for one in inner)


def _resolved(node: Json, schema: Json, budget: _Budget, level: int) -> Iterator[tuple[str, Any]]:
    """The entries of a node that are yet to be unfolded; the node's own reference is resolved."""
    if any(name in node for name in _NOT_FOLLOWED):
        raise _UnusableSchema("has a dynamic reference, which is not supported")
    reference = node.get("$ref")
    refers = isinstance(reference, str)
    for name, inner in node.items():
        resolved = refers and name in ("$ref", "allOf")
        if name not in (*_DATA, *_DEFINITIONS, *_OF_PATTERNS) and not resolved:
            yield name, inner
    pattern, named = node.get("pattern"), node.get("patternProperties")
    if pattern is not None and (not isinstance(pattern, str) or budget.affords_pattern(pattern)):
        yield "pattern", pattern
    kept = named
    if isinstance(named, dict):
        kept = {name: inner for name, inner in named.items() if budget.affords_pattern(name)}
    if kept is not None:
        yield "patternProperties", kept
    if kept == named:  # else some of the others may be those of a pattern that was left out
        yield from ((name, node[name]) for name in _OTHERS if name in node)
    if refers:
        target = _lookup(schema, str(reference))
        known = level <= _MAX_LEVELS and budget.affords(str(reference), target)
        others = node.get("allOf") or []
        if not isinstance(others, list):
            raise _UnusableSchema("has an 'allOf' that is no list")
        yield "allOf", [*others, target if known else {}]


def _is_larger(pattern: str, bound: jsonschema_rs.RegexOptions) -> bool:
    """Whether a pattern is one, and needs more memory than the bound permits once it is compiled."""
    if "{" not in pattern:  # only repetitions multiply
        return False
    try:
        jsonschema_rs.validator_for({"pattern": pattern}, pattern_options=bound)
    except ValueError:
        try:
            re.compile(re.sub(r"\\[pP]\{\w+\}", r"\\w", pattern))
        except re.error:
            return False  # it is none, which the whole schema's check will say
        return True
    return False


def _lookup(schema: Json, reference: str) -> Any:
    """The target of a JSON pointer within the schema."""
    shown = repr(reference[:_MAX_CHARACTERS])
    if reference != "#" and not reference.startswith("#/"):
        raise _UnusableSchema(f"refers to {shown}; references are not followed")
    found: Any = schema
    for token in reference.split("/")[1:]:
        name = token.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or name not in found:
            raise _UnusableSchema(f"refers to {shown}, which it does not have")
        found = found[name]
    return found


def _short(error: object) -> str:
    where = ".".join(str(part) for part in getattr(error, "instance_path", ()))
    message = str(getattr(error, "message", error))[:_MAX_CHARACTERS]
    return f"{where}: {message}" if where else message


def _refuse(uri: str) -> Any:
    raise ValueError(f"references are not followed: {uri}")
