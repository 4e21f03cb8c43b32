"""The retries, fallbacks and circuit breakers of one request.

Once the client has seen any part of an answer, there is no further attempt, which would repeat the beginning. The whole
request has one budget of retries, however many turns it takes, so that the loop does not overload a struggling
upstream. An upstream that fails for all clients is not called for a while: see `breaker`. A failure that the request
may have caused (5xx, invalid answers, silence) counts once per request and upstream, against the share of the client; a
failure to connect counts each time.
"""

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from proxy.keys.attempts import KeyAttempts
from proxy.kit.breaker import Backoff, Breaker, BreakerState
from proxy.kit.timeouts import elapsed
from proxy.loop.actions import CallUpstream
from proxy.ports import Clock, EarlyCalls, Observer, Show, UpstreamTraits
from proxy.recording.recording import CURRENT, DOWN
from proxy.upstreams.failures import advise, is_transient, may_work_elsewhere, retry_after
from proxy.upstreams.openai_compat import OpenAICompatible
from proxy.upstreams.request_keys import RequestKeys
from proxy.upstreams.sight import UnseenPictures
from proxy.wire import rawjson
from proxy.wire.cache_marks import without_marks
from proxy.wire.chat import Json, Turn
from proxy.wire.errors import ProxyError, RequestError, UpstreamDown, UpstreamError, UpstreamRefused, fault_of
from proxy.wire.relayed import CountUsage, RawRequest, RawResponse, RelayClient

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SharedUpstreamState:
    """The state that the requests of a process share.

    Attributes:
        guards: the upstream's name -> its breaker.
        clock: measures time and waits.
        observe: takes an event for each attempt, each relay, and each opening and closing of a breaker.
        backoff: the waits before retries.
        observes_relays: whether successful relays emit events as well.
    """

    guards: Mapping[str, "BreakerGuard"]
    clock: Clock
    observe: Observer
    backoff: Backoff
    observes_relays: bool = True


