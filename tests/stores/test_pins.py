"""What was first seen of things that others can change: alike in memory, in a file and in Redis."""

import asyncio

import pytest

from proxy.stores.memory import LocalPins
from proxy.stores.redis.pins import RedisPins
from proxy.stores.sqlite.pins import SqlitePins


def pins_of(shared):
    return SqlitePins(shared) if shared.name == "sqlite" else RedisPins(shared)


@pytest.fixture(params=["memory", "sqlite", "redis"])
async def pins(request):
    if request.param == "memory":
        yield LocalPins()
        return
    async with request.getfixturevalue("database" if request.param == "sqlite" else "process")() as shared:
        yield pins_of(shared)


async def test_what_is_first_is_kept(pins):
    assert await pins.read("wiki") == {}
    assert await pins.add("wiki", {"a": b"1", "b": b"2"}) == {"a": b"1", "b": b"2"}
    assert await pins.add("wiki", {"a": b"9", "c": b"3"}) == {"a": b"1", "b": b"2", "c": b"3"}
    assert await pins.read("wiki") == {"a": b"1", "b": b"2", "c": b"3"}
    assert await pins.read("another") == {}


async def test_what_is_accepted_stands_in_the_place_of_all_else(pins):
    await pins.add("wiki", {"a": b"1", "b": b"2"})
    assert await pins.replace("wiki", {"b": b"9", "": b""})
    assert await pins.read("wiki") == {"b": b"9", "": b""}
    assert await pins.replace("wiki", {})
    assert await pins.read("wiki") == {}


async def test_of_several_processes_one_is_first_and_all_go_by_it(opened):
    async with opened() as first, opened() as second:
        one, other = pins_of(first), pins_of(second)
        seen = await asyncio.gather(one.add("wiki", {"a": b"1"}), other.add("wiki", {"a": b"2"}))
        assert seen[0] == seen[1] == await one.read("wiki") == await other.read("wiki")
        await one.replace("wiki", {"a": b"3"})
        assert await other.read("wiki") == {"a": b"3"}


async def test_while_the_state_is_away_what_was_last_read_holds_and_nothing_is_accepted(opened):
    async with opened() as shared:
        pins = pins_of(shared)
        shared.lost("away")
        assert not await pins.read("wiki")
        assert await pins.add("wiki", {"a": b"1"}) is None
        await shared.probe()
        await pins.add("wiki", {"a": b"1"})
        shared.lost("away")
        assert await pins.read("wiki") == {"a": b"1"}
        assert not await pins.replace("wiki", {"a": b"2"})
        await shared.probe()
        assert await pins.read("wiki") == {"a": b"1"}


async def test_what_a_redis_without_persistence_has_lost_is_put_back(process):
    async with process() as shared:
        pins = RedisPins(shared)
        await pins.add("wiki", {"a": b"1"})
        await shared.client.flushall()
        assert await pins.read("wiki") == {"a": b"1"}
        assert await RedisPins(shared).read("wiki") == {"a": b"1"}
