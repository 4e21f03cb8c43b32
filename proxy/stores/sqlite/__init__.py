"""`state: sqlite:///PATH`: one file for all workers of a machine: database, its connection; schema; tables; expiry."""

from functools import partial

from proxy.config.model import StateConfig
from proxy.ports import Clock, Observer, Results
from proxy.stores.shared import Backend, Stores
from proxy.stores.sqlite.database import SharedSqlite, check_file, path_of
from proxy.stores.sqlite.expiry import clean_up
from proxy.stores.sqlite.tables import SqliteBudgets, SqliteContinuations, SqliteLeases, SqliteRates, SqliteResults


def _connect(url: str, *, clock: Clock, observe: Observer) -> SharedSqlite:
    path = path_of(url)
    check_file(path)
    return SharedSqlite(path, clock=clock, observe=observe)


def _stores(shared: SharedSqlite, config: StateConfig, local: Stores) -> Stores:
    leases, budgets = SqliteLeases(shared), SqliteBudgets(shared, local=local.budgets)

    def cache(tool: str, seconds: float) -> Results:
        own = local.caches(tool, seconds)
        return SqliteResults(shared, tool=tool, seconds=seconds, local=own, clock=shared.clock)

    return Stores(
        continuations=SqliteContinuations(shared, config, local=local.continuations),
        rates=SqliteRates(shared, local=local.rates),
        leases=leases,
        budgets=budgets,
        caches=cache,
        works=(leases.keep, budgets.keep, partial(clean_up, shared)),
    )


BACKEND = Backend(_connect, _stores)
