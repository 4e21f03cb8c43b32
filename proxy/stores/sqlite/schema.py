"""The tables of `state: sqlite://`, and the migration of files of earlier versions.

`PRAGMA user_version` counts the migrations that a file has been through. A change of the tables is one more entry of
`MIGRATIONS`; entries that have been released stay as they are.
"""

import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

_FIRST: Final = (
    # The values of clients: continuations and responses. `size` is that of the value with its row. `turn` grows with
    # each write and renewal of an owner's values, so that the oldest is known even where the clock cannot tell.
    """CREATE TABLE kept (owner TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, size INTEGER NOT NULL,
       expires_at REAL NOT NULL, turn INTEGER NOT NULL, PRIMARY KEY (owner, key))""",
    "CREATE INDEX kept_by_end ON kept (expires_at)",
    "CREATE INDEX kept_of_owner ON kept (owner, turn)",
    # The entries and bytes of each owner, to find the owner with the most when room is needed.
    "CREATE TABLE shares (owner TEXT PRIMARY KEY, entries INTEGER NOT NULL, bytes INTEGER NOT NULL) WITHOUT ROWID",
    """CREATE TRIGGER kept_added AFTER INSERT ON kept BEGIN
       INSERT INTO shares VALUES (NEW.owner, 1, NEW.size)
       ON CONFLICT (owner) DO UPDATE SET entries = entries + 1, bytes = bytes + NEW.size; END""",
    """CREATE TRIGGER kept_removed AFTER DELETE ON kept BEGIN
       UPDATE shares SET entries = entries - 1, bytes = bytes - OLD.size WHERE owner = OLD.owner;
       DELETE FROM shares WHERE owner = OLD.owner AND entries = 0; END""",
    # Results of tools, and the calls that are under way.
    """CREATE TABLE results (tool TEXT NOT NULL, digest TEXT NOT NULL, value BLOB NOT NULL, expires_at REAL NOT NULL,
       PRIMARY KEY (tool, digest)) WITHOUT ROWID""",
    "CREATE INDEX results_by_end ON results (expires_at)",
    """CREATE TABLE running (tool TEXT NOT NULL, digest TEXT NOT NULL, token TEXT NOT NULL, expires_at REAL NOT NULL,
       PRIMARY KEY (tool, digest)) WITHOUT ROWID""",
    # Requests per second, and open requests.
    """CREATE TABLE rates (client TEXT NOT NULL, second INTEGER NOT NULL, requests INTEGER NOT NULL,
       PRIMARY KEY (client, second)) WITHOUT ROWID""",
    """CREATE TABLE leases (client TEXT NOT NULL, lease TEXT NOT NULL, expires_at REAL NOT NULL,
       PRIMARY KEY (client, lease)) WITHOUT ROWID""",
    # The use of clients, by day and model and by month.
    """CREATE TABLE used (client TEXT NOT NULL, period TEXT NOT NULL, model TEXT NOT NULL,
       requests INTEGER NOT NULL, input_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
       output_tokens INTEGER NOT NULL, tool_calls INTEGER NOT NULL, cost REAL NOT NULL,
       PRIMARY KEY (client, period, model)) WITHOUT ROWID""",
    "CREATE TABLE probes (only_one INTEGER PRIMARY KEY)",
)
# The secret that seals what clients keep for the proxy.
_SECOND: Final = ("CREATE TABLE secrets (only_one INTEGER PRIMARY KEY, value TEXT NOT NULL, made_at REAL NOT NULL)",)
# Version 0.2.0 kept the first definitions of MCP tools here. The table is neither read nor dropped, so that 0.2.0 can
# still open the file.
_THIRD: Final = (
    "CREATE TABLE pins (owner TEXT NOT NULL, name TEXT NOT NULL, pin BLOB NOT NULL, PRIMARY KEY (owner, name))",
)
MIGRATIONS: Final[Sequence[Sequence[str]]] = (_FIRST, _SECOND, _THIRD)
VERSION: Final = len(MIGRATIONS)


def migrate(connection: sqlite3.Connection, migrations: Sequence[Sequence[str]] = MIGRATIONS) -> None:
    """Bring a file to the latest version; a failed migration leaves it unchanged.

    Raises:
        sqlite3.Error: the file cannot be written, or was written by a later version.
    """
    if _version(connection) == len(migrations):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _version(connection)  # again, because another worker may have migrated the file meanwhile
        if version > len(migrations):
            raise sqlite3.NotSupportedError(f"schema {version} is later than {len(migrations)}")
        for statements in migrations[version:]:
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(migrations)}")
        connection.execute("COMMIT")
    except sqlite3.Error:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)
