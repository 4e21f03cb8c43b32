"""`type: http`: tools that call an HTTP API, as their entries describe it."""

from proxy.tools.kinds.http.api import http_tool
from proxy.tools.kinds.http.faults import faults
from proxy.tools.kinds.http.template import HttpToolConfig
from proxy.tools.tool_type import ToolType

KIND = ToolType(config=HttpToolConfig, make=http_tool, faults=faults, variables_are_secrets=True)
