"""A Python function for models: its description, the JSON Schema of its arguments, and its calls.

The type hints may be any that msgspec supports: str, int, float, bool, None, list, dict, tuple, set, Literal, Enum,
Optional and other unions, datetime, UUID, Decimal, dataclass, TypedDict, NamedTuple and Struct. An argument is
described by `Annotated[int, "how many"]`, or in the docstring under `Args:`, in Google's style.

An async function runs in the event loop, any other function in a thread of its own. A thread cannot be stopped: one
that hangs is left behind when the call times out, and blocks neither the loop nor the end of the process.
"""

import asyncio
import dataclasses
import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib.metadata import EntryPoint
from typing import Annotated, Any, get_args, get_origin

import msgspec
import orjson

from proxy.loop.results import InvalidArguments, ToolOutput, ToolUnavailable
from proxy.tools.schema import schema_fault
from proxy.tools.threads import DaemonThreads, ThreadsBusy
from proxy.wire.chat import Json

# The running threads of one tool, including those that were left behind, so that they cannot pile up.
MOST_THREADS = 64
_SECTION = re.compile(r"(Args|Arguments|Parameters):\s*")
_ENTRY = re.compile(r"(\s+)\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.*)")
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_ARGUMENTS = "Arguments"
_REFERENCE = "#/$defs/"


class Function:
    """A function with its name, description and schema for a model.

    Args:
        function: the function, which takes its arguments by name.
        parameters: a JSON Schema instead of the one derived from the type hints; arguments are then passed as JSON
            values.

    Raises:
        ValueError: a model could not call the function.
    """

    def __init__(self, function: Callable[..., Any], *, parameters: Json | None = None) -> None:
        taken = _parameters_of(function)
        named = function
        while isinstance(named, partial):
            named = named.func
        docstring = inspect.getdoc(named) or ""
        self._struct: type[msgspec.Struct] | None = None
        if parameters is None:
            self._struct, parameters = _derived(taken, docstring)
        else:
            _check_against(taken, parameters)
        if fault := schema_fault(parameters):
            raise ValueError(f"its parameters: {fault}")
        self.name = getattr(named, "__name__", type(named).__name__)
        self.description = _description_of(self.name, docstring)
        self.parameters = parameters
        self._callee = Callee(function, thread_name="toolproxy-tool")

    async def run(self, arguments: Json) -> str | ToolOutput:
        """Call the function; the returned text or `ToolOutput`, or another returned value as JSON.

        Raises:
            InvalidArguments: the arguments cannot be converted to the types of the hints.
            RuntimeError: as `Callee.call`.
            ToolUnavailable: too many earlier calls have not ended yet.
        """
        if self._struct is not None:
            arguments = _typed(arguments, self._struct)
        try:
            result = await self._callee.call(**arguments)
        except ThreadsBusy as exc:
            raise ToolUnavailable(
                "Earlier calls of this tool have not ended yet; it takes no further ones now."
            ) from exc
        return result if isinstance(result, (str, ToolOutput)) else _as_json(result)


class Callee:
    """A function of the operator's, as it is called: an async one in the event loop, any other in a thread."""

    def __init__(self, function: Callable[..., Any], *, thread_name: str) -> None:
        self._function = function
        self._threads = None if _is_async(function) else DaemonThreads(thread_name, most=MOST_THREADS)

    async def call(self, /, *arguments: Any, **named: Any) -> Any:
        """The returned value.

        Raises:
            RuntimeError: the function raised an exception that would end the process, or would look like a timeout or
                a cancellation by the proxy.
            ThreadsBusy: too many earlier calls have not ended yet.
        """
        work = partial(self._function, *arguments, **named)
        try:
            result = work() if self._threads is None else await self._threads.run(work, queue=False)
            return await result if inspect.isawaitable(result) else result
        except (SystemExit, KeyboardInterrupt, TimeoutError) as exc:
            raise RuntimeError(f"the function raised {type(exc).__name__}") from exc
        except asyncio.CancelledError as exc:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise RuntimeError("the function was cancelled by itself") from exc


def imported(reference: str) -> Any:
    """The object that `module:attribute` names. Raises `ValueError`: it cannot be imported."""
    importlib.invalidate_caches()
    try:
        return EntryPoint(reference, reference, "").load()
    except (Exception, SystemExit) as exc:  # importing runs the module, which may fail in any way
        raise ValueError(f"{reference} cannot be imported: {type(exc).__name__}: {exc}") from exc


def _as_json(result: object) -> str:
    # orjson itself leaves out fields whose value is only in the class: `field(default=..., init=False)`.
    return orjson.dumps(result, option=orjson.OPT_PASSTHROUGH_DATACLASS, default=_public_attributes).decode()


