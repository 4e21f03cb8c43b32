"""Places and the queue for them."""

import asyncio

import pytest

from proxy.api.middleware.admission import Places
from proxy.core.errors import Overloaded


async def waiting(places, count, patience=60):
    tasks = [asyncio.ensure_future(places.take(patience)) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def test_places_are_handed_on_in_the_order_of_the_queue():
    places = Places(1, queue=3)
    await places.take(0)
    first, second, third = await waiting(places, 3)
    places.give_back()
    await first
    assert not any(one.done() for one in (second, third))
    places.give_back()
    await second
    places.give_back()
    await third
    places.give_back()
    await places.take(0)


async def test_beyond_the_queue_there_is_no_waiting():
    places = Places(1, queue=1)
    await places.take(0)
    (task,) = await waiting(places, 1)
    with pytest.raises(Overloaded):
        await places.take(60)
    places.give_back()
    await task


async def test_who_gives_up_waiting_costs_no_place():
    places = Places(2, queue=2)
    await places.take(0)
    await places.take(0)
    left, impatient = (*await waiting(places, 1), *await waiting(places, 1, patience=0))
    left.cancel()
    with pytest.raises(Overloaded):
        await impatient
    for _ in range(2):
        places.give_back()
    for _ in range(2):
        await places.take(0)
    with pytest.raises(Overloaded):
        await places.take(0)


async def test_a_place_that_comes_in_the_moment_of_giving_up_is_handed_on():
    places = Places(1, queue=2)
    await places.take(0)
    left, next_one = await waiting(places, 2)
    places.give_back()
    left.cancel()
    await asyncio.wait({left, next_one}, timeout=5)
    assert left.cancelled()
    assert next_one.done()
