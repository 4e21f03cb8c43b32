"""Placeholders of a provider's description: `{name}`, and `{name|operator:argument}`. Pure.

    {query}                  a string that is nothing but a placeholder becomes the value itself, with its type
    {allow|join:,}           the items of a list, joined
    {block|prefix:-}         each item with something before it
    {allow|first}            the first item of a list
    {country|upper}          in capitals; `lower` in small letters
    ["{allow}", "x.org"]     a list within a list becomes its items
    {{name}}                 the text `{name}`

Operators follow each other from left to right. A value that is absent, or an empty list, takes its key with it; so
does an object or a list that is empty because of that.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import orjson

ABSENT: Final = object()
"""What is left out."""

# The argument of an operator is anything but braces and bars; a bar alone may stand at the end, as in `join:|`.
_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}|\{(\w+)((?:\|[a-z]+(?::(?:\|(?=\})|[^{}|]*))?)*)\}")
_OPERATOR = re.compile(r"\|([a-z]+)(?::(\|\Z|[^{}|]*))?")


def filled(template: Any, values: Mapping[str, Any]) -> Any:
    """A template with its values in place, or `ABSENT`."""
    match template:
        case str():
            return _filled_text(template, values)
        case list() | tuple():
            items = [item for part in template for item in _spliced(part, filled(part, values))]
            return items if items or not template else ABSENT
        case dict():
            pairs = {key: item for key, part in template.items() if (item := filled(part, values)) is not ABSENT}
            return pairs if pairs or not template else ABSENT
        case _:
            return template


def names_in(template: Any) -> Iterator[str]:
    """The placeholders in a template."""
    match template:
        case str():
            yield from (found[2] for found in _PLACEHOLDER.finditer(template) if found[2])
        case list() | tuple():
            for item in template:
                yield from names_in(item)
        case dict():
            for item in template.values():
                yield from names_in(item)


def faults_in(template: Any, known: frozenset[str]) -> Iterator[str]:
    """The faults of a template: placeholders and operators that do not exist."""
    match template:
        case str():
            for found in _PLACEHOLDER.finditer(template):
                if found[2] and found[2] not in known:
                    yield f"there is no placeholder {{{found[2]}}}; there are {', '.join(sorted(known))}"
                for operator, _ in _OPERATOR.findall(found[3] or ""):
                    if operator not in _OPERATORS:
                        yield f"there is no operator {operator!r}; there are {', '.join(sorted(_OPERATORS))}"
        case list() | tuple():
            for item in template:
                yield from faults_in(item, known)
        case dict():
            for item in template.values():
                yield from faults_in(item, known)


def as_text(value: Any) -> str:
    """A single value as text: numbers and truth values as JSON writes them."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _spliced(part: Any, value: Any) -> list[Any]:
    """The items that an item of a list becomes: a placeholder that means a list becomes its items."""
    if value is ABSENT:
        return []
    return value if isinstance(part, str) and isinstance(value, list) else [value]


def _filled_text(template: str, values: Mapping[str, Any]) -> Any:
    whole = _PLACEHOLDER.fullmatch(template)
    if whole and whole[2]:
        return _value(whole[2], whole[3], values)
    found = [(place, _value(place[2], place[3], values)) for place in _PLACEHOLDER.finditer(template) if place[2]]
    if any(value is ABSENT for _, value in found):
        return ABSENT
    by_place = {place.start(): as_text(value) for place, value in found}
    return _PLACEHOLDER.sub(lambda place: f"{{{place[1]}}}" if place[1] else by_place[place.start()], template)


def _value(name: str, operators: str, values: Mapping[str, Any]) -> Any:
    value = values.get(name)
    for operator, argument in _OPERATOR.findall(operators):
        if value is None or value == []:
            return ABSENT
        value = _OPERATORS[operator](value, argument)
    return ABSENT if value is None or value == [] else value


def _items(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


_OPERATORS: Mapping[str, Callable[[Any, str], Any]] = {
    "join": lambda value, separator: (separator or ",").join(as_text(item) for item in _items(value)),
    "prefix": lambda value, before: [f"{before}{as_text(item)}" for item in _items(value)],
    "first": lambda value, _: _items(value)[0],
    "upper": lambda value, _: as_text(value).upper(),
    "lower": lambda value, _: as_text(value).lower(),
}
