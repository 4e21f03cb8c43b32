"""An MCP server that is reached with the credentials of users: a session for each request, and nothing between them.

    a request -> its user's list, if it was read within the last minute --------------------> tools
                    | otherwise                                                                 |
                    v                                                                           v
                 a session of this request, begun here or with its first call  -> list, calls -> its end

A session lives as long as its request. Between requests only lists are kept, each for the requests of one client with
one value.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Final

from mcp import Client, MCPError
from mcp_types import Tool as ListedTool
from msgspec import Struct
from msgspec.structs import replace

from proxy.config.redaction import Redact
from proxy.kit.readiness import Readiness
from proxy.loop.call_context import CallContext
from proxy.loop.results import ToolError, ToolOutput, ToolUnavailable
from proxy.ports import Clock, Observer
from proxy.tools.kinds.mcp.calls import AWAY, ConnectionBroke, NotCarriedOut, make_call
from proxy.tools.kinds.mcp.changes import definition_of, hash_of
from proxy.tools.kinds.mcp.entry import McpConfig
from proxy.tools.kinds.mcp.offered import ToolFactory
from proxy.tools.kinds.mcp.session import list_tools, open_client, why_not
from proxy.tools.kinds.mcp.transport import SessionTransport
from proxy.tools.schema import schema_fault
from proxy.tools.sent_headers import SentHeaders
from proxy.tools.servers import Publish, UserTools
from proxy.tools.tool import Tool
from proxy.wire.chat import Json, ToolSpec
from proxy.wire.credentials import Credentials

_PATIENCE: Final = 5.0
"""Seconds for which a request waits for its user's list: as long as the start of the program waits for a server's."""

_CONNECT_TIMEOUT: Final = 20.0  # seconds
_CLOSE_TIMEOUT: Final = 5.0  # seconds
_KEPT: Final = 60.0
"""Seconds for which a list is kept. A server without users' credentials is asked for its list as often."""

_KEPT_IF_SILENT: Final = 10.0
"""Seconds for which a value is not waited for again, after a wait for its list has come to nothing."""

MOST_LISTS: Final = 128
"""The lists of one server, each of up to 128 tools. One client has half of them at most."""

_NOT_SERVED: Final = "The server of this tool is not reached any more."


