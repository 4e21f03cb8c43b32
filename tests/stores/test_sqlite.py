"""`state: sqlite://` by itself: several processes, a file that fails, a file of another version, its size."""

import asyncio
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from contextlib import closing

import pytest

from proxy.config.model import StateConfig
from proxy.loop.results import ToolOutput
from proxy.loop.tally import Use
from proxy.stores.budgets import LocalBudgets
from proxy.stores.memory import MemoryStore
from proxy.stores.shared.quota import LEASE_SECONDS
from proxy.stores.shared.state import MadeSecret, StateUnavailable
from proxy.stores.sqlite import database as sqlite_file
from proxy.stores.sqlite.database import check_file, path_of
from proxy.stores.sqlite.expiry import remove_expired
from proxy.stores.sqlite.schema import MIGRATIONS, migrate
from proxy.stores.sqlite.tables import SqliteBudgets, SqliteContinuations, SqliteLeases, SqliteResults
from proxy.tools.result_cache import ResultCache
from proxy.wire.errors import ConfigurationError
from tests.fakes import FakeClock

ME = "client:me"


def kept(shared, **config):
    config = StateConfig(**config)
    return SqliteContinuations(shared, config, local=MemoryStore(config, clock=shared.clock, max_bytes=10**9))


async def test_what_one_process_keeps_another_finds_after_the_first_has_ended(database):
    async with database() as first:
        await kept(first).put(ME, "a", b"value")
    async with database() as second:
        assert await kept(second).get(ME, "a") == b"value"


async def test_a_process_that_reads_the_file_and_ends_takes_no_writes_away_from_one_that_serves(database, tmp_path):
    def read():
        """The keys that another process finds, which closes the file and ends."""
        code = "import sqlite3, sys; print([k for k, in sqlite3.connect(sys.argv[1]).execute('SELECT key FROM kept')])"
        return subprocess.check_output([sys.executable, "-c", code, tmp_path / "state.db"], text=True).strip()

    async with database() as shared:
        store = kept(shared)
        for key in ("a", "b", "c"):
            await store.put(ME, key, b"x")
            await shared.keep_secret(MadeSecret("s", 1.0))  # as every probe does
            assert f"'{key}'" in await asyncio.to_thread(read)
        assert (tmp_path / "state.db-wal").exists()


async def test_nobody_else_may_read_the_file(database, tmp_path):
    async with database() as shared:
        await kept(shared).put(ME, "a", b"value")
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob("state.db*")}
    assert modes == dict.fromkeys(("state.db", "state.db-wal", "state.db-shm"), 0o600)


async def test_many_writes_at_once_share_a_commit_and_are_all_there(database):
    async with database() as shared, database() as other:
        store = kept(shared)
        await asyncio.gather(*(store.put(ME, f"k{number}", b"x") for number in range(500)))
        assert [await kept(other).get(ME, f"k{number}") for number in (0, 250, 499)] == [b"x"] * 3


