"""The interfaces between the API, the loop's driver and the adapters, with one method each where possible."""

from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence, Sized
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeAlias

from proxy.kit.readiness import KeyState
from proxy.loop.actions import CallUpstream
from proxy.loop.call_context import CallContext
from proxy.loop.decisions import ToolDialect
from proxy.loop.forcing import AnswerSteps
from proxy.loop.limits import LimitOverrides
from proxy.loop.results import ToolOutput
from proxy.loop.run_events import RunEvent
from proxy.loop.tally import Rate, Use
from proxy.wire.chat import Json, ToolCall, ToolSpec, Turn
from proxy.wire.errors import ModelNotFound
from proxy.wire.relayed import CountUsage, Headers, RawRequest, RawResponse, RelayClient

Show: TypeAlias = Callable[[Json], Awaitable[None]]
"""Called with each chunk that the client may see, as soon as it is received. Awaiting the call is the back-pressure.

The callee may change the chunk but must not rely on its contents later: the next chunk may be the same object, with a
new delta and with the changes that the callee has made to its other fields.

A delta may have `citations.CITATIONS` in addition to its `content`. It is for the callee, not for the client.
"""


class Audience(Protocol):
    """Shows a run to a client. It gets everything that may be shown of the run once, in order, streamed or not."""

    @property
    def show(self) -> Show:
        """The function that takes each chunk that the client may see."""
        ...

    async def show_event(self, event: RunEvent) -> bool:
        """Take an event between the chunks. Return whether the client was shown anything of the event."""
        ...


ExtraHeaders: TypeAlias = Callable[[], bytes]
"""Called for each outgoing request. Returns more header lines for it, each with its line end.

The lines are sent unchecked, so the callee must ensure that they are well-formed.
"""


class Clock(Protocol):
    """The time. Tests inject their own clock, so that no test has to wait."""

    def monotonic(self) -> float:
        """Seconds that never go back."""
        ...

    def time(self) -> float:
        """Seconds since 1970, for `created`."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait, for example before a retry."""
        ...


class Observer(Protocol):
    """Takes events. It observes the work and never changes it."""

    def __call__(self, event: str, /, **fields: object) -> None:
        """Take an event and its fields, for example `tool.completed` with `tool` and `seconds`.

        Messages, arguments and results must be in the field `content`, a mapping by name, and in no other field: only
        this field is removed unless `telemetry.log_content` is set.
        """
        ...

    def handles(self, event: str) -> bool:
        """Whether events of that name are used. If not, callers need not build their fields."""
        ...


class Toolset(Protocol):
    """The server tools of one configuration."""

    @property
    def specs(self) -> Mapping[str, ToolSpec]:
        """Every usable tool by its own name."""
        ...

    @property
    def names(self) -> frozenset[str]:
        """The names and aliases of all usable tools."""
        ...

    @property
    def serving(self) -> Mapping[str, str]:
        """A hosted tool (`ToolSpec.serves`) -> the name of the usable tool that serves it."""
        ...

    @property
    def unlisted(self) -> Mapping[str, ToolSpec]:
        """A server that lists its tools by a request's headers -> the placeholder for them: see `ToolSelection`."""
        ...

    def arguments_of(self, call: ToolCall) -> Json | None:
        """The arguments of a call, repaired as its tool does; None: the tool refuses them."""
        ...

    def history_arguments(self, call: ToolCall) -> str | None:
        """The arguments of a call for the history of its conversation; see `decisions.ReadArguments`."""
        ...

    def mended(self, text: str) -> Json | None:
        """Arguments that are not JSON, repaired without the rules of a tool; None if their meaning is not certain."""
        ...

    async def find(self, query: str, among: Collection[str]) -> Sequence[str]:
        """Find tools by what they do; see `many_tools.FindTools`."""
        ...

    async def execute(self, call: ToolCall, context: CallContext) -> ToolOutput:
        """Run one call. The call has the tool's own name, not an alias.

        Raises:
            ToolError: the call could not be carried out; the message is for the model.
        """
        ...


ExecuteTool: TypeAlias = Callable[[ToolCall, CallContext], Coroutine[Any, Any, ToolOutput]]
"""Runs one tool call: `Toolset.execute`, or a function around it."""


