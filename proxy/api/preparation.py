"""A request from its body to the moment before its runs: the one order in which requests of every API are prepared.

    body -> parsed -> read -> access (caller, model, limits) -> chosen (its tools) -> resolved

The first fault in this order is the one that the client is told.
"""

from functools import partial
from secrets import token_hex

from msgspec import Struct
from msgspec.structs import replace
from starlette.types import Receive, Scope

from proxy.api.access import CALLER, Caller, names_for_header
from proxy.api.body import read_body
from proxy.api.body_memory import SHARE, Share
from proxy.api.dialect import Chosen, Context, Dialect, Parsed, Request, Stored
from proxy.api.known import History
from proxy.api.ports import Ports
from proxy.api.reply import Reply
from proxy.api.request import RequestResolver, ResolvedRequest
from proxy.api.runs import needs_check
from proxy.api.schema import SchemaCheck
from proxy.api.sealed import Sealer, SealingKeys, size_opened
from proxy.kit import request_context
from proxy.kit.beside import beside
from proxy.wire.cache_marks import without_marks
from proxy.wire.relayed import Headers


class Prepared(Struct, frozen=True):
    """A request that is ready to be answered.

    Attributes:
        asked: what the client asks for.
        chosen: its tools.
        request: the resolved request.
        size: of its body, as `beside` judges it.
    """

    asked: Request
    chosen: Chosen
    request: ResolvedRequest
    size: int

    @property
    def is_relayed(self) -> bool:
        """Whether the request and its answer pass through as bytes."""
        return self.asked.is_relayable and not self.request.offer.answers_calls

    @property
    def headers(self) -> Headers:
        """The header with the names of the tools that the client has selected and cannot have, if there are any."""
        ignored = self.request.ignored
        return [(b"x-tools-ignored", ",".join(ignored).encode())] if ignored else ()

    def reply(self) -> Reply:
        """The reply, of runs with new ids."""
        run_ids = [token_hex(16) for _ in range(self.request.chat.get("n") or 1)]
        return self.chosen.reply(self.request, run_ids, hold_text=self.check is not None)

    @property
    def check(self) -> SchemaCheck | None:
        """Checks the answer against a schema; None: there is no schema, or the upstream enforces it itself."""
        check = self.asked.check
        return check if check is not None and needs_check(self.request) else None


class Preparation:
    """Prepares the requests of one API under one configuration."""

    def __init__(self, ports: Ports, dialect: Dialect) -> None:
        self._ports = ports
        self._dialect = dialect
        self._keys = SealingKeys.of(ports)
        self._resolver = RequestResolver(ports)

    async def parse(self, scope: Scope, receive: Receive) -> Parsed:
        """Read the body of a request, and check its fields. Raises `ProxyError`."""
        body = await read_body(scope, receive, self._ports.config.server, self._ports.clock)
        caller: Caller = scope[CALLER]
        field, size = self._dialect.history_field, size_opened(body)
        history = History(self._ports.known, caller.scope, field) if field else None
        parsed: Parsed = await beside(size, partial(self._dialect.parse, body, history))
        parsed.size = size
        return parsed

    async def of(self, scope: Scope, parsed: Parsed) -> Prepared:
        """Prepare a request. Raises `ProxyError`."""
        caller: Caller = scope[CALLER]
        share: Share | None = scope.get(SHARE)
        own = await self._resolver.tools_of(scope)
        sealer = Sealer(
            self._keys.for_caller(caller),
            caller.scope,
            most_bytes=self._ports.config.server.max_body_bytes,
            share=share,
            credentials=own.credentials,
        )
        context = Context(own, sealer, self._ports.clock.time)
        if parsed.continues:
            stored = Stored(self._ports.store, caller.scope, share, own.credentials, self._ports.observe)
            await parsed.continued(stored)
        asked = await beside(parsed.size + parsed.bytes_read, partial(parsed.read, context))
        sealer.count_opened()
        if asked.unknown:
            request_context.add({"blocks_ignored": names_for_header(asked.unknown)})
        access = await self._resolver.access(scope, asked, own=own)
        if asked.has_marks and not access.model.upstream.traits.cache_marks:
            access = replace(access, chat={**access.chat, "messages": without_marks(access.chat["messages"])})
        chosen = asked.within(access)
        return Prepared(asked, chosen, self._resolver.finish(access, chosen), parsed.size)
