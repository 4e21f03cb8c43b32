"""A reply as a stream: what its runs show is folded, encoded and written."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct

from proxy.api.event_stream import EventStream
from proxy.api.reply import Events, Folding, Reply
from proxy.loop.run_events import RunEvent, StopGenerating
from proxy.ports import Audience
from proxy.wire.chat import Json
from proxy.wire.errors import ProxyError


class ReplyStream:
    """Writes a reply to a client with `stream: true`.

    Tools report progress from their own tasks, so events wait in a queue, and one task at a time writes. The events of
    a task that is cancelled while it waits to write stay in the queue.
    """

    def __init__(self, stream: EventStream, reply: Reply) -> None:
        self._stream = stream
        self._reply = reply
        self._queue = bytearray()
        self._writing = asyncio.Lock()
        stream.heartbeat = reply.heartbeat

    def audiences(self) -> Sequence[Audience]:
        """New audiences of the runs, which refer to this stream; it does not refer to them."""
        return [_Streamed(fold, self._reply.encode, self.write) for fold in self._reply.folds]

    def write(self, data: bytes) -> Awaitable[None]:
        """Write whole events, after those in the queue."""
        if self._queue or self._writing.locked() or not self._stream.is_started:
            self._queue += data
            return self._flush()
        return self._stream.write(data)

    async def _flush(self) -> None:
        async with self._writing:
            while data := bytes(self._queue):
                await self._stream.write(data)
                del self._queue[: len(data)]

    async def finish(self, data: bytes) -> None:
        """Write the last bytes, and end the stream."""
        self._queue += data
        async with self._writing:
            await self._stream.finish(bytes(self._queue))
            self._queue.clear()

    def error(self, error: ProxyError) -> bytes:
        """The last bytes of a stream that fails: the events in the queue, and the error."""
        waiting = bytes(self._queue)
        return waiting + self._reply.error(error)


class _Streamed(Struct, frozen=True):
    """The audience of one run of a streamed reply."""

    fold: Folding
    encode: Callable[[Events], bytes]
    write: Callable[[bytes], Awaitable[None]]

    def show(self, chunk: Json) -> Awaitable[None]:
        """Write a chunk. Raises `StopGenerating`."""
        event = self.fold.grow(chunk)
        return self._take(chunk) if event is None else self.write(event)

    async def _take(self, chunk: Json) -> None:
        if events := self.fold.take(chunk):
            await self.write(self.encode(events))
        if self.fold.has_enough:
            raise StopGenerating

    async def show_event(self, event: RunEvent) -> bool:
        """Write the events of an event of the run; returns whether there are any."""
        events = self.fold.take_event(event)
        if events:
            await self.write(self.encode(events))
        return bool(events)