class EarlyCalls(Protocol):
    """The calls of server tools in a turn that is still being received."""

    @property
    def were_shown(self) -> bool:
        """Whether the client was shown any of the turn's calls, so that the turn cannot be retried."""
        ...

    async def announce(self, call: ToolCall, model: str | None, *, start: bool) -> None:
        """Announce a call to the client, unless the call will certainly not run.

        Args:
            call: the call as the model wrote it, with complete arguments.
            model: the upstream's name for the model, if the upstream has sent one.
            start: whether to start the call, if it may start early.
        """
        ...

    def drop(self) -> None:
        """Cancel and count the started calls, because they are not needed."""
        ...

    def count_unfinished(self, used: Json | None) -> None:
        """Count the tokens of an upstream call that ended without a turn; None if they are not known or not counted."""
        ...


class UpstreamTraits(Protocol):
    """The traits of a kind of upstream that the APIs and the loop depend on."""

    @property
    def answer_steps(self) -> AnswerSteps:
        """The steps that make its models answer, one for each attempt."""
        ...

    @property
    def native_search(self) -> bool:
        """Whether it has its own web search, declared as `{"type": "web_search", "web_search": {...}}`."""
        ...

    @property
    def json_schema(self) -> bool:
        """Whether the upstream enforces `response_format: json_schema`."""
        ...

    @property
    def thinking_switch(self) -> bool:
        """Whether the upstream's models accept the field `thinking` with the `type` enabled or disabled."""
        ...

    @property
    def cache_marks(self) -> bool:
        """Whether it gets cache marks (`cache_control`) in texts."""
        ...

    @property
    def top_k(self) -> bool:
        """Whether the upstream accepts the field `top_k`, which OpenAI does not have."""
        ...


class Upstream(Protocol):
    """A model at an upstream, for one request. Its properties change when a fallback answers."""

    @property
    def name(self) -> str:
        """The upstream's name in the configuration."""
        ...

    @property
    def model(self) -> str:
        """The upstream's name for the model."""
        ...

    @property
    def traits(self) -> UpstreamTraits:
        """The traits of the upstream that currently answers."""
        ...

    def complete(self, call: CallUpstream, show: Show | None, early: EarlyCalls) -> Awaitable[Turn]:
        """Make one upstream call of a run.

        Args:
            call: the call.
            show: takes the chunks for the client. A whole answer is shown as a stream of large pieces. None if only the
                turn is needed.
            early: takes each complete call of a server tool, at its place between the chunks.

        Raises:
            UpstreamError: the call ended without a complete turn.
        """
        ...

    async def relay(self, body: bytes, request: Json, count: CountUsage) -> bytes:
        """Relay a whole completion. `request` is `body`, parsed. Raises `UpstreamError`."""
        ...

    async def relay_stream(self, body: bytes, request: Json, client: RelayClient) -> None:
        """Relay a streamed completion event by event. `request` is `body`, parsed. Raises `UpstreamError`."""
        ...

    def open(self, request: RawRequest) -> AbstractAsyncContextManager[RawResponse]:
        """Relay any other request. Raises `UpstreamError` if there is no answer."""
        ...

    def with_cost(self, usage: Json) -> Json:
        """The usage in a response of `open`, with its cost if the model has a price.

        Usage from the other methods already has its cost.
        """
        ...


class ClientStore(Protocol):
    """Stores values for a while, each for one owner, a `Caller.scope`.

    Entries expire. When there is no room left, the oldest entry of the owner with the most entries is dropped.
    """

    async def get(self, owner: str, key: str) -> bytes | None:
        """The value of `key`; None if it was never stored or has expired."""
        ...

    async def put(self, owner: str, key: str, value: bytes) -> None:
        """Store `value` under `key`."""
        ...

    async def renew(self, owner: str, keys: Iterable[str]) -> None:
        """Renew the values of `keys`, as if they had been stored now."""
        ...

    async def delete(self, owner: str, key: str) -> None:
        """Delete the value of `key`, if there is one."""
        ...


class Rates(Protocol):
    """Counts the requests that clients have sent in the last 60 seconds."""

    async def hit(self, client: str, limit: int) -> Rate:
        """Count one request of `client`, unless that exceeds `limit`."""
        ...


class Leases(Protocol):
    """Counts the requests that clients have open at the same time."""

    async def acquire(self, client: str, most: int) -> str | None:
        """The lease of one more open request; None if `client` already has `most` open requests."""
        ...

    async def release(self, client: str, lease: str) -> None:
        """End a request. Call this once for each lease."""
        ...


