"""What the api and the runner need from the outside world, one method each where it can be."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence, Sized
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import orjson
from msgspec import Struct

from proxy.config import Config
from proxy.loop.actions import CallUpstream
from proxy.loop.chat import Json, ToolCall, ToolOutput, ToolSpec, Turn
from proxy.loop.decisions import ToolDialect
from proxy.loop.errors import ProxyError
from proxy.loop.forcing import AnswerSteps
from proxy.loop.limits import LimitOverrides

Show: TypeAlias = Callable[[Json], Awaitable[None]]
"""Called with each chunk that the client may see, as it comes. Awaiting it is the back-pressure.

A delta may have `citations.CITATIONS` beside its `content`, which is for the callee and not for the client.
"""

Tell: TypeAlias = Callable[[Json], Awaitable[None]]
"""Called with each progress event of a run, for clients that asked for them."""

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]

Write: TypeAlias = Callable[[bytes], Awaitable[None]]


ExtraHeaders: TypeAlias = Callable[[], Iterable[tuple[bytes, bytes]]]
"""Called for each request that goes out; gives headers that it has beside its own."""


class Clock(Protocol):
    """Time, injected so that no test has to wait for it."""

    def monotonic(self) -> float:
        """Seconds that never go back."""
        ...

    def time(self) -> float:
        """Seconds since 1970, for `created`."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait, before something is tried again."""
        ...


def elapsed(clock: Clock, began: float) -> float:
    """Seconds since `began`, a monotonic time, to the microsecond."""
    # `round` would take twice as long as all of it.
    return (clock.monotonic() - began) * 1e6 // 1.0 / 1e6


class Content(Struct, frozen=True):
    """What was said - messages, arguments, results - as a field of an event, where `telemetry.log_content` is set."""

    value: Any

    def text(self, most: int = 16384) -> str:
        """As text of at most so many characters: pictures come in megabytes."""
        text = self.value if isinstance(self.value, str) else orjson.dumps(self.value, default=str).decode()
        return text if len(text) <= most else f"{text[:most]}..."


class Observer(Protocol):
    """Takes events; it watches the work and never changes it."""

    def __call__(self, event: str, /, **fields: object) -> None:
        """Take an event and its fields, for example `tool.completed` with `tool` and `seconds`.

        Messages, arguments and results go into the field `content`, a mapping by name, and into no other field: they
        are removed unless `telemetry.log_content` is set.
        """
        ...

    def wants(self, event: str) -> bool:
        """Whether events of that name are used at all; callers may skip building the fields of others."""
        ...


class NoObserver:
    """Ignores every event. Implements `Observer`."""

    def __call__(self, event: str, /, **fields: object) -> None:
        """Ignore the event."""

    def wants(self, event: str) -> bool:  # noqa: ARG002 - the protocol's
        """False."""
        return False


def fault_of(error: ProxyError) -> Json:
    """A fault as the fields of an event."""
    return {"code": error.code, "status": error.status, "why": error.why}


class Toolset(Protocol):
    """The server tools."""

    @property
    def specs(self) -> Mapping[str, ToolSpec]:
        """Every usable tool by its own name."""
        ...

    async def execute(self, call: ToolCall, *, patience: float, at_most: float, scope: str) -> ToolOutput:
        """Run one call.

        Args:
            call: under the tool's own name.
            patience: in seconds, for tools that have no timeout of their own.
            at_most: seconds that bound every tool, whatever its own timeout is.
            scope: who calls; results are kept for and shared with the same caller only.

        Raises:
            ToolError: the call could not be carried out; the message is for the model.
        """
        ...


@dataclass(frozen=True, slots=True)
class RawRequest:
    """A request that is handed through: bytes and headers as the client sent them, hop-by-hop headers left out."""

    method: str
    path: str  # below the upstream's base URL, with the query: "/embeddings?x=1"
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes


@dataclass(frozen=True, slots=True)
class RawResponse:
    """The head of an upstream's answer and its body, not yet read."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    body: AsyncIterator[bytes]


class Answer(Struct, frozen=True):
    """A whole completion that is handed through: its original bytes, and the little of it that is logged."""

    body: bytes
    usage: Json | None


class Eager(Protocol):
    """Starts calls of a turn that is still being written."""

    def start(self, call: ToolCall) -> None:
        """The arguments of `call` are complete."""
        ...

    def abandon(self) -> None:
        """The turn has failed: nothing of it counts."""
        ...


class Upstream(Protocol):
    """One model at one upstream, as it is spoken to for one request."""

    @property
    def name(self) -> str:
        """The upstream's name in the configuration."""
        ...

    @property
    def model(self) -> str:
        """The upstream's name for the model that is spoken to."""
        ...

    @property
    def answer_steps(self) -> AnswerSteps:
        """The steps by which its models are made to answer."""
        ...

    @property
    def native_search(self) -> bool:
        """Whether it has a web search of its own, declared as `{"type": "web_search", "web_search": {...}}`."""
        ...

    @property
    def json_schema(self) -> bool:
        """Whether it makes its answers fit `response_format: json_schema` by itself."""
        ...

    def complete(self, call: CallUpstream, show: Show, eager: Eager) -> Awaitable[Turn]:
        """Make one upstream call of a run; `show` gets what the client may see now, `eager` calls that are complete.

        Raises:
            UpstreamError: there is no whole turn.
        """
        ...

    async def relay(self, body: bytes, request: Json) -> Answer:
        """Hand a whole completion through. `request` is `body`, parsed. Raises `UpstreamError`."""
        ...

    async def relay_stream(self, body: bytes, request: Json, write: Write) -> Json | None:
        """Hand a streamed completion through, event by event; returns its usage. Raises `UpstreamError`."""
        ...

    def open(self, request: RawRequest) -> AbstractAsyncContextManager[RawResponse]:
        """Hand any other request through. Raises `UpstreamError` when there is no answer at all."""
        ...


