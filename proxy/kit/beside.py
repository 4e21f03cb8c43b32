"""Work whose cost grows with its input, in one thread beside the event loop.

While the thread works, the interpreter lets the event loop continue within a millisecond, so a large request delays
only requests that are as large: those are served one after the other, because several threads would take turns with the
event loop and delay it for longer.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Final, TypeVar

T = TypeVar("T")

# Reading the most expensive request of this size takes some 25 ms; to change the thread takes 0.1 ms.
MOST_AT_ONCE: Final = 256 * 1024

_thread: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="toolproxy-beside")
_slow_thread: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="toolproxy-slow")


# Look-ups in the memory of this process, or parses of small texts, take some 10 us each.
_WITHOUT_PAUSE: Final = 200


async def pause_in(loop_count: int) -> None:
    """Give way in every two hundredth round of a loop whose rounds are short, and of which a client sets the number."""
    if loop_count % _WITHOUT_PAUSE == _WITHOUT_PAUSE - 1:
        await asyncio.sleep(0)


async def beside(size: int, work: Callable[[], T], *, slow: bool = False) -> T:
    """The result of `work`, which is done in the thread if its input has more than `MOST_AT_ONCE` bytes.

    If it is `slow`, such as the reading of a PDF, it is always done in a thread, which other large inputs do not wait
    for. The work has the context variables of its caller. If the caller is cancelled, work that has begun is finished,
    and its result is dropped.
    """
    if size <= MOST_AT_ONCE and not slow:
        return work()
    thread = _slow_thread if slow else _thread
    return await asyncio.get_running_loop().run_in_executor(thread, copy_context().run, work)
