"""`type: mcp`: the tools of an MCP server, which is reached over HTTP or started as a child process.

    connect -> list -> publish -> wait until the list may have changed -> list -> ...
       ^                                   | the connection broke
       +------- wait, longer each time <---+

One task has a server's session from beginning to end, because the client's cancel scopes have to be left by the task
that entered them. Calls come from other tasks, which use the session if there is one. Each worker has its own session.
"""

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from fnmatch import fnmatchcase

import httpx2
from mcp import Client, MCPError
from mcp.client import IncomingMessage
from mcp.client.session import MessageHandlerFnT
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp_types import (
    CONNECTION_CLOSED,
    HEADER_MISMATCH,
    INVALID_REQUEST,
    PARSE_ERROR,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    Implementation,
    ToolListChangedNotification,
)
from mcp_types import Tool as ListedTool
from msgspec.structs import replace
from pydantic import ValidationError

from proxy import __version__
from proxy.breaker import Backoff
from proxy.config import McpConfig
from proxy.loop.chat import Json
from proxy.loop.results import ToolError, ToolOutput, ToolUnavailable
from proxy.ports import Clock, Observer, Readiness
from proxy.tools.mcp.content import is_malformed, is_repeatable, output_of, tool_of, well_formed
from proxy.tools.mcp.transport import MendedMessages, SessionTransport, Streams, over_http, over_stdio
from proxy.tools.servers import Publish
from proxy.tools.tool import Tool

# Seconds. A process may have to be downloaded before it starts (npx, uvx).
_CONNECT_TIMEOUT = 60.0
_LISTING_PATIENCE = 30.0
# Servers that add tools one by one announce each tool, so the list is read only after this wait.
_BURST = 0.1
# Older servers may not announce changes, and nothing shows that an idle HTTP server has gone.
_LOOK_AGAIN = 60.0
# Before a reconnection: no wait after a session that lasted this long, else a wait that doubles up to the longest.
_LASTED = 60.0
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0
# OpenAI's limit for the tools of one request.
_MOST_TOOLS = 128
_MOST_PAGES = 50
_LONGEST_REASON = 200  # characters of a server's own words in the log

_AWAY = "The server of this tool cannot be reached now."
_BROKE = "The connection to this tool's server broke; whether the call was carried out is not known."
_NO_RESULT = "The tool's server answered with something that is no result."
# The errors of a server that has restarted and no longer knows the session: "Session terminated" from our own SDK,
# "Session not found" from servers in Python and TypeScript, "No valid session ID provided" from TypeScript examples.
_SESSION_LOST = re.compile(r"\bsession (?:terminated|not found)|\bno valid session", re.IGNORECASE)
_SESSION_CODES = (INVALID_REQUEST, -32001, -32000)


