"""What was first seen of things that others can change, in the file."""

import sqlite3
from collections.abc import Mapping

from proxy.stores.shared.pins import SharedPins
from proxy.stores.sqlite.database import SharedSqlite

_KEPT = "SELECT name, pin FROM pins WHERE owner = ?"
_ADD = "INSERT OR IGNORE INTO pins VALUES (?, ?, ?)"


class SqlitePins(SharedPins):
    """Implements `ports.Pins`."""

    def __init__(self, shared: SharedSqlite) -> None:
        super().__init__()
        self._shared = shared

    async def load(self, owner: str) -> Mapping[str, bytes]:
        """All that the table has."""
        return await self._shared.read(lambda db: dict(db.execute(_KEPT, (owner,)).fetchall()))

    async def insert(self, owner: str, pins: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Add those whose names the table does not have; returns all that it has."""

        def write(db: sqlite3.Connection) -> Mapping[str, bytes]:
            db.executemany(_ADD, [(owner, *pin) for pin in pins.items()]).close()
            return dict(db.execute(_KEPT, (owner,)).fetchall())

        return await self._shared.write(write)

    async def overwrite(self, owner: str, pins: Mapping[str, bytes]) -> None:
        """Put these in place of all that the table has."""

        def write(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM pins WHERE owner = ?", (owner,)).close()
            db.executemany(_ADD, [(owner, *pin) for pin in pins.items()]).close()

        await self._shared.write(write)
