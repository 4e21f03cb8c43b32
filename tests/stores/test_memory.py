from proxy.config import StateConfig
from proxy.stores.memory import MemoryStore
from tests.fakes import FakeClock


def store(clock=None, *, max_bytes=10_000, **config):
    return MemoryStore(StateConfig(**config), clock=clock or FakeClock(), max_bytes=max_bytes)


async def test_what_is_kept_can_be_had_again_and_again_and_nobody_can_change_it():
    kept, value = store(), {"a": [1]}
    await kept.put("k", value)
    value["a"].append(2)
    first = await kept.get("k")
    first["a"].append(3)
    assert await kept.get("k") == {"a": [1]}
    assert await kept.get("other") is None


async def test_entries_expire():
    clock = FakeClock()
    kept = store(clock, ttl=10)
    await kept.put("old", {})
    clock.now += 6
    await kept.put("new", {})
    clock.now += 5
    assert (await kept.get("old"), await kept.get("new"), len(kept)) == (None, {}, 1)


async def test_the_oldest_make_room_when_there_are_too_many():
    kept = store(max_entries=2)
    for key in "abc":
        await kept.put(key, {"key": key})
    assert (await kept.get("a"), await kept.get("c"), len(kept)) == (None, {"key": "c"}, 2)


async def test_the_oldest_make_room_when_they_are_too_large():
    kept = store(max_bytes=100)
    for key in "abc":
        await kept.put(key, {"x": "y" * 40})
    assert await kept.get("a") is None
    assert await kept.get("c") is not None
    await kept.put("huge", {"x": "y" * 200})
    assert len(kept) == 0


async def test_a_key_that_is_kept_again_holds_the_newer_value():
    kept = store(max_bytes=100)
    for number in range(10):
        await kept.put("k", {"x": "y" * 40, "number": number})
    assert (await kept.get("k"))["number"] == 9


async def test_what_is_deleted_is_gone_and_leaves_its_room_to_others():
    kept = store(max_bytes=100)
    await kept.put("a", {"x": "y" * 40})
    await kept.delete("a")
    await kept.delete("never kept")
    await kept.put("b", {"x": "y" * 80})
    assert (await kept.get("a"), len(kept)) == (None, 1)
    assert await kept.get("b") is not None
