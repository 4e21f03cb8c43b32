"""What every shared state has in common. While it is unavailable, each process uses a state of its own."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from proxy.config.model import StateConfig
from proxy.ports import Budgets, Caches, ClientStore, Leases, Rates
from proxy.stores.shared.state import SharedState

Shared = TypeVar("Shared", bound=SharedState)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """The stores of one process.

    Attributes:
        rates: counts requests per minute.
        leases: counts open requests.
        budgets: counts what clients use, by day and month.
        works: the background tasks of the stores, while the process serves.
    """

    continuations: ClientStore
    rates: Rates
    leases: Leases
    budgets: Budgets
    caches: Caches
    works: tuple[Callable[[], Coroutine[Any, Any, None]], ...] = ()


@dataclass(frozen=True, slots=True)
class Backend(Generic[Shared]):
    """A kind of shared state: a package of `stores` with the name that it has in `config.model.BACKENDS`.

    Attributes:
        connect: connects this process to the state at a URL, which may be unavailable. Takes `clock` and `observe`, as
            `SharedState` does. Raises `ConfigurationError`: the state was written by a later version of the proxy.
        stores: makes its stores; those of this process are used while it is unavailable.
    """

    connect: Callable[..., Shared]
    stores: Callable[[Shared, StateConfig, Stores], Stores]
