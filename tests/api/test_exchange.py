"""Work that is stopped when nobody wants it any more."""

import asyncio

import pytest

from proxy.api.exchange import CONNECTION, ClientLeft, while_wanted
from proxy.wire.errors import MaxDurationExceeded


class Connection:
    """The extension of our own server."""

    def take_body(self):
        return None

    def write_chunk(self, data):
        return False

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


def wanted(work, receive, connection=None, seconds=60):
    scope = {} if connection is None else {"extensions": {CONNECTION: connection}}
    return asyncio.ensure_future(while_wanted(scope, receive, work, seconds=seconds))


async def test_a_server_that_tells_is_not_asked():
    work, receive, connection = Work(), Asked(), Connection()
    task = wanted(work, receive, connection)
    await work.begun.wait()
    connection.callback()
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
        await wanted(work, Asked(), Connection(left=True))
    assert not work.begun.is_set()


@pytest.mark.parametrize("connection", [None, Connection()], ids=["asked", "told"])
async def test_what_takes_too_long_is_stopped(connection):
    work = Work()
    with pytest.raises(MaxDurationExceeded):
        await wanted(work, Asked(), connection, seconds=0)
    assert work.stopped


@pytest.mark.parametrize("connection", [None, Connection()], ids=["asked", "told"])
async def test_a_result_and_a_failure_come_as_they_are(connection):
    assert await wanted(Work("done"), Asked(), connection) == "done"
    with pytest.raises(ZeroDivisionError):
        await wanted(Work(ZeroDivisionError()), Asked(), connection)
    assert connection is None or connection.callback is None  # nobody is called afterwards


async def test_who_is_cancelled_by_somebody_else_is_cancelled():
    work = Work()
    task = wanted(work, Asked(), Connection())
    await work.begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_client_that_leaves_while_the_server_stops_does_not_hide_that():
    work, connection = Work(), Connection()
    task = wanted(work, Asked(), connection)
    await work.begun.wait()
    task.cancel()
    connection.callback()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_runs_along_ends_with_the_work():
    beside = Work()

    async def work():
        await beside.begun.wait()
        return "done"

    scope = {"extensions": {CONNECTION: Connection()}}
    assert await while_wanted(scope, Asked(), work, seconds=60, beside=beside) == "done"
    await asyncio.sleep(0)
    assert beside.stopped
