"""Work beside the event loop: small work is done at once, large work in one thread, in order."""

import asyncio
import threading
from contextvars import ContextVar

import pytest

from proxy.kit.beside import MOST_AT_ONCE, beside

LARGE = MOST_AT_ONCE + 1
VALUE = ContextVar("value")


async def test_small_work_is_done_at_once_and_large_work_in_a_thread_with_the_callers_context():
    VALUE.set("mine")
    assert await beside(MOST_AT_ONCE, threading.current_thread) is threading.current_thread()
    assert await beside(LARGE, threading.current_thread) is not threading.current_thread()
    assert await beside(LARGE, VALUE.get) == "mine"


async def test_while_large_work_goes_on_the_event_loop_does_too():
    released = threading.Event()
    works = [asyncio.create_task(beside(LARGE, released.wait)) for _ in range(2)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert not any(work.done() for work in works)
    released.set()
    assert await asyncio.gather(*works) == [True, True]


async def test_a_failure_is_raised_where_the_work_is_awaited():
    with pytest.raises(ZeroDivisionError):
        await beside(LARGE, lambda: 1 // 0)
