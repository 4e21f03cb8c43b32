"""`state: sqlite:///PATH`: one file for all workers of one machine, which survives restarts and `kill -9`.

Every statement runs in one thread of this process, outside the event loop. All jobs that wait for the thread are run in
one transaction, so that a hundred simultaneous requests pay for a single commit. The file is in WAL mode with
`synchronous=NORMAL`: acknowledged writes survive the death of the process, but a power failure may lose the last ones.
"""

import asyncio
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from proxy.ports import Clock, Observer
from proxy.stores.shared.state import SECONDS, MadeSecret, SharedState, StateUnavailable
from proxy.stores.sqlite.schema import VERSION, migrate
from proxy.wire.errors import ConfigurationError

Result = TypeVar("Result")

SCHEME: Final = "sqlite:///"
_MOST_TOGETHER: Final = 256  # jobs in one transaction
_LOCKED_SECONDS: Final = 0.8  # how long to wait for another process's transaction; less than a command's timeout
_CLOSE_SECONDS: Final = 5.0
_FAILURES: Final = (sqlite3.Error, OSError)  # failures of the file, not of a job; TimeoutError is an OSError
_MAGIC: Final = b"SQLite format 3\0"  # the beginning of every database (https://www.sqlite.org/fileformat.html)
_NOBODY_ELSE: Final = 0o600  # the file contains conversations


def path_of(url: str) -> Path:
    """The file of `sqlite:///relative.db` or `sqlite:////absolute.db`, as SQLAlchemy writes them.

    A relative path whose folder exists only below the root is taken as absolute, because most people write
    `sqlite:///var/lib/x/state.db` at first.
    """
    relative = Path(url.removeprefix(SCHEME))
    absolute = Path("/") / relative
    return absolute if not relative.parent.exists() and absolute.parent.exists() else relative


def check_file(path: Path) -> None:
    """Refuse a file of a later version of the proxy, which this version could only damage.

    Raises:
        ConfigurationError: the schema of the file is later than this version's.
    """
    if not path.is_file():
        return
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
    except sqlite3.Error:
        return  # the proxy serves without the file, and reports its fault in `/readyz` and the log
    if version > VERSION:
        message = f"state.url: {path} was written by a later version of toolproxy (schema {version}, known: {VERSION})"
        raise ConfigurationError([message])


@dataclass(slots=True)
class _Job:
    """A function to run with the database.

    Attributes:
        writes: whether it writes.
        done: its result; cancelled: the caller has gone on without it before the job began.
    """

    run: Callable[[sqlite3.Connection], Any]
    writes: bool
    done: Future[Any] = field(default_factory=Future)

    def begin(self) -> bool:
        """Begin, or begin again, in the database's thread; false: nobody waits for the result."""
        return self.done.running() or (not self.done.cancelled() and self.done.set_running_or_notify_cancel())


class SharedSqlite(SharedState):
    """The database of this process.

    Args:
        path: the path of the file; its folder must exist.
        clock: times the probes, and gives the wall-clock time by which entries expire.
        observe: takes one event when the file becomes unavailable, and one when it has recovered.
    """

    name = "sqlite"

    def __init__(self, path: Path, *, clock: Clock, observe: Observer) -> None:
        super().__init__(str(path), clock=clock, observe=observe)
        self.place = str(path)
        self._path = path
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._readable = True

    def now(self) -> float:
        """Seconds since 1970: workers have no other clock in common."""
        return self.clock.time()

    async def read(self, job: Callable[[sqlite3.Connection], Result]) -> Result:
        """The result of a job that writes nothing, also on a full disk. Raises `StateUnavailable`."""
        if not self._readable:
            self.require()
        return await self._submit(job, writes=False)

    async def write(
        self, job: Callable[[sqlite3.Connection], Result], *, unwritten: Callable[[], None] = lambda: None
    ) -> Result:
        """The result of a job, once its writes are committed.

        A job that has begun when the time for it is over may still end well. So `unwritten` is called only when it is
        certain that nothing was written, which may be later.

        Raises:
            StateUnavailable: the job failed, or took too long.
        """
        try:
            self.require()
        except StateUnavailable:
            unwritten()
            raise
        return await self._submit(job, writes=True, unwritten=unwritten)

    async def keep_secret(self, secret: MadeSecret) -> MadeSecret:
        """Write a row, to find out whether that is possible, and keep the secret."""

        def probe(connection: sqlite3.Connection) -> MadeSecret:
            connection.execute("REPLACE INTO probes VALUES (1)").close()
            connection.execute("INSERT OR IGNORE INTO secrets VALUES (1, ?, ?)", (secret.value, secret.made_at)).close()
            return _secret_in(connection) or secret

        return await self._submit(probe, writes=True)

    async def read_secret(self) -> MadeSecret | None:
        """The secret that is kept, also on a full disk."""
        return await self._submit(_secret_in, writes=False)

    async def aclose(self) -> None:
        """Finish the waiting jobs, and close the file."""
        if self._thread is not None:
            self._jobs.put(None)
            await asyncio.to_thread(self._thread.join, _CLOSE_SECONDS)
            self._thread = None

    async def _submit(
        self,
        job: Callable[[sqlite3.Connection], Result],
        *,
        writes: bool,
        unwritten: Callable[[], None] = lambda: None,
    ) -> Result:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="toolproxy-sqlite", daemon=True)
            self._thread.start()
        submitted = _Job(job, writes)
        self._jobs.put(submitted)
        done: asyncio.Future[Result] = asyncio.wrap_future(submitted.done)

        def end(ended: asyncio.Future[Result]) -> None:
            if ended.cancelled() or ended.exception() is not None:
                unwritten()

        done.add_done_callback(end)
        try:
            async with asyncio.timeout(SECONDS):
                return await asyncio.shield(done)  # a job that has begun tells its outcome even after the time is over
        except _FAILURES as exc:
            submitted.done.cancel()
            self._readable = _still_readable(exc)
            raise self.lost(_in_plain_words(exc)) from exc

    def _work(self) -> None:
        """Run jobs in the database's thread, until the last one."""
        file = _File(self._path)
        while (jobs := self._next()) is not None:
            _do(file, jobs)
        file.close()

    def _next(self) -> list[_Job] | None:
        """The waiting jobs, at least one; None after the last one."""
        first = self._jobs.get()
        if first is None:
            return None
        jobs = [first]
        with suppress(queue.Empty):
            while len(jobs) < _MOST_TOGETHER:
                job = self._jobs.get_nowait()
                if job is None:
                    self._jobs.put(None)
                    break
                jobs.append(job)
        return jobs


