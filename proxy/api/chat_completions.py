"""`POST /v1/chat/completions`: the tool loop, or bytes handed through where no server tool is in play."""

from collections.abc import Awaitable, Callable
from functools import partial
from secrets import token_hex

from msgspec import Struct
from starlette.types import Receive, Scope, Send

from proxy.api.body import parse_chat_request, read_body
from proxy.api.clients import Identity, StreamingClient, tool_headers, whole_completion
from proxy.api.replies import EventStream, Headers, send_bytes
from proxy.api.request import Exchange, Exchanges, collect, ignored_header, note_usage, show_nothing
from proxy.loop import sse
from proxy.loop.actions import Respond
from proxy.loop.chat import Json
from proxy.loop.offer import Offer
from proxy.ports import Ports, Show, Tell

_ID_PREFIX = "chatcmpl-"


class ChatCompletions:
    """The endpoint, as an ASGI callable."""

    def __init__(self, ports: Ports) -> None:
        self._server = ports.config.server
        self._clock = ports.clock
        self._exchanges = Exchanges(ports)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        body = await read_body(scope, receive, self._server, self._clock)
        exchange = await self._exchanges.open(scope, parse_chat_request(body), body=body)
        offer = exchange.offer()
        reply = self._streamed if exchange.request.get("stream") else self._whole
        await reply(exchange, offer, scope, receive, send)

    async def _whole(self, exchange: Exchange, offer: Offer, scope: Scope, receive: Receive, send: Send) -> None:
        work = self._loop_whole if offer.in_play else self._relay_whole
        reply = await exchange.bounded(scope, receive, partial(work, exchange, offer))
        await send_bytes(send, 200, (*reply.headers, *ignored_header(exchange.ignored)), reply.body)

    async def _streamed(self, exchange: Exchange, offer: Offer, scope: Scope, receive: Receive, send: Send) -> None:
        stream = EventStream(scope, send, extra=ignored_header(exchange.ignored))
        work = self._loop_stream if offer.in_play else self._relay_stream
        beating = partial(stream.keep_alive, self._server.keepalive_seconds)
        await exchange.bounded(scope, receive, partial(work, exchange, offer, stream), beside=beating)

    async def _relay_whole(self, exchange: Exchange, _: Offer) -> "_Reply":
        answer = await exchange.model.upstream.relay(*exchange.for_upstream())
        note_usage(answer.usage)
        return _Reply(answer.body)

    async def _relay_stream(self, exchange: Exchange, _: Offer, stream: EventStream) -> None:
        usage = await exchange.model.upstream.relay_stream(*exchange.for_upstream(), stream.write)
        note_usage(usage)
        await stream.close()

    async def _loop_whole(self, exchange: Exchange, offer: Offer) -> "_Reply":
        identity = self._identity(exchange)
        events: list[Json] | None = [] if exchange.tell_events else None
        tell = None if events is None else collect(events)
        answers = await self._loops(exchange, offer, identity, lambda _: show_nothing, tell)
        return _Reply(sse.dumps(whole_completion(answers, identity, events=events)), tool_headers(answers))

    async def _loop_stream(self, exchange: Exchange, offer: Offer, stream: EventStream) -> None:
        options = exchange.request.get("stream_options") or {}
        identity = self._identity(exchange)
        client = StreamingClient(stream, identity, include_usage=bool(options.get("include_usage")))
        tell = client.tell if exchange.tell_events else None
        await client.finish(await self._loops(exchange, offer, identity, client.show, tell))

    def _loops(
        self, exchange: Exchange, offer: Offer, identity: Identity, show: Callable[[int], Show], tell: Tell | None
    ) -> Awaitable[list[Respond]]:
        """One loop for each choice that the client wants."""
        wanted = exchange.request.get("n") or 1
        run_ids = [identity.id.removeprefix(_ID_PREFIX)]
        while len(run_ids) < wanted:
            run_ids.append(token_hex(16))
        return self._exchanges.loops(exchange, offer, run_ids, show=show, tell=tell)

    def _identity(self, exchange: Exchange) -> Identity:
        return Identity(_ID_PREFIX + token_hex(16), int(self._clock.time()), exchange.model.name)


class _Reply(Struct, frozen=True):
    """A whole answer: its bytes, and what is said beside it."""

    body: bytes
    extra: Headers = ()

    @property
    def headers(self) -> Headers:
        return ((b"content-type", b"application/json"), *self.extra)