class McpServer:
    """An MCP server of the configuration. Implements `servers.ToolServer`.

    Args:
        name: the name of the entry, and of the group of tools.
        config: the entry.
        configured: applies the settings of the entry to a tool.
        clock: for the waits between attempts.
        observe: gets the events of sessions that begin and break, and of tools that are refused.
        jitter: returns a number from 0 to 1, which spreads the waits.
    """

    def __init__(
        self,
        name: str,
        config: McpConfig,
        *,
        configured: Callable[[Tool], Tool],
        clock: Clock,
        observe: Observer,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.name = name
        self.tried = asyncio.Event()
        self._config = config
        self._configured = configured
        self._clock = clock
        self._observe = observe
        self._backoff = Backoff(_FIRST_WAIT, _LONGEST_WAIT, jitter)
        self._client: Client | None = None
        self._listed: list[ListedTool] | None = None  # None: the next list is published in any case
        self._changed = asyncio.Event()  # the tools may have changed, and have to be listed again
        self._why_not = "not connected yet"

    def state(self) -> Readiness:
        """Whether there is a session. The reason why not is never the server's own message, which may hold a secret."""
        usable = self._client is not None
        return Readiness(self.name, usable=usable, why_not=None if usable else self._why_not)

    async def serve(self, publish: Publish) -> None:
        """Keep a session open, and its tools published, until cancelled."""
        failures = 0
        while not _is_cancelled():
            began = self._clock.monotonic()
            self._why_not = await self._hold_session(publish)
            self.tried.set()
            failures = 0 if self._clock.monotonic() - began > _LASTED else failures + 1
            wait = self._backoff.wait(failures - 1) if failures else 0.0
            self._observe("mcp.lost", server=self.name, why=self._why_not, wait=round(wait, 2))
            await self._clock.sleep(wait)

    async def _hold_session(self, publish: Publish) -> str:
        """Keep one session open until it breaks, and return the reason."""
        transport = SessionTransport()
        self._listed = None
        try:
            client = _client(self._config, transport, on_message=self._on_message, ended=self._changed.set)
            async with asyncio.timeout(_CONNECT_TIMEOUT) as patience, client:
                self._publish(await _list(client), publish)
                patience.reschedule(None)
                await self._keep_listed(client, publish)
        except Exception as exc:  # noqa: BLE001 - a server's failure affects only its own tools
            if self._listed is None:
                self._publish([], publish)  # tools that cannot work are not offered
            return _why(exc, transport.refused)
        return "the session ended"

    async def _keep_listed(self, client: Client, publish: Publish) -> None:
        """Let calls use the session, and list the tools again whenever they may have changed."""
        self._client, self._why_not = client, "the connection broke"
        self._observe("mcp.connected", server=self.name, tools=len(self._listed or ()))
        self.tried.set()
        try:
            async with asyncio.TaskGroup() as beside:
                beside.create_task(self._watch_for_changes(client))
                while True:
                    await self._changed.wait()
                    await self._clock.sleep(_BURST)
                    self._changed.clear()
                    async with asyncio.timeout(_LISTING_PATIENCE):
                        self._publish(await _list(client), publish)
        finally:
            self._client = None

    async def _watch_for_changes(self, client: Client) -> None:
        """Request a new list of tools when a newer server announces a change, and every minute."""
        while True:
            with suppress(ListenNotSupportedError, MCPError, SubscriptionLost):
                async with client.listen(tools_list_changed=True) as changes:
                    self._changed.set()  # the tools may have changed since the first list
                    async for _ in changes:
                        self._changed.set()
            self._changed.set()
            await self._clock.sleep(_LOOK_AGAIN)

    async def _on_message(self, message: IncomingMessage) -> None:
        """Request a new list of tools when an older server announces a change unasked."""
        if isinstance(message, ToolListChangedNotification):
            self._changed.set()

    def _publish(self, listed: list[ListedTool], publish: Publish) -> None:
        """Publish the tools, but only if they have changed, because publishing resets caches and circuit breakers."""
        if listed == self._listed:
            return
        self._listed = listed
        tools, refused = [], []
        allowed = _allowed(listed, self._config)
        for tool in allowed[:_MOST_TOOLS]:
            try:
                tools.append(self._tool(tool))
            except ValueError as exc:
                refused.append(f"{tool.name}: {exc}")
        refused += publish(self.name, tools)
        refused += [f"{tool.name}: there are more than {_MOST_TOOLS} tools" for tool in allowed[_MOST_TOOLS:]]
        for why in refused:
            self._observe("mcp.tool_refused", server=self.name, why=why[:_LONGEST_REASON])

    def _tool(self, listed: ListedTool) -> Tool:
        async def run(arguments: Json) -> ToolOutput:
            return await self._call(listed.name, arguments)

        prefix = self._config.prefix_of(self.name)
        tool = self._configured(tool_of(listed, prefix=prefix, origin=f"mcp server {self.name}", run=run))
        return tool if is_repeatable(listed) else replace(tool, retries=0)

    async def _call(self, name: str, arguments: Json) -> ToolOutput:
        """Make one call. If it is cancelled, the client notifies the server, and the session stays open."""
        if self._client is None:
            raise ToolUnavailable(_AWAY)
        request = CallToolRequest(params=CallToolRequestParams(name=name, arguments=arguments))
        try:
            # Not `call_tool`, which validates results with the server's schema, whose patterns may take forever.
            result = await self._client.session.send_request(request, CallToolResult)
        except MCPError as exc:
            self._changed.set()  # a new list shows whether only the tool has gone, or the session
            raise _fault(exc) from exc
        except ValidationError as exc:
            raise ToolError(_NO_RESULT) from exc
        output = output_of(result)
        if result.is_error:
            raise ToolError(output.text)
        return output


async def list_tool_names(config: McpConfig) -> list[str]:
    """The names of a server's allowed, well-formed tools, listed in a separate short session.

    Raises:
        ToolUnavailable: there can be no session; the message has the reason.
    """
    transport = SessionTransport()
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT), _client(config, transport) as client:
            return [tool.name for tool in _allowed(await _list(client), config) if not is_malformed(tool)]
    except Exception as exc:
        raise ToolUnavailable(_why(exc, transport.refused)) from exc


def _client(
    config: McpConfig,
    transport: SessionTransport,
    *,
    on_message: MessageHandlerFnT | None = None,
    ended: Callable[[], None] = lambda: None,
) -> Client:
    if config.url is not None:
        streams = over_http(config.url, config.headers, transport)
    else:
        streams = over_stdio(config.command or (), config.env, ended=ended)

    @asynccontextmanager
    async def mended() -> AsyncIterator[Streams]:
        async with streams as (incoming, outgoing):
            yield MendedMessages(incoming, lambda tool: well_formed(tool, client.protocol_version)), outgoing

    us = Implementation(name="toolproxy", version=__version__)
    client = Client(mended(), cache=None, message_handler=on_message, client_info=us)
    return client


def _allowed(listed: Sequence[ListedTool], config: McpConfig) -> list[ListedTool]:
    return [tool for tool in listed if any(fnmatchcase(tool.name, pattern) for pattern in config.allow)]


async def _list(client: Client) -> list[ListedTool]:
    """The tools on all pages of the server's list."""
    found: list[ListedTool] = []
    cursor = None
    for _ in range(_MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    return found


def _fault(error: MCPError) -> ToolError:
    """The error for the model, `ToolUnavailable` if a retry may succeed."""
    is_lost = error.code in _SESSION_CODES and _SESSION_LOST.search(error.message) is not None
    if is_lost or error.code == HEADER_MISMATCH:
        return ToolUnavailable(_AWAY)  # the call was not carried out
    if error.code == CONNECTION_CLOSED:
        return ToolUnavailable(_BROKE)
    return ToolError(error.message)


def _why(error: BaseException, refused: int | None) -> str:
    """The reason why there is no session, without the server's own message."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return _in_words(error) if refused is None else f"answered HTTP {refused}"


def _in_words(error: BaseException) -> str:
    code = error.code if isinstance(error, MCPError) else None
    match error:
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


def _is_cancelled() -> bool:
    """Whether this task was cancelled; the client may swallow a cancellation while it cancels tasks of its own."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
