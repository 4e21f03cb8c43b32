"""A request from its body to the moment before its runs: the one order in which requests of every API are prepared.

    body -> parsed -> read -> access (caller, model, limits) -> chosen (its tools) -> resolved

The client gets the first fault in this order.
"""

from collections.abc import Sequence
from functools import partial
from secrets import token_hex

from msgspec import Struct
from msgspec.structs import replace
from starlette.types import Receive, Scope

from proxy.api.access import CALLER, Caller, names_for_header
from proxy.api.body import read_body
from proxy.api.body_memory import SHARE, Share
from proxy.api.credentials import CredentialReader, RequestTools
from proxy.api.dialect import Chosen, Context, Dialect, Parsed, Stored
from proxy.api.known import History
from proxy.api.ports import Ports
from proxy.api.request import RequestResolver, ResolvedRequest
from proxy.api.schema import SchemaCheck
from proxy.api.sealed import Sealer, SealingKeys, size_opened
from proxy.api.unshown import may_hold_files
from proxy.kit import request_context
from proxy.kit.beside import beside
from proxy.wire.cache_marks import without_marks
from proxy.wire.relayed import Headers


class Prepared(Struct, frozen=True):
    """A request that is ready to be answered.

    Attributes:
        chosen: the tools of the request, and its reply.
        run_ids: the ids of its runs, one for each choice: 32 hexadecimal digits, from which those of calls are made.
        headers: the header with the names of the tools that the client has selected and cannot have, if there are any.
        check: checks the answer against a schema; None: there is no schema, or the upstream enforces it itself.
        is_relayed: whether the request and its answer pass through as bytes.
        size: of its body, as `beside` judges it.
    """

    request: ResolvedRequest
    chosen: Chosen
    run_ids: Sequence[str]
    headers: Headers
    check: SchemaCheck | None
    stream: bool
    is_relayed: bool
    size: int


class Preparation:
    """Prepares the requests of one API under one configuration."""

    def __init__(self, ports: Ports, dialect: Dialect) -> None:
        self._ports = ports
        self._dialect = dialect
        self._keys = SealingKeys(ports.secrets, ports.config, now=ports.clock.time)
        self._credentials = CredentialReader(ports)
        self._without_credentials = RequestTools(ports.toolset)
        self._resolver = RequestResolver(ports)

    async def parse(self, scope: Scope, receive: Receive) -> Parsed:
        """Read the body of a request, and check its fields. Raises `ProxyError`."""
        body = await read_body(scope, receive, self._ports.config.server, self._ports.clock)
        caller: Caller = scope[CALLER]
        size, is_slow, history = len(body), False, None
        if field := self._dialect.history_field:
            history = History(self._ports.known, caller.scope, field, self._dialect.loads)
            size, is_slow = size_opened(body), may_hold_files(body)
        parsed: Parsed = await beside(size, partial(self._dialect.parse, body, history), slow=is_slow)
        parsed.size, parsed.is_slow = size, is_slow
        return parsed

    async def of(self, scope: Scope, parsed: Parsed) -> Prepared:
        """Prepare a request. Raises `ProxyError`."""
        caller: Caller = scope[CALLER]
        share: Share | None = scope.get(SHARE)
        credentials = self._credentials.credentials_of(scope)
        sealer = None
        if self._dialect.history_field:
            most, keys = self._ports.config.server.max_body_bytes, self._keys.for_caller(caller)
            sealer = Sealer(keys, caller.scope, most_bytes=most, share=share, credentials=credentials)
        if parsed.continues:
            await parsed.continued(Stored(self._ports.store, caller.scope, share, credentials, self._ports.observe))
        own = self._without_credentials
        if credentials.names:
            asks = parsed.calling()
            may_use = self._resolver.may_use(scope, asks) if asks is not None else None
            own = await self._credentials.tools_of(credentials, may_use)
        context = Context(own, self._ports.clock.time, caller.scope, self._resolver.remembered, sealer)
        asked = await beside(parsed.size + parsed.bytes_read, partial(parsed.read, context), slow=parsed.is_slow)
        if sealer is not None:
            sealer.count_opened()
        if asked.unshown:
            request_context.add({"blocks_ignored": names_for_header(asked.unshown)})
        access = await self._resolver.access(scope, asked, own=own)
        if asked.has_marks and not access.model.upstream.traits.cache_marks:
            access = replace(access, chat={**access.chat, "messages": without_marks(access.chat["messages"])})
        chosen = asked.within(access)
        request = self._resolver.finish(access, chosen)
        is_relayed = asked.body is not None and not request.offer.answers_calls
        # Without tools, the answer of an upstream that enforces schemas itself is not checked, so that it can be
        # streamed at once. With tools, the end has to be waited for anyway.
        check = asked.check
        if check is not None and request.model.upstream.traits.json_schema and not request.offer.offered:
            check = None
        return Prepared(
            request,
            chosen,
            () if is_relayed else [token_hex(16) for _ in range(request.chat.get("n") or 1)],
            ((b"x-tools-ignored", ",".join(request.ignored).encode()),) if request.ignored else (),
            check,
            stream=bool(asked.chat.get("stream")),
            is_relayed=is_relayed,
            size=parsed.size,
        )
