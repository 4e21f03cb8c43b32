"""The keys of one request at upstreams that have several: at each upstream one, for as long as it works."""

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from copy import copy
from typing import TypeVar

from msgspec.structs import replace

from proxy.http.key_pool import PoolKey
from proxy.http.key_turn import KeyAffinity, KeysBusy, KeysSpent, KeyTurn
from proxy.kit.recording import BUSY, CURRENT, SPENT
from proxy.kit.rests import Refusal
from proxy.ports import Clock
from proxy.upstreams.failures import KeyRefused
from proxy.upstreams.openai_compat import OpenAICompatible
from proxy.wire.errors import Overloaded, ProxyError
from proxy.wire.relayed import RawRequest, RawResponse

T = TypeVar("T")


class RequestKeys:
    """The keys of one request.

    Args:
        conversation: the name of its conversation, hashed; None: it belongs to none.
        clock: times what refusals say.
    """

    def __init__(self, conversation: bytes | None, clock: Clock) -> None:
        self._conversation = conversation
        self._clock = clock
        self._affinities: dict[str, KeyAffinity] = {}

    def turn(self, candidate: OpenAICompatible) -> KeyTurn:
        """The turn of one upstream call, with its retries, at the keys of a model's upstream."""
        assert candidate.keys is not None  # noqa: S101 - callers have looked
        if (affinity := self._affinities.get(candidate.name)) is None:
            affinity = self._affinities[candidate.name] = KeyAffinity(self._conversation)
        return KeyTurn(candidate.keys, affinity, candidate.model, candidate.endpoint.client.pool_seconds)

    async def call(
        self,
        turn: KeyTurn,
        candidate: OpenAICompatible,
        work: Callable[[OpenAICompatible], Awaitable[T]],
        may_go_on: Callable[[], bool],
    ) -> T:
        """The result of `work` with the first key that is not refused.

        Args:
            turn: the turn at the keys.
            candidate: the model.
            work: makes the call. It is repeated only after a refusal of the key, and while `may_go_on`.
            may_go_on: whether another key may be tried.

        Raises:
            Overloaded: no key was free in time.
            UpstreamRefused: each key rests, or was refused in this turn.
            ProxyError: anything else that `work` raises.
        """
        try:
            return await turn.run(
                lambda key: work(candidate.with_key(key)), lambda exc: self._refusal_in(exc, candidate), may_go_on
            )
        except (KeysBusy, KeysSpent) as exc:
            raise _error_for(exc, candidate.name) from None

    async def call_again(
        self,
        turn: KeyTurn,
        candidate: OpenAICompatible,
        work: Callable[[OpenAICompatible], Awaitable[T]],
        may_go_on: Callable[[], bool],
        refused: tuple[PoolKey, float, KeyRefused],
    ) -> T:
        """As `call`, after a call with a key that was had `at_once`: the key, when it began, and the refusal."""
        key, began, exc = refused
        turn.go_on_from(key, began)
        refusal = self._refusal_in(exc, candidate)
        if refusal is None or not turn.refused(refusal, exc) or not may_go_on():
            raise exc
        return await self.call(turn, candidate, work, may_go_on)

    @asynccontextmanager
    async def open(self, candidate: OpenAICompatible, request: RawRequest) -> AsyncIterator[RawResponse]:
        """Relay any other request, with the first key that is not refused. Raises as `call` does."""
        turn = self.turn(candidate)
        async with AsyncExitStack() as opened:
            opened.push_async_callback(turn.release)
            try:
                yield await turn.begin(
                    lambda key: opened.enter_async_context(candidate.with_key(key).open(request)),
                    lambda exc: self._refusal_in(exc, candidate),
                )
            except (KeysBusy, KeysSpent) as exc:
                raise _error_for(exc, candidate.name) from None

    def _refusal_in(self, exc: Exception, candidate: OpenAICompatible) -> Refusal | None:
        """The refusal of the key in a failure; None: the failure has another cause."""
        if not isinstance(exc, KeyRefused):
            return None
        return replace(exc.as_refusal(self._clock.time()), why=candidate.why_refused(exc))


def _error_for(exc: KeysBusy | KeysSpent, upstream: str) -> ProxyError:
    """The error for a call that gets no key."""
    recording = CURRENT.get()
    # Once the request itself has called the upstream, what it has met there leads to the same error again.
    records = recording is not None and not recording.knows(upstream)
    if isinstance(exc, KeysBusy):
        if recording is not None and records:
            recording.refused(upstream, BUSY)
        return keys_busy(upstream)
    # It was raised before, in this request or another one, whose error it stays.
    error = copy(exc.refusal)
    assert isinstance(error, KeyRefused)  # noqa: S101 - nothing else is a refusal of a key
    if recording is not None and records:
        recording.refused(upstream, SPENT, math.ceil(exc.seconds), error.fields)
    error.rest_for(exc.seconds)
    return error


def keys_busy(upstream: str) -> Overloaded:
    """The error for a call for which no key was free in time."""
    return Overloaded(f"All keys of the upstream {upstream!r} are in use.")
