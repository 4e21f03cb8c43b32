"""`POST /v1/messages` and `/v1/messages/count_tokens`: a Messages request on the loop of Chat Completions."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import chain, repeat
from secrets import token_hex
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from starlette.types import Receive, Scope, Send

from proxy import request_context
from proxy.api.access import CALLER, names_for_header
from proxy.api.body import parse_object, read_body
from proxy.api.checked import CheckingSurface, is_checked
from proxy.api.exchange import STREAM_ERROR_ENCODER, EventStream, Headers, send_json
from proxy.api.messages.answer import Answer, AnswerOptions, usage_of
from proxy.api.messages.conversation import read_conversation
from proxy.api.messages.errors import REQUEST_ID
from proxy.api.messages.hosted import DemandingToolset
from proxy.api.messages.request import MessagesRequest, read_request
from proxy.api.messages.stream import Head, MessageStream
from proxy.api.messages.tools import hosted_names, read_tools, with_hosted
from proxy.api.request import ResolvedRequest
from proxy.api.schema import SchemaCheck
from proxy.api.sealed import Sealer, sealer_for, secrets_of
from proxy.api.surface import delta_of, show_nothing, tool_headers
from proxy.loop import sse
from proxy.loop.actions import AnsweredCall, Respond, demands_json
from proxy.loop.chat import Json, ToolSpec, Turn, name_of
from proxy.loop.tokens import count_tokens
from proxy.ports import Ports, Report


class _MessagesSurface(CheckingSurface):
    """What both endpoints share: from a body to a resolved request."""

    def __init__(self, ports: Ports) -> None:
        super().__init__(ports)
        self._secrets = secrets_of(ports.config.upstreams.values())
        self._specs: Mapping[str, ToolSpec] = {}
        self._server_names: frozenset[str] = frozenset()
        self._own_names: Mapping[str, str] = {}

    async def _prepare(self, scope: Scope, fields: Json, *, to_be_answered: bool) -> "_Task":
        """Decide all that is decided before the model is asked."""
        if self._specs is not self.ports.toolset.specs:  # tools of MCP servers come and go
            self._specs = self.ports.toolset.specs
            self._server_names = frozenset(name for spec in self._specs.values() for name in spec.names)
            self._own_names = hosted_names(self.ports.config.tools, self._specs)
        own_names = self._own_names
        request = read_request(fields, to_be_answered=to_be_answered)
        declared, check = read_tools(fields, self._server_names), request.schema_check()
        seal = Seal(sealer_for(scope[CALLER], self._secrets))
        conversation = read_conversation(fields.get("system"), fields.get("messages"), seal.open, own_names)
        resolved = await self.resolver.resolve(scope, request.as_chat(conversation.messages, declared, check))
        resolved, tools = with_hosted(resolved, declared, own_names)
        ignored = resolved.ignored
        if tools.ignored:
            ignored = names_for_header((*ignored, *tools.ignored))
            request_context.add({"tools_ignored": ignored})
        chat = resolved.chat | request.fields_for(resolved.model.upstream)
        limits = replace(resolved.limits, max_output_tokens=request.max_tokens)
        resolved = replace(resolved, chat=chat, limits=limits, ignored=ignored, body=None)
        options = AnswerOptions(
            seal.seal,
            self._now,
            tools,
            others=resolved.tool_events != "none",
            thoughts=request.thinks,
            omits_thoughts=request.omits_thoughts,
            stops=request.stops,
            pages=conversation.pages,
        )
        checked = check if check is not None and is_checked(resolved) else None
        return _Task(request, token_hex(16), resolved, options, checked)

    def _now(self) -> str:
        return datetime.fromtimestamp(self.ports.clock.time(), UTC).isoformat()


class CreateMessage(_MessagesSurface):
    """`POST /v1/messages`, as an ASGI callable."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Implements ASGI."""
        body = await read_body(scope, receive, self.server, self.ports.clock)
        task = await self._prepare(scope, parse_object(body), to_be_answered=True)
        if task.request.stream:
            await self.send_stream(task.resolved, partial(self._stream, task, scope), scope, receive, send)
        else:
            await self.send_whole(task.resolved, partial(self._whole, task), scope, receive, send)

    async def _whole(self, task: "_Task") -> tuple[bytes, Headers]:
        reports: list[Sequence[AnsweredCall]] = []

        async def report(answered: Sequence[AnsweredCall]) -> None:
            reports.append(answered)

        content = Answer(task.run_id, task.options)
        answer = await self._answer(task, report, show=show_nothing, drop=list, tell=None)
        _replay(content, answer, reports, json_only=demands_json(task.resolved.chat), checked=task.check is not None)
        usage = usage_of(answer, content.server_tool_use(), task.input_tokens)
        message = task.head.message(content.blocks.content, content.ending(answer), usage)
        return sse.dumps(message), (*tool_headers([answer]), (REQUEST_ID, _request_id().encode()))

    async def _stream(self, task: "_Task", scope: Scope, stream: EventStream) -> None:
        content = Answer(task.run_id, task.options)
        request_id = _request_id()
        stream.add_headers(((REQUEST_ID, request_id.encode()),))
        writer = MessageStream(stream, task.head, content, request_id, hold_text=task.check is not None)
        scope[STREAM_ERROR_ENCODER] = writer.encode_error
        answer = await self._answer(task, writer.report, show=writer.show, drop=writer.drop_held_text, tell=writer.tell)
        await writer.finish(answer)

    async def _answer(self, task: "_Task", report: Report, **callbacks: Any) -> Respond:
        if task.options.shows_calls:
            callbacks["report"] = report
        demands = task.options.tools.demands
        toolset = DemandingToolset(self.ports.toolset, demands) if demands else None
        options = {"keep": task.hides, "toolset": toolset, **callbacks}
        return await self.run_checked(task.resolved, task.run_id, task.check, **options)


