"""The message object of the Messages API, and the stream of events that describes it."""

from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from proxy.api.event_stream import EventStream, Outbox
from proxy.api.fold import Events
from proxy.api.messages.errors import MESSAGES_ERRORS
from proxy.api.messages.message import MessageBuilder
from proxy.api.messages.usage import usage_of
from proxy.loop.actions import Respond
from proxy.loop.shown import EnoughShown, RunEvent
from proxy.wire import rawjson, sse
from proxy.wire.chat import Json
from proxy.wire.errors import ProxyError

_PING = b'event: ping\ndata: {"type":"ping"}\n\n'
_TEXT = (
    b"event: content_block_delta\n"
    b'data: {"type":"content_block_delta","index":%d,"delta":{"type":"text_delta","text":%b}}\n\n'
)


class MessageHead(Struct, frozen=True):
    """The properties that a message has from its beginning to its end.

    Attributes:
        run_id: the id of its run.
        model: the model's name in the request.
        input_tokens: an estimate for the beginning of a stream, which precedes the upstream's count.
    """

    run_id: str
    model: str
    input_tokens: int = 0

    def message(self, content: Sequence[Json], ending: Json, usage: Json) -> Json:
        """The message object in one of its states."""
        named = {"id": f"msg_{self.run_id}", "type": "message", "role": "assistant", "model": self.model}
        return {**named, "content": content, **ending, "usage": usage}

    def beginning(self) -> Json:
        """The message object before anything is written."""
        ending = {"stop_reason": None, "stop_sequence": None, "stop_details": None}
        usage = {"input_tokens": self.input_tokens, "output_tokens": 1}
        cache = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
        return self.message([], ending, {**usage, **cache})


class Opening:
    """The first event of a stream, which is sent in front of the first bytes of any kind.

    Args:
        head: the properties of the message.
    """

    def __init__(self, head: MessageHead) -> None:
        self._head = head
        self._is_sent = False

    def take(self) -> bytes:
        """The event at the first call, nothing afterwards."""
        if self._is_sent:
            return b""
        self._is_sent = True
        return _encode({"type": "message_start", "message": self._head.beginning()})


class MessageStream:
    """Writes a message to a client with `stream: true`.

    Args:
        stream: the stream to the client.
        head: the properties of the message.
        message: makes the events of its blocks.
        request_id: the id of the request, for errors.
    """

    def __init__(self, stream: EventStream, head: MessageHead, message: MessageBuilder, request_id: str) -> None:
        self._outbox = Outbox(stream)
        self._head = head
        self._message = message
        self._request_id = request_id
        self._opening = Opening(head)
        stream.heartbeat = partial(_heartbeat, self._opening)  # a method would make a reference cycle with the stream

    def show(self, chunk: Json) -> Awaitable[None]:
        """Write a chunk of the only choice."""
        message, choices = self._message, chunk["choices"]
        delta: Json = choices[0]["delta"] if choices else {}
        text: Any = delta.get("content")
        if isinstance(text, str) and len(delta) == 1 and (index := message.grow_text(text)) is not None:
            return self._outbox.write(_TEXT % (index, rawjson.dumps_answer(text)))
        events = message.take(chunk)
        return self._write_last(events) if message.has_enough else self._write(events)

    async def hear(self, event: RunEvent) -> bool:
        """Write the changes that an event of the run makes to the message; returns whether there are any."""
        events = self._message.hear(event)
        await self._write(events)
        return bool(events)

    async def finish(self, answer: Respond) -> None:
        """Write the rest of the message, and end the stream."""
        events = self._message.finish(answer)
        usage = usage_of(answer, self._message.server_tool_use())
        events.append({"type": "message_delta", "delta": self._message.ending(answer), "usage": usage})
        events.append({"type": "message_stop"})
        self._outbox.pending += self._opening.take() + b"".join(map(_encode, events))
        await self._outbox.finish()

    def encode_error(self, error: ProxyError) -> bytes:
        """The last bytes of a stream that fails: the events in the outbox, and the error."""
        return bytes(self._outbox.pending) + MESSAGES_ERRORS.last_event(error, self._request_id)

    async def _write(self, events: Events) -> None:
        if events:
            await self._outbox.write(self._opening.take() + b"".join(map(_encode, events)))

    async def _write_last(self, events: Events) -> None:
        await self._write(events)
        raise EnoughShown


def _heartbeat(opening: Opening) -> bytes:
    return opening.take() + _PING


def _encode(event: Json) -> bytes:
    kind: str = event["type"]
    return b"event: " + kind.encode() + b"\n" + sse.encode(event)
