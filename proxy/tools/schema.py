"""A tool's JSON Schema: how much work it can make is counted when it is taken in, and it is compiled once.

A compiled schema holds the interpreter while it checks arguments, so that neither a thread nor slices would help. The
work is bounded beforehand instead:

    width      the most parts of the schema that one value of the arguments is compared with, references followed
    work       width * values in the arguments

The library compares each value with each part of a recursive schema only once, but only while it answers yes or no.
Where it has to describe faults it describes all of them, so that it is asked for them only where they are few.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from typing import Any, Final
from urllib.parse import unquote

import jsonschema_rs
import orjson

from proxy.wire.chat import Json

MOST_SCHEMA_BYTES: Final = 64 * 1024
"""The longest schema of a tool, as JSON."""
_MOST_WIDTH = MOST_SCHEMA_BYTES  # a schema that expands to more than it could say without references is refused
_MOST_LEVELS = 128  # of a schema, references followed: the count and the compiler are recursive
_MOST_WORK = 1_000_000  # 0.1 seconds with the slowest keywords that were tried, numbers in `const`
_MOST_FAULTS = 5
# Faults within alternatives take 90 us to describe, others 9 us, and each may quote the arguments.
_MOST_DESCRIBED, _MOST_DESCRIBED_ALTERNATIVES, _MOST_QUOTED = 4_000, 1_000, 1_000_000
# A pattern is compiled to at most so many bytes; the time for a character grows with them, to some microseconds for
# those of the same row. `_MOST_PATTERN_WORK` characters of the first row take 0.04 seconds.
_PATTERN_SIZES = ((1 << 15, 1), (1 << 18, 8), (1 << 21, 64))
_MOST_PATTERN_WORK = 40_000
_LONGEST_QUOTED = 200  # characters of a value or a pattern in a message
_MOST_KEY_PATTERNS = 1000  # these are compiled with the schema
_MOST_BACKTRACKS = 1000  # for patterns with look-around

# Keywords whose schemas apply to the same value, and those whose schemas apply to values within it.
_SAME_LISTS = ("allOf", "anyOf", "oneOf")
_SAME = ("not", "if", "then", "else")
_WITHIN = (
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
    "items",
    "additionalItems",
    "unevaluatedItems",
    "contains",
)
_WITHIN_NAMED = ("properties", "patternProperties")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
# With these the same value is compared more than once, so that there can be more faults than values.
_ALTERNATIVES = (*_SAME_LISTS, *_SAME, "dependentSchemas", "dependencies", "patternProperties", "unevaluatedProperties")
_WORK_OF_MULTIPLE = 250  # `multipleOf` divides exactly, which takes 20 us with the largest numbers

# Keywords whose values are data, not schemas.
_DATA = ("enum", "const", "default", "examples")

_IS_PATTERN = jsonschema_rs.Draft7Validator({"format": "regex"}, validate_formats=True)


class ArgumentsSchema:
    """The schema of a tool's arguments, compiled.

    Attributes:
        schema: the schema.
        width: the most parts of it that one value is compared with.
        references: the targets of its references.

    Raises:
        ValueError: it is not a JSON Schema, refers to another document, or can make too much work; the message is the
            end of a sentence about the schema.
    """

    def __init__(self, schema: Json) -> None:
        count = _Count(schema)
        self.schema = schema
        self.width = count.width(schema, schema)
        if self.width > _MOST_WIDTH:
            raise ValueError(f"expands to more than {_MOST_WIDTH} values where its references are followed")
        if count.key_patterns > _MOST_KEY_PATTERNS:
            raise ValueError(f"has more than {_MOST_KEY_PATTERNS} patterns for names")
        self._is_recursive, self._has_alternatives = count.is_recursive, count.has_alternatives
        self._key_patterns = count.key_patterns
        self._most_costly = max(self.width, count.key_patterns)
        self.references = count.references
        self._pattern_work = _PatternWork()
        # The library calls it like the class that it asks for.
        pattern: Any = partial(_Pattern, self._pattern_work)
        options = jsonschema_rs.FancyRegexOptions(backtrack_limit=_MOST_BACKTRACKS, size_limit=_PATTERN_SIZES[0][0])
        try:
            self._validator = jsonschema_rs.validator_for(
                schema,
                # By default the library fetches remote references; no tool's schema may make us send requests.
                retriever=_refuse_reference,
                keywords={"pattern": pattern} if count.has_patterns else None,
                pattern_options=options,
            )
        except ValueError as exc:  # the errors of jsonschema_rs are among these
            raise ValueError(f"is not a JSON Schema: {str(exc).splitlines()[0]}") from exc

    def is_too_much(self, text: str) -> bool:
        """Whether checking arguments, written as this text, would take too long."""
        if self._most_costly * len(text) <= _MOST_PATTERN_WORK:
            return False
        return self.width * _most_values(text) > _MOST_WORK or self._key_patterns * len(text) > _MOST_PATTERN_WORK

    def is_valid(self, arguments: Json) -> bool:
        """Whether arguments fit, for which it was not too much to check them."""
        self._pattern_work.left = _MOST_PATTERN_WORK
        return self._validator.is_valid(arguments)

    def faults(self, arguments: Json, text: str) -> list[str]:
        """The first few faults of arguments that do not fit; empty if it would take too long to find them."""
        self._pattern_work.left = _MOST_PATTERN_WORK
        work, quoted = self.width * _most_values(text), self.width * len(text)
        most = _MOST_DESCRIBED_ALTERNATIVES if self._has_alternatives else _MOST_DESCRIBED
        if work <= most and quoted <= _MOST_QUOTED and not (self._has_alternatives and self._is_recursive):
            return [_described(error) for error in islice(self._validator.iter_errors(arguments), _MOST_FAULTS)]
        if not self._has_alternatives:
            try:
                self._validator.validate(arguments)  # which describes the first fault alone
            except jsonschema_rs.ValidationError as exc:
                return [_described(exc)]
        return []


@lru_cache(maxsize=1024)  # each configuration, and each list of a server's tools, has mostly the same tools as before
def _compiled(text: bytes) -> ArgumentsSchema | str:
    """A schema, compiled, or its fault."""
    try:
        return ArgumentsSchema(orjson.loads(text))
    except ValueError as exc:
        return str(exc)


def schema_of(parameters: Json) -> ArgumentsSchema:
    """The schema of a tool's arguments, which is compiled only once.

    Raises:
        ValueError: the schema cannot be used; the message is the end of a sentence about it.
    """
    try:
        text = orjson.dumps(parameters)
    except (orjson.JSONEncodeError, RecursionError) as exc:
        raise ValueError(f"is not a JSON Schema: it cannot be written as JSON: {exc}") from exc
    if len(text) > MOST_SCHEMA_BYTES:
        raise ValueError(f"is longer than {MOST_SCHEMA_BYTES} bytes")
    schema = _compiled(text)
    if isinstance(schema, str):
        raise ValueError(schema)  # noqa: TRY004 - it is the fault of a schema
    return schema


def schema_fault(parameters: Json) -> str | None:
    """The fault of a schema for a tool's arguments, in one line; None: it has none."""
    if parameters.get("type", "object") != "object":
        return "must be a JSON Schema of type object"
    try:
        schema_of(parameters)
    except ValueError as exc:
        return str(exc)
    return None


