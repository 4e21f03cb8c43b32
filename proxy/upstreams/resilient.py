"""One request's way to an answer: the same call again where that may help, then the next model.

Once anything of an answer was shown, nothing is tried again: a second attempt would repeat the first one's words. One
budget of retries holds for the whole request, however many turns it takes, so that a struggling upstream is not
hammered by its own loop. An upstream that fails everybody is left alone for a while, by its breaker: what a request
is answered with (5xx, junk, silence) may be that request's own doing, so it counts once for each request and upstream,
and in the name of its client; that no connection can be made counts each time.
"""

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

from msgspec import Struct

from proxy.breaker import Breaker, State
from proxy.loop.actions import CallUpstream
from proxy.loop.chat import Json, Turn
from proxy.loop.errors import ProxyError, RequestError, UpstreamDown, UpstreamError
from proxy.loop.forcing import AnswerSteps
from proxy.ports import Answer, Clock, Eager, Observer, RawRequest, RawResponse, Show, Write, elapsed, fault_of
from proxy.upstreams.openai_compat import OpenAICompatible
from proxy.upstreams.request_body import LatestRequests
from proxy.upstreams.retry import Backoff, asked_delay, is_outage, is_transient, may_work_elsewhere

T = TypeVar("T")


class Resilient:
    """The candidates for one request, best first. Implements `ports.Upstream`.

    Args:
        candidates: the requested model and its fallbacks.
        backoff: how often to try again, and the waits between.
        guards: the breaker of every upstream, by its name; shared by all requests.
        client: whose request it is.
        clock: waits.
        observe: hears of each attempt, of what is handed through, and of upstreams that are left alone for a while.
        tells_relays: whether it hears of what is handed through also where nothing has failed.

    Attributes:
        current: the upstream that is being spoken to.
        name: its name.
        model: its name for the model.
    """

    def __init__(
        self,
        candidates: Sequence[OpenAICompatible],
        *,
        backoff: Backoff,
        guards: Mapping[str, "BreakerGuard"],
        client: str = "",
        clock: Clock,
        observe: Observer,
        tells_relays: bool = True,
    ) -> None:
        first, *self._rest = candidates
        self._speak_to(first)
        self._longest_wait = backoff.longest
        self._delays = backoff.delays()
        self._guards = guards
        self._client = client
        self._blamed: set[str] = set()
        self._latest_requests: LatestRequests = {}
        self._clock = clock
        self._observe = observe
        self._tells_relays = tells_relays

    @property
    def answer_steps(self) -> AnswerSteps:
        """The steps by which the models of the upstream that is spoken to are made to answer."""
        return self.current.answer_steps

    @property
    def native_search(self) -> bool:
        """Whether it has a web search of its own."""
        return self.current.profile.native_search

    @property
    def json_schema(self) -> bool:
        """Whether it makes its answers fit a schema by itself."""
        return self.current.profile.json_schema

    def complete(self, call: CallUpstream, show: Show, eager: Eager) -> Awaitable[Turn]:
        """Make one upstream call of a run. A fallback that has answered once is spoken to from then on."""
        watched = _Watched(show, self._clock)
        return self._attempt(partial(_complete, call, watched.show, eager, self._latest_requests), watched)

    async def relay(self, body: bytes, request: Json) -> Answer:
        """Hand a whole completion through."""
        with self._relayed(content={"messages": request.get("messages")}):
            return await self._attempt(lambda upstream: upstream.relay(body, request), _Watched(_nobody, self._clock))

    async def relay_stream(self, body: bytes, request: Json, write: Write) -> Json | None:
        """Hand a streamed completion through."""
        watched = _Watched(write, self._clock)
        with self._relayed(content={"messages": request.get("messages")}):
            return await self._attempt(lambda upstream: upstream.relay_stream(body, request, watched.show), watched)

    @asynccontextmanager
    async def open(self, request: RawRequest) -> AsyncIterator[RawResponse]:
        """Hand any other request through, once: what it does is not known, so neither is whether it bears repeating."""
        with self._guarded(spare=False), self._relayed(path=request.path.partition("?")[0]):
            async with self.current.open(request) as response:
                yield response

    def _guarded(self, *, spare: bool) -> "_GuardedCall":
        return _GuardedCall(self._guards[self.current.name], self._client, spare, self._blamed)

    def _relayed(self, **fields: object) -> "_Relayed":
        return _Relayed(self, self._observe, self._clock, fields if self._tells_relays else None)

    async def _attempt(self, work: Callable[[OpenAICompatible], Awaitable[T]], watched: "_Watched") -> T:
        failure: ProxyError | None = None
        try:
            while True:
                current = self.current
                began = watched.began = self._clock.monotonic()
                try:
                    guarded = watched.guarded = self._guarded(spare=bool(self._rest))
                    with guarded:
                        answer = await work(current)
                except RequestError as exc:
                    if failure is None:
                        raise
                    # A fallback that cannot do what the request asks for says nothing about the request.
                    raise failure from exc
                except ProxyError as exc:
                    failure = exc
                    moved_on = current is not self.current  # another choice of this request has met the same failure
                    if watched.first_after is not None or not (
                        moved_on or await self._recover(exc, elapsed(self._clock, began))
                    ):
                        raise
                else:
                    seconds, first = elapsed(self._clock, began), watched.first_after
                    self._observe("upstream.answered", upstream=current.name, seconds=seconds, first=first)
                    return answer
        finally:
            failure = None  # its traceback leads back to this frame, and all that this has seen would be kept

    def _speak_to(self, upstream: OpenAICompatible) -> None:
        self.current, self.name, self.model = upstream, upstream.name, upstream.model

    async def _recover(self, failure: ProxyError, seconds: float) -> bool:
        """Prepare another attempt; False where there is none left."""
        fields = {"upstream": self.name, **fault_of(failure), "seconds": seconds}
        asked = asked_delay(failure, self._clock.time())
        patient = asked <= self._longest_wait  # a client can wait for longer than we can; it is told how long
        if patient and is_transient(failure) and (delay := next(self._delays, None)) is not None:
            wait = max(asked, delay)
            self._observe("upstream.retried", **fields, wait=round(wait, 3))
            await self._clock.sleep(wait)
            return True
        if may_work_elsewhere(failure) and self._rest:
            following, *self._rest = self._rest
            self._speak_to(following)
            self._observe("upstream.fell_back", **fields, to=self.name, upstream_model=self.model)
            return True
        return False


