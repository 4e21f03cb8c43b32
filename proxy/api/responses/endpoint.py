"""`POST /v1/responses`: Responses requests, answered by the loop of Chat Completions."""

from collections.abc import Sequence
from functools import partial
from secrets import token_hex

from msgspec import Struct
from msgspec.structs import replace
from starlette.types import Receive, Scope, Send

from proxy.api.access import CALLER, Caller
from proxy.api.body import read_body
from proxy.api.body_memory import SHARE, Share
from proxy.api.checked import CheckingSurface, needs_check
from proxy.api.event_stream import STREAM_ERROR_ENCODER, EventStream
from proxy.api.fold import Unstreamed
from proxy.api.known import History
from proxy.api.ports import Ports
from proxy.api.request import ResolvedRequest
from proxy.api.responses.conversation import read_conversation
from proxy.api.responses.encrypted_content import Seal
from proxy.api.responses.output import OutputBuilder, OutputOptions
from proxy.api.responses.request import CODE_OUTPUTS, ENCRYPTED, SOURCES, ResponsesRequest, parse_request
from proxy.api.responses.stored import ItemHistory, ResponseStore, StoredResponse, response_id, with_ids
from proxy.api.responses.stream import ResponseHead, ResponseStream
from proxy.api.responses.tools import ResponseTools, declared_in, late_names, read_tools
from proxy.api.schema import SchemaCheck
from proxy.api.sealed import Sealer, SealingKeys, size_opened
from proxy.api.surface import tool_headers
from proxy.kit.beside import beside
from proxy.loop.actions import Respond
from proxy.loop.continuation import storable
from proxy.loop.offer import SEARCH
from proxy.ports import Audience
from proxy.turn.carried import carries
from proxy.wire import rawjson
from proxy.wire.chat import Json
from proxy.wire.errors import PreviousResponseNotFound, ProxyError
from proxy.wire.relayed import Headers


class CreateResponse(CheckingSurface):
    """The endpoint, as an ASGI callable."""

    def __init__(self, ports: Ports) -> None:
        super().__init__(ports)
        self._keys = SealingKeys.of(ports)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        body = await read_body(scope, receive, self.server, self.ports.clock)
        size = size_opened(body)
        history = History(self.ports.known, scope[CALLER].scope, "input")
        request = await beside(size, partial(parse_request, body, history))
        try:
            prepared = await self._prepare(scope, request, size)
            if request.stream:
                await self.send_stream(prepared.resolved, partial(self._stream, prepared, scope), scope, receive, send)
            else:
                await self.send_whole(prepared.resolved, partial(self._whole, prepared), scope, receive, send)
        except ProxyError as exc:
            request.as_sent(exc)
            raise

    async def _history(self, responses: ResponseStore, request: ResponsesRequest) -> ItemHistory:
        """The conversation that the request continues, and its own items. Raises as `ResponseStore.history` does."""
        try:
            history = await responses.history(request.items, request.previous)
        except PreviousResponseNotFound:
            self.ports.observe("continuation.sought", sought=1, found=0)
            raise
        if request.previous is not None:
            self.ports.observe("continuation.sought", sought=1, found=1)
        return history

    async def _prepare(self, scope: Scope, request: ResponsesRequest, size: int) -> "_Prepared":
        """Translate and resolve a request; `size`: of its body, as `beside` judges it."""
        caller: Caller = scope[CALLER]
        share: Share | None = scope.get(SHARE)
        credentials = self.resolver.credentials_of(scope)
        responses = ResponseStore(self.ports.store, caller.scope, share, credentials)
        keys, most = self._keys.for_caller(caller), self.server.max_body_bytes
        sealer = Sealer(keys, caller.scope, most_bytes=most, share=share, credentials=credentials)
        seal = Seal(sealer)
        history = await self._history(responses, request)
        listed = declared_in(request.fields, before=history.before, own=history.own)
        where = "tools" if request.fields.get("tools") else "input"
        own = await self.resolver.tools_of(scope, {**request.fields, "tools": listed})
        choice, code = request.fields.get("tool_choice"), own.code_interpreter
        declared = read_tools(listed, choice, own.toolset.names, code_interpreter=code, where=where)
        instructions = request.fields.get("instructions")
        reading = partial(
            read_conversation, history.items, instructions=instructions, name_of=declared.name_of, unseal=seal.open
        )
        conversation = await beside(size + responses.bytes_read, reading)
        sealer.count_opened()
        access = await self.resolver.access(
            scope,
            request.as_chat(conversation, declared),
            own=own,
            max_output_tokens=request.fields.get("max_output_tokens"),
            hidden=conversation.hidden,
            sources=history.sources,
            named=request.fields.get("prompt_cache_key"),
            conversation=history.conversation.encode() if history.conversation else None,
        )
        tools = declared.within(
            frozenset(name for tool in access.tools if own.has(tool.name) for name in tool.names),
            leave_out=access.narrows_tools,
        )
        usable = tuple([tool for tool in access.tools if tool.name != SEARCH]) if tools.offline else None
        late = late_names(declared, request.fields, (*history.before, *history.own))
        resolved = self.resolver.finish(access, tools.fields(), tools=usable, ignored=tools.ignored, late=late)
        run_id = token_hex(16)
        return _Prepared(
            request=request,
            run_id=run_id,
            items=history.own,
            tools=tools,
            resolved=resolved,
            head=ResponseHead(response_id(run_id), int(self.ports.clock.time()), resolved.model.name, request),
            seal=seal,
            responses=responses,
            check=request.check if needs_check(resolved) else None,
        )

    async def _whole(self, prepared: "_Prepared") -> tuple[bytes, Headers]:
        output = prepared.output_builder()
        answer = await self._answer(prepared, Unstreamed(output))
        output.finish(answer, carried=prepared.carried(answer))
        head = replace(prepared.head, model=output.model or prepared.head.model)
        response = await self._finish(prepared, head, answer, output)
        return rawjson.dumps_answer(response), tool_headers([answer])

    async def _stream(self, prepared: "_Prepared", scope: Scope, stream: EventStream) -> None:
        writer = ResponseStream(stream, prepared.head, prepared.output_builder())
        scope[STREAM_ERROR_ENCODER] = writer.encode_error
        answer = await self._answer(prepared, writer)
        await writer.end_items(answer, carried=prepared.carried(answer))
        await writer.finish(await self._finish(prepared, writer.head, answer, writer.output))

    async def _answer(self, prepared: "_Prepared", audience: Audience) -> Respond:
        """The answer to a request; see `CheckingSurface.run_checked`."""
        return await self.run_checked(
            prepared.resolved, prepared.run_id, prepared.check, audience, keep=lambda _: prepared.request.store
        )

    async def _finish(self, prepared: "_Prepared", head: ResponseHead, answer: Respond, output: OutputBuilder) -> Json:
        """The finished response, which is stored before the client receives its end."""
        now = int(self.ports.clock.time())
        response = head.finished(output.items, answer.finish_reason, answer.tally, at=now)
        if prepared.request.store:
            await prepared.responses.put(prepared.stored(response, answer))
        return response


