"""The answer to one request in the shape of its API, whole or streamed.

    run  --chunks, events-->  fold  --events-->  Reply.encode  -->  client

    end(answers)      the runs have ended: the events that complete the answer
    kept              the entry of the store for the answer, written before the client receives the end
    last(answers)     the last bytes of a stream
    whole(answers)    a whole answer
    error(error)      the last bytes of a stream that fails

A reply is pure: `model_endpoint` drives it. A whole answer is folded by the same steps as a stream.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from msgspec import Struct

from proxy.loop.actions import Respond
from proxy.loop.continuation import CarriedTurns, Continuation, as_json
from proxy.loop.run_events import RunEvent, StopGenerating
from proxy.ports import Audience, ExecuteTool
from proxy.wire import rawjson, sse
from proxy.wire.chat import Json
from proxy.wire.credentials import BOUND, Credentials
from proxy.wire.errors import ProxyError
from proxy.wire.relayed import Headers

Events: TypeAlias = list[Json]
"""Events of an API's stream, as JSON."""


Audiences: TypeAlias = Sequence[Audience | None]
"""For each run of a request, the audience that is told all that the client may see of it; None: there is none."""


class Kept(NamedTuple):
    """An entry of the client's store: its key, and its bytes."""

    key: str
    data: bytes


def hidden_as_stored(hidden: Continuation | CarriedTurns, credentials: Credentials) -> bytes:
    """The hidden part of a run as bytes for the store, bound to the credentials of its request."""
    held = as_json(hidden)
    if bound := credentials.bound():
        held[BOUND] = bound
    return rawjson.dumps_answer(held)


class Folding(Protocol):
    """Folds the chunks and events of one run into events of an API."""

    @property
    def has_enough(self) -> bool:
        """Whether the client needs no more of the answer, which then ends here, as a success."""
        ...

    def grow(self, chunk: Json) -> bytes | None:
        """Add a chunk that only adds text to the open item; its encoded event. None: the chunk has to be taken."""
        ...

    def take(self, chunk: Json) -> Events:
        """Add a chunk."""
        ...

    def take_event(self, event: RunEvent) -> Events:
        """Add an event of the run."""
        ...


class Reply(ABC):
    """The answer to one request.

    Attributes:
        folds: one for each run.
        headers: further headers of the response.
        measures: whether a stream has to `measure` before its first event.
        execute: runs tool calls within the client's settings of its tools; None: there are no such settings.
        kept: the entry of the store that the answer needs beside the hidden part of a run, once it has ended.
    """

    folds: Sequence[Folding]
    headers: Headers = ()
    measures = False
    execute: ExecuteTool | None = None
    kept: Kept | None = None

    def measure(self) -> None:
        """Do the work that a stream needs before its first event, and that grows with the request."""
        raise NotImplementedError

    def keeps_hidden(self, answer: Respond) -> bool:
        """Whether the hidden part of a run is stored for the client's next request."""
        del answer
        return True

    def listeners(self) -> Audiences:
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

    @abstractmethod
    def last(self, answers: Sequence[Respond]) -> bytes:
        """The last bytes of a stream."""

    @abstractmethod
    def whole(self, answers: Sequence[Respond]) -> Json:
        """The whole answer, for a client that does not stream."""

    @abstractmethod
    def error(self, error: ProxyError) -> bytes:
        """The last bytes of a stream that fails."""


class Streamed(Struct, frozen=True):
    """The audience of one run of a streamed reply: folds, encodes and writes chunks and events."""

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


class Unstreamed:
    """The audience of a whole answer: folds the run, and shows the client nothing before its end."""

    def __init__(self, fold: Folding) -> None:
        self._fold = fold

    async def show(self, chunk: Json) -> None:
        """Add a chunk. Raises `StopGenerating`."""
        self._fold.take(chunk)
        if self._fold.has_enough:
            raise StopGenerating

    async def show_event(self, event: RunEvent) -> bool:
        """Add an event of the run."""
        self._fold.take_event(event)
        return False