def serving_fault(parameters: Json) -> str | None:
    """Why a tool with this schema cannot run code in the place of a hosted tool; None: it can."""
    properties = parameters.get("properties")
    code = properties.get("code") if isinstance(properties, dict) else None
    if isinstance(code, dict) and code.get("type") == "string":
        return None
    return "code_interpreter needs a tool whose arguments have a text 'code'"


class References:
    """The targets of the references within a schema. Raises `ValueError`: two of its parts have one name."""

    def __init__(self, schema: Json) -> None:
        self.schema = schema
        # Before 2019, `id` was the keyword, which is now the name of many a property.
        self._identity = "id" if "draft-04" in str(schema.get("$schema")) else "$id"
        self._named: dict[tuple[int | None, str], Json] = {}  # resource and anchor, or None and identity -> part
        waiting: list[tuple[Any, Json]] = [(schema, schema)]
        while waiting:
            node, resource = waiting.pop()
            if isinstance(node, list):
                waiting += [(item, resource) for item in node]
            elif isinstance(node, dict):
                resource = self.resource_of(node, resource)
                if resource is node and isinstance(identity := node.get(self._identity), str):
                    self._name(None, identity.rstrip("#"), node)
                for keyword in ("$anchor", "$dynamicAnchor"):
                    if isinstance(name := node.get(keyword), str):
                        self._name(id(resource), name, node)
                waiting += [(item, resource) for keyword, item in node.items() if keyword not in _DATA]

    def resource_of(self, node: Json, parent: Json) -> Json:
        """The part of the schema from which the references in a node start: itself if it has an identity."""
        return node if isinstance(node.get(self._identity), str) else parent

    def target(self, reference: str, resource: Json) -> tuple[Any, Json]:
        """The target of a reference, and the resource that it is part of.

        Args:
            reference: `#`, `#/pointer`, `#anchor`, or one of these after the identity of a part of the schema.
            resource: the resource that the reference is in.

        Raises:
            ValueError: it has no target in the schema.
        """
        document, _, fragment = reference.partition("#")
        if document:
            found = self._named.get((None, document))
            if found is None:
                raise ValueError(f"is not a JSON Schema: remote references are not followed: {reference[:200]}")
            resource = found
        target: Any = resource
        if fragment.startswith("/"):
            for step in unquote(fragment[1:]).split("/"):
                target = _step(target, step.replace("~1", "/").replace("~0", "~"))
                if isinstance(target, dict):
                    resource = self.resource_of(target, resource)
        elif fragment:
            target = self._named.get((id(resource), fragment))
        if target is None:
            raise ValueError(f"is not a JSON Schema: there is nothing at {reference[:200]!r}")
        return target, resource

    def _name(self, resource: int | None, name: str, node: Json) -> None:
        if self._named.setdefault((resource, name), node) is not node:
            raise ValueError(f"is not a JSON Schema: two parts of it are named {name[:200]!r}")


