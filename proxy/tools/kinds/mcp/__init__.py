"""`type: mcp`: the tools of an MCP server.

The client is imported only to reach a server: its packages are an extra, and take more than a second.
"""
# ruff: noqa: PLC0415 - as above

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from urllib.parse import urlsplit

from proxy.kit.header_names import WRITTEN_BY_US
from proxy.loop.results import ToolUnavailable
from proxy.ports import Clock, Observer
from proxy.tools.kind import Faults, Finding, Kind, Resources
from proxy.tools.kinds.mcp.entry import McpConfig
from proxy.tools.servers import ToolServer
from proxy.tools.tool import Tool


def _serve(
    name: str, entry: McpConfig, configured: Callable[[Tool], Tool], clock: Clock, observe: Observer
) -> ToolServer:
    from proxy.tools.kinds.mcp.client import McpServer

    return McpServer(name, entry, configured=configured, clock=clock, observe=observe)


def _faults(entry: McpConfig) -> Faults:
    if (entry.url is None) == (not entry.command):
        yield "", "needs either url or command"
    elif entry.url is None and entry.headers:
        yield "headers", "go with url; a command has env"
    elif entry.url is not None and entry.env:
        yield "env", "goes with command; a url has headers"
    if entry.aliases:
        yield "aliases", "a server of several tools has none"
    if find_spec("mcp") is None:
        yield "type", "needs a package that is not installed: pip install mcp"
    for header in entry.headers:
        if header.lower() in WRITTEN_BY_US:
            yield f"headers.{header}", "is set by the proxy"


def _describe(entry: McpConfig, _: str) -> Iterator[str]:
    where = urlsplit(entry.url).netloc if entry.url else (entry.command or ("",))[0]
    yield f"{entry.type}, {where}, tools are listed at start"


async def _probe(_: str, entry: McpConfig, __: Resources) -> Finding:
    """The tools that a server lists; as with `serve`, its key is sent, and its command is started."""
    from proxy.tools.kinds.mcp.client import list_tool_names

    try:
        names = await list_tool_names(entry)
    except ToolUnavailable as exc:
        return Finding(f"not usable: {exc}", is_fault=True)
    return Finding(f"{len(names)} tools: {', '.join(names)}")


KIND = Kind(config=McpConfig, serve=_serve, faults=_faults, judges_parts=True, describe=_describe, probe=_probe)
