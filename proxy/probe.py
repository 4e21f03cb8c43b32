"""`toolproxy check --probe`: whether the servers of the configuration can be reached."""

import asyncio

import httpx

from proxy.config import McpConfig, UpstreamConfig
from proxy.core.errors import ToolUnavailable

_PATIENCE = 5.0


def reach(upstream: UpstreamConfig) -> str:
    """One word on an upstream's server: any HTTP answer at all means that it can be reached. No key is sent."""
    try:
        with httpx.Client(timeout=_PATIENCE, trust_env=False) as client:
            response = client.get(upstream.base_url)
    except httpx.HTTPError as exc:
        return f"not reachable ({type(exc).__name__})"
    return f"reachable (HTTP {response.status_code})"


def look_at(server: McpConfig) -> str:
    """The tools that an MCP server lists, asked as `serve` would ask: its key is sent, its command is started."""
    from proxy.tools import mcp  # noqa: PLC0415 - an extra, and more than a second to import

    try:
        names = asyncio.run(mcp.look(server))
    except ToolUnavailable as exc:
        return f"not usable ({exc})"
    return f"{len(names)} tools: {', '.join(names)}"
