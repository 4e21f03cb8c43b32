"""`state: sqlite:///PATH`: one file for all workers of a machine: database, its connection; schema; tables; expiry."""

from proxy.ports import Clock, Observer
from proxy.stores.shared import SharedBackend
from proxy.stores.sqlite.database import SharedSqlite, check_file, path_of
from proxy.stores.sqlite.expiry import clean_up
from proxy.stores.sqlite.tables import SqliteBudgets, SqliteContinuations, SqliteLeases, SqliteRates, SqliteResults


def _connect(url: str, *, clock: Clock, observe: Observer) -> SharedSqlite:
    path = path_of(url)
    check_file(path)
    return SharedSqlite(path, clock=clock, observe=observe)


BACKEND = SharedBackend(
    connect=_connect,
    continuations=SqliteContinuations,
    rates=SqliteRates,
    leases=SqliteLeases,
    budgets=SqliteBudgets,
    results=SqliteResults,
    works=(clean_up,),
)
