"""`type: mcp`: the tools of an MCP server, which is reached over HTTP or started as a child process.

    connect -> list -> publish -> wait until the list may have changed -> list -> ...
       ^                                   | the connection broke, or a call was told that there is no such session
       +- wait, longer each time, or until a call <-+

One task has a server's session from beginning to end, because the client's cancel scopes have to be left by the task
that entered them. Calls come from other tasks, which use the session, or wait for a new one if there is none. Each
worker has its own session. Tools stay offered for a while after their server has gone, so that a restart withdraws
none.
"""

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from mcp import Client, MCPError
from mcp.client import IncomingMessage
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp_types import (
    CONNECTION_CLOSED,
    HEADER_MISMATCH,
    INVALID_REQUEST,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    ToolListChangedNotification,
)
from mcp_types import Tool as ListedTool
from msgspec.structs import replace
from pydantic import TypeAdapter, ValidationError

from proxy.config.redaction import Redact
from proxy.kit.breaker import Backoff
from proxy.kit.readiness import Readiness
from proxy.loop.results import ToolError, ToolOutput, ToolUnavailable
from proxy.ports import Clock, Observer
from proxy.tools.kinds.mcp.content import is_malformed, is_repeatable, output_of, tool_of
from proxy.tools.kinds.mcp.definitions import POLL_SECONDS, AcceptedDefinitions, Definitions, PinnedDefinitions
from proxy.tools.kinds.mcp.entry import McpConfig
from proxy.tools.kinds.mcp.mending import MOST_TOOLS
from proxy.tools.kinds.mcp.questions import question_in, question_of_error
from proxy.tools.kinds.mcp.session import SessionLost, list_tools, open_client, why_not
from proxy.tools.kinds.mcp.transport import DELIVERY, Delivery, SessionTransport
from proxy.tools.schema import schema_fault, serving_fault
from proxy.tools.servers import Publish
from proxy.tools.tool import Tool
from proxy.wire.chat import Json

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
# A server whose answers are too large to be read is not asked again sooner.
_WAIT_IF_TOO_LARGE = 600.0
# Seconds for which the answers to calls are waited for when their session has gone.
_LAST_ANSWERS = 2.0
# Seconds for which the tools of a server that has gone stay offered: a call of them may find that it is back.
_REMEMBERED = 120.0
_LONGEST_REASON = 200  # characters of a server's own words in the log
_MOST_REASONS = 20

_AWAY = "The server of this tool cannot be reached now."
_BROKE = "The connection to this tool's server broke; whether the call was carried out is not known."
_NO_RESULT = "The tool's server answered with something that is no result."
_TOO_LARGE = "The tool's result is larger than any that can be read."
_BUSY = frozenset((429, 502, 503, 504))
# The errors of a server that has restarted and no longer knows the session: "Session terminated" from our own SDK,
# "Session not found" from servers in Python and TypeScript, "No valid session ID provided" from TypeScript examples.
_SESSION_LOST = re.compile(
    r"\bsession (?:id )?(?:terminated|not found|expired|unknown)|\b(?:no valid|invalid|unknown|expired) session",
    re.IGNORECASE,
)
_SESSION_CODES = (INVALID_REQUEST, -32001, -32000)
# What the SDK says of a closed connection. Servers use its code, -32000, for errors of their own.
_CLOSED = "Connection closed"
_ANY_OBJECT = TypeAdapter(dict[str, Any])


class Call(Protocol):
    """Makes a call of a server's tool; `runs_code` as in `output_of`. Raises `ToolError`."""

    def __call__(self, name: str, arguments: Json, *, runs_code: bool) -> Awaitable[ToolOutput]:
        """The output of the call."""
        ...