class UserServer:
    """A server of the configuration, whose headers `sent` hold credentials of users. Implements `servers.ToolServer`.

    `configured` applies the settings of the entry to a tool. `clock` times how long lists are kept.
    """

    def __init__(
        self,
        name: str,
        config: McpConfig,
        *,
        sent: SentHeaders,
        configured: Callable[[Tool], Tool],
        clock: Clock,
        observe: Observer,
    ) -> None:
        self.name = name
        offer = configured(Tool(name="unlisted", description="", parameters={}, run=_not_run)).offer
        serves = next(iter(config.serves), None)
        self.unlisted = ToolSpec(
            config.prefix_of(name), "", {}, offer=offer, group=name, serves=serves, needs=sent.needs
        )
        self.tried = asyncio.Event()
        self.tried.set()
        self._config = config
        self._sent = sent
        self._observe = observe
        self._offered = ToolFactory(name, config, configured=configured, call=self._call, observe=observe)
        self._lists = UserLists(clock)
        self._sessions: dict[Credentials, RequestSession] = {}  # by the request's own object
        self._tasks: asyncio.TaskGroup | None = None

    def state(self) -> Readiness:
        """Usable as far as anybody knows, because each request has a session of its own."""
        return Readiness(self.name, usable=True)

    async def serve(self, publish: Publish) -> None:
        """Hold the sessions of requests, until cancelled; nothing is published, because it would be for everybody."""
        del publish
        try:
            async with asyncio.TaskGroup() as self._tasks:
                try:
                    await asyncio.Event().wait()
                finally:
                    for credentials in [*self._sessions]:
                        self._end(credentials)
        finally:
            self._tasks = None

    async def tools_for(self, credentials: Credentials) -> UserTools | None:
        """The tools that the server lists for a user; None: it has not listed any in time."""
        user = credentials.hash_of(self._sent.needs)
        if (known := self._lists.get(user)) is not None:
            return known.tools
        try:
            async with asyncio.timeout(_PATIENCE):
                listed = await self._list(credentials)
        except ToolError:
            return None
        except TimeoutError:
            self._observe("mcp.lost", server=self.name, why="gave no answer in time", wait=_KEPT_IF_SILENT)
            self._lists.put(user, UserList(credentials.scope), seconds=_KEPT_IF_SILENT)
            return None
        for name, before, after in self._lists.put(user, listed, seconds=_KEPT):
            self._observe("tool.changed", server=self.name, tool=name, before=before, after=after, change=None)
        return listed.tools

    async def _list(self, credentials: Credentials) -> "UserList":
        """What the server lists for a user. Raises `ToolError`."""
        session, mask = self._session_of(credentials), self._sent.mask_for(credentials)
        listed, left_out = await session.list(mask)
        tools, refused = await self._offered.made_of(listed)
        faults = [f"the parameters of {one.name!r}: {why}" for one in tools if (why := schema_fault(one.parameters))]
        self._offered.tell([*left_out, *refused, *faults], mask)
        hashes = {one.name: hash_of(definition_of(one)) for one in listed}
        return UserList(credentials.scope, UserTools(tools), hashes)

    async def _call(self, name: str, arguments: Json, call: CallContext, *, runs_code: bool) -> ToolOutput:
        """Make a call in the session of the request's own user, whichever user's list the tool is from."""
        credentials = call.credentials
        mask = self._sent.mask_for(credentials)
        for is_last in (False, True):
            session = self._session_of(credentials)
            client = await session.client()
            try:
                return await make_call(client, name, arguments, runs_code=runs_code, mask=mask)
            except NotCarriedOut:
                self._replace(credentials, session)
                if not is_last:  # the new session needs the definition of the tool, which the server may have changed
                    with suppress(ToolError):
                        await self._session_of(credentials).list(mask)
            except ConnectionBroke:
                self._replace(credentials, session)
                raise
            except ToolError as exc:
                if isinstance(exc.__cause__, MCPError):  # the list may be another one by now
                    self._lists.expire(credentials.hash_of(self._sent.needs))
                raise
        raise ToolUnavailable(AWAY, blame="nobody")

    def _session_of(self, credentials: Credentials) -> "RequestSession":
        """The session of a request, begun if there is none.

        Raises:
            ToolError: a credential cannot be sent in a header, or the request has ended.
        """
        if (session := self._sessions.get(credentials)) is not None:
            return session
        headers = self._sent.for_user(credentials)
        if self._tasks is None or not credentials.at_end(lambda: self._end(credentials)):
            raise ToolError(_NOT_SERVED)
        session = RequestSession(replace(self._config, headers=dict(headers)), partial(self._lost, credentials))
        self._sessions[credentials] = session
        # In a context of its own: the task is the server's, and nothing of the request's is logged with it.
        session.task = self._tasks.create_task(session.hold(), context=Context())
        return session

    def _lost(self, credentials: Credentials, session: "RequestSession", why: str) -> None:
        """Note that a session has ended before its request."""
        self._replace(credentials, session)
        self._observe("mcp.lost", server=self.name, why=why, wait=0.0)

    def _replace(self, credentials: Credentials, session: "RequestSession") -> None:
        """Let the next call of a request begin another session."""
        session.close()
        if self._sessions.get(credentials) is session:
            del self._sessions[credentials]

    def _end(self, credentials: Credentials) -> None:
        if (session := self._sessions.pop(credentials, None)) is not None:
            session.close()


async def _not_run(_: Json) -> str:
    raise AssertionError("a placeholder is not called")


