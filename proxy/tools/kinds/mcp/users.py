"""An MCP server that is reached with the credentials of users: a session for each, a bounded number of them.

    credentials -> headers -> the session of these headers, begun if there is none -> its tools, its calls

The session of whoever has not used the server for the longest time is closed when there are too many. One that is in
use is never closed: whoever needs a further one waits until one is free.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import Context
from functools import partial
from typing import Final, Protocol, TypeAlias

from msgspec.structs import replace

from proxy.config.redaction import Redact
from proxy.kit.readiness import Readiness
from proxy.loop.results import ToolError, ToolOutput
from proxy.tools.kinds.mcp.client import Call, McpServer
from proxy.tools.kinds.mcp.entry import McpConfig
from proxy.tools.schema import schema_fault
from proxy.tools.sent_headers import SentHeaders
from proxy.tools.servers import Publish, UserTools
from proxy.tools.tool import CONTEXT, Tool
from proxy.wire.chat import Json, ToolSpec
from proxy.wire.credentials import Credentials

_PATIENCE: Final = 5.0
"""Seconds for which a request waits for the list of a user who is new: as long as the start waits for a server's."""

_NOT_SERVED: Final = "The server of this tool is not reached any more."

Headers: TypeAlias = tuple[tuple[str, str], ...]


class MakeServer(Protocol):
    """Makes the server of one user, with a session of its own."""

    def __call__(self, config: McpConfig, *, mask: Redact, call: Call) -> McpServer:
        """The server; `config` has the headers of the user."""
        ...


class UserServer:
    """A server of the configuration. Implements `servers.ToolServer`.

    Args:
        name: the name of the entry, and of the group of tools.
        config: the entry.
        sent: the headers of the entry.
        make: makes the server of one user.
    """

    def __init__(self, name: str, config: McpConfig, *, sent: SentHeaders, make: MakeServer) -> None:
        self.name = name
        self.unlisted = ToolSpec(
            config.prefix_of(name), "", {}, offer=config.offer or "always", group=name, needs=sent.needs
        )
        self.tried = asyncio.Event()
        self.tried.set()
        self._config = config
        self._sent = sent
        self._make = make
        self._sessions: OrderedDict[Headers, _Session] = OrderedDict()  # those that were used last come last
        self._open = 0  # sessions, those included that are being closed
        self._waiting: list[Headers] = []  # for whom requests wait to begin a session
        self._room = asyncio.Event()  # set whenever a session has been closed, or is free to be
        self._tasks: asyncio.TaskGroup | None = None

    def state(self) -> Readiness:
        """Usable as far as anybody knows, because each user has a session of their own."""
        return Readiness(self.name, usable=True)

    async def serve(self, publish: Publish) -> None:
        """Hold the sessions of users, until cancelled; nothing is published, because it would be for everybody."""
        del publish
        try:
            async with asyncio.TaskGroup() as self._tasks:
                await asyncio.Event().wait()
        finally:
            self._tasks = None

    async def tools_for(self, credentials: Credentials) -> UserTools | None:
        """The tools that the server lists for a user; None: it has not listed any in time."""
        with suppress(ToolError, TimeoutError):
            async with asyncio.timeout(_PATIENCE), self._session_of(credentials) as session:
                await session.server.become_ready()
                return session.tools
        return None

    async def _call(self, name: str, arguments: Json, *, runs_code: bool) -> ToolOutput:
        """Make a call in the session of the request's own user, whoever's list the tool is from."""
        async with self._session_of(CONTEXT.get().credentials) as session:
            return await session.server.call(name, arguments, runs_code=runs_code)

    @asynccontextmanager
    async def _session_of(self, credentials: Credentials) -> AsyncIterator["_Session"]:
        """The session of a user, which stays open within the `with` statement.

        Raises:
            ToolError: a credential cannot be sent in a header.
        """
        headers = tuple(sorted(self._sent.for_user(credentials).items()))
        while (session := self._sessions.get(headers)) is None:
            if self._open < self._config.max_sessions:
                session = self._sessions[headers] = self._begin(headers, self._sent.mask_for(credentials))
                break
            self._waiting.append(headers)
            try:
                await self._make_room()
            finally:
                self._waiting.remove(headers)
        self._sessions.move_to_end(headers)
        session.users += 1
        try:
            yield session
        finally:
            session.users -= 1
            if not session.users:
                self._room.set()

    def _begin(self, headers: Headers, mask: Redact) -> "_Session":
        if self._tasks is None:
            raise ToolError(_NOT_SERVED)
        self._open += 1
        server = self._make(replace(self._config, headers=dict(headers)), mask=mask, call=self._call)
        session = _Session(server)
        # In a context of its own: the session outlives the request that it was begun for.
        session.serving = self._tasks.create_task(session.serve(), context=Context())
        session.serving.add_done_callback(partial(self._ended, headers, session))
        return session

    def _ended(self, headers: Headers, session: "_Session", _: asyncio.Task[None]) -> None:
        if self._sessions.get(headers) is session:
            del self._sessions[headers]
        self._open -= 1
        self._room.set()

    async def _make_room(self) -> None:
        """Close the session that was not used for the longest time, one for each user who waits, and wait for room."""
        free = next((headers for headers, session in self._sessions.items() if not session.users), None)
        are_closing = self._open - len(self._sessions)
        if free is not None and are_closing < len({*self._waiting}):
            self._sessions.pop(free).close()
        self._room.clear()
        await self._room.wait()


class _Session:
    """The session of one user.

    Attributes:
        server: the server, as this user reaches it.
        tools: what it has listed; None: nothing yet.
        users: how many requests use it at present.
        serving: the task that has it.
    """

    def __init__(self, server: McpServer) -> None:
        self.server = server
        self.tools: UserTools | None = None
        self.users = 0
        self.serving: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Hold the session until `close`."""
        with suppress(Exception):  # a failure of one session concerns no other
            await self.server.serve(self._publish)

    def close(self) -> None:
        """Begin to close the session."""
        if self.serving is not None:
            self.serving.cancel()

    def _publish(self, _: str, tools: Sequence[Tool]) -> Sequence[str]:
        self.tools = UserTools(tools)
        return [
            f"the parameters of {tool.name!r}: {fault}" for tool in tools if (fault := schema_fault(tool.parameters))
        ]
