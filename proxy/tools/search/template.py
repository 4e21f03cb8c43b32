"""Placeholders of a provider's description: `{name}`, and `{name|operator:argument}`. Pure.

    {query}                  a string that is only a placeholder becomes the value itself, with its type
    {allow|join:,}           the items of a list, joined
    {block|prefix:-}         each item with a prefix
    {allow|first}            the first item of a list
    {country|upper}          in capitals; `lower` in small letters
    ["{allow}", "x.org"]     a list within a list becomes its items
    {{name}}                 the text `{name}`

Operators are applied from left to right. A key whose value is absent, or is an empty list, is left out, and so is one
whose object or list becomes empty because of that.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import orjson
from msgspec import Struct

ABSENT: Final = object()
"""Stands for a value that is left out."""

# The argument of an operator has no braces and bars, but a single bar may be at the end, as in `join:|`.
_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}|\{(\w+)((?:\|[a-z]+(?::(?:\|(?=\})|[^{}|]*))?)*)\}")
_OPERATOR = re.compile(r"\|([a-z]+)(?::(\|\Z|[^{}|]*))?")


class _Placeholder(Struct, frozen=True):
    """A placeholder: the name of its value, and the operators that are applied to it, each with its argument."""

    name: str
    operators: tuple[tuple[Callable[[Any, str], Any], str], ...]


class _Text(Struct, frozen=True):
    """A string with placeholders, in pieces from left to right."""

    pieces: tuple[str | _Placeholder, ...]


def parsed(template: Any) -> Any:
    """A template for `filled`, with its strings searched for placeholders once instead of for every query."""
    match template:
        case str():
            return _parsed_text(template)
        case list() | tuple():
            return [parsed(part) for part in template]
        case dict():
            return {key: parsed(part) for key, part in template.items()}
        case _:
            return template


def filled(template: Any, values: Mapping[str, Any]) -> Any:
    """A parsed template with its values in place, or `ABSENT`."""
    content: Any
    match template:
        case _Placeholder(name, operators):
            value = values.get(name)
            for operator, argument in operators:
                if value is None or value == []:
                    break
                value = operator(value, argument)
            return ABSENT if value is None or value == [] else value
        case _Text(pieces):
            content = [filled(piece, values) for piece in pieces]
            return ABSENT if ABSENT in content else "".join(map(as_text, content))
        case list():
            content = _filled_list(template, values)
        case dict():
            content = {}
            for key, part in template.items():
                if (item := filled(part, values)) is not ABSENT:
                    content[key] = item
        case _:
            return template
    return content if content or not template else ABSENT


def _filled_list(parts: list[Any], values: Mapping[str, Any]) -> list[Any]:
    """The parts that are not absent; a placeholder for a list is replaced by the items."""
    content = []
    for part in parts:
        item = filled(part, values)
        if isinstance(part, _Placeholder) and isinstance(item, list):
            content += item
        elif item is not ABSENT:
            content.append(item)
    return content


def strings_in(value: Any) -> Iterator[str]:
    """Every string in a JSON value, except keys."""
    match value:
        case str():
            yield value
        case list() | tuple():
            for item in value:
                yield from strings_in(item)
        case dict():
            for item in value.values():
                yield from strings_in(item)


def names_in(template: Any) -> list[str]:
    """The placeholders in a template."""
    return [found[2] for text in strings_in(template) for found in _PLACEHOLDER.finditer(text) if found[2]]


def faults_in(template: Any, known: frozenset[str]) -> Iterator[str]:
    """The faults of a template: placeholders and operators that do not exist."""
    for found in (found for text in strings_in(template) for found in _PLACEHOLDER.finditer(text)):
        if found[2] and found[2] not in known:
            yield f"there is no placeholder {{{found[2]}}}; there are {', '.join(sorted(known))}"
        for operator, _ in _OPERATOR.findall(found[3] or ""):
            if operator not in _OPERATORS:
                yield f"there is no operator {operator!r}; there are {', '.join(sorted(_OPERATORS))}"


def as_text(value: Any) -> str:
    """A single value as text, with numbers and booleans as in JSON."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _parsed_text(template: str) -> str | _Placeholder | _Text:
    pieces: list[str | _Placeholder] = []
    end = 0
    for found in _PLACEHOLDER.finditer(template):
        literal, name, operators = found.groups()
        pieces.append(template[end : found.start()])
        if name:
            applied = [(_OPERATORS[operator], argument) for operator, argument in _OPERATOR.findall(operators)]
            pieces.append(_Placeholder(name, tuple(applied)))
        else:
            pieces.append(f"{{{literal}}}")
        end = found.end()
    pieces = [piece for piece in (*pieces, template[end:]) if piece]
    texts = [piece for piece in pieces if isinstance(piece, str)]
    if len(texts) == len(pieces):
        return "".join(texts)
    return _Text(tuple(pieces)) if len(pieces) > 1 else pieces[0]


def _items(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


_OPERATORS: Mapping[str, Callable[[Any, str], Any]] = {
    "join": lambda value, separator: (separator or ",").join(as_text(item) for item in _items(value)),
    "prefix": lambda value, before: [f"{before}{as_text(item)}" for item in _items(value)],
    "first": lambda value, _: _items(value)[0],
    "upper": lambda value, _: as_text(value).upper(),
    "lower": lambda value, _: as_text(value).lower(),
}