class RequestSession:
    """The session of one request, held by `task`. The headers of `config` are those of the user.

    `lost` is called with the session and the reason if the session ends, or cannot begin, before `close`.
    """

    def __init__(self, config: McpConfig, lost: Callable[["RequestSession", str], None]) -> None:
        self.task: asyncio.Task[None] | None = None
        self._config = config
        self._lost = lost
        self._transport = SessionTransport()
        self._client: Client | None = None
        self._begun = asyncio.Event()  # the attempt to begin it has ended
        self._over = asyncio.Event()

    async def hold(self) -> None:
        """Hold the session until `close`. A failure of one session concerns no other."""
        try:
            client = open_client(self._config, self._transport, ended=self._over.set)
            async with asyncio.timeout(_CONNECT_TIMEOUT) as patience, client:
                patience.reschedule(None)
                self._client = client
                self._begun.set()
                # Not the cancellation alone, which a failure of the connection at the same time can swallow.
                await self._over.wait()
                patience.reschedule(asyncio.get_running_loop().time() + _CLOSE_TIMEOUT)
        except Exception as exc:  # noqa: BLE001 - as above
            if not self._over.is_set():
                self._lost(self, why_not(exc, self._transport))
        finally:
            self._client = None
            self._begun.set()

    async def client(self) -> Client:
        """The client of the session, when it has begun. Raises `ToolUnavailable`."""
        await self._begun.wait()
        if self._client is None:
            raise ToolUnavailable(AWAY, blame="nobody")
        return self._client

    async def list(self, mask: Redact) -> tuple[Sequence[ListedTool], Sequence[str]]:
        """The list of the server, and what is left out of it. Raises `ToolUnavailable`."""
        client = await self.client()
        try:
            listed = await list_tools(client, self._transport.reading, mask)
        except Exception as exc:
            self._lost(self, why_not(exc, self._transport))
            raise ToolUnavailable(AWAY, blame="nobody") from exc
        return listed or (), self._transport.reading.refused

    def close(self) -> None:
        """End the session, or the attempt to begin it. Its task ends by itself if the cancellation is swallowed."""
        self._over.set()
        if not self._begun.is_set() and self.task is not None:
            self.task.cancel()


class UserList(Struct, eq=False):
    """The list of one value of one client."""

    client: str
    tools: UserTools | None = None  # None: the list is out of date, or did not come in time
    hashes: Mapping[str, str] = {}  # the name of each tool -> the hash of its definition
    until: float = 0.0  # the monotonic time until which `tools` may be offered


class UserLists:
    """The lists of a server, a bounded number of them: those of the client with the most make room for others."""

    def __init__(self, clock: Clock, most: int = MOST_LISTS) -> None:
        self._clock = clock
        self._most = most
        self._kept: OrderedDict[str, UserList] = OrderedDict()  # the latest come last

    def __len__(self) -> int:
        """How many lists are kept."""
        return len(self._kept)

    def get(self, user: str) -> UserList | None:
        """The list of tools of a user; None: there is none, or it has expired."""
        now = self._clock.monotonic()
        for kept in self._kept.values():
            if kept.until <= now:
                kept.tools = None  # the hashes stay, for a comparison with the next list
        found = self._kept.get(user)
        return found if found is not None and now < found.until else None

    def put(self, user: str, listed: UserList, *, seconds: float) -> list[tuple[str, str, str]]:
        """Keep a list for some seconds; returns what has changed since the last one: name, hash before, hash now."""
        before = self._kept[user].hashes if user in self._kept else {}
        listed.until = self._clock.monotonic() + seconds
        self._kept[user] = listed
        self._kept.move_to_end(user)
        counts = Counter(kept.client for kept in self._kept.values())
        if counts[listed.client] > self._most // 2:
            self._drop_oldest_of(listed.client)
        elif len(self._kept) > self._most:
            self._drop_oldest_of(counts.most_common(1)[0][0])
        return [(name, before[name], now) for name, now in listed.hashes.items() if before.get(name, now) != now]

    def expire(self, user: str) -> None:
        """Offer the list of a user no more."""
        if (kept := self._kept.get(user)) is not None:
            kept.tools, kept.until = None, 0.0

    def _drop_oldest_of(self, client: str) -> None:
        del self._kept[next(user for user, kept in self._kept.items() if kept.client == client)]