def _do(file: "_File", jobs: Sequence[_Job]) -> None:
    """Run jobs in one transaction; if one of them fails, each in its own, so that only the faulty one fails."""
    try:
        results = file.run(jobs)
    except Exception as exc:  # noqa: BLE001 - it is passed on to the caller
        if not isinstance(exc, _FAILURES) and len(jobs) > 1:
            for job in jobs:
                _do(file, [job])
            return
        if not _still_readable(exc):
            file.close()
        for job in jobs:
            if job.begin():
                job.done.set_exception(exc)
    else:
        for job, result in zip(jobs, results, strict=True):
            if job.done.running():
                job.done.set_result(result)


class _File:
    """The connection to the file, which is opened when it is needed and belongs to one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        # Open for as long as the connection: if a process closes any descriptor of a file, it loses the locks that
        # SQLite holds on it, and another process takes the log of writes away (sqlite.org/howtocorrupt.html, 2.2).
        self._descriptor = -1
        self._inode = 0

    def run(self, jobs: Sequence[_Job]) -> list[Any]:
        """The results of jobs, run in one transaction. Raises their exceptions, `sqlite3.Error` and `OSError`."""
        connection = self._opened()
        connection.execute("BEGIN IMMEDIATE" if any(job.writes for job in jobs) else "BEGIN")
        try:
            results = [job.run(connection) if job.begin() else None for job in jobs]
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise
        return results

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _opened(self) -> sqlite3.Connection:
        # SQLite would go on with a file that has been removed and that no other process can see.
        if self._connection is not None and self._inode != _inode_of(self._path):
            self.close()
        if self._connection is None:
            self.close()  # what an attempt that failed has left open
            # SQLite's other files get the same mode.
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, _NOBODY_ELSE)
            self._inode = _inode_of(self._path)
            self._connection = _connected(self._path)
        # SQLite keeps pages in memory, and would notice a file that was overwritten only after a restart.
        if os.pread(self._descriptor, len(_MAGIC), 0) not in (_MAGIC, b""):
            raise sqlite3.DatabaseError(_REASONS["SQLITE_NOTADB"])
        return self._connection


def _connected(path: Path) -> sqlite3.Connection:
    """A connection to a file whose tables are those of this version."""
    connection = sqlite3.connect(path, timeout=_LOCKED_SECONDS, isolation_level=None)
    try:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # effective for a new file only
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        migrate(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _secret_in(connection: sqlite3.Connection) -> MadeSecret | None:
    found = connection.execute("SELECT value, made_at FROM secrets").fetchone()
    return MadeSecret(*found) if found else None


def _inode_of(path: Path) -> int:
    """The inode number of the file at a path; 0 if there is none."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0


# The beginning of SQLite's name for an error (https://www.sqlite.org/rescode.html) -> the reason.
_REASONS: Final = {
    "SQLITE_BUSY": "another process has locked it",
    "SQLITE_READONLY": "it is read-only",
    "SQLITE_FULL": "its disk is full",
    "SQLITE_NOTADB": "the file is not a SQLite database",
    "SQLITE_CORRUPT": "the file is damaged",
    "SQLITE_CANTOPEN": "it cannot be opened",
    "SQLITE_IOERR": "its disk fails",
}


def _still_readable(exc: Exception) -> bool:
    """Whether the file can be read although writing to it failed."""
    return getattr(exc, "sqlite_errorname", "").startswith(("SQLITE_FULL", "SQLITE_READONLY"))


def _in_plain_words(exc: Exception) -> str:
    """The reason of a failure, for the log and `/readyz`."""
    if isinstance(exc, TimeoutError):
        return f"it gave no answer within {SECONDS:g} s"
    code = str(getattr(exc, "sqlite_errorname", ""))
    known = next((why for name, why in _REASONS.items() if code.startswith(name)), None)
    return known or str(getattr(exc, "strerror", None) or exc)