class Budgets(Protocol):
    """Counts the use of clients, by calendar day and month.

    A day is written "2026-11-23" and a month "2026-11". The names of clients and models come from the configuration, so
    their number is bounded.
    """

    async def book(self, client: str, model: str, day: str, use: Use) -> None:
        """Add the use of a request that ended on `day` to that day, and to its month."""
        ...

    def book_later(self, client: str, model: str, day: str, use: Use) -> None:
        """Add the use of a request like `book`, within about a second."""
        ...

    async def used(self, client: str, period: str) -> Use:
        """The use of a client in a day or month: a new value, which the caller may change."""
        ...

    async def history(self, client: str, days: Sequence[str]) -> Sequence[Mapping[str, Use]]:
        """The use of a client on each of the `days`, by model. Days before the last `DAYS_KEPT` are empty."""
        ...

    async def clients(self, days: Sequence[str]) -> Sequence[str]:
        """The clients with any use on one of the `days`, whether or not the configuration still has them."""
        ...


class Results(Protocol):
    """A cache of one tool's results. Equal calls run once, even at the same time."""

    async def get_or_run(self, key: str, run: Callable[[], Awaitable[ToolOutput]]) -> ToolOutput:
        """The cached result of `key`, or the result of `run`. Failures are not cached."""
        ...


Caches: TypeAlias = Callable[[str, float], Results]
"""Makes a cache for a tool, from the tool's name and the lifetime of results in seconds."""


class Model(Protocol):
    """A model, as one request names it."""

    @property
    def name(self) -> str:
        """The client's name for the model."""
        ...

    @property
    def upstream_name(self) -> str:
        """The upstream's name for the model."""
        ...

    @property
    def upstream(self) -> Upstream:
        """The upstream that answers."""
        ...

    @property
    def tools(self) -> frozenset[str] | None:
        """The server tools that the model may use; None: all."""
        ...

    @property
    def limits(self) -> LimitOverrides | None:
        """The model's own `limits:`, which override those of the configuration."""
        ...

    @property
    def hides_pictures(self) -> bool:
        """Whether it reads notes instead of pictures, because pictures are for its `vision_model`."""
        ...


class Router(Protocol):
    """Finds the upstream of a model by its name."""

    def resolve(
        self,
        name: str,
        *,
        client_key: str | None,
        messages: Sequence[Json] = (),
        headers: Headers = (),
        conversation: bytes | None = None,
        may_use: Callable[[str], bool],
    ) -> Model:
        """The model of that name, for one request.

        Args:
            name: the model's name, as the client wrote it.
            client_key: the client's key, for upstreams with `api_key: from_client`.
            messages: the messages. If they have an image, the model's `vision_model` may answer.
            headers: the headers of the client's request, with names in lower case. Some headers are forwarded.
            conversation: the hashed name of the request's conversation, which selects one of an upstream's keys.
            may_use: whether the client may use a model, by its name. An error about an unknown model lists such models.

        Raises:
            ModelNotFound: the configuration has no such model, or its upstream is disabled.
        """
        ...

    def unknown(self, name: str, may_use: Callable[[str], bool]) -> ModelNotFound:
        """The error about an unknown model, with models that the client may use instead."""
        ...

    def names(self) -> Sequence[str]:
        """The names of the listed models: all usable models except patterns."""
        ...

    def upstream_of(self, name: str) -> str | None:
        """The usable upstream of a model, listed or matched by a pattern; None if there is none."""
        ...


class RecentRequests(Protocol):
    """The records of the last requests, for `/debug`."""

    def latest(self) -> Sequence[Json]:
        """The open requests and the last finished ones, the newest first."""
        ...

    def find(self, request_id: str) -> Json | None:
        """The record of the newest request with that id, if there still is one."""
        ...


MayUse: TypeAlias = Callable[[ToolSpec], bool]
"""Whether a request may use a tool of a server, given the placeholder for the server's tools (`Toolset.unlisted`)."""

MakeDialect: TypeAlias = Callable[[Mapping[str, ToolSpec]], ToolDialect]
"""Makes the dialect of one run, from the tool for each name that a call may have."""

KeyStates: TypeAlias = Mapping[tuple[str, str], Sequence[KeyState]]
"""The states of the keys of upstreams and tools with several keys: ("upstream", its name) -> a state per key."""

Scrape: TypeAlias = Callable[[Callable[[], Sized], KeyStates], bytes]
"""Returns all metrics in Prometheus' text format. The first argument returns the tasks of the event loop."""
