"""What clients use, counted alike in memory, in a file and in Redis."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from proxy.loop.tally import Use
from proxy.stores.budgets import LocalBudgets
from proxy.stores.redis.budgets import RedisBudgets
from proxy.stores.sqlite.database import SharedSqlite
from proxy.stores.sqlite.tables import SqliteBudgets
from tests.fakes import FakeClock

NOTHING = Use()


def used(cost=0.25):
    return Use(requests=1, input_tokens=100, cached_tokens=40, output_tokens=10, tool_calls=2, cost=cost)


@pytest.fixture(params=["memory", "sqlite", "redis"])
def budgets(request):
    @asynccontextmanager
    async def opened():
        if request.param == "memory":
            yield LocalBudgets()
            return
        if request.param == "sqlite":
            async with request.getfixturevalue("database")() as shared:
                yield SqliteBudgets(shared, local=LocalBudgets())
            return
        async with request.getfixturevalue("process")() as shared:
            yield RedisBudgets(shared, local=LocalBudgets())

    return opened


async def test_use_is_counted_by_day_and_model_and_by_month(budgets):
    async with budgets() as counted:
        for day, model in (("2026-11-22", "a"), ("2026-11-23", "a"), ("2026-11-23", "b"), ("2026-11-23", "b c")):
            await counted.book("app", model, day, used())
        await counted.book("other app", "a", "2026-11-23", used())
        assert await counted.used("app", "2026-11-22") == used()
        assert await counted.used("app", "2026-11-23") == Use(3, 300, 120, 30, 6, 0.75)
        assert await counted.used("app", "2026-11") == Use(4, 400, 160, 40, 8, 1.0)
        assert [await counted.used("app", period) for period in ("2026-11-24", "2026-12")] == [NOTHING, NOTHING]
        assert await counted.history("app", ["2026-11-21", "2026-11-22", "2026-11-23"]) == [
            {},
            {"a": used()},
            {"a": used(), "b": used(), "b c": used()},
        ]
        assert await counted.history("other app", ["2026-11-23"]) == [{"a": used()}]


async def test_the_clients_of_some_days_are_known_whatever_their_names(budgets):
    async with budgets() as counted:
        for client, day in (("b:*", "2026-11-22"), ("app", "2026-11-23"), ("ä b", "2026-11-23"), ("old", "2026-10-01")):
            await counted.book(client, "m", day, used())
        assert await counted.clients(["2026-11-22", "2026-11-23", "2026-11-24"]) == ["app", "b:*", "ä b"]
        assert await counted.clients(["2026-11-24"]) == []


async def test_use_that_is_booked_for_later_is_counted_in_time(budgets):
    async with budgets() as counted:
        counted.book_later("app", "m", "2026-11-23", used())
        assert await counted.history("app", ["2026-11-23"]) == [{"m": used()}]
        counted.book_later("other", "m", "2026-11-23", used())
        await counted.book("app", "m", "2026-11-23", used())
        assert (await counted.used("other", "2026-11-23")).requests == 1


async def test_use_that_waits_is_written_every_second_and_when_the_process_stops(database, monkeypatch, heard):
    class Clock(FakeClock):
        async def sleep(self, seconds):
            await super().sleep(seconds)
            await asyncio.sleep(0)

    clock = Clock()
    async with database(clock=clock) as shared, database() as other:
        mine, theirs = (SqliteBudgets(one, local=LocalBudgets()) for one in (shared, other))
        keeping = asyncio.ensure_future(mine.keep())
        mine.book_later("app", "m", "2026-11-23", used())
        while await theirs.used("app", "2026-11-23") == NOTHING:  # noqa: ASYNC110 - another process tells nobody
            await asyncio.sleep(0)
        with monkeypatch.context() as patched:  # a bug ends neither the process nor the writes
            patched.setattr(mine, "write", None)
            mine.book_later("app", "m", "2026-11-23", used())
            while "use.not_counted" not in heard:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0)
        mine.book_later("app", "m", "2026-11-24", used())
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        assert await theirs.used("app", "2026-11-24") == used()


async def test_what_a_caller_is_given_is_its_own(budgets):
    async with budgets() as counted:
        await counted.book("app", "m", "2026-11-23", used())
        (await counted.used("app", "2026-11-23")).add(used())
        assert await counted.used("app", "2026-11-23") == used()


async def test_prices_of_a_millionth_add_up(budgets):
    async with budgets() as counted:
        for _ in range(1000):
            await counted.book("app", "m", "2026-11-23", used(cost=0.000_000_37))
        assert (await counted.used("app", "2026-11-23")).cost == pytest.approx(0.000_37)


async def test_in_memory_old_days_and_months_are_dropped_and_the_current_month_is_not():
    counted = LocalBudgets()
    await counted.book("app", "m", "2026-09-30", used())
    for day in ("2026-10-31", "2026-11-01", "2026-11-30"):
        await counted.book("app", "m", day, used())
    assert await counted.history("app", ["2026-09-30", "2026-10-31", "2026-11-30"]) == [
        {},
        {"m": used()},
        {"m": used()},
    ]
    await counted.book("app", "m", "2026-12-02", used())
    assert await counted.history("app", ["2026-11-01", "2026-11-30"]) == [{}, {"m": used()}]
    assert (await counted.used("app", "2026-11")).requests == 2
    assert await counted.used("app", "2026-10") == NOTHING


async def test_in_redis_every_key_has_our_prefix_and_expires(process):
    async with process() as shared:
        await RedisBudgets(shared, local=LocalBudgets()).book("app", "m", "2026-11-23", used())
        keys = sorted(await shared.client.keys("*"))
        assert keys == [b"toolproxy:used:2026-11-23:app", b"toolproxy:used:2026-11:app"]
        for name in keys:
            assert 60 * 86400 < await shared.client.ttl(name) <= 62 * 86400


async def test_while_redis_is_away_each_process_goes_by_its_own_count_and_redis_learns_of_it_later(
    process, redis_server, heard
):
    async with process() as shared, process() as other:
        mine, theirs = (RedisBudgets(one, local=LocalBudgets()) for one in (shared, other))
        await mine.book("app", "m", "2026-11-23", used())
        await theirs.book("app", "m", "2026-11-23", used())
        redis_server.stop()
        await mine.book("app", "m", "2026-11-23", used())
        assert (await mine.used("app", "2026-11-23")).requests == 2
        assert (await mine.history("app", ["2026-11-23"]))[0]["m"].requests == 2
        assert "state.unavailable" in heard
        redis_server.start()
        await shared.probe()
        await mine.book("app", "m", "2026-11-23", used())
        assert (await mine.used("app", "2026-11-23")).requests == 2  # it has started empty


async def test_use_that_waits_for_the_file_is_not_lost_when_a_write_fails_in_another_way(database, monkeypatch):
    def fails(job, *, unwritten):
        return SharedSqlite.write(shared, lambda db: job(db) or db.execute("SELECT ?", (2**70,)), unwritten=unwritten)

    async with database() as shared:
        mine = SqliteBudgets(shared, local=LocalBudgets())
        with monkeypatch.context() as patched:
            patched.setattr(shared, "write", fails)
            with pytest.raises(OverflowError):
                await mine.book("app", "m", "2026-11-23", used())
        await mine.book("other", "m", "2026-11-23", used())
        assert (await mine.used("app", "2026-11-23")).requests == 1


def test_sums_of_use_stay_numbers_that_every_store_can_hold():
    use = Use(input_tokens=2**53)
    for _ in range(2000):
        use.add(Use(input_tokens=2**53))
    assert use.input_tokens == 2**53
