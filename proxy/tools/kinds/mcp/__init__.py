"""`type: mcp`: the tools of an MCP server.

The client is imported only to reach a server: its packages are an extra, and take more than a second.
"""
# ruff: noqa: PLC0415 - as above

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from urllib.parse import urlsplit

from msgspec.structs import replace

from proxy.config.rules import Faults
from proxy.kit.counted import counted
from proxy.kit.header_names import SECRET_NAME, header_faults
from proxy.loop.results import ToolUnavailable
from proxy.tools.kinds.mcp.entry import McpConfig
from proxy.tools.sent_headers import SentHeaders
from proxy.tools.servers import ToolServer
from proxy.tools.tool import Tool
from proxy.tools.tool_type import ProbeResult, Resources, ToolType
from proxy.wire.credentials import NO_CREDENTIALS


def _serve(name: str, entry: McpConfig, configured: Callable[[Tool], Tool], resources: Resources) -> ToolServer:
    from proxy.tools.kinds.mcp.client import McpServer
    from proxy.tools.kinds.mcp.users import UserServer

    sent, clock, observe = _sent(entry, resources), resources.clock, resources.observe
    if not sent.needs:
        mask = sent.mask_for(NO_CREDENTIALS)
        return McpServer(name, entry, configured=configured, clock=clock, observe=observe, mask=mask)

    def of_user(tool: Tool) -> Tool:
        return replace(configured(tool), needs=sent.needs)

    return UserServer(name, entry, sent=sent, configured=of_user, clock=clock, observe=observe)


def _sent(entry: McpConfig, resources: Resources) -> SentHeaders:
    """The headers of an entry; its secrets are the values of variables and keys with a secret's name."""
    others = {value for name, value in entry.env.items() if SECRET_NAME.search(name)}
    texts = (*entry.headers.values(), *entry.env.values(), entry.url or "")
    others |= {value for value in resources.secrets if any(value in text for text in texts)}
    return SentHeaders(entry.headers, others)


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
    yield from header_faults(entry.headers)


def _describe(entry: McpConfig, _: str) -> Iterator[str]:
    where = urlsplit(entry.url).netloc if entry.url else (entry.command or ("",))[0]
    yield f"{entry.type}, {where}, tools are listed {_when_listed(entry)}"


def _when_listed(entry: McpConfig) -> str:
    headers = " and ".join(sorted(entry.user_headers))
    return f"for each user, by the header {headers} of their requests" if headers else "at start"


async def _probe(_: str, entry: McpConfig, resources: Resources) -> ProbeResult:
    """The tools that a server lists; as with `serve`, its key is sent, and its command is started."""
    from proxy.tools.kinds.mcp.client import list_once

    if entry.user_headers:
        return ProbeResult(f"not asked: tools are listed {_when_listed(entry)}", is_tried=False)
    try:
        mask = _sent(entry, resources).mask_for(NO_CREDENTIALS)
        names = [tool.name for tool in await list_once(entry, mask)]
    except ToolUnavailable as exc:
        return ProbeResult(str(exc), is_fault=True)
    return ProbeResult(f"{counted(len(names), 'tool')}: {', '.join(names)}")


KIND = ToolType(
    config=McpConfig,
    serve=_serve,
    faults=_faults,
    judges_parts=True,
    describe=_describe,
    probe=_probe,
)
