"""The endpoint of the APIs with a model behind them: chat completions, responses, messages.

A request without a server tool in play is relayed if it uses the upstreams' API. Every other request has runs, and its
`Reply` shows their chunks and events to the client, whole or streamed.
"""

from collections.abc import Sequence
from functools import partial
from secrets import token_hex

from starlette.types import Receive, Scope, Send

from proxy.api.dialect import Dialect
from proxy.api.event_stream import EventStream
from proxy.api.exchange import send_bytes, while_wanted
from proxy.api.ports import Ports
from proxy.api.preparation import Preparation, Prepared
from proxy.api.relayed import relay, relay_stream
from proxy.api.reply import Reply, ReplyStream
from proxy.api.request import ResolvedRequest
from proxy.api.response import RESPONSE, Response
from proxy.api.runs import Runs, tool_headers
from proxy.kit.beside import beside
from proxy.loop.actions import Respond
from proxy.ports import Audience
from proxy.wire import rawjson
from proxy.wire.errors import ProxyError
from proxy.wire.relayed import Headers


class ModelEndpoint:
    """An endpoint, as an ASGI callable."""

    def __init__(self, ports: Ports, dialect: Dialect) -> None:
        self._ports = ports
        self._preparation = Preparation(ports, dialect)
        self._runs = Runs(ports)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection.

        Raises:
            ProxyError: the request cannot be answered.
            ClientLeft: the client left before the answer was complete.
        """
        parsed = await self._preparation.parse(scope, receive)
        try:
            prepared = await self._preparation.of(scope, parsed)
            if prepared.stream:
                await self._send_stream(prepared, scope, receive, send)
            else:
                await self._send_whole(prepared, scope, receive, send)
        except ProxyError as exc:
            parsed.as_sent(exc)
            raise

    async def _send_whole(self, prepared: Prepared, scope: Scope, receive: Receive, send: Send) -> None:
        request = prepared.request
        work = partial(relay, request) if prepared.is_relayed else partial(self._whole, prepared)
        body, headers = await while_wanted(scope, receive, work, seconds=request.limits.max_duration)
        headers = [(b"content-type", b"application/json"), *headers, *_headers(request)]
        await send_bytes(send, 200, headers, body)

    async def _send_stream(self, prepared: Prepared, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream the answer, with a heartbeat after each long silence."""
        request, stream = prepared.request, EventStream(scope, send)
        stream.add_headers(_headers(request))
        if prepared.is_relayed:
            work = partial(relay_stream, request, stream)
        else:
            work = partial(self._stream, prepared, scope[RESPONSE], stream)
        heartbeat = partial(stream.keep_alive, self._ports.config.server.keepalive_seconds)
        await while_wanted(scope, receive, work, seconds=request.limits.max_duration, beside=heartbeat)

    async def _whole(self, prepared: Prepared) -> tuple[bytes, Headers]:
        reply = _reply(prepared)
        answers = await self._answers(prepared, reply, reply.listeners())
        reply.end(answers)
        whole = reply.whole(answers)
        await self._keep(prepared, reply, answers)
        return rawjson.dumps_answer(whole), (*tool_headers(answers), *reply.headers)

    async def _stream(self, prepared: Prepared, response: Response, stream: EventStream) -> None:
        reply = _reply(prepared)
        stream.add_headers(reply.headers)
        if reply.measures:
            await beside(prepared.size, reply.measure)
        shown = ReplyStream(stream, reply)
        response.encode_error = shown.error
        answers = await self._answers(prepared, reply, shown.audiences())
        if events := reply.end(answers):
            await shown.write(reply.encode(events))
        await self._keep(prepared, reply, answers)
        await shown.finish(reply.last(answers))

    async def _answers(
        self, prepared: Prepared, reply: Reply, audiences: Sequence[Audience | None]
    ) -> Sequence[Respond]:
        request = prepared.request
        return await self._runs.checked(
            request,
            reply.run_ids,
            audiences,
            check=prepared.check,
            execute=reply.execute(request.own.toolset.execute),
            keep=reply.keeps_hidden,
        )

    async def _keep(self, prepared: Prepared, reply: Reply, answers: Sequence[Respond]) -> None:
        if (kept := reply.kept(answers)) is not None:
            await self._ports.store.put(prepared.request.caller.scope, kept.key, kept.data)


def _reply(prepared: Prepared) -> Reply:
    """The reply to a request, of runs with new ids."""
    run_ids = [token_hex(16) for _ in range(prepared.request.chat.get("n") or 1)]
    return prepared.chosen.reply(prepared.request, run_ids)


def _headers(request: ResolvedRequest) -> Headers:
    """The header with the names of the tools that the client has selected and cannot have, if there are any."""
    return ((b"x-tools-ignored", ",".join(request.ignored).encode()),) if request.ignored else ()
