"""`POST /v1/messages` and `/v1/messages/count_tokens`: Messages requests, answered by the loop of Chat Completions."""

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from functools import partial
from secrets import token_hex

from msgspec import Struct
from msgspec.structs import replace
from starlette.types import Receive, Scope, Send

from proxy.api.access import CALLER, names_for_header
from proxy.api.affinity import session_in
from proxy.api.body import expect_few_blocks, parse_object, read_body
from proxy.api.body_memory import SHARE
from proxy.api.checked import CheckingSurface, needs_check
from proxy.api.event_stream import STREAM_ERROR_ENCODER, EventStream
from proxy.api.exchange import send_json
from proxy.api.fold import Unstreamed
from proxy.api.known import History
from proxy.api.messages.conversation import BlockConversation, read_conversation
from proxy.api.messages.errors import REQUEST_ID
from proxy.api.messages.history import changes_in
from proxy.api.messages.message import MessageBuilder, MessageOptions
from proxy.api.messages.request import MessagesRequest, read_request
from proxy.api.messages.signatures import Signatures
from proxy.api.messages.stream import MessageHead, MessageStream
from proxy.api.messages.tools import MessageTools, hosted_names, read_tools, with_settings
from proxy.api.messages.usage import usage_of
from proxy.api.ports import Ports
from proxy.api.request import ResolvedRequest
from proxy.api.schema import SchemaCheck
from proxy.api.sealed import Sealer, SealingKeys, size_opened
from proxy.api.surface import tool_headers
from proxy.kit import request_context
from proxy.kit.beside import beside
from proxy.loop.actions import Respond
from proxy.loop.continuation import CarriedTurns
from proxy.ports import Audience
from proxy.turn.asked_json import demands_json
from proxy.turn.carried import carries
from proxy.wire import rawjson
from proxy.wire.cache_marks import without_marks
from proxy.wire.chat import Json, name_of
from proxy.wire.json_text import with_exact_calls
from proxy.wire.relayed import Headers
from proxy.wire.tokens import count_tokens


class _MessagesSurface(CheckingSurface):
    """The base of both endpoints, which turns a body into a resolved request."""

    def __init__(self, ports: Ports) -> None:
        super().__init__(ports)
        self._keys = SealingKeys.of(ports)
        self._keeps_marks = ports.config.passes_cache_marks

    async def _prepare(self, scope: Scope, body: bytes, *, for_answer: bool) -> "_Prepared":
        """Read, check, translate and resolve a request, for an answer or for a count of its tokens."""
        own, share, caller = await self.resolver.tools_of(scope), scope.get(SHARE), scope[CALLER]
        toolset, keys, most = own.toolset, self._keys.for_caller(caller), self.server.max_body_bytes
        sealer = Sealer(keys, caller.scope, most_bytes=most, share=share, credentials=own.credentials)
        own_names = hosted_names(own)
        history = History(self.ports.known, caller.scope, "messages", with_exact_calls)
        reading = partial(
            _read, body, history, toolset.names, sealer, own_names, keeps_marks=self._keeps_marks, for_answer=for_answer
        )
        request, declared, check, conversation = await beside(size_opened(body), reading)
        sealer.count_opened()
        if conversation.unknown:
            request_context.add({"blocks_ignored": names_for_header(conversation.unknown)})
        chat = request.as_chat(conversation.messages, declared, check)
        named = session_in(request.metadata)
        access = await self.resolver.access(scope, chat, own=own, max_output_tokens=request.max_tokens, named=named)
        if self._keeps_marks and not access.model.upstream.traits.cache_marks:
            access = replace(access, chat={**access.chat, "messages": without_marks(access.chat["messages"])})
        tools = declared.within(access.tools, own_names, leave_out=access.narrows_tools)
        fields = tools.for_chat() | request.fields_for(access.model.upstream, conversation.effort)
        resolved = self.resolver.finish(
            access, fields, tools=tools.server_tools, ignored=tools.ignored, filters=tools.filters, late=tools.late
        )
        options = MessageOptions(
            sealer.seal_text,
            Signatures(sealer).sign,
            self._now,
            tools,
            server_calls=resolved.tool_events != "none",
            thoughts=request.thinks,
            omits_thoughts=request.omits_thoughts,
            arguments_of=toolset.arguments_of,
            stops=request.stops,
            pages=conversation.pages,
        )
        checked = check if check is not None and needs_check(resolved) else None
        return _Prepared(request, token_hex(16), resolved, options, len(body), checked)

    def _now(self) -> str:
        return datetime.fromtimestamp(self.ports.clock.time(), UTC).isoformat()


def _read(
    body: bytes,
    history: History,
    names: Collection[str],
    sealer: Sealer,
    own_names: Mapping[str, str],
    *,
    keeps_marks: bool,
    for_answer: bool,
) -> tuple[MessagesRequest, MessageTools, SchemaCheck | None, BlockConversation]:
    """A request, its tools, the check of its answer, and its conversation. Raises `RequestError`."""
    fields = parse_object(body, history)
    request = read_request(fields, needs_max_tokens=for_answer)
    system, messages = fields.get("system"), fields.get("messages")
    expect_few_blocks(messages, "messages", of=body)
    changes = changes_in(messages)
    declared, check = read_tools(fields, names, changes.tools), request.schema_check()
    conversation = read_conversation(
        system,
        messages,
        sealer.open_text,
        own_names,
        changes=changes,
        read_signature=Signatures(sealer).read,
        keeps_marks=keeps_marks,
        for_answer=for_answer,
    )
    return request, declared, check, conversation


