"""An OpenAI-compatible reverse proxy that runs tools transparently.

It exports the names that are needed to write a tool: `Tool`, `ToolOutput`, `SearchFilters`, and the errors that a
tool may raise; and `Refuse`, for a check on the results of tools.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proxy.loop.results import ToolError, ToolOutput, ToolUnavailable
    from proxy.tools.check import Refuse
    from proxy.tools.tool import Tool
    from proxy.wire.search import SearchFilters

__version__ = "0.2.0"
__all__ = ["Refuse", "SearchFilters", "Tool", "ToolError", "ToolOutput", "ToolUnavailable"]

_DEFINED_IN = {
    "Refuse": "proxy.tools.check",
    "SearchFilters": "proxy.wire.search",
    "Tool": "proxy.tools.tool",
    "ToolError": "proxy.loop.results",
    "ToolOutput": "proxy.loop.results",
    "ToolUnavailable": "proxy.loop.results",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, so that the command handles signals soon after its start."""
    if name not in _DEFINED_IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_DEFINED_IN[name]), name)
