"""`POST /v1/responses`: a Responses request on the loop of Chat Completions."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from secrets import token_hex

import orjson
from msgspec.structs import replace
from starlette.types import Receive, Scope, Send

from proxy import request_context
from proxy.api.body import parse_object, read_body
from proxy.api.body_memory import share_of
from proxy.api.caller import caller_of
from proxy.api.clients import tool_headers
from proxy.api.replies import STREAM_ERROR_ENCODER, EventStream, Headers, send_bytes
from proxy.api.request import (
    Exchange,
    Exchanges,
    collect,
    ignored_header,
    named_ignored,
    note_use,
    show_nothing,
)
from proxy.api.responses.answer import Head, Transcript
from proxy.api.responses.conversation import converse
from proxy.api.responses.narrator import Narrator, Telling, retell
from proxy.api.responses.request import ENCRYPTED, SOURCES, ResponsesRequest, read_request
from proxy.api.responses.schema import SchemaCheck
from proxy.api.responses.sealed import Seal, key_from
from proxy.api.responses.search import SearchSettings, SettledSearch
from proxy.api.responses.state import Kept, Responses, response_id, with_ids
from proxy.api.responses.tools import Tools, declared_in, read_tools
from proxy.loop import sse
from proxy.loop.actions import Respond, Stop, sum_of
from proxy.loop.chat import Json
from proxy.loop.continuation import storable
from proxy.loop.errors import NoFinalAnswer, ProxyError
from proxy.loop.offer import SEARCH, Offer, make_offer
from proxy.loop.prompts import DOES_NOT_FIT
from proxy.ports import Ports, Show, Tell

_BROKEN_OFF = ("length", "content_filter")
_FROM_CLIENT = "from_client"


class CreateResponse:
    """The endpoint, as an ASGI callable."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._server = ports.config.server
        self._exchanges = Exchanges(ports)
        keys = [upstream.api_key for upstream in ports.config.upstreams.values()]
        self._key = key_from(key for key in keys if key != _FROM_CLIENT)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        body = await read_body(scope, receive, self._server, self._ports.clock)
        request = read_request(parse_object(body))
        try:
            task = await self._prepare(scope, request)
            if task.ignored:
                request_context.add({"tools_ignored": task.ignored})
            reply = self._streamed if request.stream else self._whole
            await reply(task, scope, receive, send)
        except ProxyError as exc:
            request.as_sent(exc)
            raise

    async def _prepare(self, scope: Scope, request: ResponsesRequest) -> "_Task":
        """Everything that is settled before the model is asked."""
        scoped = caller_of(scope).scope
        seal, kept = Seal(self._key, scoped), Responses(self._ports.store, scoped, share_of(scope))
        said = await kept.said(request.items, request.previous)
        items = said.all
        specs = self._ports.toolset.specs.values()
        server_names = frozenset(name for spec in specs for name in spec.names)
        tools = read_tools(declared_in(request.fields, items), request.fields.get("tool_choice"), server_names)
        instructions = request.fields.get("instructions")
        conversation = converse(items, instructions=instructions, name_of=tools.name_of, unseal=seal.open)
        chat = request.as_chat(conversation, tools)
        exchange = await self._exchanges.open(scope, chat, hidden=conversation.hidden)
        withdrawn = exchange.asked.names is not None or not exchange.limits.allow_tools
        callable_names = frozenset(name for tool in exchange.usable for name in tool.names)
        within = tools.within(callable_names, withdrawn=withdrawn)
        if within is not tools:
            tools = within
            without = {**exchange.request, "tools": list(tools.for_chat()), "tool_choice": tools.choice}
            exchange = replace(exchange, request={key: value for key, value in without.items() if value})
        if tools.offline:
            exchange = replace(exchange, usable=tuple(tool for tool in exchange.usable if tool.name != SEARCH))
        limits = replace(exchange.limits, max_output_tokens=request.fields.get("max_output_tokens"))
        exchange = replace(exchange, limits=limits)
        offer = make_offer(exchange.request, exchange.usable, exchange.asked)
        # An upstream that keeps to a schema by itself is not waited for; where tools are, the end is waited for anyway.
        checked = offer.in_play or not exchange.model.upstream.json_schema
        run_id = token_hex(16)
        head = Head(response_id(run_id), int(self._ports.clock.time()), exchange.model.name, request)
        check = request.check if checked else None
        return _Task(request, run_id, said.own, tools, exchange, offer, head, seal, kept, check, self._searches(tools))

    def _searches(self, tools: Tools) -> SettledSearch:
        return SettledSearch(self._ports.toolset, tools.search or SearchSettings())

    async def _whole(self, task: "_Task", scope: Scope, receive: Receive, send: Send) -> None:
        body, headers = await task.exchange.bounded(scope, receive, partial(self._answer_whole, task))
        await send_bytes(send, 200, ((b"content-type", b"application/json"), *headers), body)

    async def _answer_whole(self, task: "_Task") -> tuple[bytes, Headers]:
        events: list[Json] = []
        answer = await self._answer(task, lambda _: show_nothing, collect(events), list)
        narrator = task.narrator()
        retell(narrator, answer, events, json_only=task.request.json_only)
        for _ in narrator.finish(broken_off=_is_broken_off(answer), carried=task.carried(answer)):
            pass
        head = replace(task.head, model=answer.turn.envelope.get("model") or task.head.model)
        response = await self._finish(task, head, answer, narrator)
        return sse.dumps(response), (*tool_headers([answer]), *task.headers)

    async def _streamed(self, task: "_Task", scope: Scope, receive: Receive, send: Send) -> None:
        stream = EventStream(scope, send, extra=task.headers)
        client = _StreamingClient(stream, Transcript(task.head), task.narrator(), hold_text=task.check is not None)
        scope[STREAM_ERROR_ENCODER] = client.encode_error
        beating = partial(stream.keep_alive, self._server.keepalive_seconds)
        await task.exchange.bounded(scope, receive, partial(self._answer_stream, task, client), beside=beating)

    async def _answer_stream(self, task: "_Task", client: "_StreamingClient") -> None:
        answer = await self._answer(task, client.show, client.tell, client.forget_held)
        await client.end_items(broken_off=_is_broken_off(answer), carried=task.carried(answer))
        response = await self._finish(task, client.transcript.head, answer, client.narrator)
        await client.finish(response)

    async def _answer(
        self, task: "_Task", show: Callable[[int], Show], tell: Tell, forget: Callable[[], object]
    ) -> Respond:
        """The run's answer; one that does not fit the schema that was asked for is asked for once more.

        Args:
            task: what was asked.
            show: takes what the client may see.
            tell: hears of the progress.
            forget: drops what was shown of an answer that does not fit.

        Raises:
            NoFinalAnswer: the second one does not fit either.
        """
        [answer] = await self._exchanges.loops(
            task.exchange,
            task.offer,
            [task.run_id],
            show=show,
            tell=tell,
            toolset=task.searches,
            keep=task.request.store,
        )
        check = task.check
        if check is None or answer.stop is Stop.CLIENT_TOOL_CALLS or _is_broken_off(answer):
            return answer
        fault = check.fault(answer.turn.text)
        if fault is None:
            return answer
        output_left = task.exchange.limits.output_left(answer.tally)
        if output_left == 0:  # the answer has used up what the model may write
            return replace(answer, finish_reason="length")
        self._ports.observe("answer.unfit")
        forget()
        mending = task.mending(check, answer.turn.text, fault, output_left)
        [mended] = await self._exchanges.loops(mending, Offer(), [token_hex(16)], show=show, tell=tell)
        tally = sum_of([answer.tally, mended.tally])
        note_use(tally)
        if check.fault(mended.turn.text) is not None:
            raise NoFinalAnswer("The model's answer does not fit the JSON Schema, although it was asked twice.")
        earlier = (*answer.earlier_turns, answer.turn)
        return replace(
            mended,
            tally=tally,
            stop=answer.stop,
            step=answer.step,
            sources=answer.sources,
            earlier_turns=earlier,
            added=answer.added,
        )

    async def _finish(self, task: "_Task", head: Head, answer: Respond, narrator: Narrator) -> Json:
        """The finished response, kept before the client can know of it."""
        now = int(self._ports.clock.time())
        response = head.finished(narrator.output, answer.finish_reason, answer.tally, at=now)
        if task.request.store:
            await task.kept.keep(task.as_kept(response, answer))
        return response


