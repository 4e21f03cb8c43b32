"""Repairs values whose JSON type does not fit a tool's schema, where the schema leaves no doubt about what was meant.

    "1"                 for an integer, a number           1
    "true", "True"      for a boolean                      true
    "{...}", "[...]"    for an object, an array            the value in the text
    3.0, "3.0"          for an integer                     3
    null, "null"        for what may be left out and       left out
                        takes no null

Small models write values like these. Words, fractions for an integer, and empty texts stay, for the schema to refuse,
and so does any text where the schema permits a text.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import orjson

from proxy.kit.schema import References
from proxy.wire.chat import Json
from proxy.wire.json_text import read_json

# Values that are looked at; the rest stay as they are. So many take 20 ms.
_MOST_VALUES = 10_000
_MOST_LEVELS = 100  # of values and of the schemas for one value; the repair is recursive
_INTEGERS = range(-(2**63), 2**64)  # that can be written
_ANY = frozenset(("null", "boolean", "integer", "number", "string", "array", "object"))
_NULLS = ("null", "none")
_WORDS: Mapping[str, bool | None] = {"true": True, "false": False, **dict.fromkeys(_NULLS)}
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,39})(?:\.[0-9]{1,40})?(?:[eE][+-]?[0-9]{1,3})?")
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
_MISSING: Any = object()


def repaired(arguments: Json, references: References) -> Json:
    """Arguments with the types of their schema, as far as these are certain; the same object if nothing changes."""
    found = _Repair(references).value(arguments, references.schema, references.schema)
    return found if isinstance(found, dict) else arguments


class _Repair:
    def __init__(self, references: References) -> None:
        self._references = references
        self._left = _MOST_VALUES
        self._known: dict[int, frozenset[str]] = {}

    def value(self, value: Any, node: Any, resource: Json, level: int = 0) -> Any:
        """A value, repaired; an object or a list is copied only if something in it changes."""
        self._left -= 1
        if self._left < 0 or level > _MOST_LEVELS or not isinstance(node, dict):
            return value
        resource = self._references.resource_of(node, resource)
        value = _retyped(value, self._types(node, resource))
        for part, place in self._on_same_value(value, node, resource):
            value = self.value(value, part, place, level + 1)
        if isinstance(value, dict):
            return self._object(value, node, resource, level)
        return self._array(value, node, resource, level) if isinstance(value, list) else value

    def _on_same_value(self, value: Any, node: Json, resource: Json) -> Iterator[tuple[Any, Json]]:
        """The schemas that a value has to fit besides its own: of alternatives, the only one that permits its type."""
        if isinstance(reference := node.get("$ref"), str):
            with suppress(ValueError):
                yield self._references.target(reference, resource)
        for part in _list(node.get("allOf")):
            yield part, resource
        kind = _type_of(value)
        for keyword in ("anyOf", "oneOf"):
            fitting = [item for item in _list(node.get(keyword)) if kind in self._types(item, resource)]
            if len(fitting) == 1:
                yield fitting[0], resource

    def _object(self, value: Json, node: Json, resource: Json, level: int) -> Json:
        properties = node.get("properties")
        others = node.get("additionalProperties") if "patternProperties" not in node else None
        if not isinstance(properties, dict):
            properties = {}
        kept: Json = {}
        for name, item in value.items():
            schema = properties.get(name, others)
            if name in _list(node.get("required")) or not self._is_null_of_none(item, schema, resource):
                kept[name] = self.value(item, schema, resource, level + 1)
        is_same = len(kept) == len(value) and all(item is value[name] for name, item in kept.items())
        return value if is_same else kept

    def _is_null_of_none(self, value: Any, node: Any, resource: Json) -> bool:
        """Whether a value is null, or the word for it where no text is permitted, and the schema takes no null."""
        if value is not None and not (isinstance(value, str) and value.strip().lower() in _NULLS):
            return False
        types = self._types(node, resource)
        return "null" not in types and (value is None or "string" not in types)

    def _array(self, value: list[Any], node: Json, resource: Json, level: int) -> list[Any]:
        first, others = node.get("prefixItems"), node.get("items")
        if isinstance(others, list):  # before 2020
            first, others = others, node.get("additionalItems")
        first = _list(first)
        if not first and not isinstance(others, dict):
            return value
        items = [
            self.value(item, first[at] if at < len(first) else others, resource, level + 1)
            for at, item in enumerate(value)
        ]
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items

    def _types(self, node: Any, resource: Json) -> frozenset[str]:
        """The types that a schema permits, as far as it names them."""
        if node is False:
            return frozenset()
        if not isinstance(node, dict):
            return _ANY
        if id(node) not in self._known:
            self._known[id(node)] = _ANY  # while a recursive schema is looked through
            self._known[id(node)] = self._found_types(node, self._references.resource_of(node, resource))
        return self._known[id(node)]

    def _found_types(self, node: Json, resource: Json) -> frozenset[str]:
        types = _ANY
        named = node.get("type")
        if isinstance(named, str | list):
            types &= {named} if isinstance(named, str) else {item for item in named if isinstance(item, str)}
            types |= {"integer"} if "number" in types else set()
        listed = [node["const"]] if "const" in node else node.get("enum")
        if isinstance(listed, list):
            types &= {_type_of(item) for item in listed}
        if isinstance(reference := node.get("$ref"), str):
            with suppress(ValueError):
                types &= self._types(*self._references.target(reference, resource))
        for keyword in ("anyOf", "oneOf"):
            if alternatives := _list(node.get(keyword)):
                types &= frozenset().union(*(self._types(item, resource) for item in alternatives))
        for part in _list(node.get("allOf")):
            types &= self._types(part, resource)
        return types


def _retyped(value: Any, types: frozenset[str]) -> Any:
    """A value in the only one of the permitted types that it can be read as; any other value as it is."""
    found = value
    if isinstance(value, str) and "string" not in types:
        found = _read(value.strip())
        if found is _MISSING:
            return value
    kind = _type_of(found)
    if kind in types:
        return found
    if kind == "number" and "integer" in types and found.is_integer() and int(found) in _INTEGERS:
        return int(found)
    return value


def _read(text: str) -> Any:
    """The value that a text stands for; `_MISSING`: it is not written as one."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _NUMBER.fullmatch(text):
        number = float(text) if set(text) & set(".eE") else int(text)
        return number if isinstance(number, float) or number in _INTEGERS else _MISSING
    if text[:1] in ("{", "["):
        with suppress(orjson.JSONDecodeError):
            return read_json(text)
    return _MISSING


def _type_of(value: Any) -> str:
    return "null" if value is None else _TYPES[type(value)]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
