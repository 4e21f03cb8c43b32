"""The keys of one request at upstreams that have several: at each upstream one, for as long as it works."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from copy import copy
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from proxy.keys.attempts import KeyAffinity, KeyAttempts, KeysSpent
from proxy.keys.cooldowns import KeyRefusal
from proxy.ports import Clock
from proxy.upstreams.failures import KeyRefused
from proxy.upstreams.openai_compat import OpenAICompatible
from proxy.wire.relayed import RawRequest, RawResponse

T = TypeVar("T")


class RequestKeys(Struct, eq=False):
    """The keys of one request.

    Attributes:
        conversation: the name of its conversation, hashed; None: it belongs to none.
        clock: times what refusals say.
    """

    conversation: bytes | None
    clock: Clock
    _affinities: dict[str, KeyAffinity] = {}

    async def call(
        self,
        candidate: OpenAICompatible,
        work: Callable[[OpenAICompatible], Awaitable[T]],
        tried: dict[tuple[str, str], KeyAttempts],
        may_go_on: Callable[[], bool],
    ) -> T:
        """The result of `work` with the first key that is not refused.

        Args:
            candidate: the model.
            work: makes the call, as in `KeyAttempts.run`.
            tried: the earlier attempts of the call, by upstream and model.
            may_go_on: whether another key may be tried.

        Raises:
            KeyRefused: each key rests, or was refused in one of these attempts.
            ProxyError: anything else that `work` raises.
        """
        model = candidate.name, candidate.model
        if (attempts := tried.get(model)) is None:
            attempts = tried[model] = self._attempts(candidate)
        try:
            return await attempts.run(
                lambda key: work(candidate.with_key(key)), lambda exc: self._refusal_in(exc, candidate), may_go_on
            )
        except KeysSpent as spent:
            raise _error_for(spent) from None

    @asynccontextmanager
    async def open(self, candidate: OpenAICompatible, request: RawRequest) -> AsyncIterator[RawResponse]:
        """Relay any other request, with the first key that is not refused. Raises as `call` does."""
        attempts = self._attempts(candidate)
        async with AsyncExitStack() as opened:
            try:
                yield await attempts.run(
                    lambda key: opened.enter_async_context(candidate.with_key(key).open(request)),
                    lambda exc: self._refusal_in(exc, candidate),
                )
            except KeysSpent as spent:
                raise _error_for(spent) from None

    def _attempts(self, candidate: OpenAICompatible) -> KeyAttempts:
        assert candidate.keys is not None  # noqa: S101 - callers have looked
        affinity = self._affinities.setdefault(candidate.name, KeyAffinity(self.conversation))
        return KeyAttempts(candidate.keys, affinity, candidate.model, never_gives_up=True)

    def _refusal_in(self, exc: Exception, candidate: OpenAICompatible) -> KeyRefusal | None:
        """The refusal of the key in a failure; None: the failure has another cause."""
        if not isinstance(exc, KeyRefused):
            return None
        return replace(exc.as_refusal(self.clock.time()), why=candidate.why_refused(exc), is_certain=exc.is_certain)


def _error_for(spent: KeysSpent) -> KeyRefused:
    """The error for a call that gets no further key: the last refusal, which it stays."""
    error = copy(spent.refusal)
    assert isinstance(error, KeyRefused)  # noqa: S101 - nothing else is a refusal of a key
    error.rest_for(spent.seconds)
    return error
