"""Requests without a server tool in play: their bytes and their answers pass through."""

from proxy.api.event_stream import EventStream
from proxy.api.request import ResolvedRequest
from proxy.api.runs import note_use
from proxy.loop.tally import Tally
from proxy.wire import rawjson
from proxy.wire.chat import Json
from proxy.wire.relayed import Headers, RelayClient


async def relay(request: ResolvedRequest) -> tuple[bytes, Headers]:
    """The body of a whole answer, and its further headers."""
    return await request.model.upstream.relay(*_for_upstream(request), _note_usage), ()


async def relay_stream(request: ResolvedRequest, stream: EventStream) -> None:
    """Pass an answer on as it is streamed."""
    client = RelayClient(stream.write, stream.finish, _note_usage, stream.note_ids)
    await request.model.upstream.relay_stream(*_for_upstream(request), client)


def _note_usage(usage: Json | None) -> None:
    note_use(Tally(usage=usage))


def _for_upstream(request: ResolvedRequest) -> tuple[bytes, Json]:
    """The request as the client sent it, without the proxy's own field, which an upstream may refuse."""
    if "max_tool_calls" not in request.chat:
        return request.body or rawjson.dumps(request.chat), request.chat
    chat = {key: value for key, value in request.chat.items() if key != "max_tool_calls"}
    return rawjson.dumps(chat), chat