class _Prepared(Struct, frozen=True):
    """A resolved Responses request, with the parts that are needed to answer it.

    Attributes:
        items: the request's own items, without the conversation before it.
        check: checks the answer against a schema; None: there is no schema, or the upstream enforces it itself.
    """

    request: ResponsesRequest
    run_id: str
    items: Sequence[Json]
    tools: ResponseTools
    resolved: ResolvedRequest
    head: ResponseHead
    seal: Seal
    responses: ResponseStore
    check: SchemaCheck | None

    def output_builder(self) -> OutputBuilder:
        """A builder of the output, with the options of this client."""
        options = OutputOptions(
            self.tools,
            self.resolved.own.toolset.arguments_of,
            server_calls=self.resolved.tool_events != "none",
            sources=self.request.includes(SOURCES),
            code_outputs=self.request.includes(CODE_OUTPUTS),
            summary=self.request.summary,
            seal=self.seal.thoughts if self.request.includes(ENCRYPTED) else None,
        )
        return OutputBuilder(self.run_id, options, self.resolved.sources, hold_text=self.check is not None)

    def stored(self, response: Json, answer: Respond) -> StoredResponse:
        """The finished response as it is stored."""
        # After a mixed turn, the hidden messages are stored apart; the client's results have the ids to find them.
        added = storable(answer.added)
        holds_more = (added or carries(answer.message)) and answer.continuation is None
        turns = [*added, answer.message] if holds_more else ()
        found = {url: title for url, title in answer.sources.items() if url not in self.resolved.sources}
        conversation = self.resolved.conversation.decode() if self.resolved.conversation else None
        items, bound = with_ids(self.items, self.run_id), self.resolved.own.credentials.bound()
        return StoredResponse(response, items, self.request.previous, turns, found, conversation, bound)

    def carried(self, answer: Respond) -> str | None:
        """The sealed part of a run that its items do not show, if nothing is stored here; None: there is none."""
        hidden = answer.continuation
        if self.request.store or hidden is None:
            return None
        if not (hidden.before or hidden.results or carries(hidden.message)):
            return None
        return self.seal.hidden(self.run_id, hidden)
