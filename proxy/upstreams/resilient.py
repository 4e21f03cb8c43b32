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
from proxy.upstreams.openai_compat import OpenAICompatible, show_nothing
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
        breakers: the upstream's name -> its breaker.
        clock: measures time and waits.
        observe: takes an event for each attempt, each relay, and each opening and closing of a breaker.
        backoff: the waits before retries.
        observes_relays: whether successful relays emit events as well.
    """

    breakers: Mapping[str, Breaker]
    clock: Clock
    observe: Observer
    backoff: Backoff
    observes_relays: bool = True

    def refusal(self, upstream: str, now: float) -> UpstreamDown:
        """The error for a call that the breaker does not allow."""
        seconds = math.ceil(self.breakers[upstream].wait(now)) or 1
        if (recording := CURRENT.get()) is not None:
            recording.refused(upstream, DOWN, seconds)
        return UpstreamDown(upstream, retry_after=seconds)

    def succeeded(self, upstream: str) -> None:
        """Count a call that was answered."""
        if self.breakers[upstream].succeeded():
            self.observe("upstream.breaker_closed", upstream=upstream)

    def failed(self, upstream: str, failure: UpstreamError, *, client: str, has_fallback: bool) -> None:
        """Count a call that failed; `client` is the client whose request it was."""
        breaker, blamed = self.breakers[upstream], None if failure.unreachable else client
        if breaker.failed(self.clock.monotonic(), client=blamed, has_fallback=has_fallback):
            seconds = breaker.seconds
            self.observe("upstream.breaker_opened", upstream=upstream, code=failure.code, seconds=seconds)


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
        self._keys = RequestKeys(conversation, shared.clock)
        self._blamed: set[str] = set()  # the upstreams whose breakers this request has counted against
        self._unseen = UnseenPictures()

    def _switch_to(self, candidate: OpenAICompatible) -> None:
        self.current, self.name, self.model = candidate, candidate.name, candidate.model
        self.traits: UpstreamTraits = candidate.profile

    def complete(self, call: CallUpstream, show: Show | None, early: EarlyCalls) -> Awaitable[Turn]:
        """Make one upstream call of a run."""
        attempt = Attempt(show or show_nothing, self._shared, call.body, early)
        # Of a whole answer the client sees nothing before the end of the run.
        take = attempt.show if call.body.get("stream") else show
        return self._try(
            lambda one: one.complete(replace(call, body=self._fitted(one, call.body)), take, early), attempt
        )

    def _fitted(self, candidate: OpenAICompatible, request: Json) -> Json:
        """A request without the pictures and the marks of caches that a candidate does not take."""
        if candidate.sight.blind_until or self._unseen.refused:
            request = self._unseen.replaced_for(candidate.sight, request, self._shared.clock.monotonic())
        if self._has_marks and not candidate.profile.cache_marks:
            request = {**request, "messages": without_marks(request["messages"])}
        return request

    def _relayed(self, candidate: OpenAICompatible, body: bytes, request: Json) -> tuple[bytes, Json]:
        """A relayed request as a candidate takes it."""
        fitted = self._fitted(candidate, request)
        return (body, request) if fitted is request else (rawjson.dumps(fitted), fitted)

    async def relay(self, body: bytes, request: Json, count: CountUsage) -> bytes:
        """Relay a whole completion."""
        attempt = Attempt(show_nothing, self._shared, request)
        with RelayEvents(self, self._shared, content={"messages": request.get("messages")}):
            return await self._try(lambda one: one.relay(*self._relayed(one, body, request), count), attempt)

    async def relay_stream(self, body: bytes, request: Json, client: RelayClient) -> None:
        """Relay a streamed completion."""
        attempt = Attempt(client.write, self._shared, request)
        client = replace(client, write=attempt.show)
        with RelayEvents(self, self._shared, content={"messages": request.get("messages")}):
            await self._try(lambda one: one.relay_stream(*self._relayed(one, body, request), client), attempt)

    @asynccontextmanager
    async def open(self, request: RawRequest) -> AsyncIterator[RawResponse]:
        """Relay any other request, without retries, because it may not be safe to repeat.

        A refusal of the key repeats nothing: the upstream has not done it.
        """
        shared, current = self._shared, self.current
        if not shared.breakers[current.name].allows(now := shared.clock.monotonic()):
            raise shared.refusal(current.name, now)
        opening = current.open(request) if current.keys is None else self._keys.open(current, request)
        with RelayEvents(self, shared, path=request.path.partition("?")[0]):
            try:
                async with opening as response:
                    yield response
            except ProxyError as exc:
                current.redact(exc)
                advise(exc, shared.clock.time())
                self._count_failure(current.name, exc, has_fallback=False)
                raise
        shared.succeeded(current.name)

    def with_cost(self, usage: Json) -> Json:
        """A usage of the current upstream, with its cost."""
        return self.current.with_cost(usage)

    async def _try(self, work: Callable[[OpenAICompatible], Awaitable[T]], attempt: "Attempt") -> T:
        """The result of `work` with the first candidate for which it succeeds."""
        shared, clock = self._shared, self._shared.clock
        failure: ProxyError | None = None
        try:
            while True:
                candidate, has_fallback = self.current, bool(self._fallbacks)
                name = attempt.upstream = candidate.name
                began = attempt.began = clock.monotonic()
                try:
                    if not shared.breakers[name].allows(began, has_fallback=has_fallback):
                        raise shared.refusal(name, began)
                    if candidate.keys is None:
                        result = await work(candidate)
                    else:
                        result = await self._keys.call(candidate, work, attempt.keys, lambda: not attempt.was_shown)
                except RequestError as exc:
                    if failure is None:
                        raise
                    # The first failure matters more than a feature that the fallback does not have.
                    raise failure from exc
                except ProxyError as exc:
                    candidate.redact(exc)
                    failure = exc
                    self._count_failure(name, exc, has_fallback=has_fallback)
                    if not await self._may_go_on(exc, candidate, attempt):
                        raise
                else:
                    shared.succeeded(name)
                    if self._unseen.refused:
                        self._unseen.learn(candidate.sight, clock.monotonic())
                    seconds, first = elapsed(began, clock.monotonic()), attempt.first_after
                    shared.observe("upstream.answered", upstream=name, seconds=seconds, first=first)
                    return result
        finally:
            failure = None  # its traceback refers to this frame, which refers to the failure

    async def _may_go_on(self, failure: ProxyError, candidate: OpenAICompatible, attempt: "Attempt") -> bool:
        """Whether another attempt may succeed; if it has to wait, the wait is over."""
        if attempt.was_shown:  # another attempt would repeat it
            failure.was_shown = True
            return False
        # Another choice of this request may have failed likewise, and switched already.
        if candidate is not self.current or await self._recover(failure, attempt):
            return True
        advise(failure, self._shared.clock.time())
        return False

    async def _recover(self, failure: ProxyError, attempt: "Attempt") -> bool:
        """Wait before another attempt, or switch to the next candidate; False: neither can help."""
        shared = self._shared
        seconds = elapsed(attempt.began, shared.clock.monotonic())
        fields = {"upstream": self.name, **fault_of(failure), "seconds": seconds}
        current = self.current
        takes_system_elsewhere = attempt.early is not None and await current.placement.learn(failure, attempt.request)
        if takes_system_elsewhere or self._unseen.refuses(
            current.sight, failure, attempt.request.get("messages") or ()
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

    def _count_failure(self, upstream: str, failure: ProxyError, *, has_fallback: bool) -> None:
        """Count a failure for the breaker.

        Refusals do not count, because they show that the upstream works; nor do calls that the breaker stopped.
        """
        if not isinstance(failure, UpstreamError) or isinstance(failure, (UpstreamRefused, UpstreamDown)):
            return
        if failure.unreachable or upstream not in self._blamed:
            self._blamed.add(upstream)
            self._shared.failed(upstream, failure, client=self._client, has_fallback=has_fallback)


class RelayEvents(Struct, eq=False):
    """A context manager that emits the events of a relayed request, or only failures if relays are not observed."""

    upstream: Resilient
    shared: SharedUpstreamState
    path: str | None = None
    content: Mapping[str, Any] | None = None
    _began: float = 0.0

    def __enter__(self) -> None:
        self._began = self.shared.clock.monotonic()
        if self.shared.observes_relays:
            name, model = self.upstream.name, self.upstream.model
            self.shared.observe(
                "relay.started", upstream=name, upstream_model=model, path=self.path, content=self.content
            )

    def __exit__(self, _kind: object, exc: BaseException | None, _traceback: object) -> None:
        event, fault = "relay.completed", {}
        if isinstance(exc, Exception):
            event, fault = "relay.failed", fault_of(exc if isinstance(exc, ProxyError) else ProxyError(""))
        elif exc is not None:
            event = "relay.abandoned"
        elif not self.shared.observes_relays:
            return
        name, model = self.upstream.name, self.upstream.model  # of a fallback, if one has answered
        seconds = elapsed(self._began, self.shared.clock.monotonic())
        self.shared.observe(event, upstream=name, upstream_model=model, seconds=seconds, **fault)


class Attempt(Struct, eq=False):
    """The current attempt at one call: passes the answer on to the client, and records when it begins to be shown.

    Attributes:
        request: the call's body, or the relayed request.
        early: the calls of server tools in the turn; None: the request is relayed.
        upstream: the name of the upstream that is tried.
        began: when the attempt began.
        keys: the keys that were tried; retries use no key again that was refused.
        first_after: seconds from the beginning of the attempt until the client was shown anything; None: nothing was.
    """

    _show: Callable[..., Awaitable[None]]
    _shared: SharedUpstreamState
    request: Json
    early: EarlyCalls | None = None
    upstream: str = ""
    began: float = 0.0
    keys: dict[tuple[str, str], KeyAttempts] = {}
    first_after: float | None = None

    @property
    def was_shown(self) -> bool:
        """Whether the client was shown anything, if only a call that was started early."""
        return self.first_after is not None or (self.early is not None and self.early.were_shown)

    def show(self, shown: object) -> Awaitable[None]:
        """Pass a chunk on to the client, and record when the first one arrived."""
        if self.first_after is None:
            self.first_after = elapsed(self.began, self._shared.clock.monotonic())
            # A probe that is being answered lets other calls in before its end.
            if self._shared.breakers[self.upstream].state is BreakerState.HALF_OPEN:
                self._shared.succeeded(self.upstream)
        return self._show(shown)