class CreateMessage(_MessagesSurface):
    """`POST /v1/messages`, as an ASGI callable."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        body = await read_body(scope, receive, self.server, self.ports.clock)
        prepared = await self._prepare(scope, body, for_answer=True)
        if prepared.request.stream:
            await self.send_stream(prepared.resolved, partial(self._stream, prepared, scope), scope, receive, send)
        else:
            await self.send_whole(prepared.resolved, partial(self._whole, prepared), scope, receive, send)

    async def _whole(self, prepared: "_Prepared") -> tuple[bytes, Headers]:
        message = prepared.builder(self.ports.toolset.mended)
        answer = await self._answer(prepared, Unstreamed(message))
        message.finish(answer)
        carried = prepared.carried(answer, message)
        # The turns of a corrected answer are numbered from 1 again; the later ones are the answer.
        of_turns = dict(zip([turn.number for turn in (*answer.earlier_turns, answer.turn)], carried, strict=False))
        for number, of_turn in of_turns.items():
            if of_turn:
                message.sign_again(number, of_turn)
        await self._keep_carried(prepared, answer, carried)
        usage = usage_of(answer, message.server_tool_use())
        head = MessageHead(prepared.run_id, prepared.request.model)
        whole = head.message(message.blocks.content, message.ending(answer), usage)
        return rawjson.dumps_answer(whole), (*tool_headers([answer]), (REQUEST_ID, _request_id().encode()))

    async def _stream(self, prepared: "_Prepared", scope: Scope, stream: EventStream) -> None:
        message, request_id = prepared.builder(self.ports.toolset.mended), _request_id()
        stream.add_headers(((REQUEST_ID, request_id.encode()),))
        tokens = await beside(prepared.size, prepared.input_tokens)
        head = MessageHead(prepared.run_id, prepared.request.model, tokens)
        writer = MessageStream(stream, head, message, request_id)
        scope[STREAM_ERROR_ENCODER] = writer.encode_error
        answer = await self._answer(prepared, writer)
        await self._keep_carried(prepared, answer, prepared.carried(answer, message))
        await writer.finish(answer)

    async def _keep_carried(self, prepared: "_Prepared", answer: Respond, carried: CarriedTurns) -> None:
        """Store the fields that the client cannot bring back, unless they are stored with the hidden part of the run.

        A signature holds them too where it can: in a stream, the thoughts end before the calls begin.
        """
        turns = tuple([turn for turn in carried if turn and turn.calls])
        if turns and not (answer.continuation is not None and prepared.hides(answer)):
            await self.keep_hidden(prepared.resolved, prepared.run_id, turns)

    async def _answer(self, prepared: "_Prepared", audience: Audience) -> Respond:
        tools = prepared.options.tools
        execute = with_settings(prepared.resolved.own.toolset.execute, tools) if tools.shown else None
        return await self.run_checked(
            prepared.resolved, prepared.run_id, prepared.check, audience, execute=execute, keep=prepared.hides
        )


class CountTokens(_MessagesSurface):
    """`POST /v1/messages/count_tokens`, as an ASGI callable."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        body = await read_body(scope, receive, self.server, self.ports.clock)
        prepared = await self._prepare(scope, body, for_answer=False)
        tokens = await beside(len(body), prepared.declared_tokens)
        await send_json(send, {"input_tokens": tokens}, headers={REQUEST_ID.decode(): _request_id()})


def _request_id() -> str:
    return str(request_context.fields.get({}).get("request_id"))


class _Prepared(Struct, frozen=True):
    """A resolved Messages request, with the options of its answer.

    Attributes:
        size: of the request's body, in bytes.
        check: checks the answer against a schema; None: there is no schema, or the upstream enforces it itself.
    """

    request: MessagesRequest
    run_id: str
    resolved: ResolvedRequest
    options: MessageOptions
    size: int
    check: SchemaCheck | None

    def hides(self, answer: Respond) -> bool:
        """Whether the client is not shown some of the calls or thoughts of the run."""
        offer, shown = self.resolved.offer, self.options.tools.shown
        visible = {*offer.client_tools, *(name for name, tool in offer.server_tools.items() if tool.name in shown)}
        for turn in (*answer.earlier_turns, answer.turn):
            if not self.options.thoughts and (turn.message.get("reasoning_content") or turn.message.get("reasoning")):
                return True
            if any(call.name not in visible for call in turn.calls):
                return True
        return False

    def carried(self, answer: Respond, message: MessageBuilder) -> CarriedTurns:
        """For each turn of a run, the fields that the client cannot bring back; empty if no turn has any."""
        turns = (*answer.earlier_turns, answer.turn)
        if not any(carries(turn.message) for turn in turns):
            return ()
        return tuple([message.carried_by(turn, self.resolved.offer.server_tools) for turn in turns])

    def builder(self, mended: Callable[[str], Json | None]) -> MessageBuilder:
        """A builder of the message; `mended` repairs the arguments of the client's calls."""
        options = replace(self.options, mended=mended)
        # JSON beside calls of the client's is no answer, and what stands beside it would not be JSON.
        is_json_alone = bool(self.resolved.offer.client_tools) and demands_json(self.resolved.chat)
        return MessageBuilder(self.run_id, options, hold_text=self.check is not None or is_json_alone)

    def input_tokens(self) -> int:
        """The estimated tokens of the request, with all tools that the model is offered."""
        return count_tokens({**self.resolved.chat, "tools": self.resolved.offer.tools})

    def declared_tokens(self) -> int:
        """The estimated tokens of the client's own request, without tools that the proxy adds."""
        declared = {*map(name_of, self.options.tools.functions), *self.options.tools.shown}
        tools = [tool for tool in self.resolved.offer.tools if name_of(tool) in declared]
        return count_tokens({**self.resolved.chat, "tools": tools})