def _public_attributes(value: Any) -> Json:
    """The fields of a dataclass that have a value, followed by its other attributes, such as `__post_init__` sets.

    Names with a leading underscore are private, as in orjson.
    """
    fields = [field.name for field in dataclasses.fields(type(value))]
    names = dict.fromkeys((*fields, *getattr(value, "__dict__", ())))
    return {name: getattr(value, name) for name in names if not name.startswith("_") and hasattr(value, name)}


def _is_async(function: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 - the kind of its `__call__` matters, not its existence


def _description_of(name: str, docstring: str) -> str:
    """The description for the model: the docstring's first paragraph on one line, or else the name in words."""
    paragraph = docstring.split("\n\n", 1)[0]
    if paragraph and not _SECTION.match(paragraph):
        return " ".join(paragraph.split())
    return name.replace("_", " ").strip().capitalize() + "."


def _parameters_of(function: Callable[..., object]) -> list[inspect.Parameter]:
    if inspect.isclass(function) or not callable(function):
        raise ValueError("it is not a function")
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
    """Raise `ValueError` if arguments that fit the schema might not fit the function."""
    names = {parameter.name for parameter in taken if parameter.kind not in _VARIADIC}
    open_ended = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in taken)
    if not open_ended and (unknown := schema.get("properties", {}).keys() - names):
        raise ValueError(f"parameters has {min(unknown)!r}, which the function does not take")
    needed = {item.name for item in taken if item.default is item.empty and item.kind not in _VARIADIC}
    if missing := needed - set(schema.get("required", ())):
        raise ValueError(f"the function needs {min(missing)!r}, which parameters does not require")


def _derived(taken: list[inspect.Parameter], docstring: str) -> tuple[type[msgspec.Struct], Json]:
    """The type of the arguments, and its schema with the descriptions of the docstring."""
    named = [parameter for parameter in taken if parameter.kind not in _VARIADIC]
    struct = _struct(named)
    schema = _schema(struct)
    documented = _documented(docstring)
    for parameter in named:
        schema["properties"][parameter.name] |= _annotations(parameter, documented)
    return struct, schema


def _struct(named: list[inspect.Parameter]) -> type[msgspec.Struct]:
    """The type of all arguments. The function keeps its own defaults, as it is called only with the given arguments."""
    fields: list[tuple[str, Any, Any]] = []
    for parameter in named:
        hint = Any if parameter.annotation is parameter.empty else parameter.annotation
        required = parameter.default is parameter.empty
        default = msgspec.NODEFAULT if required else msgspec.field(default_factory=object)
        fields.append((parameter.name, hint, default))
    return msgspec.defstruct(_ARGUMENTS, fields, kw_only=True, forbid_unknown_fields=True)


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
    """A schema with its references resolved, because models read them badly; recursive references stay."""
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


def _annotations(parameter: inspect.Parameter, documented: Mapping[str, str]) -> Json:
    """The description and the default of a property, from the signature and the docstring."""
    found: Json = {}
    hint = parameter.annotation
    annotated = [item for item in get_args(hint)[1:] if isinstance(item, str)] if get_origin(hint) is Annotated else []
    if description := next(iter(annotated), documented.get(parameter.name)):
        found["description"] = description
    if parameter.default is not parameter.empty and parameter.default is not None:
        with suppress(TypeError):  # not a JSON value: the model need not know this default
            found["default"] = msgspec.to_builtins(parameter.default)
    return found


def _documented(docstring: str) -> dict[str, str]:
    """The `Args:` of a docstring: name -> description."""
    found: dict[str, str] = {}
    margin, name = "", None
    lines = iter(docstring.splitlines())
    for line in lines:
        if _SECTION.fullmatch(line):
            break
    for line in lines:
        if line.strip() and not line.startswith(" "):
            break
        entry = _ENTRY.fullmatch(line)
        if entry and (not found or entry[1] == margin):
            margin, name, found[entry[2]] = entry[1], entry[2], entry[3].strip()
        elif name and line.strip():
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found


def _typed(arguments: Json, struct: type[msgspec.Struct]) -> Json:
    try:
        converted = msgspec.convert(_whole(arguments), struct)
    except msgspec.ValidationError as exc:
        raise InvalidArguments(f"The arguments do not fit: {exc}.") from exc
    return {name: getattr(converted, name) for name in arguments}


def _whole(value: Any) -> Any:
    """The value, with floats without a fraction as ints: 3.0 is an integer in JSON Schema, but not for msgspec."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {key: _whole(item) for key, item in value.items()}
        case list():
            return [_whole(item) for item in value]
        case _:
            return value
