"""`type: mcp`: the tools of an MCP server.

The client is imported only to reach a server: its packages are an extra, and take more than a second.
"""
# ruff: noqa: PLC0415 - as above

from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from urllib.parse import urlsplit

from msgspec.structs import replace

from proxy.config.model import Config
from proxy.config.redaction import Redact
from proxy.kit.counted import counted
from proxy.kit.header_names import SECRET_NAME, header_faults
from proxy.loop.results import ToolUnavailable
from proxy.tools.kind import Faults, Finding, Kind, Resources
from proxy.tools.kinds.mcp.entry import McpConfig
from proxy.tools.sent_headers import SentHeaders
from proxy.tools.servers import ToolServer
from proxy.tools.tool import Tool
from proxy.wire.credentials import NO_CREDENTIALS


def _serve(name: str, entry: McpConfig, configured: Callable[[Tool], Tool], resources: Resources) -> ToolServer:
    from proxy.tools.kinds.mcp.client import McpServer
    from proxy.tools.kinds.mcp.definitions import PinnedDefinitions
    from proxy.tools.kinds.mcp.users import UserServer

    sent, clock, observe = _sent(entry, resources), resources.clock, resources.observe
    pinned = None
    if entry.definitions == "pinned" and resources.pins is not None:
        pinned = PinnedDefinitions(name, resources.pins, observe, clock=clock, by_user=bool(sent.needs))
    make = partial(McpServer, name, clock=clock, observe=observe, definitions=pinned)
    if not sent.needs:
        return make(entry, configured=configured, mask=_mask(entry, resources))
    of_user = partial(make, configured=lambda tool: replace(configured(tool), needs=sent.needs), on_demand=True)
    return UserServer(name, entry, sent=sent, make=of_user)


def _sent(entry: McpConfig, resources: Resources) -> SentHeaders:
    """The headers of an entry; its secrets are the values of variables and keys with a secret's name."""
    others = {value for name, value in entry.env.items() if SECRET_NAME.search(name)}
    texts = (*entry.headers.values(), *entry.env.values(), entry.url or "")
    others |= {value for value in resources.secrets if any(value in text for text in texts)}
    return SentHeaders(entry.headers, others)


def _mask(entry: McpConfig, resources: Resources) -> Redact:
    """Masks the secrets of an entry, as far as they are no user's."""
    return _sent(entry, resources).mask_for(NO_CREDENTIALS)


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


def _warnings(entry: McpConfig, config: Config) -> Faults:
    if entry.definitions == "pinned" and config.state.url.startswith("memory:"):
        yield "definitions", "what is pinned is forgotten at a restart with state.url memory://"
    if not entry.user_headers and entry.max_sessions != McpConfig().max_sessions:
        yield "max_sessions", "does nothing unless headers hold a user's own credential"


def _describe(entry: McpConfig, _: str) -> Iterator[str]:
    where = urlsplit(entry.url).netloc if entry.url else (entry.command or ("",))[0]
    yield f"{entry.type}, {where}, tools are listed {_when_listed(entry)}"


def _when_listed(entry: McpConfig) -> str:
    headers = " and ".join(sorted(entry.user_headers))
    return f"for each user, by the header {headers} of their requests" if headers else "at start"


async def _probe(_: str, entry: McpConfig, resources: Resources) -> Finding:
    """The tools that a server lists; as with `serve`, its key is sent, and its command is started."""
    from proxy.tools.kinds.mcp.client import list_once

    if entry.user_headers:
        return Finding(f"not asked: tools are listed {_when_listed(entry)}", is_tried=False)
    try:
        names = [tool.name for tool in await list_once(entry, _mask(entry, resources))]
    except ToolUnavailable as exc:
        return Finding(str(exc), is_fault=True)
    return Finding(f"{counted(len(names), 'tool')}: {', '.join(names)}")


async def _accept(name: str, entry: McpConfig, resources: Resources) -> Finding:
    """Pin what the server lists now; where lists differ by user, what is seen first from now on."""
    from proxy.tools.kinds.mcp.client import list_once
    from proxy.tools.kinds.mcp.definitions import accept

    if entry.definitions != "pinned":
        return Finding("has nothing to accept: its definitions are not pinned", is_fault=True)
    assert resources.pins is not None  # noqa: S101 - for the type checker: `check --accept` has them
    try:
        listed = [] if entry.user_headers else await list_once(entry, _mask(entry, resources))
    except ToolUnavailable as exc:
        return Finding(str(exc), is_fault=True)
    changes = await accept(name, listed, resources.pins)
    if changes is None:
        return Finding("the state store cannot be reached", is_fault=True)
    if entry.user_headers:
        return Finding("all definitions are forgotten; what is seen first from now on is pinned")
    tools = "1 tool is" if len(listed) == 1 else f"{len(listed)} tools are"
    said = f"{tools} accepted as listed now" + (":" if changes else ", without any change")
    return Finding("\n".join([said, *changes]))


KIND = Kind(
    config=McpConfig,
    serve=_serve,
    faults=_faults,
    judges_parts=True,
    warnings=_warnings,
    describe=_describe,
    probe=_probe,
    accept=_accept,
)