class McpServer:
    """An MCP server of the configuration. Implements `servers.ToolServer`.

    Args:
        name: the name of the entry, and of the group of tools.
        config: the entry.
        configured: applies the settings of the entry to a tool.
        clock: for the waits between attempts.
        observe: gets the events of sessions that begin and break, and of tools that are refused.
        definitions: decides which tools are offered as they are listed; None: all are.
        mask: masks the secrets that the server is sent, in all that it says of tools and results.
        call: makes the calls of its tools; None: it does so itself.
        on_demand: whether a session that is lost is begun anew only when it is wanted.
        jitter: returns a number from 0 to 1, which spreads the waits.
    """

    unlisted = None

    def __init__(
        self,
        name: str,
        config: McpConfig,
        *,
        configured: Callable[[Tool], Tool],
        clock: Clock,
        observe: Observer,
        definitions: Definitions | None = None,
        mask: Redact = str,
        call: Call | None = None,
        on_demand: bool = False,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.name = name
        self.tried = asyncio.Event()
        self._config = config
        self._serves = {own: hosted for hosted, own in config.serves.items()}
        self._configured = configured
        self._clock = clock
        self._observe = observe
        self._definitions = definitions or AcceptedDefinitions(name, observe)
        self._mask = mask
        self._run_call = call or self.call
        self._on_demand = on_demand
        self._backoff = Backoff(_FIRST_WAIT, _LONGEST_WAIT, jitter)
        self._client: Client | None = None
        self._attempt = asyncio.Event()  # set when the attempt that is going on, or comes next, has ended
        self._wanted = asyncio.Event()  # a call waits for a session
        self._is_resting = False
        self._backs_off = False
        # The list as last published, and which of its tools are withheld.
        self._listed: tuple[list[ListedTool], frozenset[str]] | None = None
        self._judged_by: Mapping[str, bytes] | None = None  # what was pinned at that time
        self._changed = asyncio.Event()  # the tools may have changed, or the session has been lost
        self._calls: set[Delivery] = set()  # those that wait for their answers
        self._is_idle = asyncio.Event()  # set when no call waits
        self._is_idle.set()
        self._why_not = "not connected yet"

    def state(self) -> Readiness:
        """Whether there is a session. The reason why not is never the server's own message, which may hold a secret."""
        usable = self._client is not None
        return Readiness(self.name, usable=usable, why_not=None if usable else self._why_not)

    async def serve(self, publish: Publish) -> None:
        """Keep a session open, and its tools published, until cancelled."""
        try:
            await self._serve(publish)
        finally:
            self._attempt.set()  # there will be no other, for which a call could wait

    async def _serve(self, publish: Publish) -> None:
        failures = 0
        gone_since = self._clock.monotonic()
        while True:
            began, attempt = self._clock.monotonic(), self._attempt
            transport = SessionTransport()
            self._why_not = await self._hold_session(transport, publish)
            if _is_cancelled():
                return
            now = self._clock.monotonic()
            failures = 0 if now - began > _LASTED else failures + 1
            wait = self._backoff.wait(failures - 1) if failures else 0.0
            if attempt.is_set():  # there was a session
                gone_since = now
            else:
                if self._listed is None or now - gone_since > _REMEMBERED:
                    await self._publish([], None, publish)
                if transport.was_too_large:
                    wait = _WAIT_IF_TOO_LARGE
                self._attempt = asyncio.Event()
                attempt.set()
            self.tried.set()
            self._observe("mcp.lost", server=self.name, why=self._why_not, wait=round(wait, 2))
            await self._rest(wait)

    async def _rest(self, seconds: float) -> None:
        """Wait, but no longer than until a call wants a session; on demand, as long as nobody wants one."""
        self._is_resting = self._backs_off = True
        async with asyncio.TaskGroup() as tasks:
            ends = [tasks.create_task(self._clock.sleep(seconds)), tasks.create_task(self._wanted.wait())]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for end in ends:
                end.cancel()
        self._backs_off = False
        if self._on_demand:
            await self._wanted.wait()
        self._is_resting = False
        self._wanted.clear()

    async def _hold_session(self, transport: SessionTransport, publish: Publish) -> str:
        """Keep one session open until it breaks, and return the reason."""
        ended = asyncio.Event()

        def end() -> None:
            ended.set()
            self._changed.set()

        try:
            client = open_client(self._config, transport, on_message=self._on_message, ended=end)
            async with asyncio.timeout(_CONNECT_TIMEOUT) as patience, client:
                await self._publish(*await list_tools(client, self._mask), publish)
                patience.reschedule(None)
                try:
                    await self._keep_listed(client, ended, publish)
                except Exception:
                    await self._let_calls_end()
                    raise
        except Exception as exc:  # noqa: BLE001 - a server's failure affects only its own tools
            return why_not(exc, transport)
        return "the session ended"

    async def _keep_listed(self, client: Client, ended: asyncio.Event, publish: Publish) -> None:
        """Let calls use the session, and list the tools again whenever they may have changed."""
        self._client, self._why_not = client, "the connection broke"
        listed, withheld = self._listed or ((), frozenset())
        self._observe("mcp.connected", server=self.name, tools=len(listed) - len(withheld))
        self._attempt.set()
        self.tried.set()
        try:
            async with asyncio.TaskGroup() as beside:
                beside.create_task(self._watch_for_changes(client))
                if isinstance(self._definitions, PinnedDefinitions):
                    beside.create_task(self._watch_pins(self._definitions))
                while True:
                    await self._changed.wait()
                    if ended.is_set() or self._client is not client:
                        raise SessionLost
                    await self._clock.sleep(_BURST)
                    self._changed.clear()
                    async with asyncio.timeout(_LISTING_PATIENCE):
                        await self._publish(*await list_tools(client, self._mask), publish)
        finally:
            self._forget(client)
            self._changed.clear()

    async def _let_calls_end(self) -> None:
        """Wait for the answers of a session that has gone: each says whether its call was carried out."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_ANSWERS):
                await self._is_idle.wait()

    def _forget(self, client: Client) -> None:
        """Let no further call use a session; the next one waits for the next session."""
        if self._client is client:
            self._client = None
            self._attempt = asyncio.Event()
            self._changed.set()

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

    async def _watch_pins(self, definitions: PinnedDefinitions) -> None:
        """List the tools again when other definitions have been pinned, as by `toolproxy check --accept`."""
        while True:
            await self._clock.sleep(POLL_SECONDS)
            if await definitions.have_changed(self._judged_by):
                self._changed.set()

    async def _on_message(self, message: IncomingMessage) -> None:
        """Request a new list of tools when an older server announces a change unasked."""
        if isinstance(message, ToolListChangedNotification):
            self._changed.set()

    async def _publish(self, listed: list[ListedTool], cut: str | None, publish: Publish) -> None:
        """Publish the tools, but only if they have changed, because publishing resets caches and circuit breakers."""
        withheld = await self._definitions.withheld(listed)
        self._judged_by = self._definitions.judged_by
        if (listed, withheld) == self._listed:
            return
        self._listed = listed, withheld
        tools, refused = [], [cut] if cut else []
        for tool in (tool for tool in listed[:MOST_TOOLS] if tool.name not in withheld):
            try:
                tools.append(self._tool(tool, refused))
            except ValueError as exc:
                refused.append(f"{tool.name}: {exc}")
            else:
                schema_fault(tools[-1].parameters)  # compiles it, which takes up to 50 ms, before all are published
            await asyncio.sleep(0)
        unknown = self._serves.keys() - {tool.name for tool in listed}
        refused += [f"{name}: the server has no such tool, to serve {self._serves[name]}" for name in sorted(unknown)]
        refused += publish(self.name, tools)
        refused += [f"{tool.name}: there are more than {MOST_TOOLS} tools" for tool in listed[MOST_TOOLS:]]
        for why in refused[:_MOST_REASONS]:
            self._observe("mcp.tool_refused", server=self.name, why=self._mask(why)[:_LONGEST_REASON])
        if more := refused[_MOST_REASONS:]:
            self._observe("mcp.tool_refused", server=self.name, why=f"and {len(more)} more")

    def _tool(self, listed: ListedTool, refused: list[str]) -> Tool:
        """A server's tool as one of ours; why it serves no hosted tool, if it cannot, is added to `refused`."""
        serves = self._serves.get(listed.name)

        async def run(arguments: Json) -> ToolOutput:
            return await self._run_call(listed.name, arguments, runs_code=serves is not None)

        prefix = self._config.prefix_of(self.name)
        tool = tool_of(listed, prefix=prefix, origin=f"mcp server {self.name}", run=run)
        tool = self._configured(tool)
        if serves is not None and (fault := serving_fault(tool.parameters)):
            refused.append(f"{listed.name}: {fault}")
            serves = None
        return replace(tool, serves=serves, retries=tool.retries if is_repeatable(listed) else 0)

    async def call(self, name: str, arguments: Json, *, runs_code: bool = False) -> ToolOutput:
        """Make one call, and once more in a new session if the server has not carried it out.

        If it is cancelled, the client notifies the server, and the session stays open.
        """
        for _ in range(2):
            client = await self.session()
            try:
                return await self._answer(client, name, arguments, runs_code=runs_code)
            except _NotCarriedOut:
                self._forget(client)
        raise ToolUnavailable(_AWAY, blame="nobody")

    async def _answer(self, client: Client, name: str, arguments: Json, *, runs_code: bool) -> ToolOutput:
        """The output of one call in a session. Raises `_NotCarriedOut` or `ToolError`."""
        request = CallToolRequest(params=CallToolRequestParams(name=name, arguments=arguments))
        delivery = Delivery()
        token = DELIVERY.set(delivery)
        self._calls.add(delivery)
        self._is_idle.clear()
        try:
            # Not `call_tool`, which validates results with the server's schema, whose patterns may take forever.
            raw = await client.session.send_request(request, _ANY_OBJECT)  # type: ignore[type-var]  # it takes any type
            if raw.get("resultType") == "input_required":
                raise ToolError(self._mask(question_in(raw)))
            result = CallToolResult.model_validate(raw, by_name=False)
        except MCPError as exc:
            self._changed.set()  # a new list shows whether only the tool has gone, or the session
            raise _fault(exc, delivery, self._mask) from exc
        except ValidationError as exc:
            raise ToolError(_NO_RESULT) from exc
        finally:
            DELIVERY.reset(token)
            self._calls.discard(delivery)
            if not self._calls:
                self._is_idle.set()
        output = output_of(result, runs_code=runs_code)
        text = self._mask(output.text)
        if result.is_error:
            raise ToolError(text)
        sources = {self._mask(url): self._mask(title) for url, title in output.sources.items()}
        return replace(output, text=text, sources=sources)

    async def tools_for(self, _: object) -> None:
        """No tools, because the server's are the same for everybody."""

    async def become_ready(self) -> None:
        """Wait for a session, or for the end of an attempt to begin one; not while the server is left alone."""
        if not self.tried.is_set():
            await self.tried.wait()
        elif not self._backs_off:
            with suppress(ToolUnavailable):
                await self.session()

    async def session(self) -> Client:
        """The session. If there is none, one attempt to begin one is awaited that has not begun before the call.

        Raises:
            ToolUnavailable: the server cannot be reached.
        """
        for _ in range(1 if self._is_resting else 2):
            if self._client is None:
                self._wanted.set()
                await self._attempt.wait()
        if self._client is None:
            raise ToolUnavailable(_AWAY, blame="nobody")
        return self._client


async def list_once(config: McpConfig, mask: Redact) -> list[ListedTool]:
    """A server's allowed, well-formed tools, with its secrets masked, listed in a separate short session.

    Raises:
        ToolUnavailable: there can be no session; the message has the reason.
    """
    transport = SessionTransport()
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT), open_client(config, transport) as client:
            listed, _ = await list_tools(client, mask)
            return [tool for tool in listed if not is_malformed(tool)]
    except Exception as exc:
        raise ToolUnavailable(why_not(exc, transport)) from exc


class _NotCarriedOut(Exception):
    """The server has not carried a call out, and will in another session."""


def _fault(error: MCPError, delivery: Delivery, mask: Redact) -> Exception:
    """The error of a call: `ToolUnavailable` if a retry may succeed."""
    is_lost = error.code in _SESSION_CODES and _SESSION_LOST.search(error.message) is not None
    # After a mismatch of headers, the session needs the tool's new definition.
    if is_lost or delivery.was_lost or error.code == HEADER_MISMATCH:
        return _NotCarriedOut()
    if delivery.was_too_large:
        return ToolError(_TOO_LARGE)
    if error.code == CONNECTION_CLOSED and error.message == _CLOSED:
        return ToolUnavailable(_BROKE, blame="nobody")
    if delivery.status in _BUSY:
        return ToolUnavailable(f"The server of this tool is busy or down now (HTTP {delivery.status}).")
    return ToolError(mask(question_of_error(error.error) or error.message))


def _is_cancelled() -> bool:
    """Whether this task was cancelled; the client may swallow a cancellation while it cancels tasks of its own."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