def _step(node: Any, step: str) -> Any:
    if isinstance(node, dict):
        return node.get(step)
    with suppress(ValueError, IndexError):
        return node[int(step)] if isinstance(node, list) else None
    return None


class _Count:
    """Counts the work that a schema can make."""

    def __init__(self, schema: Json) -> None:
        self.is_recursive = self.has_alternatives = self.has_patterns = False
        self.key_patterns = 0
        self.references = References(schema)
        self._known: dict[int, int] = {}
        self._open: set[int] = set()

    def width(self, node: Any, resource: Json, level: int = 0) -> int:
        """The most parts of a schema that a value, or one within it, is compared with.

        Recursion adds nothing: the library compares a value with the same part only once.

        Raises:
            ValueError: a reference has no target in the schema, or it is nested too deep.
        """
        if not isinstance(node, dict):
            return 1
        if id(node) in self._open:
            self.is_recursive = True
            return 1
        if id(node) in self._known:
            return self._known[id(node)]
        if level > _MOST_LEVELS:
            raise ValueError(f"has more than {_MOST_LEVELS} levels, references included")
        resource = self.references.resource_of(node, resource)
        self._open.add(id(node))
        same = sum(self.width(child, place, level + 1) for child, place in self._on_same_value(node, resource))
        within = [self.width(child, resource, level + 1) for child in _on_values_within(node)]
        self._open.remove(id(node))
        self._known[id(node)] = width = max(self._own(node), *within, 0) + same
        return width

    def _own(self, node: Json) -> int:
        """The parts of a schema that a value itself is compared with. Raises `ValueError`."""
        if isinstance(pattern := node.get("pattern"), str):
            self.has_patterns = True
            _check_pattern(pattern)
        self.has_alternatives = self.has_alternatives or not node.keys().isdisjoint(_ALTERNATIVES)
        if isinstance(patterns := node.get("patternProperties"), dict):
            self.key_patterns += len(patterns)
            for pattern in patterns:
                _check_pattern(pattern)
        own = 1 + len(node) + _values_in(node.get("enum")) + _values_in(node.get("const"))
        own += len(_items(node.get("properties"))) + len(_items(node.get("required")))
        own += _values_in(node.get("dependentRequired"))
        return own + _WORK_OF_MULTIPLE if "multipleOf" in node else own

    def _on_same_value(self, node: Json, resource: Json) -> Iterator[tuple[Any, Json]]:
        for keyword in _REFERENCES:
            if isinstance(reference := node.get(keyword), str):
                yield self.references.target(reference, resource)
        for keyword in _SAME_LISTS:
            for child in _items(node.get(keyword)):
                yield child, resource
        for keyword in _SAME:
            yield node.get(keyword), resource
        for keyword in ("dependentSchemas", "dependencies"):
            for child in _items(node.get(keyword)):
                yield child, resource


