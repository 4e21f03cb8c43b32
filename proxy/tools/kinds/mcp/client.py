"""`type: mcp`: the tools of an MCP server, which is reached over HTTP or started as a child process.

    connect -> list -> publish -> wait until the list may have changed -> list -> ...
       ^                                   | the connection broke, or a call was told that there is no such session
       +- rest, longer each time, or until a call <-+

One task has a server's session from beginning to end, because the client's cancel scopes have to be left by the task
that entered them. Calls come from other tasks, which use the session, or wait for a new one if there is none. Each
worker has its own session. Tools stay offered for a while after their server has gone, so that a restart withdraws
none.
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress

from mcp import Client, MCPError
from mcp.client import IncomingMessage
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp_types import Tool as ListedTool
from mcp_types import ToolListChangedNotification

from proxy.config.redaction import Redact
from proxy.kit.breaker import Backoff
from proxy.kit.readiness import Readiness
from proxy.loop.call_context import NO_CONTEXT, CallContext
from proxy.loop.results import ToolError, ToolOutput, ToolUnavailable
from proxy.ports import Clock, Observer
from proxy.tools.kinds.mcp.calls import AWAY, NotCarriedOut, make_call
from proxy.tools.kinds.mcp.changes import KnownDefinitions
from proxy.tools.kinds.mcp.entry import McpConfig
from proxy.tools.kinds.mcp.offered import ToolFactory
from proxy.tools.kinds.mcp.repair import ListReading
from proxy.tools.kinds.mcp.session import SessionLost, list_tools, open_client, why_not
from proxy.tools.kinds.mcp.transport import SessionTransport
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


class McpServer:
    """An MCP server of the configuration, whose tools are the same for all users. Implements `servers.ToolServer`.

    `configured` applies the settings of the entry to a tool. `mask` hides the secrets that the server is sent in all
    that it says of tools and results. `jitter` returns a number from 0 to 1, which spreads the waits between attempts.
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
        mask: Redact = str,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.name = name
        self.tried = asyncio.Event()
        self._config = config
        self._clock = clock
        self._observe = observe
        self._mask = mask
        self._offered = ToolFactory(name, config, configured=configured, call=self.call, observe=observe)
        self._backoff = Backoff(_FIRST_WAIT, _LONGEST_WAIT, jitter)
        self._client: Client | None = None  # of the session that is open
        self._attempt = asyncio.Event()  # set when the attempt that is going on, or comes next, has ended
        self._wanted = asyncio.Event()  # a call waits for a session
        self._is_resting = False
        self._definitions = KnownDefinitions()
        self._listed: list[ListedTool] | None = None  # as last published
        self._changed = asyncio.Event()  # the tools may have changed, or the session has been lost
        self._calls = 0  # the number of calls that wait for their answers
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
                    await self._publish([], [], publish)
                if transport.was_too_large:
                    wait = _WAIT_IF_TOO_LARGE
                self._attempt = asyncio.Event()
                attempt.set()
            self.tried.set()
            self._observe("mcp.lost", server=self.name, why=self._why_not, wait=round(wait, 2))
            await self._rest(wait)

    async def _rest(self, seconds: float) -> None:
        """Rest, but no longer than until a call wants a session."""
        self._is_resting = True
        async with asyncio.TaskGroup() as tasks:
            ends = [tasks.create_task(self._clock.sleep(seconds)), tasks.create_task(self._wanted.wait())]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for end in ends:
                end.cancel()
        self._is_resting = False
        self._wanted.clear()

    async def _hold_session(self, transport: SessionTransport, publish: Publish) -> str:
        """Keep one session open until it breaks, and return the reason."""
        ended, reading = asyncio.Event(), transport.reading

        def end() -> None:
            ended.set()
            self._changed.set()

        try:
            client = open_client(self._config, transport, on_message=self._on_message, ended=end)
            async with asyncio.timeout(_CONNECT_TIMEOUT) as patience, client:
                await self._list(client, reading, publish)
                patience.reschedule(None)
                try:
                    await self._keep_listed(client, reading, ended, publish)
                except Exception:
                    await self._let_calls_end()
                    raise
        except Exception as exc:  # noqa: BLE001 - a server's failure affects only its own tools
            return why_not(exc, transport)
        return "the session ended"

    async def _keep_listed(self, client: Client, reading: ListReading, ended: asyncio.Event, publish: Publish) -> None:
        """Let calls use the session, and list the tools again whenever they may have changed."""
        self._client, self._why_not = client, "the connection broke"
        self._observe("mcp.connected", server=self.name, tools=len(self._listed or ()))
        self._attempt.set()
        self.tried.set()
        try:
            async with asyncio.TaskGroup() as beside:
                beside.create_task(self._watch_for_changes(client))
                while True:
                    await self._changed.wait()
                    if ended.is_set() or self._client is not client:
                        raise SessionLost
                    await self._clock.sleep(_BURST)
                    self._changed.clear()
                    async with asyncio.timeout(_LISTING_PATIENCE):
                        await self._list(client, reading, publish)
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

    async def _on_message(self, message: IncomingMessage) -> None:
        """Request a new list of tools when an older server announces a change unasked."""
        if isinstance(message, ToolListChangedNotification):
            self._changed.set()

    async def _list(self, client: Client, reading: ListReading, publish: Publish) -> None:
        """Read the list of the server, and publish it unless it is as it was."""
        listed = await list_tools(client, reading, self._mask)
        if listed is not None:
            await self._publish(listed, reading.refused, publish)

    async def _publish(self, listed: list[ListedTool], left_out: list[str], publish: Publish) -> None:
        """Publish the tools, but only if they have changed, because publishing resets caches and circuit breakers."""
        if listed == self._listed:
            return
        for changed in self._definitions.changes_in(listed):
            self._observe("tool.changed", server=self.name, **changed._asdict())
        self._listed = listed
        tools, refused = await self._offered.made_of(listed)
        self._offered.tell([*left_out, *refused, *publish(self.name, tools)], self._mask)

    async def call(
        self, name: str, arguments: Json, _context: CallContext = NO_CONTEXT, *, runs_code: bool = False
    ) -> ToolOutput:
        """Make one call, and once more in a new session if the server has not carried it out.

        If it is cancelled, the client notifies the server, and the session stays open.
        """
        for _ in range(2):
            client = await self._session()
            try:
                return await self._answer(client, name, arguments, runs_code=runs_code)
            except NotCarriedOut:
                self._forget(client)
        raise ToolUnavailable(AWAY, blame="nobody")

    async def _answer(self, client: Client, name: str, arguments: Json, *, runs_code: bool) -> ToolOutput:
        """The output of one call in a session, which waits for it when it ends. Raises as `make_call` does."""
        self._calls += 1
        self._is_idle.clear()
        try:
            return await make_call(client, name, arguments, runs_code=runs_code, mask=self._mask)
        except ToolError as exc:
            if isinstance(exc.__cause__, MCPError):
                self._changed.set()  # a new list shows whether only the tool has gone, or the session
            raise
        finally:
            self._calls -= 1
            if not self._calls:
                self._is_idle.set()

    async def tools_for(self, _: object) -> None:
        """No tools, because the server's are the same for everybody."""

    async def _session(self) -> Client:
        """The session. If there is none, one attempt to begin one is awaited that has not begun before the call.

        Raises:
            ToolUnavailable: the server cannot be reached.
        """
        for _ in range(1 if self._is_resting else 2):
            if self._client is None:
                self._wanted.set()
                await self._attempt.wait()
        if self._client is None:
            raise ToolUnavailable(AWAY, blame="nobody")
        return self._client


async def list_once(config: McpConfig, mask: Redact) -> list[ListedTool]:
    """A server's allowed, well-formed tools, with its secrets masked, listed in a separate short session.

    Raises:
        ToolUnavailable: there can be no session; the message has the reason.
    """
    transport = SessionTransport()
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT), open_client(config, transport) as client:
            return await list_tools(client, transport.reading, mask) or []
    except Exception as exc:
        raise ToolUnavailable(why_not(exc, transport)) from exc


def _is_cancelled() -> bool:
    """Whether this task was cancelled; the client may swallow a cancellation while it cancels tasks of its own."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