class CountTokens(_MessagesSurface):
    """`POST /v1/messages/count_tokens`, as an ASGI callable."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Implements ASGI."""
        body = await read_body(scope, receive, self.server, self.ports.clock)
        task = await self._prepare(scope, parse_object(body), to_be_answered=False)
        headers = {REQUEST_ID.decode(): _request_id()}
        await send_json(send, {"input_tokens": task.declared_tokens()}, headers=headers)


def _request_id() -> str:
    return str(request_context.fields.get({}).get("request_id"))


class Seal:
    """Seals texts for one caller."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer

    def seal(self, text: str) -> str:
        """A sealed text."""
        return self._sealer.seal({"text": text})

    def open(self, sealed: Any) -> str | None:
        """The text that was sealed; None for what was not sealed here for this caller."""
        held = self._sealer.open(sealed)
        text = held.get("text") if held is not None else None
        return text if isinstance(text, str) else None


class _Task(Struct, frozen=True):
    """One request, with all that is decided before its model is asked.

    Attributes:
        check: checks the answer against a schema; None: there is no schema, or the upstream keeps to it by itself.
    """

    request: MessagesRequest
    run_id: str
    resolved: ResolvedRequest
    options: AnswerOptions
    check: SchemaCheck | None

    def hides(self, answer: Respond) -> bool:
        """Whether the model has read or thought something that the client is not shown."""
        offer, shown = self.resolved.offer, self.options.tools.shown
        visible = {*offer.client_tools, *(name for name, tool in offer.owned.items() if tool.name in shown)}
        for turn in (*answer.earlier_turns, answer.turn):
            if not self.options.thoughts and (turn.message.get("reasoning_content") or turn.message.get("reasoning")):
                return True
            if any(call.name not in visible for call in turn.calls):
                return True
        return False

    @property
    def head(self) -> Head:
        """The properties of the message that answers."""
        return Head(self.run_id, self.request.model, self.input_tokens)

    def input_tokens(self) -> int:
        """The estimated tokens of the request, with every tool that its model is offered."""
        return count_tokens({**self.resolved.chat, "tools": self.resolved.offer.tools})

    def declared_tokens(self) -> int:
        """The estimated tokens of what the client has sent itself, without tools that only the proxy adds."""
        declared = {*map(name_of, self.options.tools.functions), *self.options.tools.shown}
        tools = [tool for tool in self.resolved.offer.tools if name_of(tool) in declared]
        return count_tokens({**self.resolved.chat, "tools": tools})


def _replay(
    content: Answer, answer: Respond, reports: Sequence[Sequence[AnsweredCall]], *, json_only: bool, checked: bool
) -> None:
    """Build the blocks of a run that is over, in the order in which they would have been streamed.

    Args:
        content: takes the blocks.
        answer: the run's end, with the turns before it.
        reports: the answered calls of each turn.
        json_only: leave out all text but the answer's.
        checked: whether the text of a stream would have been held back until the end.
    """
    turns = (*answer.earlier_turns, answer.turn)
    for turn, answered in zip(turns, chain(reports, repeat(())), strict=False):
        is_last = turn is answer.turn
        message = answer.message if is_last else turn.message
        content.begin_turn()
        with_text = not json_only or (is_last and not (checked and turn.calls))
        content.show(delta_of(message, answer.cite, is_last=is_last and not turn.calls, with_text=with_text))
        if turn.calls:
            _replay_calls(content, turn, answered)
        if answered:
            content.end_turn(answered)
    content.finish()


def _replay_calls(content: Answer, turn: Turn, answered: Sequence[AnsweredCall]) -> None:
    """Show the calls of a turn in their order, the client's and those that the server has run."""
    run: dict[str, list[AnsweredCall]] = {}  # some upstreams use an id again
    for one in answered:
        if one.was_run:
            run.setdefault(one.call.id, []).append(one)
    shown = 0
    client_ids = turn.client_ids or repeat(None)
    for entry, client_id in zip(turn.message.get("tool_calls") or (), client_ids, strict=False):
        if client_id:
            content.show({"tool_calls": [{**entry, "index": shown, "id": client_id}]})
            shown += 1
        elif same_id := run.get(entry.get("id")):
            one = same_id.pop(0)
            content.begin_call(one.call.id, one.tool, one.call.arguments)