def _on_values_within(node: Json) -> Iterator[Any]:
    for keyword in _WITHIN_NAMED:
        yield from _items(node.get(keyword))
    yield from _items(node.get("prefixItems"))
    for keyword in _WITHIN:
        child = node.get(keyword)
        yield from _items(child) if isinstance(child, list) else (child,)


def _items(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _values_in(value: Any) -> int:
    """The values in the value of a keyword; of an object of schemas, its names."""
    count, waiting = 0, [value]
    while waiting:
        count += 1
        waiting += _items(waiting.pop())
    return count if value is not None else 0


def _most_values(text: str) -> int:
    """The most values that a JSON text can hold: each but the first stands behind a comma or a bracket."""
    return text.count(",") + text.count("[") + text.count("{") + 1


@dataclass(slots=True)
class _PatternWork:
    """How much work the patterns of one check may still make."""

    left: int = 0


class _Pattern:
    """The keyword `pattern`: compiled when a value is first compared with it, and bounded together with all others."""

    def __init__(self, work: _PatternWork, _: Json, pattern: str, __: Any) -> None:
        self._work = work
        self._pattern = pattern
        self._compiled: tuple[jsonschema_rs.Validator, int] | None = None

    def validate(self, value: Any) -> None:
        """Compare a value with the pattern. Raises `ValueError`."""
        if not isinstance(value, str):
            return
        if self._compiled is None:
            self._compiled = _compiled_pattern(self._pattern)
        validator, cost = self._compiled
        self._work.left -= cost * (len(value) + 1)
        if self._work.left < 0:
            raise ValueError(f"the text is too long to be compared with the pattern {self._pattern!r}")
        if not validator.is_valid(value):
            raise ValueError(f"{value[:_LONGEST_QUOTED]!r} does not match {self._pattern!r}")


def _check_pattern(pattern: str) -> None:
    """Raise `ValueError` for what is no pattern; to compile it costs more, and waits until it is needed."""
    if not _IS_PATTERN.is_valid(pattern):
        raise ValueError(f"is not a JSON Schema: {pattern[:_LONGEST_QUOTED]!r} is not a regular expression")


def _compiled_pattern(pattern: str) -> tuple[jsonschema_rs.Validator, int]:
    """A pattern, compiled, and the work for each character. Raises `ValueError`."""
    for size, cost in _PATTERN_SIZES:
        options = jsonschema_rs.FancyRegexOptions(backtrack_limit=_MOST_BACKTRACKS, size_limit=size)
        with suppress(ValueError):
            return jsonschema_rs.validator_for({"pattern": pattern}, pattern_options=options), cost
    raise ValueError(f"the pattern {pattern!r} is too large")


def _described(error: jsonschema_rs.ValidationError) -> str:
    where = ".".join(str(part) for part in error.instance_path)
    return f"{where}: {error.message}" if where else str(error.message)


def _refuse_reference(uri: str) -> Any:
    raise ValueError(f"remote references are not followed: {uri}")
