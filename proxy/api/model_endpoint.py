"""The endpoint of the APIs with a model behind them: chat completions, responses, messages.

A request without a server tool in play is relayed if it uses the upstreams' API. Every other request has runs, and its
`Reply` shows their chunks and events to the client, whole or streamed.
"""

from functools import partial

from starlette.types import Receive, Scope, Send

from proxy.api.dialect import Dialect
from proxy.api.event_stream import EventStream
from proxy.api.exchange import send_bytes, while_wanted
from proxy.api.ports import Ports
from proxy.api.preparation import Preparation, Prepared
from proxy.api.relayed import relay, relay_stream
from proxy.api.reply import Reply, Streamed
from proxy.api.response import RESPONSE, OutgoingResponse
from proxy.api.runs import Runs, tool_headers
from proxy.kit.beside import beside
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
        headers = [(b"content-type", b"application/json"), *headers, *prepared.headers]
        await send_bytes(send, 200, headers, body)

    async def _send_stream(self, prepared: Prepared, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream the answer, with a heartbeat after each long silence."""
        request = prepared.request
        if prepared.is_relayed:
            stream = EventStream(scope, send, prepared.headers)
            work = partial(relay_stream, request, stream)
        else:
            reply = prepared.chosen.reply(request, prepared.run_ids)
            stream = EventStream(scope, send, (*prepared.headers, *reply.headers))
            stream.heartbeat = reply.heartbeat
            work = partial(self._stream, prepared, reply, scope[RESPONSE], stream)
        heartbeat = partial(stream.keep_alive, self._ports.config.server.keepalive_seconds)
        await while_wanted(scope, receive, work, seconds=request.limits.max_duration, beside=heartbeat)

    async def _whole(self, prepared: Prepared) -> tuple[bytes, Headers]:
        reply = prepared.chosen.reply(prepared.request, prepared.run_ids)
        run = self._runs.answers if prepared.check is None else self._runs.fitting_answers
        answers = await run(prepared, reply, reply.listeners())
        reply.end(answers)
        whole = reply.whole(answers)
        if reply.kept is not None:
            await self._ports.store.put(prepared.request.caller.scope, *reply.kept)
        return rawjson.dumps_answer(whole), (*tool_headers(answers), *reply.headers)

    async def _stream(self, prepared: Prepared, reply: Reply, response: OutgoingResponse, stream: EventStream) -> None:
        if reply.measures:
            await beside(prepared.size, reply.measure)
        response.encode_error = lambda error: bytes(stream.queue) + reply.error(error)
        audiences = [Streamed(fold, reply.encode, stream.write) for fold in reply.folds]
        run = self._runs.answers if prepared.check is None else self._runs.fitting_answers
        answers = await run(prepared, reply, audiences)
        if events := reply.end(answers):
            await stream.write(reply.encode(events))
        if reply.kept is not None:
            await self._ports.store.put(prepared.request.caller.scope, *reply.kept)
        await stream.finish(reply.last(answers))