def _is_broken_off(answer: Respond) -> bool:
    return answer.finish_reason in _BROKEN_OFF


@dataclass(frozen=True, slots=True)
class _Task:
    """One request on its way through, and all that was settled of it.

    Attributes:
        items: the request's own, without the conversation before it.
        check: holds the answer to a schema, where nobody else does.
    """

    request: ResponsesRequest
    run_id: str
    items: Sequence[Json]
    tools: Tools
    exchange: Exchange
    offer: Offer
    head: Head
    seal: Seal
    kept: Responses
    check: SchemaCheck | None
    searches: SettledSearch

    @property
    def ignored(self) -> tuple[str, ...]:
        """The tools that were asked for, by header or by type, and are not there."""
        return named_ignored((*self.exchange.ignored, *self.tools.ignored))

    @property
    def headers(self) -> Headers:
        """What is said beside the answer."""
        return ignored_header(self.ignored)

    def narrator(self) -> Narrator:
        """Tells of the run as this client wants to be told."""
        telling = Telling(
            self.tools,
            server_calls=self.exchange.tell_events,
            sources=self.request.includes(SOURCES),
            summary=self.request.summary,
            seal=self.seal.thoughts if self.request.includes(ENCRYPTED) else None,
        )
        return Narrator(self.run_id, telling, self.searches.found)

    def as_kept(self, response: Json, answer: Respond) -> Kept:
        """The finished response as it is kept."""
        # A client that comes back with results brings the ids under which the rest of such a run is kept.
        added = storable(answer.added)
        has_read_more = added and answer.continuation is None
        turns = [*added, answer.message] if has_read_more else ()
        return Kept(response, with_ids(self.items, self.run_id), self.request.previous, turns)

    def carried(self, answer: Respond) -> str | None:
        """What a client that stores nothing here has to carry itself: what it is not shown of a mixed turn, sealed."""
        hidden = answer.continuation
        if self.request.store or hidden is None or not (hidden.before or hidden.results):
            return None
        return self.seal.hidden(self.run_id, hidden)

    def mending(self, check: SchemaCheck, text: str, fault: str, output_left: int | None) -> Exchange:
        """The same conversation without tools, in which the model is told what is wrong with its answer.

        Args:
            check: holds the answer to its schema.
            text: the answer.
            fault: what is wrong with it.
            output_left: how many tokens the model may still write; None: any number.
        """
        schema = orjson.dumps(check.schema).decode()
        told = DOES_NOT_FIT.format(fault=fault, schema=schema)
        turns = [{"role": "assistant", "content": text}, {"role": "user", "content": told}]
        request = {key: value for key, value in self.exchange.request.items() if key not in ("tools", "tool_choice")}
        request = {**request, "messages": [*request["messages"], *turns]}
        limits = replace(self.exchange.limits, max_output_tokens=output_left)
        return replace(self.exchange, request=request, limits=limits)


