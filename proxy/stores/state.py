"""Everything that outlives a request, opened from one URL: in this process, or in a Redis that many processes share."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from proxy.config import StateConfig
from proxy.ports import Caches, Clock, ContinuationStore, Leases, Observer, Rates, Readiness
from proxy.stores.leases import LocalLeases
from proxy.stores.memory import MemoryStore
from proxy.stores.rates import LocalRates


@dataclass(frozen=True, slots=True)
class State:
    """The stores of one process.

    Attributes:
        rates: counts requests per minute.
        readiness: whether what is shared can be reached, for `/readyz`.
        running: what has to go on while the process serves.
    """

    continuations: ContinuationStore
    rates: Rates
    leases: Leases
    caches: Caches
    readiness: Callable[[], Readiness]
    running: Callable[[], AbstractAsyncContextManager[None]]


def open_state(config: StateConfig, *, clock: Clock, observe: Observer, caches: Caches, memory: int) -> State:
    """The state that `state.url` names.

    Args:
        config: where it is and how much of it there may be.
        clock: tells how old an entry is.
        observe: told how much is kept.
        caches: those of this process.
        memory: bytes that this process may use for it.
    """
    local = local_state(config, clock=clock, observe=observe, caches=caches, memory=memory)
    if config.url.startswith("memory:"):
        return local
    from proxy.stores.redis.state import shared_state  # noqa: PLC0415 - needs the extra `redis`

    return shared_state(config, clock=clock, observe=observe, local=local)


def local_state(config: StateConfig, *, clock: Clock, observe: Observer, caches: Caches, memory: int) -> State:
    """`state: memory://`, and what stands in for Redis while that is away."""
    return State(
        continuations=MemoryStore(config, clock=clock, max_bytes=min(config.max_bytes, memory), observe=observe),
        rates=LocalRates(clock),
        leases=LocalLeases(),
        caches=caches,
        readiness=lambda: Readiness("memory", usable=True),
        running=_nothing,
    )


@asynccontextmanager
async def _nothing() -> AsyncIterator[None]:
    yield
