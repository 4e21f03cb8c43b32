"""All data that outlives a request, opened by one URL: in this process, in a file of this machine, or in Redis."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from proxy.config.model import StateConfig
from proxy.kit.readiness import Readiness
from proxy.kit.secrets import Secrets
from proxy.ports import Budgets, Caches, ClientStore, Clock, Leases, Observer, Rates, Results
from proxy.stores.budgets import LocalBudgets
from proxy.stores.memory import LocalLeases, LocalRates, MemoryStore
from proxy.stores.shared import SharedBackend
from proxy.stores.shared.state import SharedState


@dataclass(frozen=True, slots=True)
class State:
    """The stores of one process.

    Attributes:
        rates: counts requests per minute.
        leases: counts open requests.
        budgets: counts what clients use, by day and month.
        secrets: the secrets of the configuration, and the one that a shared store keeps.
        readiness: whether a shared store can be reached, for `/readyz`.
        running: runs the background tasks of the stores while the process serves.
    """

    continuations: ClientStore
    rates: Rates
    leases: Leases
    budgets: Budgets
    caches: Caches
    secrets: Callable[[], Secrets]
    readiness: Callable[[], Readiness]
    running: Callable[[], AbstractAsyncContextManager[None]]


def open_state(config: StateConfig, *, clock: Clock, observe: Observer, caches: Caches, memory: int) -> State:
    """The state that `state.url` names.

    Args:
        config: the URL and the bounds.
        clock: times expiry and renewals.
        observe: takes the events of the stores.
        caches: make the caches of tools in this process.
        memory: the bytes of memory that the state of this process may take.

    Raises:
        ConfigurationError: the state was written by a later version of the proxy.
    """
    given = Secrets(config.secrets, clock.time())
    local = State(
        continuations=MemoryStore(config, clock=clock, max_bytes=min(config.max_bytes, memory), observe=observe),
        rates=LocalRates(clock),
        leases=LocalLeases(),
        budgets=LocalBudgets(),
        caches=caches,
        secrets=lambda: given,
        readiness=lambda: Readiness("memory", usable=True),
        running=nullcontext,
    )
    return _shared_state(config, local, clock=clock, observe=observe) if config.is_shared else local


def _shared_state(config: StateConfig, local: State, *, clock: Clock, observe: Observer) -> State:
    """A shared state; `local` is used while it is unavailable."""
    backend, shared = _backend(config), connect(config, clock=clock, observe=observe)
    leases, budgets = backend.leases(shared), backend.budgets(shared, local=local.budgets)

    def cache(tool: str, seconds: float) -> Results:
        return backend.results(shared, tool=tool, seconds=seconds, local=local.caches(tool, seconds))

    works: list[Callable[[], Coroutine[Any, Any, None]]] = [leases.keep, budgets.keep]
    works += [partial(work, shared) for work in backend.works]
    return State(
        continuations=backend.continuations(shared, config, local=local.continuations),
        rates=backend.rates(shared, local=local.rates),
        leases=leases,
        budgets=budgets,
        caches=cache,
        secrets=partial(shared.secrets, config.secrets),
        readiness=shared.readiness,
        running=partial(_running, shared, *works),
    )


def connect(config: StateConfig, *, clock: Clock, observe: Observer) -> SharedState:
    """The connection of this process to its shared state. Raises `ConfigurationError`, as `open_state` does."""
    shared: SharedState = _backend(config).connect(config.url, clock=clock, observe=observe)
    return shared


def _backend(config: StateConfig) -> SharedBackend[Any]:
    """The backend of a shared state. It is imported only here, because it may need a package that is an extra."""
    backend: SharedBackend[Any] = import_module(f"{__name__}.{config.backend}").BACKEND
    return backend


@asynccontextmanager
async def _running(shared: SharedState, *works: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Run the background tasks of a shared state, and close it at the end."""
    await shared.probe()
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work()) for work in (shared.watch, *works)]
            yield
            for task in tasks:
                task.cancel()
    finally:
        await shared.aclose()