class _StreamingClient:
    """A client with `stream: true`.

    Tools tell of themselves from tasks of their own. So events get their numbers and their place in the outbox at once;
    what is in it is written in order, by one at a time, and a task that is stopped while it waits loses nothing.
    """

    def __init__(self, stream: EventStream, transcript: Transcript, narrator: Narrator, *, hold_text: bool) -> None:
        self.transcript = transcript
        self.narrator = narrator
        self._stream = stream
        self._hold_text = hold_text
        self._held: list[str] = []
        self._outbox = bytearray()
        self._writing = asyncio.Lock()

    def show(self, _: int) -> Show:
        """Shows chunks of the only choice."""

        async def show(chunk: Json) -> None:
            self.transcript.settle(chunk.get("model"))
            for choice in chunk["choices"]:
                if self._hold_text and (text := choice["delta"].pop("content", None)):
                    self._held.append(text)
                await self._write(self.narrator.show(choice))

        return show

    async def tell(self, event: Json) -> None:
        """Progress of the run."""
        await self._write(self.narrator.begin_turn() if event["type"] == "turn.started" else self.narrator.tool(event))

    def forget_held(self) -> None:
        """The text that was held back is not the answer."""
        self._held.clear()

    async def end_items(self, *, broken_off: bool, carried: str | None) -> None:
        """Close every item that is still open."""
        if self._held:
            await self._write(self.narrator.say("".join(self._held)))
        await self._write(self.narrator.finish(broken_off=broken_off, carried=carried))

    async def finish(self, response: Json) -> None:
        """The last event, and the end of the response."""
        self._outbox += self.transcript.finish(response)
        await self._flush()
        await self._stream.close()

    def encode_error(self, error: ProxyError) -> bytes:
        """The end of a stream that fails, after what is still to be written."""
        return bytes(self._outbox) + self.transcript.fail(self.narrator.output, error)

    async def _write(self, events: Iterable[Json]) -> None:
        self._outbox += self.transcript.write(events)
        await self._flush()

    async def _flush(self) -> None:
        async with self._writing:
            while data := bytes(self._outbox):
                await self._stream.write(data)
                del self._outbox[: len(data)]
