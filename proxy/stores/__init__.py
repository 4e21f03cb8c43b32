"""All data that outlives a request, opened by one URL: in this process, in a file of this machine, or in Redis."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from proxy.config.model import StateConfig
from proxy.kit.readiness import Readiness
from proxy.kit.secrets import Secrets
from proxy.ports import Budgets, Caches, ClientStore, Clock, Leases, Observer, Rates, Results
from proxy.stores.budgets import LocalBudgets
from proxy.stores.memory import LocalLeases, LocalRates, MemoryStore
from proxy.stores.shared import SharedState
from proxy.stores.sqlite import SCHEME, SharedSqlite, check_file, path_of
from proxy.stores.sqlite.expiry import clean_up
from proxy.stores.sqlite.tables import (
    SqliteBudgets,
    SqliteContinuations,
    SqliteLeases,
    SqliteRates,
    SqliteResults,
)


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
        ConfigurationError: the file of `sqlite://` was written by a later version of the proxy.
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
    if config.url.startswith("memory:"):
        return local
    opened = _sqlite_state if config.url.startswith(SCHEME) else _redis_state
    return opened(config, clock=clock, observe=observe, local=local)


def _redis_state(config: StateConfig, *, clock: Clock, observe: Observer, local: State) -> State:
    """`state: redis://`; `local` is used while Redis is unavailable."""
    # Imported here, because redis-py is an extra.
    from proxy.stores.redis import SharedRedis  # noqa: PLC0415
    from proxy.stores.redis.budgets import RedisBudgets  # noqa: PLC0415
    from proxy.stores.redis.continuations import RedisContinuations  # noqa: PLC0415
    from proxy.stores.redis.quota import RedisLeases, RedisRates  # noqa: PLC0415
    from proxy.stores.redis.results import RedisResults  # noqa: PLC0415

    shared = SharedRedis(config.url, clock=clock, observe=observe)
    leases = RedisLeases(shared, clock=clock)
    budgets = RedisBudgets(shared, local=local.budgets)

    def cache(tool: str, seconds: float) -> Results:
        own = local.caches(tool, seconds)
        return RedisResults(shared, tool=tool, seconds=seconds, local=own, clock=clock)

    return State(
        continuations=RedisContinuations(shared, config, local=local.continuations),
        rates=RedisRates(shared, local=local.rates),
        leases=leases,
        budgets=budgets,
        caches=cache,
        secrets=partial(shared.secrets, config.secrets),
        readiness=shared.readiness,
        running=partial(_running, shared, leases.keep, budgets.keep),
    )


def _sqlite_state(config: StateConfig, *, clock: Clock, observe: Observer, local: State) -> State:
    """`state: sqlite://`; `local` is used while the file is unavailable."""
    path = path_of(config.url)
    check_file(path)
    shared = SharedSqlite(path, clock=clock, observe=observe)
    leases = SqliteLeases(shared)
    budgets = SqliteBudgets(shared, local=local.budgets)

    def cache(tool: str, seconds: float) -> Results:
        own = local.caches(tool, seconds)
        return SqliteResults(shared, tool=tool, seconds=seconds, local=own, clock=clock)

    return State(
        continuations=SqliteContinuations(shared, config, local=local.continuations),
        rates=SqliteRates(shared, local=local.rates),
        leases=leases,
        budgets=budgets,
        caches=cache,
        secrets=partial(shared.secrets, config.secrets),
        readiness=shared.readiness,
        running=partial(_running, shared, leases.keep, budgets.keep, partial(clean_up, shared)),
    )


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
