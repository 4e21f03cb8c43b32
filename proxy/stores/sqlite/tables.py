"""The stores and counters of `state: sqlite://`, in the tables of `schema`."""

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from proxy.loop.tally import Rate, Use
from proxy.stores.budgets import first_day_kept, periods_of
from proxy.stores.memory import WINDOW_SECONDS
from proxy.stores.shared.budgets import SharedBudgets, Waiting
from proxy.stores.shared.continuations import SharedContinuations
from proxy.stores.shared.quota import LEASE_SECONDS, SharedLeases, SharedRates
from proxy.stores.shared.results import NOTHING, WAIT_SECONDS, Claim, SharedResults
from proxy.stores.shared.state import StateUnavailable
from proxy.stores.sqlite.database import SharedSqlite

# The bytes that a value takes besides itself: its row, three index entries and half-empty pages. Measured with 100,000
# entries.
ENTRY_BYTES: Final = 400
_NEXT_TURN: Final = "(SELECT ifnull(max(turn), 0) + 1 FROM kept WHERE owner = ?)"
_KINDS: Final = Use.__struct_fields__
_MOST_DROPPED: Final = 500  # the most entries that one write drops, so that a lowered bound does not block all requests


class SqliteContinuations(SharedContinuations[SharedSqlite]):
    """Implements `ports.ClientStore`."""

    async def find(self, owner: str, key: str) -> bytes | None:
        """The value of `key`."""
        query = "SELECT value FROM kept WHERE owner = ? AND key = ? AND expires_at > ?"
        found = await self._shared.read(lambda db: db.execute(query, (owner, key, self._shared.now())).fetchone())
        return None if found is None else bytes(found[0])

    async def store(self, owner: str, key: str, value: bytes) -> None:
        """Store a value, in place of an older one of the same key."""
        now = self._shared.now()

        def write(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM kept WHERE owner = ? AND key = ?", (owner, key))
            row = (owner, key, value, len(value) + ENTRY_BYTES, now + self._config.ttl, owner)
            db.execute(f"INSERT INTO kept VALUES (?, ?, ?, ?, ?, {_NEXT_TURN})", row)  # noqa: S608
            _make_room(db, owner, now, "bytes", self._config.max_bytes)
            _make_room(db, owner, now, "entries", self._config.max_entries)

        await self._shared.write(write)

    async def extend(self, owner: str, keys: Sequence[str]) -> None:
        """Let the values of `keys` live as long as if they had been stored now."""
        now = self._shared.now()
        rows = [(now + self._config.ttl, owner, owner, key, now) for key in keys]
        update = f"UPDATE kept SET expires_at = ?, turn = {_NEXT_TURN} WHERE owner = ? AND key = ? AND expires_at > ?"  # noqa: S608
        await self._shared.write(lambda db: db.executemany(update, rows).close())

    async def remove(self, owner: str, key: str) -> None:
        """Delete the value of `key`, if there is one."""
        delete = "DELETE FROM kept WHERE owner = ? AND key = ?"
        await self._shared.write(lambda db: db.execute(delete, (owner, key)).close())


def _make_room(db: sqlite3.Connection, writer: str, now: float, what: str, most: int) -> None:
    """Drop entries until the sum of a column of `shares` is within its bound.

    Expired entries are dropped first, then the oldest of the owner with the most; among owners with equally much, the
    writer loses.
    """
    largest = f"SELECT owner FROM shares ORDER BY {what} DESC, owner = ? DESC LIMIT 1"  # noqa: S608 - a name of ours
    oldest = f"SELECT rowid FROM kept WHERE owner = ({largest}) ORDER BY turn LIMIT 1"  # noqa: S608
    expired = "SELECT rowid FROM kept WHERE expires_at <= ? LIMIT 1"
    for _ in range(_MOST_DROPPED):
        (held,) = db.execute(f"SELECT total({what}) FROM shares").fetchone()  # noqa: S608
        if held <= most:
            return
        db.execute(f"DELETE FROM kept WHERE rowid = ifnull(({expired}), ({oldest}))", (now, writer))  # noqa: S608


class SqliteRates(SharedRates[SharedSqlite]):
    """Implements `ports.Rates`."""

    async def count(self, client: str, limit: int) -> Rate:
        """Count one request unless it is beyond `limit`."""
        now = self._shared.now()

        def write(db: sqlite3.Connection) -> Rate:
            second = int(now)
            db.execute("DELETE FROM rates WHERE client = ? AND second <= ?", (client, second - WINDOW_SECONDS))
            counted = "SELECT total(requests), min(second) FROM rates WHERE client = ?"
            counts, oldest = db.execute(counted, (client,)).fetchone()
            if allowed := counts < limit:
                hit = "INSERT INTO rates VALUES (?, ?, 1) ON CONFLICT DO UPDATE SET requests = requests + 1"
                db.execute(hit, (client, second))
            reset = (second if oldest is None else oldest) + WINDOW_SECONDS - now
            return Rate(allowed, int(counts) + allowed, reset)

        return await self._shared.write(write)


class SqliteLeases(SharedLeases[SharedSqlite]):
    """Leases in a SQLite file. Implements `ports.Leases`."""

    async def grant(self, client: str, lease: str, most: int) -> bool:
        """Add a lease unless the client has `most` of them."""
        now = self._shared.now()

        def write(db: sqlite3.Connection) -> bool:
            db.execute("DELETE FROM leases WHERE client = ? AND expires_at <= ?", (client, now))
            (held,) = db.execute("SELECT count(*) FROM leases WHERE client = ?", (client,)).fetchone()
            if held >= most:
                return False
            db.execute("INSERT INTO leases VALUES (?, ?, ?)", (client, lease, now + LEASE_SECONDS))
            return True

        return await self._shared.write(write)

    async def extend(self, client: str, leases: Collection[str]) -> None:
        """Extend leases; leases that were lost are added again."""
        rows = [(client, lease, self._shared.now() + LEASE_SECONDS) for lease in leases]
        await self._shared.write(lambda db: db.executemany("REPLACE INTO leases VALUES (?, ?, ?)", rows).close())

    async def forget(self, client: str, leases: Collection[str]) -> None:
        """Remove leases that were not released."""
        rows = [(client, lease) for lease in leases]
        delete = "DELETE FROM leases WHERE client = ? AND lease = ?"
        await self._shared.write(lambda db: db.executemany(delete, rows).close())


class SqliteResults(SharedResults[SharedSqlite]):
    """Implements `ports.Results`."""

    async def look_up_or_lock(self, claim: Claim) -> bytes | bool:
        """The kept result; where there is none, whether this call now has the lock."""
        now, name = self._shared.now(), (self._tool, claim.digest)

        def write(db: sqlite3.Connection) -> bytes | bool:
            query = "SELECT value FROM results WHERE tool = ? AND digest = ? AND expires_at > ?"
            if (found := db.execute(query, (*name, now)).fetchone()) is not None:
                value: bytes = found[0]
                return value
            db.execute("DELETE FROM running WHERE tool = ? AND digest = ? AND expires_at <= ?", (*name, now))
            lock = "INSERT INTO running VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
            return db.execute(lock, (*name, claim.token, now + WAIT_SECONDS)).rowcount == 1

        return await self._shared.write(write)

    async def keep(self, claim: Claim, data: bytes) -> None:
        """Keep a result unless it is `NOTHING`, and release the call's lock."""
        name, expires_at = (self._tool, claim.digest), self._shared.now() + self._seconds

        def write(db: sqlite3.Connection) -> None:
            if data != NOTHING:
                db.execute("REPLACE INTO results VALUES (?, ?, ?, ?)", (*name, data, expires_at))
            db.execute("DELETE FROM running WHERE tool = ? AND digest = ? AND token = ?", (*name, claim.token))

        await self._shared.write(write)


class SqliteBudgets(SharedBudgets[SharedSqlite]):
    """Implements `ports.Budgets`."""

    async def write(self, waiting: Waiting) -> None:
        """Add use to the counts, in one transaction."""
        columns = ", ".join(f"{kind} = {kind} + excluded.{kind}" for kind in _KINDS)
        marks = ", ".join("?" * (3 + len(_KINDS)))
        add = f"INSERT INTO used VALUES ({marks}) ON CONFLICT DO UPDATE SET {columns}"  # noqa: S608 - names of ours
        rows = [
            (client, period, name, *(getattr(booked, kind) for kind in _KINDS))
            for (client, model, day), booked in waiting.items()
            for period, name in periods_of(day, model)
        ]
        # The names of periods sort by date. The month that contains the first kept day is kept as well.
        drop = "DELETE FROM used WHERE client = ? AND period < substr(?, 1, length(period))"
        kept = [(client, first_day_kept(day)) for client, _, day in waiting]

        def write(db: sqlite3.Connection) -> None:
            db.executemany(add, rows)
            db.executemany(drop, kept)

        with suppress(StateUnavailable):
            await self._shared.write(write, unwritten=partial(self.put_back, waiting))

    async def read(self, client: str, periods: Sequence[str]) -> Sequence[Mapping[str, Use]]:
        """The use of a client in each of the periods, by model."""
        query = f"SELECT model, {', '.join(_KINDS)} FROM used WHERE client = ? AND period = ?"  # noqa: S608

        def read(db: sqlite3.Connection) -> list[Mapping[str, Use]]:
            rows = [db.execute(query, (client, period)).fetchall() for period in periods]
            return [{model: Use(*amounts) for model, *amounts in found} for found in rows]

        self._shared.require()  # on a full disk, the file lacks the latest use
        return await self._shared.read(read)

    async def read_clients(self, days: Sequence[str]) -> Sequence[str]:
        """The clients with any use on one of the days."""
        marks = ", ".join("?" * len(days))
        query = f"SELECT DISTINCT client FROM used WHERE period IN ({marks}) ORDER BY client"  # noqa: S608
        self._shared.require()
        return await self._shared.read(lambda db: [client for (client,) in db.execute(query, days)])
