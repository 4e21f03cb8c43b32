"""Work that is stopped when nobody wants it any more."""

import asyncio
from functools import partial

import pytest

from proxy.api.peer import PEER
from proxy.api.race import ClientLeft, alongside, while_wanted
from proxy.loop.errors import MaxDurationExceeded


class Peer:
    """A client as our own server tells of it."""

    body_is_here = True

    @property
    def loop(self):
        return asyncio.get_running_loop()

    def write_chunk(self, data):
        return False

    def take_body(self):
        return None

    def __init__(self, *, left=False):
        self.callback = None
        self.left = left

    def call_when_left(self, callback):
        self.callback = callback
        return not self.left


class Asked:
    """`receive` of a server that has to be asked; `leave` is what it says in the end."""

    def __init__(self):
        self.times = 0
        self.gone = asyncio.Event()

    async def __call__(self):
        self.times += 1
        await self.gone.wait()
        return {"type": "http.disconnect"}


class Work:
    """Never ends by itself; knows whether it was begun, and stopped."""

    def __init__(self, outcome=None):
        self.outcome = outcome
        self.begun, self.stopped = asyncio.Event(), False

    async def __call__(self):
        self.begun.set()
        if self.outcome is not None:
            if isinstance(self.outcome, Exception):
                raise self.outcome
            return self.outcome
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped = True


def wanted(work, receive, peer=None, seconds=60):
    scope = {} if peer is None else {PEER: peer}
    return asyncio.ensure_future(while_wanted(scope, receive, work, seconds=seconds))


async def test_a_server_that_tells_is_not_asked():
    work, receive, peer = Work(), Asked(), Peer()
    task = wanted(work, receive, peer)
    await work.begun.wait()
    peer.callback()
    with pytest.raises(ClientLeft):
        await task
    assert work.stopped
    assert receive.times == 0


async def test_a_server_that_does_not_tell_is_asked():
    work, receive = Work(), Asked()
    task = wanted(work, receive)
    await work.begun.wait()
    receive.gone.set()
    with pytest.raises(ClientLeft):
        await task
    assert work.stopped
    assert receive.times == 1


async def test_for_a_client_that_has_left_nothing_is_begun():
    work = Work()
    with pytest.raises(ClientLeft):
        await wanted(work, Asked(), Peer(left=True))
    assert not work.begun.is_set()


@pytest.mark.parametrize("peer", [None, Peer()], ids=["asked", "told"])
async def test_what_takes_too_long_is_stopped(peer):
    work = Work()
    with pytest.raises(MaxDurationExceeded):
        await wanted(work, Asked(), peer, seconds=0)
    assert work.stopped


@pytest.mark.parametrize("peer", [None, Peer()], ids=["asked", "told"])
async def test_a_result_and_a_failure_come_as_they_are(peer):
    assert await wanted(Work("done"), Asked(), peer) == "done"
    with pytest.raises(ZeroDivisionError):
        await wanted(Work(ZeroDivisionError()), Asked(), peer)
    assert peer is None or peer.callback is None  # nobody is called afterwards


async def test_who_is_cancelled_by_somebody_else_is_cancelled():
    work = Work()
    task = wanted(work, Asked(), Peer())
    await work.begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_client_that_leaves_while_the_server_stops_does_not_hide_that():
    work, peer = Work(), Peer()
    task = wanted(work, Asked(), peer)
    await work.begun.wait()
    task.cancel()
    peer.callback()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_runs_along_ends_with_the_work():
    beside = Work()

    async def work():
        await beside.begun.wait()
        return "done"

    assert await while_wanted({PEER: Peer()}, Asked(), partial(alongside, beside, work), seconds=60) == "done"
    assert beside.stopped
