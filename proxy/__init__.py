"""An OpenAI-compatible reverse proxy that runs tools transparently.

What tools of your own need is here: `Tool`, `ToolOutput`, and the errors that a tool may raise.
"""

from proxy.core.chat import ToolOutput
from proxy.core.errors import ToolError, ToolUnavailable
from proxy.tools.tool import Tool

__version__ = "0.1.0"
__all__ = ["Tool", "ToolError", "ToolOutput", "ToolUnavailable"]
