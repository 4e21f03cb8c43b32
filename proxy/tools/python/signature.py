"""What a Python function takes, from its type hints and its docstring: a JSON Schema, and typed arguments.

The hints may be what msgspec knows: str, int, float, bool, None, list, dict, tuple, set, Literal, Enum, Optional and
other unions, datetime, UUID, Decimal, dataclass, TypedDict, NamedTuple and Struct. An argument is described by
`Annotated[int, "how many"]`, or in the docstring under `Args:`, in Google's style.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, get_args, get_origin

import msgspec
import orjson

from proxy.loop.chat import Json
from proxy.loop.errors import InvalidArguments

_SECTION = re.compile(r"(Args|Arguments|Parameters):\s*")
_ENTRY = re.compile(r"(\s+)\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.*)")
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_ARGUMENTS = "Arguments"
_REFERENCE = "#/$defs/"


@dataclass(frozen=True, slots=True)
class Signature:
    """What a model has to know of a function, and how its words become the function's arguments.

    Attributes:
        description: the docstring's first paragraph, or the function's name in words.
        parameters: a JSON Schema of type object.
        typed: arguments that fit the schema, as the hints say; raises `InvalidArguments` where they cannot be.
    """

    description: str
    parameters: Json
    typed: Callable[[Json], Json]


def read(function: Callable[..., object], *, parameters: Json | None = None) -> Signature:
    """The signature of a function.

    Args:
        function: takes its arguments by name.
        parameters: a schema that takes the place of the derived one; arguments are then handed over as JSON values.

    Raises:
        ValueError: a model could not call it.
    """
    taken = _parameters_of(function)
    if parameters is not None:
        _check_against(taken, parameters)
        return Signature(description_of(function), parameters, dict)
    named = [parameter for parameter in taken if parameter.kind not in _VARIADIC]
    struct = _struct(named)
    schema = _schema(struct)
    said = _said_of_arguments(function)
    for parameter in named:
        schema["properties"][parameter.name] |= _words(parameter, said)
    return Signature(description_of(function), schema, lambda arguments: _typed(arguments, struct))


def description_of(function: Callable[..., object]) -> str:
    """For the model: the docstring's first paragraph in one line, or else the name in words."""
    paragraph = _docstring(function).split("\n\n", 1)[0]
    if paragraph and not _SECTION.match(paragraph):
        return " ".join(paragraph.split())
    return name_of(function).replace("_", " ").strip().capitalize() + "."


def name_of(function: Callable[..., object]) -> str:
    """The name of a function, a bound method, a partial, or an object that can be called."""
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)


def _docstring(function: Callable[..., object]) -> str:
    while isinstance(function, partial):
        function = function.func
    return inspect.getdoc(function) or ""


def _parameters_of(function: Callable[..., object]) -> list[inspect.Parameter]:
    if inspect.isclass(function) or not callable(function):
        raise ValueError("it is no function")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ValueError("it is a generator, and a result is one value")
    try:
        taken = list(inspect.signature(function, eval_str=True).parameters.values())
    except Exception as exc:  # hints are code, and may fail in any way
        raise ValueError(f"its signature cannot be read: {type(exc).__name__}: {exc}") from exc
    if any(parameter.kind is inspect.Parameter.POSITIONAL_ONLY for parameter in taken):
        raise ValueError("it has positional-only parameters, and arguments are given by name")
    return taken


def _check_against(taken: list[inspect.Parameter], schema: Json) -> None:
    """Raises `ValueError` where arguments that fit the schema would not fit the function."""
    names = {parameter.name for parameter in taken if parameter.kind not in _VARIADIC}
    open_ended = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in taken)
    if not open_ended and (unknown := schema.get("properties", {}).keys() - names):
        raise ValueError(f"parameters has {min(unknown)!r}, which the function does not take")
    needed = {item.name for item in taken if item.default is item.empty and item.kind not in _VARIADIC}
    if missing := needed - set(schema.get("required", ())):
        raise ValueError(f"the function needs {min(missing)!r}, which parameters does not require")


