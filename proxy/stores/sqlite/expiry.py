"""The clean-up of `state: sqlite://`: removes expired rows, in steps so short that requests hardly wait for one."""

import sqlite3
from contextlib import suppress
from itertools import accumulate
from typing import Final

from proxy.stores.memory import WINDOW_SECONDS
from proxy.stores.shared.state import StateUnavailable
from proxy.stores.sqlite.database import SharedSqlite

_SECONDS: Final = 10.0  # from the end of one clean-up to the next
# The most that one step removes. SQLite visits every page of a value that it deletes: 8 MiB take 45 ms, 500 small rows
# 15 ms.
_MOST_ROWS: Final = 500
_MOST_BYTES: Final = 8 * 1024 * 1024
_MOST_PAGES: Final = 1000  # pages that one step returns to the file system
_PRIMARY_KEYS: Final = {"kept": "owner, key", "results": "tool, digest"}


async def clean_up(shared: SharedSqlite) -> None:
    """Remove expired rows, step by step, and return their space to the file system. Runs until cancelled."""
    while True:
        await shared.clock.sleep(_SECONDS)
        with suppress(StateUnavailable):
            while await shared.write(lambda db: remove_expired(db, shared.now())):
                pass


def remove_expired(db: sqlite3.Connection, now: float) -> bool:
    """Do one step; returns whether there may be more to remove."""
    more = [_remove_values(db, table, now) for table in _PRIMARY_KEYS]
    db.execute("DELETE FROM running WHERE expires_at <= ?", (now,))
    db.execute("DELETE FROM leases WHERE expires_at <= ?", (now,))
    db.execute("DELETE FROM rates WHERE second <= ?", (int(now) - WINDOW_SECONDS,))
    (free,) = db.execute("PRAGMA freelist_count").fetchone()
    for _ in range(min(free, _MOST_PAGES)):  # sqlite3 steps such a statement only once, which frees one page
        db.execute("PRAGMA incremental_vacuum(1)")
    return any(more)


def _remove_values(db: sqlite3.Connection, table: str, now: float) -> bool:
    """Remove expired rows with values, at least one if there is one; returns whether there may be more."""
    key = _PRIMARY_KEYS[table]
    expired = f"SELECT {key}, length(value) FROM {table} WHERE expires_at <= ? LIMIT {_MOST_ROWS}"  # noqa: S608
    rows = db.execute(expired, (now,)).fetchall()
    before = accumulate((length for *_, length in rows), initial=0)  # for each row, the bytes of the rows before it
    removed = [row[:-1] for row, size in zip(rows, before, strict=False) if size < _MOST_BYTES]
    db.executemany(f"DELETE FROM {table} WHERE ({key}) = (?, ?)", removed)  # noqa: S608
    return len(removed) < len(rows) or len(rows) == _MOST_ROWS
