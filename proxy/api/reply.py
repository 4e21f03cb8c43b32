"""The answer to one request in the shape of its API, whole or streamed.

    run  --chunks, events-->  fold  --events-->  Reply.encode  -->  client

    end(answers)      the runs have ended: the events that complete what the client sees
    kept(answers)     what is stored of the answer, before the client receives its end
    last(answers)     the last bytes of a stream
    whole(answers)    a whole answer
    error(error)      the last bytes of a stream that fails

A reply is pure: `model_endpoint` drives it. A whole answer is folded by the same steps as a stream.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from proxy.api.event_stream import EventStream, Outbox
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

    wants_answers: bool

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
    """

    run_ids: Sequence[str]
    folds: Sequence[Folding]
    headers: Headers = ()

    def execute(self, execute: ExecuteTool) -> ExecuteTool:
        """A function that runs tool calls as `execute` does, within the client's settings of its tools."""
        return execute

    def hides(self, answer: Respond) -> bool:
        """Whether the client is not shown a part of a run, which is then stored for its next request."""
        del answer
        return True

    def listeners(self) -> Sequence[Audience | None]:
        """The audiences of the runs of a whole answer."""
        return [Unstreamed(fold) for fold in self.folds]

    def measure(self) -> None:
        """Do the work that a stream needs before its first event."""
        return

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
        self.wants_answers = fold.wants_answers

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

    Attributes:
        audiences: those of the runs.
    """

    def __init__(self, stream: EventStream, reply: Reply) -> None:
        self._outbox = Outbox(stream)
        self._reply = reply
        self.audiences = [_Streamed(fold, reply, self._outbox) for fold in reply.folds]
        stream.heartbeat = reply.heartbeat

    async def write(self, events: Events) -> None:
        """Write events."""
        if events:
            await self._outbox.write(self._reply.encode(events))

    async def finish(self, data: bytes) -> None:
        """Write the last bytes, and end the stream."""
        self._outbox.pending += data
        await self._outbox.finish()

    def error(self, error: ProxyError) -> bytes:
        """The last bytes of a stream that fails: the events that wait to be written, and the error."""
        waiting = bytes(self._outbox.pending)
        return waiting + self._reply.error(error)


class _Streamed:
    """The audience of one run of a streamed reply."""

    def __init__(self, fold: Folding, reply: Reply, outbox: Outbox) -> None:
        self._fold = fold
        self._encode = reply.encode
        self._outbox = outbox
        self.wants_answers = fold.wants_answers

    def show(self, chunk: Json) -> Awaitable[None]:
        """Write a chunk. Raises `EnoughShown`."""
        event = self._fold.grow(chunk)
        if event is not None:
            return self._outbox.write(event)
        events = self._fold.take(chunk)
        return self._write_last(events) if self._fold.has_enough else self._write(events)

    async def hear(self, event: RunEvent) -> bool:
        """Write the events of an event of the run; returns whether there are any."""
        events = self._fold.hear(event)
        await self._write(events)
        return bool(events)

    async def _write(self, events: Events) -> None:
        if events:
            await self._outbox.write(self._encode(events))

    async def _write_last(self, events: Events) -> None:
        await self._write(events)
        raise EnoughShown
