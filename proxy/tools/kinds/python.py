"""`type: python`: a Python function, named by its module or as an installed entry point, as a tool."""

from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from msgspec.structs import replace

from proxy.config.model import FunctionName, Served, Text, ToolConfig
from proxy.config.rules import Faults
from proxy.tools.python.function import imported
from proxy.tools.schema import schema_fault, serving_fault
from proxy.tools.tool import Tool
from proxy.tools.tool_type import Resources, ToolType
from proxy.wire.errors import ConfigurationError

ENTRY_POINTS = "toolproxy.tools"


class PythonToolConfig(ToolConfig, tag="python", frozen=True, kw_only=True):
    """`type: python`: a function."""

    # module:function, or the name of an installed entry point. None: the entry point with the tool's name.
    function: FunctionName | None = None
    description: Text | None = None  # What the model reads. None: the docstring's first paragraph.
    parameters: dict[str, Any] | None = None  # JSON Schema of the arguments. None: from type hints and docstring.
    serves: Served | None = None  # Hosted tool that this tool replaces in requests that declare it.

    @property
    def served(self) -> tuple[str, ...]:
        """See `ToolConfig.served`."""
        return (self.serves,) if self.serves else ()


def python_tool(name: str, entry: PythonToolConfig, _: Resources) -> Tool:
    """The function or `Tool` that an entry names, as a tool with the entry's name.

    Raises:
        ConfigurationError: there is no such object, it cannot be imported, or no model could call it.
    """
    set_by_entry = {"description": entry.description, "parameters": entry.parameters, "serves": entry.serves}
    fields: dict[str, Any] = {key: value for key, value in set_by_entry.items() if value is not None}
    try:
        found, origin = _find_python(entry.function or name)
        if isinstance(found, Tool):
            made = replace(found, name=name, origin=origin, **fields)
        else:
            made = Tool.from_function(found, name=name, origin=origin, **fields)
    except ValueError as exc:
        raise ConfigurationError([f"tools.{name}.function: {' '.join(str(exc).split())}"]) from exc
    if made.serves and (fault := serving_fault(made.parameters)):
        raise ConfigurationError([f"tools.{name}.serves: {fault}"])
    return made


def unused_entry_points(tools: Iterable[tuple[str, ToolConfig]]) -> list[str]:
    """The origins of the installed entry points that none of the entries uses, which are given with their names."""
    used = {entry.function or name for name, entry in tools if isinstance(entry, PythonToolConfig)}
    return [_origin(found) for found in entry_points(group=ENTRY_POINTS) if found.name not in used]


def _find_python(reference: str) -> tuple[Any, str]:
    """The object that a reference names, `module:attribute` or the name of an entry point, and its origin."""
    if ":" in reference:
        return imported(reference), reference
    points = [*entry_points(group=ENTRY_POINTS, name=reference)]
    if not points:
        raise ValueError(f"there is no entry point {reference!r} of {ENTRY_POINTS}; a function is module:function")
    if len(points) > 1:
        raise ValueError(f"there are several: {', '.join(_origin(point) for point in points)}")
    return imported(points[0].value), _origin(points[0])


def _origin(point: EntryPoint) -> str:
    found = f"entry point {point.name}"
    return f"{found} of {point.dist.name} {point.dist.version}" if point.dist else found


def _faults(entry: PythonToolConfig) -> Faults:
    if entry.parameters is not None and (fault := schema_fault(entry.parameters)):
        yield "parameters", fault


KIND = ToolType(
    config=PythonToolConfig,
    make=python_tool,
    faults=_faults,
    instead={"function": "type: python, function: module:function"},
)