class Resilient:
    """The upstream of one request, with the state of that request. Implements `ports.Upstream`.

    Args:
        candidates: the requested model, followed by its fallbacks in order.
        shared: the state that all requests share.
        retries: the request's budget of retries.
        client: the client whose request it is.
        conversation: the name of the conversation that it belongs to, hashed, which keeps it at one key; None: none.

    Attributes:
        current: the current candidate; later turns of the request stay with it.
        name: the upstream's name.
        model: the upstream's name for the model.
        traits: the traits of the upstream.
    """

    def __init__(
        self,
        candidates: Sequence[OpenAICompatible],
        shared: SharedUpstreamState,
        *,
        retries: int,
        client: str = "",
        conversation: bytes | None = None,
    ) -> None:
        first, *self._fallbacks = candidates
        self._has_marks = first.profile.cache_marks
        self._switch_to(first)
        self._shared = shared
        self._retries = retries
        self._retried = 0
        self._client = client
        self._conversation = conversation
        self._keys: RequestKeys | None = None
        self._blamed: set[str] = set()  # the upstreams whose breakers this request has counted against
        self._unseen = UnseenPictures()

    def _switch_to(self, candidate: OpenAICompatible) -> None:
        self.current, self.name, self.model = candidate, candidate.name, candidate.model
        self.traits: UpstreamTraits = candidate.profile

    def complete(self, call: CallUpstream, show: Show | None, early: EarlyCalls) -> Awaitable[Turn]:
        """Make one upstream call of a run."""
        attempt = Attempt(
            show or _show_nothing, self._shared.clock, early, body=call.body, pictured=call.body["messages"]
        )
        # Of a whole answer the client sees nothing before the end of the run.
        take = attempt.show if call.body.get("stream") else show
        return self._try(partial(self._complete, call, take, early), attempt)

    def _complete(
        self, call: CallUpstream, take: Show | None, early: EarlyCalls, candidate: OpenAICompatible
    ) -> Awaitable[Turn]:
        """Make the call to a candidate, without the pictures and the marks of caches that it does not take."""
        body = self._unseen.replaced_for(candidate.sight, call.body, self._shared.clock.monotonic())
        if self._has_marks and not candidate.profile.cache_marks:
            body = {**body, "messages": without_marks(body["messages"])}
        call = call if body is call.body else replace(call, body=body)
        return candidate.complete(call, take, early)

    def _seen(self, candidate: OpenAICompatible, body: bytes, request: Json) -> tuple[bytes, Json]:
        """A relayed request for a candidate, without pictures that it does not see."""
        seen = self._unseen.replaced_for(candidate.sight, request, self._shared.clock.monotonic())
        return (body, request) if seen is request else (rawjson.dumps(seen), seen)

    async def relay(self, body: bytes, request: Json, count: CountUsage) -> bytes:
        """Relay a whole completion."""
        attempt = Attempt(_show_nothing, self._shared.clock, pictured=request.get("messages") or ())
        with RelayEvents(self, self._shared, content={"messages": request.get("messages")}):
            return await self._try(lambda one: one.relay(*self._seen(one, body, request), count), attempt)

    async def relay_stream(self, body: bytes, request: Json, client: RelayClient) -> None:
        """Relay a streamed completion."""
        attempt = Attempt(client.write, self._shared.clock, pictured=request.get("messages") or ())
        client = replace(client, write=attempt.show)
        with RelayEvents(self, self._shared, content={"messages": request.get("messages")}):
            await self._try(lambda one: one.relay_stream(*self._seen(one, body, request), client), attempt)

    @asynccontextmanager
    async def open(self, request: RawRequest) -> AsyncIterator[RawResponse]:
        """Relay any other request, without retries, because it may not be safe to repeat.

        A refusal of the key repeats nothing: the upstream has not done it.
        """
        guard, current = self._shared.guards[self.name], self.current
        if not guard.breaker.allows(now := self._shared.clock.monotonic()):
            raise guard.refusal(now)
        opening = current.open(request) if current.keys is None else self._own_keys.open(current, request)
        with RelayEvents(self, self._shared, path=request.path.partition("?")[0]):
            try:
                async with opening as response:
                    yield response
            except ProxyError as exc:
                current.redact(exc)
                advise(exc, self._shared.clock.time())
                self._count_failure(guard, exc, has_fallback=False)
                raise
        guard.succeeded()

    @property
    def _own_keys(self) -> RequestKeys:
        """The keys of the request, which most requests do without."""
        if self._keys is None:
            self._keys = RequestKeys(self._conversation, self._shared.clock)
        return self._keys

    def with_cost(self, usage: Json) -> Json:
        """A usage of the current upstream, with its cost."""
        return self.current.with_cost(usage)

    async def _try(self, work: Callable[[OpenAICompatible], Awaitable[T]], attempt: "Attempt") -> T:
        """The result of `work` with the first candidate for which it succeeds."""
        clock, observe = self._shared.clock, self._shared.observe
        failure: ProxyError | None = None
        try:
            while True:
                candidate, has_fallback = self.current, bool(self._fallbacks)
                guard = attempt.guard = self._shared.guards[candidate.name]
                began = attempt.began = clock.monotonic()
                try:
                    if not guard.breaker.allows(began, has_fallback=has_fallback):
                        raise guard.refusal(began)
                    if candidate.keys is None:
                        result = await work(candidate)
                    else:
                        result = await self._with_key(candidate, work, attempt)
                except RequestError as exc:
                    if failure is None:
                        raise
                    # The first failure matters more than a feature that the fallback does not have.
                    raise failure from exc
                except ProxyError as exc:
                    candidate.redact(exc)
                    failure = exc
                    self._count_failure(guard, exc, has_fallback=has_fallback)
                    if attempt.was_shown:  # another attempt would repeat it
                        exc.was_shown = True
                        raise
                    # Another choice of this request may have failed likewise, and switched already.
                    if candidate is self.current and not await self._recover(exc, attempt):
                        advise(exc, clock.time())
                        raise
                else:
                    guard.succeeded()
                    self._unseen.learn(candidate.sight, clock.monotonic())
                    seconds, first = elapsed(began, clock.monotonic()), attempt.first_after
                    observe("upstream.answered", upstream=candidate.name, seconds=seconds, first=first)
                    return result
        finally:
            failure = None  # its traceback refers to this frame, which refers to the failure

    async def _with_key(
        self, candidate: OpenAICompatible, work: Callable[[OpenAICompatible], Awaitable[T]], attempt: "Attempt"
    ) -> T:
        """The result of `work` with the first key that the candidate's upstream does not refuse."""
        keys = self._own_keys
        if attempt.key_attempts is None or attempt.candidate is not candidate:
            attempt.candidate, attempt.key_attempts = candidate, keys.attempts(candidate)
        return await keys.call(attempt.key_attempts, candidate, work, lambda: not attempt.was_shown)

    async def _recover(self, failure: ProxyError, attempt: "Attempt") -> bool:
        """Wait before another attempt, or switch to the next candidate; False: neither can help."""
        shared = self._shared
        seconds = elapsed(attempt.began, shared.clock.monotonic())
        fields = {"upstream": self.name, **fault_of(failure), "seconds": seconds}
        current = self.current
        if await current.placement.learn(failure, attempt.body) or self._unseen.refuses(
            current.sight, failure, attempt.pictured
        ):
            shared.observe("upstream.retried", **fields, wait=0)
            return True
        least = retry_after(failure, shared.clock.time())
        # A client can wait longer than the proxy does; its error has Retry-After.
        if least <= shared.backoff.longest and self._retried < self._retries and is_transient(failure):
            wait = max(least, shared.backoff.wait(self._retried))
            self._retried += 1
            shared.observe("upstream.retried", **fields, wait=round(wait, 3))
            await shared.clock.sleep(wait)
            return True
        if self._fallbacks and may_work_elsewhere(failure, uses_client_key=self.current.uses_client_key):
            self._switch_to(self._fallbacks.pop(0))
            shared.observe("upstream.fell_back", **fields, to=self.name, upstream_model=self.model)
            return True
        return False

    def _count_failure(self, guard: "BreakerGuard", failure: ProxyError, *, has_fallback: bool) -> None:
        """Count a failure for the breaker.

        Refusals do not count, because they show that the upstream works; nor do calls that the breaker stopped.
        """
        if not isinstance(failure, UpstreamError) or isinstance(failure, (UpstreamRefused, UpstreamDown)):
            return
        if failure.unreachable or guard.name not in self._blamed:
            self._blamed.add(guard.name)
            guard.failed(failure, client=self._client, has_fallback=has_fallback)