async def test_a_job_that_cannot_be_done_fails_alone(database):
    async with database() as shared:
        store = kept(shared)
        several = store.put(ME, "a", b"1"), store.put(ME, "half a pair: \ud800", b"2"), store.put(ME, "c", b"3")
        outcomes = await asyncio.gather(*several, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [type(None), UnicodeEncodeError, type(None)]
        assert shared.readiness().usable
        assert [await store.get(ME, key) for key in ("a", "c")] == [b"1", b"3"]


async def test_what_the_file_was_too_slow_for_is_booked_once_later(database, heard):
    slow = threading.Event()
    async with database() as shared:
        budgets = SqliteBudgets(shared, local=LocalBudgets())
        stuck = shared.write(lambda _: slow.wait(5))
        booking = budgets.book("me", "glm", "2026-11-23", Use(requests=1))
        await asyncio.gather(stuck, booking, return_exceptions=True)
        await budgets.book("me", "glm", "2026-11-23", Use(requests=1))
        assert heard == ["state.unavailable"]
        slow.set()
        await shared.probe()
        await budgets.book("me", "glm", "2026-11-23", Use(requests=1))
        assert await shared.read(lambda db: db.execute("SELECT DISTINCT requests FROM used").fetchall()) == [(3,)]


async def test_all_processes_count_open_requests_together_and_a_dead_ones_expire(database):
    clock = FakeClock()
    async with database(clock=clock) as one, database(clock=clock) as other:
        mine, theirs = SqliteLeases(one), SqliteLeases(other)
        first = await mine.acquire("app", 2)
        assert None not in (first, await theirs.acquire("app", 2))
        assert await mine.acquire("app", 2) is None
        await mine.release("app", first)
        assert await theirs.acquire("app", 2) is not None
        clock.now += LEASE_SECONDS - 1
        await theirs.renew()
        clock.now += LEASE_SECONDS - 1
        assert [await mine.acquire("app", 3), await mine.acquire("app", 3)][1] is None  # theirs were renewed
        clock.now += LEASE_SECONDS
        assert await mine.acquire("app", 1) is not None


async def test_equal_calls_of_two_processes_are_run_once(database):
    runs = []
    started, go_on = asyncio.Event(), asyncio.Event()

    async def run():
        runs.append(1)
        started.set()
        await go_on.wait()
        return ToolOutput("found")

    async with database() as one, database() as other, asyncio.TaskGroup() as group:
        ours, theirs = [
            SqliteResults(shared, tool="t", seconds=60, local=ResultCache(60, timer=time.monotonic))
            for shared in (one, other)
        ]
        first = group.create_task(ours.get_or_run("k", run))
        await started.wait()
        second = group.create_task(theirs.get_or_run("k", run))
        go_on.set()
        assert [(await task).text for task in (first, second)] == ["found", "found"]
    assert runs == [1]


def damage(path):
    path.write_bytes(b"no database at all " * 100)


def forbid(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(("spoil", "why"), [(damage, "not a SQLite database"), (forbid, "directory")])
async def test_while_the_file_cannot_be_used_this_process_keeps_what_it_must(database, tmp_path, heard, spoil, why):
    path = tmp_path / "state.db"
    path.touch()
    spoil(path)
    async with database() as shared:
        store = kept(shared)
        await shared.probe()
        assert why in shared.readiness().why_not
        await store.put(ME, "a", b"value")
        assert await store.get(ME, "a") == b"value"
        with pytest.raises(StateUnavailable):
            await SqliteLeases(shared).grant("app", "l", 1)
        path.rmdir() if path.is_dir() else path.unlink()
        await shared.probe()
        assert shared.readiness().usable
        await store.put(ME, "b", b"value")
    assert heard == ["state.unavailable", "state.recovered"]
    async with database() as other:
        assert await kept(other).get(ME, "b") == b"value"


async def test_what_a_full_disk_holds_is_found_and_what_is_new_is_kept_in_memory(database, heard):
    async with database() as shared:
        store = kept(shared)
        await store.put(ME, "old", b"1")
        await shared.write(
            lambda db: db.execute("PRAGMA max_page_count = 1").close()
        )  # SQLite then reports SQLITE_FULL
        await store.put(ME, "new", b"x" * 100_000)
        assert shared.readiness().why_not == "its disk is full"
        assert [await store.get(ME, key) for key in ("old", "new")] == [b"1", b"x" * 100_000]
        await shared.read(lambda db: db.execute("PRAGMA max_page_count = 100000").close())
        await shared.probe()
    assert heard == ["state.unavailable", "state.recovered"]


async def test_a_file_that_no_disk_space_was_left_for_is_prepared_once_there_is_some(database, heard, monkeypatch):
    is_full, prepare = [True], sqlite_file.migrate

    def migrate(connection):
        if is_full and is_full.pop():
            connection.execute("PRAGMA max_page_count = 1")  # SQLite then reports SQLITE_FULL
        prepare(connection)

    monkeypatch.setattr(sqlite_file, "migrate", migrate)
    async with database() as shared:
        await kept(shared).put(ME, "a", b"value")
        assert shared.readiness().why_not == "its disk is full"
        await shared.probe()
        await kept(shared).put(ME, "b", b"value")
    async with database() as other:
        assert await kept(other).get(ME, "b") == b"value"
    assert heard == ["state.unavailable", "state.recovered"]


async def test_a_file_that_is_removed_is_made_again(database, tmp_path):
    async with database() as shared, database() as other:
        store = kept(shared)
        await store.put(ME, "a", b"value")
        for path in tmp_path.glob("state.db*"):
            path.unlink()
        await store.put(ME, "b", b"value")
        assert await kept(other).get(ME, "b") == b"value"


async def test_a_file_that_is_overwritten_while_it_is_open_is_noticed_by_the_next_probe(database, tmp_path, heard):
    path = tmp_path / "state.db"
    async with database() as shared:
        await kept(shared).put(ME, "a", b"value")
        await shared.probe()
        good = path.read_bytes()
        with path.open("r+b") as file:
            file.write(b"noise..." * 1024)
        await shared.probe()
        assert shared.readiness().why_not == "the file is not a SQLite database"
        assert await kept(shared).get(ME, "a") is None  # and nothing is raised
        path.unlink()
        path.write_bytes(good)
        await shared.probe()
        assert shared.readiness().usable
    assert heard == ["state.unavailable", "state.recovered"]


async def test_a_process_that_holds_the_file_for_too_long_is_not_waited_for(database, tmp_path, heard):
    async with database() as shared:
        await kept(shared).put(ME, "a", b"value")
        with closing(sqlite3.connect(tmp_path / "state.db", isolation_level=None)) as hog:
            hog.execute("BEGIN IMMEDIATE")
            await kept(shared).put(ME, "b", b"value")
            assert shared.readiness().why_not == "another process has locked it"
            hog.execute("ROLLBACK")
        await shared.probe()
    assert heard == ["state.unavailable", "state.recovered"]


@pytest.mark.parametrize("ends_well", [True, False])
async def test_of_a_write_that_takes_too_long_it_is_said_once_whether_it_was_written(database, monkeypatch, ends_well):
    gate, unwritten, given_up = threading.Event(), [], asyncio.Event()

    def is_given_up():
        unwritten.append("waiting")
        given_up.set()

    def write(db):
        gate.wait(10)
        db.execute("INSERT INTO probes VALUES (7)" if ends_well else "INSERT INTO nowhere VALUES (7)")

    async with database() as shared:
        await kept(shared).put(ME, "a", b"value")  # opens the file
        monkeypatch.setattr("proxy.stores.sqlite.database.SECONDS", 0.2)
        with pytest.raises(StateUnavailable):
            await shared.write(write, unwritten=lambda: unwritten.append("begun"))
        with pytest.raises(StateUnavailable):  # it waits for the first, is given up, and is never run
            await shared._submit(write, writes=True, unwritten=is_given_up)  # noqa: SLF001
        async with asyncio.timeout(5):
            await given_up.wait()
        assert unwritten == ["waiting"]
        gate.set()
        monkeypatch.undo()
        await shared.probe()
        assert unwritten == (["waiting"] if ends_well else ["waiting", "begun"])


async def test_what_has_expired_is_removed_and_the_file_shrinks(database, tmp_path):
    clock = FakeClock()
    async with database(clock=clock) as shared:
        store = kept(shared, ttl=100)
        for number in range(600):
            await store.put(ME, f"k{number}", b"x" * 10_000)
        await shared.write(lambda db: db.execute("SELECT 1").close())
        before = await shared.read(lambda db: db.execute("PRAGMA page_count").fetchone()[0])
        clock.now += 101
        steps = 1
        while await shared.write(lambda db: remove_expired(db, clock.now)):
            steps += 1
        after = await shared.read(lambda db: db.execute("PRAGMA page_count").fetchone()[0])
    assert steps == 2  # 500 rows at a time
    assert after < before / 2


async def test_a_step_of_the_clean_up_removes_no_more_than_requests_can_wait_for(database):
    clock = FakeClock()
    async with database(clock=clock) as shared:
        store = kept(shared, ttl=100)
        for number in range(5):
            await store.put(ME, f"k{number}", b"x" * 5_000_000)
        clock.now += 101
        await store.put(ME, "new", b"value")
        left = [await shared.read(rows_kept)]
        while await shared.write(lambda db: remove_expired(db, clock.now)):
            left.append(await shared.read(rows_kept))
        assert left == [6, 4, 2]
        assert await store.get(ME, "new") == b"value"


def rows_kept(db):
    return db.execute("SELECT count(*) FROM kept").fetchone()[0]


def test_a_file_of_an_earlier_version_is_migrated_and_keeps_its_rows(tmp_path):
    with closing(sqlite3.connect(tmp_path / "state.db", isolation_level=None)) as connection:
        migrate(connection)
        connection.execute("INSERT INTO kept VALUES ('o', 'k', 'v', 1, 2, 3)")
        migrate(connection, [*MIGRATIONS, ["ALTER TABLE kept ADD COLUMN flags INTEGER NOT NULL DEFAULT 7"]])
        assert connection.execute("SELECT key, flags FROM kept").fetchall() == [("k", 7)]
        assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS) + 1,)


def test_a_migration_that_fails_leaves_the_file_as_it_was(tmp_path):
    with closing(sqlite3.connect(tmp_path / "state.db", isolation_level=None)) as connection:
        migrate(connection)
        with pytest.raises(sqlite3.OperationalError):
            migrate(connection, [*MIGRATIONS, ["DROP TABLE probes", "no statement"]])
        assert connection.execute("SELECT count(*) FROM probes").fetchone() == (0,)
        assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)


def test_a_file_of_a_later_version_is_refused_in_one_line(tmp_path):
    path = tmp_path / "state.db"
    check_file(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(ConfigurationError, match=r"state.url: .*state.db was written by a later version .*schema 99"):
        check_file(path)


def test_paths_are_written_as_sqlalchemy_writes_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    assert str(path_of("sqlite:///state.db")) == "state.db"
    assert str(path_of("sqlite:///here/state.db")) == "here/state.db"
    assert str(path_of("sqlite:////var/lib/state.db")) == "/var/lib/state.db"
    assert str(path_of(f"sqlite://{tmp_path}/here/state.db")) == f"{tmp_path}/here/state.db"  # only there is its folder
    assert str(path_of("sqlite:///nowhere/state.db")) == "nowhere/state.db"
