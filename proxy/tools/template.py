"""Placeholders of templates: `{name}`, and `{name|operator:argument}`. Pure.

    {query}                  a string that is only a placeholder becomes the value itself, with its type
    {allow|join:,}           the items of a list, joined
    {block|prefix:-}         each item with a prefix
    {allow|first}            the first item of a list
    {country|upper}          in capitals; `lower` in small letters
    {{name}}                 the text `{name}`

Operators are applied from left to right. What has no value is left out, with its key.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import orjson
from msgspec import Struct

ABSENT: Final = object()
"""Stands for a value that is left out."""

# The argument of an operator has no braces and bars, but a single bar may be at the end, as in `join:|`.
PLACEHOLDER: Final = re.compile(
    r"\{\{([A-Za-z_][\w-]*)\}\}|\{([A-Za-z_][\w-]*)((?:\|[a-z]+(?::(?:\|(?=\})|[^{}|]*))?)*)\}"
)
_OPERATOR = re.compile(r"\|([a-z]+)(?::(\|\Z|[^{}|]*))?")


class Placeholder(Struct, frozen=True):
    """A placeholder: the name of its value, and the operators that are applied to it, each with its argument."""

    name: str
    operators: tuple[tuple[Callable[[Any, str], Any], str], ...]


class _TemplateText(Struct, frozen=True):
    """A string with placeholders, in pieces from left to right."""

    pieces: tuple[str | Placeholder, ...]


def parsed(template: Any) -> Any:
    """A template for `filled`, with its strings searched for placeholders only once."""
    match template:
        case str():
            pieces = pieces_of(template)
            texts = [piece for piece in pieces if isinstance(piece, str)]
            if len(texts) == len(pieces):
                return "".join(texts)
            return _TemplateText(pieces) if len(pieces) > 1 else pieces[0]
        case list() | tuple():
            return [parsed(part) for part in template]
        case dict():
            return {key: parsed(part) for key, part in template.items()}
        case _:
            return template


def pieces_of(text: str) -> tuple[str | Placeholder, ...]:
    """The parts of a string: its placeholders, and the texts between them."""
    pieces: list[str | Placeholder] = []
    end = 0
    for found in PLACEHOLDER.finditer(text):
        literal, name, operators = found.groups()
        pieces.append(text[end : found.start()])
        if name:
            applied = [(_OPERATORS[operator], argument) for operator, argument in _OPERATOR.findall(operators)]
            pieces.append(Placeholder(name, tuple(applied)))
        else:
            pieces.append(f"{{{literal}}}")
        end = found.end()
    return tuple([piece for piece in (*pieces, text[end:]) if piece])


def filled(template: Any, values: Mapping[str, Any], *, is_compact: bool = False) -> Any:
    """A parsed template with its values in place, or `ABSENT`.

    In a compact template, a list within a list becomes its items, and null, empty lists, and parts that become empty
    are left out.
    """
    content: Any
    match template:
        case Placeholder(name, operators):
            value = values.get(name, ABSENT)
            for operator, argument in operators:
                if value is ABSENT or value is None or value == []:
                    break
                value = operator(value, argument)
            return ABSENT if is_compact and (value is None or value == []) else value
        case _TemplateText(pieces):
            content = [filled(piece, values, is_compact=is_compact) for piece in pieces]
            is_whole = not any(value is ABSENT or value is None for value in content)
            return "".join(map(as_text, content)) if is_whole else ABSENT
        case list():
            content = []
            for part in template:
                item = filled(part, values, is_compact=is_compact)
                if is_compact and isinstance(part, Placeholder) and isinstance(item, list):
                    content += item
                elif item is not ABSENT:
                    content.append(item)
        case dict():
            content = {key: filled(part, values, is_compact=is_compact) for key, part in template.items()}
            content = {key: item for key, item in content.items() if item is not ABSENT}
        case _:
            return template
    return ABSENT if is_compact and template and not content else content


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
    return [found[2] for text in strings_in(template) for found in PLACEHOLDER.finditer(text) if found[2]]


def faults_in(template: Any, known: frozenset[str], *, are: str = "the placeholders") -> Iterator[str]:
    """The faults of a template: names that are not `known`, which messages call `are`, and unknown operators."""
    for found in (found for text in strings_in(template) for found in PLACEHOLDER.finditer(text)):
        if found[2] and found[2] not in known:
            yield f"{{{found[2]}}} is none of {are}: {', '.join(sorted(known)) or 'there are none'}"
        for operator, _ in _OPERATOR.findall(found[3] or ""):
            if operator not in _OPERATORS:
                yield f"there is no operator {operator!r}; there are {', '.join(sorted(_OPERATORS))}"


def as_text(value: Any) -> str:
    """A single value as text, with numbers and booleans as in JSON."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def items_of(value: Any) -> list[Any]:
    """The items of a list, or a single value as the only item."""
    return list(value) if isinstance(value, (list, tuple)) else [value]


_OPERATORS: Mapping[str, Callable[[Any, str], Any]] = {
    "join": lambda value, separator: (separator or ",").join(as_text(item) for item in items_of(value)),
    "prefix": lambda value, before: [f"{before}{as_text(item)}" for item in items_of(value)],
    "first": lambda value, _: items_of(value)[0],
    "upper": lambda value, _: as_text(value).upper(),
    "lower": lambda value, _: as_text(value).lower(),
}