class BreakerGuard:
    """The breaker of one upstream, with events when it opens and closes."""

    def __init__(self, name: str, breaker: Breaker, *, observe: Observer, clock: Clock) -> None:
        self.name = name
        self.breaker = breaker
        self._observe = observe
        self._clock = clock

    def refusal(self, now: float) -> UpstreamDown:
        """The error for a call that the breaker does not allow."""
        seconds = math.ceil(self.breaker.wait(now)) or 1
        if (recording := CURRENT.get()) is not None:
            recording.refused(self.name, DOWN, seconds)
        return UpstreamDown(self.name, retry_after=seconds)

    def succeeded(self) -> None:
        """Count a call that was answered."""
        if self.breaker.succeeded():
            self._observe("upstream.breaker_closed", upstream=self.name)

    def failed(self, failure: UpstreamError, *, client: str, has_fallback: bool) -> None:
        """Count a call that failed; `client` is the client whose request it was."""
        blamed = None if failure.unreachable else client
        if self.breaker.failed(self._clock.monotonic(), client=blamed, has_fallback=has_fallback):
            seconds = self.breaker.seconds
            self._observe("upstream.breaker_opened", upstream=self.name, code=failure.code, seconds=seconds)


class Attempt(Struct, eq=False):
    """The current attempt at one call: passes the answer on to the client, and records when it begins to be shown.

    Attributes:
        began: when the attempt began.
        guard: the breaker of the upstream that is tried.
        body: the body of the call, if it is one of a run.
        pictured: the messages of the call, whose pictures its model may refuse.
        key_attempts: the keys of `candidate` that were tried; retries use no key again that was refused.
        first_after: seconds from the beginning of the attempt until the client was shown anything; None: nothing was.
    """

    _show: Callable[..., Awaitable[None]]
    _clock: Clock
    _early: EarlyCalls | None = None
    body: Json = {}
    pictured: Sequence[Json] = ()
    began: float = 0.0
    guard: BreakerGuard | None = None
    candidate: OpenAICompatible | None = None
    key_attempts: KeyAttempts | None = None
    first_after: float | None = None

    @property
    def was_shown(self) -> bool:
        """Whether the client was shown anything, if only a call that was started early."""
        return self.first_after is not None or (self._early is not None and self._early.were_shown)

    def show(self, shown: object) -> Awaitable[None]:
        """Pass a chunk on to the client, and record when the first one arrived."""
        if self.first_after is None:
            self.first_after = elapsed(self.began, self._clock.monotonic())
            # A probe that is being answered lets other calls in before its end.
            if self.guard is not None and self.guard.breaker.state is BreakerState.HALF_OPEN:
                self.guard.succeeded()
        return self._show(shown)


async def _show_nothing(_: object) -> None:
    """Show nothing: a whole answer has no chunks for the client."""


class RelayEvents:
    """A context manager that emits the events of a relayed request, or only failures if relays are not observed."""

    def __init__(
        self,
        upstream: Resilient,
        shared: SharedUpstreamState,
        *,
        path: str | None = None,
        content: Mapping[str, Any] | None = None,
    ) -> None:
        self._upstream = upstream
        self._shared = shared
        self._path = path
        self._content = content

    def __enter__(self) -> None:
        shared, name, model = self._shared, self._upstream.name, self._upstream.model
        self._began = shared.clock.monotonic()
        if shared.observes_relays:
            shared.observe("relay.started", upstream=name, upstream_model=model, path=self._path, content=self._content)

    def __exit__(self, _kind: object, exc: BaseException | None, _traceback: object) -> None:
        shared, name, model = self._shared, self._upstream.name, self._upstream.model
        seconds = elapsed(self._began, shared.clock.monotonic())
        match exc:
            case None:
                if shared.observes_relays:
                    shared.observe("relay.completed", upstream=name, upstream_model=model, seconds=seconds)
            case Exception():
                fault = fault_of(exc if isinstance(exc, ProxyError) else ProxyError(""))
                shared.observe("relay.failed", upstream=name, upstream_model=model, seconds=seconds, **fault)
            case _:
                shared.observe("relay.abandoned", upstream=name, upstream_model=model, seconds=seconds)
