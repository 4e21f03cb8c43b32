"""Tool calls that a client makes itself, without a model: what `POST /v1/search` and `POST /mcp` share.

A call has everything that a model's call has: the client's tools and limits, budget, cache, fallbacks, events. One
request makes one call, which may count as several if it has several queries.
"""

from starlette.types import Scope

from proxy.api.access import CALLER, TOOL_CALLS_LEFT, Caller, may_have_tools
from proxy.api.credentials import CredentialReader, RequestTools
from proxy.api.local import is_local
from proxy.api.ports import Ports
from proxy.api.runs import note_use
from proxy.execution.observed import observed
from proxy.kit.timeouts import Deadline
from proxy.loop.call_context import CallContext
from proxy.loop.limits import Limits
from proxy.loop.queries import may_have_several, searches_in
from proxy.loop.results import CredentialMissing, ToolOutput
from proxy.loop.tally import Tally
from proxy.wire.chat import ToolCall, ToolSpec
from proxy.wire.errors import NotAllowed
from proxy.wire.search import NO_FILTERS, SearchFilters

_NOBODY_VOUCHES = (
    "This proxy passes the keys of its clients to an upstream (api_key: from_client) and knows none of them itself, so "
    "tools may be called without a model on this machine only."
)


class Door:
    """Lets requests make calls."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._credentials = CredentialReader(ports)
        config = ports.config
        # With keys of the clients' own, the upstream finds out who the sender is; but here no upstream is called.
        self._knows_senders = not config.forwards_client_keys

    async def open(self, scope: Scope) -> "DirectCalls":
        """The calls that a request may make. Raises `NotAllowed`: no key says who the sender is."""
        if not self._knows_senders and (self._ports.config.server.allow_anonymous or not is_local(scope)):
            raise NotAllowed(_NOBODY_VOUCHES)
        return DirectCalls(self._ports, scope, await self._credentials.tools_of(scope))


class DirectCalls:
    """Makes the calls of one request.

    Attributes:
        tools: the tools that the client may call, by their own names, in the order of the file.
        offered: those of them for whose calls the request has all headers; a call of another one says what is missing.
        limits: the client's limits.
        calls_left: how many calls the request may still make.
    """

    def __init__(self, ports: Ports, scope: Scope, own: RequestTools) -> None:
        self._ports, self._own = ports, own
        self._caller: Caller = scope[CALLER]
        self.limits: Limits = ports.config.limits.overlaid(self._caller.limits)
        left = scope.get(TOOL_CALLS_LEFT)
        self.calls_left = self.limits.max_tool_calls if left is None else min(left, self.limits.max_tool_calls)
        allowed = self._caller.tools
        self.tools: dict[str, ToolSpec] = {
            name: tool
            for name, tool in (own.toolset.specs.items() if self.limits.max_tool_calls > 0 else ())
            if tool.offer != "never" and (allowed is None or tool.is_among(allowed))
        }
        self.offered = [tool for name, tool in self.tools.items() if own.has(name)]
        self._unlisted = [
            server
            for server in own.toolset.unlisted.values()
            if server.offer != "never"
            and not server.needs <= own.credentials.names
            and (allowed is None or may_have_tools(server, allowed))
        ]

    def may_call(self, name: str) -> bool:
        """Whether a tool is known, or may be one of a server that lists its tools by headers that the request lacks."""
        return name in self.tools or self._server_of(name) is not None

    def _server_of(self, name: str) -> ToolSpec | None:
        return next((server for server in self._unlisted if name.startswith(server.name)), None)

    async def output_of(
        self, call: ToolCall, *, filters: SearchFilters = NO_FILTERS
    ) -> tuple[ToolOutput, tuple[str, ...]]:
        """The output of a call that the client may make, by the tool's own name, and the queries beyond a limit.

        Raises:
            ToolError: the call could not be carried out.
        """
        if call.name not in self.tools and (server := self._server_of(call.name)):
            raise CredentialMissing(call.name, server.needs - self._own.credentials.names)
        tool, counts, left_out = self.tools[call.name], 1, tuple[str, ...]()
        if may_have_several(tool, call):
            most = min(self.calls_left, tool.max_calls or self.calls_left)
            call, counts, left_out = searches_in(call, self._own.toolset.history_arguments, most)
        self.calls_left -= counts
        limits, clock = self.limits, self._ports.clock
        caller = self._caller
        context = CallContext(
            caller.scope,
            filters,
            limits.tool_timeout,
            limits.max_tool_timeout,
            caller.tools,
            clock.monotonic() + limits.deadline,
            self._own.credentials,
        )
        deadline = Deadline(clock.monotonic, context.ends)
        execute, observe = self._own.toolset.execute, self._ports.observe
        tally = Tally()
        tally.count_call(tool, counts)
        try:
            output = await observed(call, execute, context, deadline=deadline, observe=observe, clock=clock)
            if output.cost is not None:
                tally.tool_cost = output.cost
            return output, left_out
        finally:
            note_use(tally, tool_calls=tally.total_tool_calls, searches=tally.web_searches)