def _complete(
    call: CallUpstream, show: Show, eager: Eager, latest: LatestRequests, upstream: OpenAICompatible
) -> Awaitable[Turn]:
    eager.abandon()  # what an attempt before this one has started
    return upstream.complete(call, show, eager, latest)


class _Relayed:
    """Tells what becomes of a request that is handed through, however it ends; without `fields` only where it fails."""

    __slots__ = ("_began", "_clock", "_fields", "_observe", "_upstream")

    def __init__(self, upstream: Resilient, observe: Observer, clock: Clock, fields: Json | None) -> None:
        self._upstream = upstream
        self._observe = observe
        self._clock = clock
        self._fields = fields

    def __enter__(self) -> None:
        self._began = self._clock.monotonic()
        if self._fields is not None:
            current = self._upstream.current
            self._observe("relay.started", upstream=current.name, upstream_model=current.model, **self._fields)

    def __exit__(self, _kind: object, exc: BaseException | None, _traceback: object) -> None:
        if exc is None and self._fields is None:
            return
        current = self._upstream.current
        fields = {"upstream": current.name, "upstream_model": current.model}
        seconds = elapsed(self._clock, self._began)
        if exc is None:
            self._observe("relay.completed", **fields, seconds=seconds)
        elif isinstance(exc, Exception):
            fault = exc if isinstance(exc, ProxyError) else ProxyError("")
            self._observe("relay.failed", **fields, seconds=seconds, **fault_of(fault))
        else:
            self._observe("relay.abandoned", **fields, seconds=seconds)


class BreakerGuard:
    """The breaker of one upstream, and the events of its opening and closing."""

    def __init__(self, name: str, breaker: Breaker, *, observe: Observer, clock: Clock) -> None:
        self.name = name
        self._breaker = breaker
        self._observe = observe
        self._clock = clock

    def check(self, *, spare: bool) -> None:
        """Raise `UpstreamDown` where a call may not be made now; `spare`: a fallback can answer it."""
        now = self._clock.monotonic()
        if not self._breaker.allows(now, spare=spare):
            raise UpstreamDown(self.name, retry_after=math.ceil(self._breaker.wait(now)) or 1)

    def succeeded(self) -> None:
        """A call was answered."""
        if self._breaker.succeeded():
            self._observe("upstream.breaker_closed", upstream=self.name)

    def answers(self) -> None:
        """A call has begun to be answered: if it was a probe, others need not wait for its end."""
        if self._breaker.state is State.HALF_OPEN:
            self.succeeded()

    def failed(self, failure: UpstreamError, *, client: str, spare: bool) -> None:
        """A call failed in a way that counts against the upstream."""
        blamed = None if failure.unreachable else client
        if self._breaker.failed(self._clock.monotonic(), client=blamed, spare=spare):
            seconds = self._breaker.seconds
            self._observe("upstream.breaker_opened", upstream=self.name, code=failure.code, seconds=seconds)


class _GuardedCall(Struct, eq=False):
    """One call of an upstream, as a `with`: its outcome counts for all requests.

    Attributes:
        client: whose request it belongs to.
        spare: whether a fallback can answer in its place.
        blamed: the upstreams that this request has counted against already.

    Raises:
        UpstreamDown: instead of a call, while the upstream is left alone.
    """

    guard: BreakerGuard
    client: str
    spare: bool
    blamed: set[str]

    def __enter__(self) -> None:
        self.guard.check(spare=self.spare)

    def __exit__(self, _kind: object, exc: BaseException | None, _traceback: object) -> None:
        if exc is None:
            self.guard.succeeded()
        elif isinstance(exc, UpstreamError) and is_outage(exc):
            if not exc.unreachable and self.guard.name in self.blamed:
                return
            self.blamed.add(self.guard.name)
            self.guard.failed(exc, client=self.client, spare=self.spare)


class _Watched(Struct, eq=False):
    """Passes on what is shown, and remembers when the first of it was: seconds after the attempt `began`."""

    _inner: Callable[..., Awaitable[None]]
    _clock: Clock
    began: float = 0.0
    guarded: _GuardedCall | None = None
    first_after: float | None = None

    def show(self, shown: object) -> Awaitable[None]:
        """Pass it on."""
        if self.first_after is None:
            self.first_after = elapsed(self._clock, self.began)
            if self.guarded is not None:
                self.guarded.guard.answers()
        return self._inner(shown)


async def _nobody(_: object) -> None:
    """Nothing of a whole answer is shown before it is whole."""