class ContinuationStore(Protocol):
    """Keeps values for a while, each for one owner. A miss is no fault: entries expire and make room for others.

    An owner is a `Caller.scope`. When there is no more room, the oldest entry goes of the owner that has most.
    """

    async def get(self, owner: str, key: str) -> bytes | None:
        """What was kept under `key`."""
        ...

    async def put(self, owner: str, key: str, value: bytes) -> None:
        """Keep `value` under `key`."""
        ...

    async def renew(self, owner: str, keys: Iterable[str]) -> None:
        """Let what is kept under `keys` live as if it had been written now."""
        ...

    async def delete(self, owner: str, key: str) -> None:
        """Forget what is kept under `key`, if anything is."""
        ...


class Rate(Struct, frozen=True):
    """What is left of a client's requests per minute, once one more has been asked for.

    Attributes:
        allowed: whether that one is within the limit.
        limit: requests in any 60 seconds, each counted from the beginning of the second in which it came.
        remaining: how many more would be allowed now.
        reset: seconds until the oldest of them no longer counts, and there is room for one more.
    """

    allowed: bool
    limit: int
    remaining: int
    reset: float


class Rates(Protocol):
    """Counts the requests that clients have sent in the last 60 seconds."""

    async def hit(self, client: str, limit: int) -> Rate:
        """Count one request of `client`, unless it is beyond `limit`."""
        ...


class Leases(Protocol):
    """Counts the requests that clients have open at the same time."""

    async def acquire(self, client: str, most: int) -> str | None:
        """The lease of one more open request, or None where `client` has `most` of them."""
        ...

    async def release(self, client: str, lease: str) -> None:
        """That request is done. To be called once for each lease."""
        ...


class Results(Protocol):
    """One tool's results for a while. Equal calls are run once, also when they come at the same moment."""

    async def get_or_run(self, key: str, run: Callable[[], Awaitable[ToolOutput]]) -> ToolOutput:
        """The result that is kept under `key`, or that of `run`. Failures are not kept."""
        ...


Caches: TypeAlias = Callable[[str, float], Results]
"""A cache for the tool of that name, in which results live for so many seconds."""


class Model(Struct, frozen=True):
    """A name that clients may send, resolved.

    Attributes:
        name: the client's name for it.
        upstream_name: the upstream's name for it.
        tools: the server tools that it may use; None: all.
        limits: what its own `limits:` change.
    """

    name: str
    upstream_name: str
    upstream: Upstream
    tools: frozenset[str] | None = None
    limits: LimitOverrides | None = None


class Router(Protocol):
    """From the name of a model to its upstream."""

    def resolve(
        self, name: str, *, client_key: str | None, messages: Sequence[Json] = (), headers: Headers = ()
    ) -> Model:
        """The model of that name, for one request.

        Args:
            name: as the client wrote it.
            client_key: for upstreams with `api_key: from_client`.
            messages: may show the model an image, so that its `vision_model` is wanted.
            headers: of the client's request, names in lower case; each upstream is sent those that it forwards.

        Raises:
            ModelNotFound: the configuration has no such model, or its upstream is disabled.
        """
        ...

    def names(self) -> Sequence[str]:
        """The models that are listed: usable, and not patterns."""
        ...


@dataclass(frozen=True, slots=True)
class Readiness:
    """What `/readyz` says of one upstream or tool, or of what outlives a request.

    `breaker` is where an upstream's stands, if it is not closed.
    """

    name: str
    usable: bool
    why_not: str | None = None
    breaker: str | None = None


@dataclass(slots=True)
class Lifecycle:
    """Where this process is in its life; the server says so, the api goes by it.

    draining           no new work is taken on, what has begun may finish
    refuses_forwarded  nor does another proxy get a request through: its health check has had the time to fail
    """

    draining: bool = False
    refuses_forwarded: bool = False

    def refuses(self, *, forwarded: bool) -> bool:
        """Whether a new request is refused, `forwarded` by another proxy or not."""
        return self.draining and (self.refuses_forwarded or not forwarded)


class History(Protocol):
    """The last requests, as they went."""

    def latest(self) -> Sequence[Json]:
        """Open requests and the last ones that were answered, the newest first."""
        ...

    def find(self, request_id: str) -> Json | None:
        """The newest request of that id, if it is still remembered."""
        ...


MakeDialect: TypeAlias = Callable[[Mapping[str, ToolSpec]], ToolDialect]
"""Makes the dialect of one run, from every name under which a tool may be called in it -> the tool."""

Scrape: TypeAlias = Callable[[Callable[[], Sized]], bytes]
"""All metrics in Prometheus' text format, given what finds the tasks of the event loop."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Everything that the api is given by the composition root."""

    config: Config
    router: Router
    toolset: Toolset
    dialect: MakeDialect
    store: ContinuationStore
    observe: Observer
    clock: Clock
    upstream_states: Callable[[], Sequence[Readiness]]
    tool_states: Callable[[], Sequence[Readiness]]
    state: Callable[[], Readiness]
    lifecycle: Lifecycle
    scrape: Scrape | None = None
    history: History | None = None
