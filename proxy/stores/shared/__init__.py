"""What every shared state has in common. While it is unavailable, each process uses a state of its own."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic

from proxy.ports import ClientStore, Rates
from proxy.stores.shared.budgets import SharedBudgets
from proxy.stores.shared.quota import SharedLeases
from proxy.stores.shared.results import SharedResults
from proxy.stores.shared.state import Shared


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBackend(Generic[Shared]):
    """A kind of shared state: a package of `stores` with the name that it has in `config.model.BACKENDS`.

    Every store takes the shared state, and most of them one of this process, `local`, for while that is unavailable.

    Attributes:
        connect: connects this process to the state at a URL, which may be unavailable. Takes `clock` and `observe`, as
            `SharedState` does. Raises `ConfigurationError`: the state was written by a later version of the proxy.
        continuations: takes the `StateConfig` as well.
        results: takes `tool`, its name, and `seconds`, the lifetime of a result, as well.
        works: further background tasks of the state, while the process serves.
    """

    connect: Callable[..., Shared]
    continuations: Callable[..., ClientStore]
    rates: Callable[..., Rates]
    leases: Callable[[Shared], SharedLeases[Shared]]
    budgets: Callable[..., SharedBudgets[Shared]]
    results: Callable[..., SharedResults[Shared]]
    works: tuple[Callable[[Shared], Coroutine[Any, Any, None]], ...] = ()
