"""A JSON Schema of somebody else's: how much work it can make is counted when it is taken in, and it is compiled once.

A compiled schema holds the interpreter while it checks a value, so that neither a thread nor slices would help. The
work is bounded beforehand instead:

    width      the most parts of the schema that one value is compared with, references followed
    work       width * values

The library compares each value with each part of a recursive schema only once, but only while it answers yes or no.
Where it describes a fault within alternatives it compares them again, and again for each value within them, so that it
is asked for a description only where these are few.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import jsonschema_rs
import orjson

from proxy.kit import json_pointer

Json = dict[str, Any]

MOST_SCHEMA_BYTES: Final = 64 * 1024
"""The longest schema, as JSON."""
_MOST_WIDTH = MOST_SCHEMA_BYTES  # no schema without references can say more
_MOST_LEVELS = 128  # of a schema, references followed: the count and the compiler are recursive
_MOST_WORK = 1_000_000  # 0.1 seconds with the slowest keywords that were tried, numbers in `const`
# Faults within alternatives take 90 us to describe, and each may quote the value.
_MOST_DESCRIBED, _MOST_QUOTED = 1_000, 1_000_000
# A pattern is compiled to at most so many bytes; the time for a character grows with them, to some microseconds for
# those of the same row. `_MOST_PATTERN_WORK` characters of the first row take 0.04 seconds, and so does the
# compilation of as many times 256 bytes.
_PATTERN_SIZES = ((1 << 15, 1), (1 << 18, 8), (1 << 21, 64))
_MOST_PATTERN_WORK = 40_000
_COMPILED_BYTES = 256
_LONGEST_QUOTED = 200  # characters of a value or a pattern in a message, from each end
_MOST_KEY_PATTERNS = 1000  # these are compiled with the schema
_MOST_BACKTRACKS = 1000  # for patterns with look-around

# Keywords whose schemas apply to the same value, and those whose schemas apply to values within it.
_SAME_LISTS = ("allOf", "anyOf", "oneOf", "dependentSchemas", "dependencies")
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
_WITHIN_LISTS = ("properties", "patternProperties", "prefixItems")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
# With these the same value is compared more than once, so that there can be more faults than values.
_ALTERNATIVES = (*_SAME_LISTS, *_SAME, "patternProperties", "unevaluatedProperties")
_WORK_OF_MULTIPLE = 250  # `multipleOf` divides exactly, which takes 20 us with the largest numbers

# Keywords whose values are data, not schemas.
_DATA = ("enum", "const", "default", "examples")

_FLAGS = re.compile(r"^\(\?[a-zA-Z]+\)")  # at the beginning of a pattern, which ECMA's do not have and Python's do
_IS_PATTERN = jsonschema_rs.Draft7Validator({"format": "regex"}, validate_formats=True)


class TooMuchWork(ValueError):
    """A schema can make too much work; the message is the end of a sentence about it."""


class BoundedSchema:
    """A schema, compiled; `width` is the most parts of it that one value is compared with."""

    def __init__(self, schema: Json, *, is_lenient: bool = False) -> None:
        """Count the work of a schema, and compile it.

        A lenient schema accepts a text that would take too long to compare with a pattern.

        Raises:
            TooMuchWork: it can make too much work.
            ValueError: it is not a JSON Schema, or refers to another document; the message is the end of a sentence
                about the schema.
        """
        count = _Count(schema)
        self.schema, self.references = schema, count.references
        self.width, self._returns = count.reach(schema, schema)
        if self.width > _MOST_WIDTH:
            raise TooMuchWork(f"expands to more than {_MOST_WIDTH} values where its references are followed")
        self._has_alternatives, self._key_patterns = count.has_alternatives, count.key_patterns
        self._most_costly = max(self.width, count.key_patterns)
        self._pattern_work = _PatternWork(is_lenient)
        # The library calls it like the class that it asks for.
        pattern: Any = partial(_Pattern, self._pattern_work)
        try:
            self._validator = jsonschema_rs.validator_for(
                schema,
                # By default the library fetches remote references; no schema may make us send requests.
                retriever=_refuse_reference,
                keywords={"pattern": pattern} if count.has_patterns else None,
                pattern_options=_options(_PATTERN_SIZES[0][0]),
            )
        except ValueError as exc:  # the errors of jsonschema_rs are among these
            raise ValueError(f"is not a JSON Schema: {str(exc).splitlines()[0]}") from exc

    def is_too_much(self, text: str) -> bool:
        """Whether checking a value, written as this JSON, would take too long."""
        if self._most_costly * len(text) <= _MOST_PATTERN_WORK:
            return False
        # Each value in a JSON text but the first stands behind a comma or a bracket.
        most_values = text.count(",") + text.count("[") + text.count("{") + 1
        return self.width * most_values > _MOST_WORK or self._key_patterns * len(text) > _MOST_PATTERN_WORK

    def is_valid(self, value: Any) -> bool:
        """Whether a value fits, if that is not too much to check. Raises `ValueError`: the value is nested too deep."""
        self._pattern_work.left = _MOST_PATTERN_WORK
        return self._validator.is_valid(value)

    def fault(self, value: Any, text: str) -> str | None:
        """The first fault of a value that does not fit, written as `text`; None: it would take too long to describe."""
        if self._has_alternatives:
            # The library compares alternatives again, and each level of a recursive schema multiplies them.
            work = self.width * _values_in(value) * max(self._returns, 1) ** _levels(value)
            if work > _MOST_DESCRIBED or self.width * len(text) > _MOST_QUOTED:
                return None
        self._pattern_work.left = _MOST_PATTERN_WORK
        try:
            self._validator.validate(value)
        except jsonschema_rs.ValidationError as exc:
            return _described(exc)
        return None


def written(schema: Any) -> bytes:
    """A schema as JSON. Raises `ValueError`: it is none, or too long; the message is the end of a sentence about it."""
    try:
        text = orjson.dumps(schema)
    except (orjson.JSONEncodeError, RecursionError) as exc:
        is_deep = isinstance(exc, RecursionError) or "Recursion" in str(exc)
        why = "is nested too deep" if is_deep else f"is not a JSON Schema: it cannot be written as JSON: {exc}"
        raise ValueError(why) from exc
    if len(text) > MOST_SCHEMA_BYTES:
        raise ValueError(f"is longer than {MOST_SCHEMA_BYTES} bytes")
    return text


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
            for step in json_pointer.parse(unquote(fragment)):
                target = json_pointer.resolve(target, (step,))
                if isinstance(target, dict):
                    resource = self.resource_of(target, resource)
        elif fragment:
            target = self._named.get((id(resource), fragment), json_pointer.MISSING)
        if target is json_pointer.MISSING:
            raise ValueError(f"is not a JSON Schema: there is nothing at {reference[:200]!r}")
        return target, resource

    def _name(self, resource: int | None, name: str, node: Json) -> None:
        if self._named.setdefault((resource, name), node) is not node:
            raise ValueError(f"is not a JSON Schema: two parts of it are named {name[:200]!r}")


class _Reach(NamedTuple):
    """How often a schema is compared with a value."""

    width: int  # the most parts of the schema that the value, or one within it, is compared with
    returns: int  # in how many places the schema contains a schema that it is itself a part of


class _Count:
    """Counts the work that a schema can make."""

    def __init__(self, schema: Json) -> None:
        self.has_alternatives = self.has_patterns = False
        self.key_patterns = 0
        self.references = References(schema)
        self._known: dict[int, _Reach] = {}
        self._open: set[int] = set()

    def reach(self, node: Any, resource: Json, level: int = 0) -> _Reach:
        """How often a part of the schema is compared with a value.

        Recursion adds nothing to the width: the library compares a value with the same part only once.

        Raises:
            TooMuchWork: it is nested too deep, or has too many patterns for names.
            ValueError: a reference has no target in the schema, or a pattern is none.
        """
        if not isinstance(node, dict):
            return _Reach(1, 0)
        if id(node) in self._open:
            return _Reach(1, 1)
        if id(node) in self._known:
            return self._known[id(node)]
        if level > _MOST_LEVELS:
            raise TooMuchWork(f"has more than {_MOST_LEVELS} levels, references included")
        resource = self.references.resource_of(node, resource)
        self._open.add(id(node))
        same = [self.reach(child, place, level + 1) for child, place in self._on_same_value(node, resource)]
        within = [self.reach(child, resource, level + 1) for child in _on_values_within(node)]
        self._open.remove(id(node))
        width = max(self._own(node), *(one.width for one in within), 0) + sum(one.width for one in same)
        self._known[id(node)] = reach = _Reach(width, sum(one.returns for one in (*same, *within)))
        return reach

    def _own(self, node: Json) -> int:
        """The parts of a schema that a value itself is compared with."""
        if isinstance(pattern := node.get("pattern"), str):
            self.has_patterns = True
            _check_pattern(pattern)
        self.has_alternatives = self.has_alternatives or not node.keys().isdisjoint(_ALTERNATIVES)
        if isinstance(patterns := node.get("patternProperties"), dict):
            self._count_key_patterns(patterns)
        own = 1 + len(node) + _values_in(node.get("enum")) + _values_in(node.get("const"))
        own += len(_items(node.get("properties"))) + len(_items(node.get("required")))
        own += _values_in(node.get("dependentRequired"))
        return own + _WORK_OF_MULTIPLE if "multipleOf" in node else own

    def _count_key_patterns(self, patterns: Json) -> None:
        self.key_patterns += len(patterns)
        if self.key_patterns > _MOST_KEY_PATTERNS:
            raise TooMuchWork(f"has more than {_MOST_KEY_PATTERNS} patterns for names")
        for pattern in patterns:
            _check_pattern(pattern)
            if _compiled(pattern, _PATTERN_SIZES[0][0]) is None:
                raise TooMuchWork(f"has a pattern for names that is too large: {pattern[:_LONGEST_QUOTED]!r}")

    def _on_same_value(self, node: Json, resource: Json) -> Iterator[tuple[Any, Json]]:
        for keyword in _REFERENCES:
            if isinstance(reference := node.get(keyword), str):
                yield self.references.target(reference, resource)
        for keyword in _SAME_LISTS:
            for child in _items(node.get(keyword)):
                yield child, resource
        for keyword in _SAME:
            yield node.get(keyword), resource


def _on_values_within(node: Json) -> Iterator[Any]:
    for keyword in _WITHIN_LISTS:
        yield from _items(node.get(keyword))
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


def _levels(value: Any) -> int:
    """How deep a value is nested."""
    return 1 + max(map(_levels, _items(value)), default=0)


@dataclass(slots=True)
class _PatternWork:
    """How much work the patterns of one check may still make, and whether what would be more is taken to fit."""

    is_lenient: bool
    left: int = 0

    def affords(self, work: int) -> bool:
        """Take some work off, if that much is left."""
        self.left -= work
        return self.left >= 0


class _Pattern:
    """The keyword `pattern`: compiled when a value is first compared with it, and bounded together with all others."""

    def __init__(self, work: _PatternWork, _: Json, pattern: str, __: Any) -> None:
        self._work = work
        self._pattern = pattern
        self._tried = 0  # of `_PATTERN_SIZES`
        self._compiled: tuple[jsonschema_rs.Validator, int] | None = None

    def validate(self, value: Any) -> None:
        """Compare a value with the pattern. Raises `ValueError`."""
        if not isinstance(value, str):
            return
        compiled = self._compile()
        if compiled is None or not self._work.affords(compiled[1] * (len(value) + 1)):
            if not self._work.is_lenient:
                raise ValueError(f"the text is too long to be compared with the pattern {self._pattern!r}")
            return
        try:
            compiled[0].validate(value)
        except jsonschema_rs.ValidationError as exc:
            if exc.kind.name == "pattern" or not self._work.is_lenient:  # else it took too many steps back
                raise ValueError(f"{value[:_LONGEST_QUOTED]!r} does not match {self._pattern!r}") from None

    def _compile(self) -> tuple[jsonschema_rs.Validator, int] | None:
        """The pattern, compiled, and the work for each character; None: it is too large, or the work is used up."""
        while self._compiled is None and self._tried < len(_PATTERN_SIZES):
            size, cost = _PATTERN_SIZES[self._tried]
            if not self._work.affords(size // _COMPILED_BYTES):
                return None
            self._tried += 1
            if validator := _compiled(self._pattern, size):
                self._compiled = validator, cost
        return self._compiled


def _check_pattern(pattern: str) -> None:
    """Raise `ValueError` for what is no pattern; to compile it costs more, and waits until it is needed."""
    if not _IS_PATTERN.is_valid(_FLAGS.sub("", pattern)):
        raise ValueError(f"is not a JSON Schema: {pattern[:_LONGEST_QUOTED]!r} is not a regular expression")


def _compiled(pattern: str, size: int) -> jsonschema_rs.Validator | None:
    """A pattern, compiled; None: it takes more bytes than `size`."""
    with suppress(ValueError):
        return jsonschema_rs.validator_for({"pattern": pattern}, pattern_options=_options(size))
    return None


def _options(size: int) -> jsonschema_rs.FancyRegexOptions:
    return jsonschema_rs.FancyRegexOptions(backtrack_limit=_MOST_BACKTRACKS, size_limit=size)


def _described(error: jsonschema_rs.ValidationError) -> str:
    where, message = ".".join(str(part) for part in error.instance_path), str(error.message)
    if len(message) > 2 * _LONGEST_QUOTED:
        message = f"{message[:_LONGEST_QUOTED]} ... {message[-_LONGEST_QUOTED:]}"
    return f"{where}: {message}" if where else message


def _refuse_reference(uri: str) -> Any:
    raise ValueError(f"remote references are not followed: {uri}")
