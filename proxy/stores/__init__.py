"""All data that outlives a request, opened by one URL: in this process, in a file of this machine, or in Redis."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from proxy.config.model import StateConfig
from proxy.kit.readiness import Readiness
from proxy.kit.secrets import Secrets
from proxy.ports import Caches, Clock, Observer
from proxy.stores.budgets import LocalBudgets
from proxy.stores.memory import LocalLeases, LocalRates, MemoryStore
from proxy.stores.shared import Backend, Stores
from proxy.stores.shared.state import SharedState


@dataclass(frozen=True, slots=True)
class State:
    """The state of one process.

    Attributes:
        stores: its stores.
        secrets: the secrets of the configuration, and the one that a shared store keeps.
        readiness: whether a shared store can be reached, for `/readyz`.
        running: runs the background tasks of the stores while the process serves.
    """

    stores: Stores
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
    local = Stores(
        continuations=MemoryStore(config, clock=clock, max_bytes=min(config.max_bytes, memory), observe=observe),
        rates=LocalRates(clock),
        leases=LocalLeases(),
        budgets=LocalBudgets(),
        caches=caches,
    )
    if not config.is_shared:
        given = Secrets(config.secrets, clock.time())
        return State(local, lambda: given, lambda: Readiness("memory", usable=True), nullcontext)
    shared = connect(config, clock=clock, observe=observe)
    stores = _backend(config).stores(shared, config, local)
    return State(stores, partial(shared.secrets, config.secrets), shared.readiness, partial(_running, shared, stores))


def connect(config: StateConfig, *, clock: Clock, observe: Observer) -> SharedState:
    """The connection of this process to its shared state. Raises `ConfigurationError`, as `open_state` does."""
    shared: SharedState = _backend(config).connect(config.url, clock=clock, observe=observe)
    return shared


def _backend(config: StateConfig) -> Backend[Any]:
    """The backend of a shared state. It is imported only here, because it may need a package that is an extra."""
    backend: Backend[Any] = import_module(f"{__name__}.{config.backend}").BACKEND
    return backend


@asynccontextmanager
async def _running(shared: SharedState, stores: Stores) -> AsyncIterator[None]:
    """Run the background tasks of a shared state, and close it at the end."""
    await shared.probe()
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work()) for work in (shared.watch, *stores.works)]
            yield
            for task in tasks:
                task.cancel()
    finally:
        await shared.aclose()
