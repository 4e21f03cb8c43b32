"""`type: python`: a Python function as a tool, named by the configuration or by an entry point of `toolproxy.tools`."""

import importlib
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from msgspec.structs import replace

from proxy.config import Config, PythonToolConfig
from proxy.loop.errors import ConfigurationError
from proxy.tools.tool import Tool

ENTRY_POINTS = "toolproxy.tools"


def python_tool(name: str, config: PythonToolConfig) -> Tool:
    """The function or the `Tool` that an entry names, as a tool by the entry's name.

    Raises:
        ConfigurationError: there is none, it cannot be imported, or no model could call it.
    """
    set_by_entry = {"description": config.description, "parameters": config.parameters}
    fields: dict[str, Any] = {key: value for key, value in set_by_entry.items() if value is not None}
    try:
        found, origin = _find(config.function or name)
        if isinstance(found, Tool):
            return replace(found, name=name, origin=origin, **fields)
        return Tool.from_function(found, name=name, origin=origin, **fields)
    except ValueError as exc:
        raise ConfigurationError([f"tools.{name}.function: {' '.join(str(exc).split())}"]) from exc


def not_configured(config: Config) -> list[str]:
    """Installed entry points that no tool of the configuration is made of, each with its origin."""
    entries = [(name, tool) for name, tool in config.tools.items() if isinstance(tool, PythonToolConfig)]
    used = {tool.function or name for name, tool in entries}
    return [_origin(found) for found in entry_points(group=ENTRY_POINTS) if found.name not in used]


def _find(reference: str) -> tuple[Any, str]:
    """The object that a reference names, and its origin: `module:attribute`, or the name of an entry point."""
    if ":" in reference:
        return _load(EntryPoint(reference, reference, ENTRY_POINTS)), reference
    points = [*entry_points(group=ENTRY_POINTS, name=reference)]
    if not points:
        raise ValueError(f"there is no entry point {reference!r} of {ENTRY_POINTS}; a function is module:function")
    if len(points) > 1:
        raise ValueError(f"there are several: {', '.join(_origin(point) for point in points)}")
    return _load(points[0]), _origin(points[0])


def _load(point: EntryPoint) -> Any:
    importlib.invalidate_caches()
    try:
        return point.load()
    except (Exception, SystemExit) as exc:  # importing runs the module, which may fail in any way
        raise ValueError(f"{point.value} cannot be imported: {type(exc).__name__}: {exc}") from exc


def _origin(point: EntryPoint) -> str:
    found = f"entry point {point.name}"
    return f"{found} of {point.dist.name} {point.dist.version}" if point.dist else found