def _struct(named: list[inspect.Parameter]) -> type[msgspec.Struct]:
    """The arguments as one type. Defaults stay the function's: it is called with what was given."""
    fields: list[tuple[str, Any, Any]] = [
        (parameter.name, _hint(parameter), msgspec.NODEFAULT if parameter.default is parameter.empty else _left_out())
        for parameter in named
    ]
    return msgspec.defstruct(_ARGUMENTS, fields, kw_only=True, forbid_unknown_fields=True)


def _left_out() -> Any:
    return msgspec.field(default_factory=object)


def _hint(parameter: inspect.Parameter) -> Any:
    return Any if parameter.annotation is parameter.empty else parameter.annotation


def _schema(struct: type[msgspec.Struct]) -> Json:
    try:
        (reference,), definitions = msgspec.json.schema_components([struct], ref_template=_REFERENCE + "{name}")
    except TypeError as exc:
        raise ValueError(f"a type of its parameters has no JSON Schema: {str(exc).splitlines()[-1]}") from exc
    inlined: Json = _inlined(reference, definitions, ())
    schema = {key: value for key, value in inlined.items() if key != "title"}
    held = {name: value for name, value in definitions.items() if name != _ARGUMENTS}
    return {**schema, "$defs": held} if _REFERENCE.encode() in orjson.dumps(schema) else schema


def _inlined(schema: Any, definitions: Mapping[str, Any], within: tuple[str, ...]) -> Any:
    """A schema with its references resolved, for models read those badly; one that holds itself keeps them."""
    match schema:
        case {"$ref": str(reference)} if (name := reference.removeprefix(_REFERENCE)) not in within:
            rest = {key: value for key, value in schema.items() if key != "$ref"}
            return _inlined(definitions[name], definitions, (*within, name)) | rest
        case dict():
            return {key: _inlined(value, definitions, within) for key, value in schema.items()}
        case list():
            return [_inlined(item, definitions, within) for item in schema]
        case _:
            return schema


def _words(parameter: inspect.Parameter, said: Mapping[str, str]) -> Json:
    """What the signature and the docstring add to a property: its description and its default."""
    words: Json = {}
    annotated = [item for item in _metadata(parameter.annotation) if isinstance(item, str)]
    if description := next(iter(annotated), said.get(parameter.name)):
        words["description"] = description
    if parameter.default is not parameter.empty and parameter.default is not None:
        with suppress(TypeError):  # an object that has no JSON: the model need not know it
            words["default"] = msgspec.to_builtins(parameter.default)
    return words


def _metadata(hint: Any) -> tuple[Any, ...]:
    return get_args(hint)[1:] if get_origin(hint) is Annotated else ()


def _said_of_arguments(function: Callable[..., object]) -> dict[str, str]:
    """The docstring's `Args:`, name -> description."""
    said: dict[str, str] = {}
    margin, name = "", None
    lines = iter(_docstring(function).splitlines())
    for line in lines:
        if _SECTION.fullmatch(line):
            break
    for line in lines:
        if line.strip() and not line.startswith(" "):
            break
        entry = _ENTRY.fullmatch(line)
        if entry and (not said or entry[1] == margin):
            margin, name, said[entry[2]] = entry[1], entry[2], entry[3].strip()
        elif name and line.strip():
            said[name] = f"{said[name]} {line.strip()}".strip()
    return said


def _typed(arguments: Json, struct: type[msgspec.Struct]) -> Json:
    try:
        converted = msgspec.convert(_whole(arguments), struct)
    except msgspec.ValidationError as exc:
        raise InvalidArguments(f"The arguments do not fit: {exc}.") from exc
    return {name: getattr(converted, name) for name in arguments}


def _whole(value: Any) -> Any:
    """3.0 is an integer to JSON Schema, and none to msgspec."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {key: _whole(item) for key, item in value.items()}
        case list():
            return [_whole(item) for item in value]
        case _:
            return value
