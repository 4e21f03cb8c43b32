"""The answer to one request in the shape of its API, whole or streamed.

    run  --chunks, events-->  fold  --events-->  Reply.encode  -->  client

    end(answers)      the runs have ended: the events that complete what the client sees
    kept(answers)     what is stored of the answer, before the client receives its end
    last(answers)     the last bytes of a stream
    whole(answers)    a whole answer
    error(error)      the last bytes of a stream that fails

A reply is pure: `model_endpoint` drives it. A whole answer is folded by the same steps as a stream.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from proxy.api.event_stream import EventStream
from proxy.loop.actions import Respond
from proxy.loop.shown import EnoughShown, RunEvent
from proxy.ports import Audience, ExecuteTool
from proxy.wire import sse
from proxy.wire.chat import Json
from proxy.wire.errors import ProxyError
from proxy.wire.relayed import Headers

Events: TypeAlias = list[Json]
"""Events of an API's stream, as JSON."""


class Kept(NamedTuple):
    """An entry of the client's store: its key, and its bytes."""

    key: str
    data: bytes


class Folding(Protocol):
    """Folds the chunks and events of one run into events of an API."""

    @property
    def has_enough(self) -> bool:
        """Whether the client needs no more of the answer, which then ends here, as a success."""
        ...

    def grow(self, chunk: Json) -> bytes | None:
        """Add a chunk that only adds text to what is open; its encoded event. None: the chunk has to be taken."""
        ...

    def take(self, chunk: Json) -> Events:
        """Add a chunk."""
        ...

    def hear(self, event: RunEvent) -> Events:
        """Add an event of the run."""
        ...


class Reply(ABC):
    """The answer to one request.

    Attributes:
        run_ids: the ids of its runs, one for each choice: 32 hexadecimal digits, from which those of calls are made.
        folds: one for each choice.
        headers: further headers of the response.
        measures: whether a stream has to `measure` before its first event.
    """

    run_ids: Sequence[str]
    folds: Sequence[Folding]
    headers: Headers = ()
    measures = False

    def measure(self) -> None:
        """Do the work that a stream needs before its first event, and that grows with the request."""
        raise NotImplementedError

    def execute(self, execute: ExecuteTool) -> ExecuteTool:
        """A function that runs tool calls as `execute` does, within the client's settings of its tools."""
        return execute

    def keeps_hidden(self, answer: Respond) -> bool:
        """Whether the hidden part of a run is stored for the client's next request."""
        del answer
        return True

    def listeners(self) -> Sequence[Audience | None]:
        """The audiences of the runs of a whole answer."""
        return [Unstreamed(fold) for fold in self.folds]

    def heartbeat(self) -> bytes:
        """The bytes that are sent after a long silence of a stream."""
        return sse.KEEPALIVE

    @abstractmethod
    def encode(self, events: Events) -> bytes:
        """The bytes of events in a stream, after those that open it if they are the first."""

    @abstractmethod
    def end(self, answers: Sequence[Respond]) -> Events:
        """Complete the answer once its runs have ended; the events that do so."""

    def kept(self, answers: Sequence[Respond]) -> Kept | None:
        """The entry of the store that the answer needs beside the hidden part of a run; None: it needs none."""
        del answers
        return None

    @abstractmethod
    def last(self, answers: Sequence[Respond]) -> bytes:
        """The last bytes of a stream."""

    @abstractmethod
    def whole(self, answers: Sequence[Respond]) -> Json:
        """The whole answer, for a client that does not stream."""

    @abstractmethod
    def error(self, error: ProxyError) -> bytes:
        """The last bytes of a stream that fails."""


class Unstreamed:
    """The audience of a whole answer: folds the run, and shows the client nothing before its end."""

    def __init__(self, fold: Folding) -> None:
        self._fold = fold

    async def show(self, chunk: Json) -> None:
        """Add a chunk. Raises `EnoughShown`."""
        self._fold.take(chunk)
        if self._fold.has_enough:
            raise EnoughShown

    async def hear(self, event: RunEvent) -> bool:
        """Add an event of the run."""
        self._fold.hear(event)
        return False


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


class _Streamed:
    """The audience of one run of a streamed reply."""

    def __init__(
        self, fold: Folding, encode: Callable[[Events], bytes], write: Callable[[bytes], Awaitable[None]]
    ) -> None:
        self._fold = fold
        self._encode = encode
        self._write = write

    def show(self, chunk: Json) -> Awaitable[None]:
        """Write a chunk. Raises `EnoughShown`."""
        event = self._fold.grow(chunk)
        return self._take(chunk) if event is None else self._write(event)

    async def _take(self, chunk: Json) -> None:
        if events := self._fold.take(chunk):
            await self._write(self._encode(events))
        if self._fold.has_enough:
            raise EnoughShown

    async def hear(self, event: RunEvent) -> bool:
        """Write the events of an event of the run; returns whether there are any."""
        events = self._fold.hear(event)
        if events:
            await self._write(self._encode(events))
        return bool(events)
