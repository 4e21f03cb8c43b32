"""Tool calls that a client makes itself, without a model, by `POST /v1/search` or `POST /mcp`.

As for a model's call, the client's tools, limits and budget apply, and cache, fallbacks and events work. One request
makes one call, which may count as several if it has several queries.
"""

from collections.abc import Iterator
from itertools import islice

from starlette.types import Scope

from proxy.api.access import CALLER, TOOL_CALLS_LEFT, Caller, may_have_tools
from proxy.api.credentials import CredentialReader, RequestTools
from proxy.api.local import is_local
from proxy.api.ports import Ports
from proxy.api.runs import call_context, note_use
from proxy.execution.deadline import Deadline
from proxy.execution.observed import observed
from proxy.loop.limits import Limits
from proxy.loop.queries import searches_in
from proxy.loop.results import CredentialMissing, ToolOutput
from proxy.loop.tally import Tally
from proxy.ports import MayUse
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

    def admit(self, scope: Scope) -> None:
        """Raise `NotAllowed` if no key says who the sender of a request is."""
        if not self._knows_senders and (self._ports.config.server.allow_anonymous or not is_local(scope)):
            raise NotAllowed(_NOBODY_VOUCHES)

    async def open(self, scope: Scope, asks_for: MayUse = lambda _: False) -> "DirectCalls":
        """The calls that a request may make; `asks_for`: whether it asks for tools that a server has for its user."""
        caller: Caller = scope[CALLER]
        limits = self._ports.config.limits.overlaid(caller.limits)

        def may_use(server: ToolSpec) -> bool:
            return limits.max_tool_calls > 0 and _is_permitted(server, caller) and asks_for(server)

        own = await self._credentials.tools_of(self._credentials.credentials_of(scope), may_use)
        return DirectCalls(self._ports, scope, own)


class DirectCalls:
    """Makes the calls of one request.

    Attributes:
        limits: the client's limits.
        calls_left: how many calls the request may still make.
    """

    def __init__(self, ports: Ports, scope: Scope, own: RequestTools) -> None:
        self._ports, self._own = ports, own
        self._caller: Caller = scope[CALLER]
        self.limits: Limits = ports.config.limits.overlaid(self._caller.limits)
        left = scope.get(TOOL_CALLS_LEFT)
        self.calls_left = self.limits.max_tool_calls if left is None else min(left, self.limits.max_tool_calls)

    def tool(self, name: str) -> ToolSpec | None:
        """The tool of that name if the client may call it."""
        spec = self._own.toolset.specs.get(name)
        return spec if spec is not None and self._permits(spec) else None

    def offered(self, start: int = 0) -> Iterator[tuple[int, ToolSpec]]:
        """The tools that the request may call, each with its place in the file, from the place `start` on."""
        for at, spec in enumerate(islice(self._own.toolset.specs.values(), start, None), start):
            if self._permits(spec) and spec.needs <= self._own.credentials.names:
                yield at, spec

    @property
    def places(self) -> int:
        """The number of all tools of the file."""
        return len(self._own.toolset.specs)

    def _permits(self, spec: ToolSpec) -> bool:
        allowed = self._caller.tools
        is_allowed = allowed is None or spec.is_among(allowed)
        return self.limits.max_tool_calls > 0 and spec.offer != "never" and is_allowed

    def may_call(self, name: str) -> bool:
        """Whether a tool is known, or may belong to a server for whose tools the request lacks headers."""
        return self.tool(name) is not None or self._server_of(name) is not None

    def _server_of(self, name: str) -> ToolSpec | None:
        """The server that may list this tool for a request with more headers."""
        for server in self._own.toolset.unlisted.values():
            lacks_header = not server.needs <= self._own.credentials.names
            if lacks_header and name.startswith(server.name) and _is_permitted(server, self._caller):
                return server
        return None

    async def output_of(
        self, call: ToolCall, *, filters: SearchFilters = NO_FILTERS
    ) -> tuple[ToolOutput, tuple[str, ...]]:
        """The output of a call that the client may make, by the tool's own name, and the queries beyond a limit.

        Raises:
            ToolError: the call could not be carried out.
        """
        tool = self.tool(call.name)
        if tool is None:
            server = self._server_of(call.name)
            missing = server.needs - self._own.credentials.names if server is not None else ()
            raise CredentialMissing(call.name, missing)
        most = min(self.calls_left, tool.max_calls or self.calls_left)
        call, counts, left_out = searches_in(tool, call, self._own.toolset.history_arguments, most)
        self.calls_left -= counts
        clock = self._ports.clock
        context = call_context(self._caller, self.limits, filters, self._own.credentials, clock)
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


def _is_permitted(server: ToolSpec, caller: Caller) -> bool:
    """Whether a caller may use tools of a server that has not listed them."""
    return server.offer != "never" and (caller.tools is None or may_have_tools(server, caller.tools))
