"""A session with an MCP server: how it is opened, what it lists, and why there is none."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase

import httpx2
from mcp import Client, MCPError
from mcp.client.session import MessageHandlerFnT
from mcp_types import CONNECTION_CLOSED, PARSE_ERROR, Implementation, ListToolsResult
from mcp_types import Tool as ListedTool

from proxy import __version__
from proxy.config.redaction import Redact
from proxy.tools.kinds.mcp.content import without_secrets
from proxy.tools.kinds.mcp.entry import McpConfig
from proxy.tools.kinds.mcp.repair import MOST_TOOLS, MOST_VALUES, ListReading, RepairedMessages
from proxy.tools.kinds.mcp.transport import (
    MOST_BYTES,
    SessionTransport,
    Streams,
    over_http,
    over_stdio,
)

_MOST_PAGES = 50
_LISTING_SECONDS = 20.0  # after these no further page of a list is asked for


class SessionLost(Exception):
    """The server no longer knows the session, or its process has ended."""


def open_client(
    config: McpConfig,
    transport: SessionTransport,
    *,
    on_message: MessageHandlerFnT | None = None,
    ended: Callable[[], None] = lambda: None,
) -> Client:
    """A client that begins a session when it is entered; `ended` is called if the server's process ends by itself."""
    if config.url is not None:
        streams = over_http(config.url, config.headers, transport)
    else:
        streams = over_stdio(config.command or (), config.env, transport.reading, ended=ended)

    def is_allowed(name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in config.allow)

    @asynccontextmanager
    async def repaired() -> AsyncIterator[Streams]:
        async with streams as (incoming, outgoing):
            yield RepairedMessages(incoming, lambda: client.protocol_version, is_allowed, transport.reading), outgoing

    us = Implementation(name="toolproxy", version=__version__)
    client = Client(repaired(), cache=None, message_handler=on_message, client_info=us)
    return client


async def list_tools(client: Client, reading: ListReading, mask: Redact) -> list[ListedTool] | None:
    """The allowed tools of the server, with its secrets masked; None: they are the same as in the last reading.

    Why entries are left out, `reading.refused` says afterwards.
    """
    if reading.known:
        reading.read = []
        pages = [page async for page in _pages(client, reading)]
        if reading.read == reading.known and all(page.meta for page in pages):
            return None
    reading.begin()
    found: list[ListedTool] = []
    async for page in _pages(client, reading):
        for tool in page.tools[: MOST_TOOLS + 1 - len(found)]:
            found.append(without_secrets(tool, mask))
            await asyncio.sleep(0)  # a definition may have a quarter of a megabyte
        if len(found) > MOST_TOOLS:
            break
    else:
        reading.known = reading.read
    return found


async def _pages(client: Client, reading: ListReading) -> AsyncIterator[ListToolsResult]:
    """The pages of a list, which may have too many pages, or no end."""
    cursors: set[str] = set()
    cursor = None
    until = asyncio.get_running_loop().time() + _LISTING_SECONDS
    while True:
        try:
            page = await client.list_tools(cursor=cursor)
        except MCPError as exc:
            if cursor is None or exc.code != PARSE_ERROR:
                raise
            reading.refused.append("a page of the list cannot be read; the rest is left out")
            return
        yield page
        cursor = page.next_cursor
        if not cursor:
            return
        if cursor in cursors or len(cursors) >= _MOST_PAGES - 1 or asyncio.get_running_loop().time() > until:
            reading.refused.append(f"the list has no end; what is after page {len(cursors) + 1} is left out")
            return
        cursors.add(cursor)


def why_not(error: BaseException, transport: SessionTransport) -> str:
    """The reason why there is no session, without the server's own message."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if transport.was_too_large:
        return f"an answer is larger than {MOST_BYTES} bytes, or holds more than {MOST_VALUES} values"
    return _in_words(error) if transport.refused is None else f"answered HTTP {transport.refused}"


def _in_words(error: BaseException) -> str:  # noqa: PLR0911 - one for each reason
    code = error.code if isinstance(error, MCPError) else None
    match error:
        case SessionLost():
            return "the session ended"
        case httpx2.TimeoutException() | TimeoutError():
            return "gave no answer in time"
        case httpx2.ConnectError():
            return "cannot be reached"
        case httpx2.HTTPError() | MCPError() if code in (None, CONNECTION_CLOSED):
            return "the connection broke"
        case MCPError() if code != PARSE_ERROR:
            return f"refused the session (error {code})"
        case OSError():
            return "its command cannot be started"
        case _:
            return "did not answer as an MCP server does"
