"""A body that is handled in the callback in which it arrives, as long as nothing has to be waited for."""

import asyncio
import gc
from contextlib import asynccontextmanager
from contextvars import ContextVar

import httpx
import pytest

from proxy.http.connect import origin_of
from proxy.http.connection import RequestTimeouts
from proxy.http.parser import request_head
from proxy.http.response import READ_BYTES
from proxy.http.transport import Http1Transport
from tests.http.rawserver import raw_server
from tests.http.test_transport import LOOPS

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
WHERE = ContextVar("where", default="nowhere")


@pytest.fixture(params=LOOPS)
def anyio_backend(request):
    return request.param


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


class Conversation:
    """A server that sends what it is told to, when it is told to, and the response to one request."""

    def __init__(self):
        self.peer = asyncio.get_running_loop().create_future()
        self.response = None

    async def script(self, peer):
        await peer.request()
        await peer.send(HEAD)
        self.peer.set_result(peer)
        await peer.left()

    async def send(self, *parts):
        await (await self.peer).send(*parts)

    async def arrived(self):
        while not self.response.parser.pieces:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)

    async def reset(self):
        (await self.peer).reset()

    def pump(self, taker):
        return asyncio.ensure_future(self.response.pump(taker))

    async def begin(self, taker):
        """Pump a body whose first piece comes while the task waits for it."""
        pumping = self.pump(taker)
        await asyncio.sleep(0)
        await self.send(chunk(b"one"))
        await taker.until(1)
        return pumping

    async def begin_late(self, taker):
        """Pump a body whose first piece has come before."""
        await self.send(chunk(b"one"))
        await self.arrived()
        pumping = self.pump(taker)
        await taker.until(1)
        return pumping


@asynccontextmanager
async def conversation(read=60.0):
    talk = Conversation()
    async with raw_server(talk.script) as server:
        transport = Http1Transport()
        url = httpx.URL(server.url)
        head = request_head("GET", b"/", [(b"host", url.netloc)])
        talk.response = await transport.send(origin_of(url), "GET", head, b"", RequestTimeouts(5, read, 5, 5))
        try:
            yield talk
        finally:
            await transport.aclose()


class Taker:
    """Takes a body; remembers the pieces, and whether each was taken in a task or in a callback."""

    def __init__(self, *, waits_at=b"never", fails_at=b"never", enough_at=b"never"):
        self.pieces, self.in_task, self.where = [], [], []
        self.waits_at, self.fails_at, self.enough_at = waits_at, fails_at, enough_at
        self.go_on, self.waiting = asyncio.Event(), asyncio.Event()
        self.came = asyncio.Event()

    async def __call__(self, data):
        self.pieces.append(data)
        self.came.set()
        self.in_task.append(_in_a_task())
        self.where.append(WHERE.get())
        if data == self.waits_at:
            self.waiting.set()
            await self.go_on.wait()
        if data == self.fails_at:
            raise ZeroDivisionError
        return data == self.enough_at

    async def until(self, count):
        while len(self.pieces) < count:
            self.came.clear()
            await self.came.wait()


def _in_a_task():
    return asyncio.current_task() is not None


async def test_what_arrives_is_handled_in_the_callback_in_which_it_arrives():
    async with conversation() as talk:
        taker = Taker()
        WHERE.set("here")
        pumping = talk.pump(taker)
        await asyncio.sleep(0)  # the task waits for what comes
        for number, piece in enumerate((b"one", b"two", b"three"), 1):
            await talk.send(chunk(piece))
            await taker.until(number)
        await talk.send(END)
        await pumping
        assert taker.pieces == [b"one", b"two", b"three"]
        assert not any(taker.in_task)
        assert taker.where == ["here"] * 3  # with what the request knows of itself


async def test_what_has_come_before_is_handled_in_the_task():
    async with conversation() as talk:
        taker = Taker()
        pumping = await talk.begin_late(taker)
        await talk.send(chunk(b"two"), END)
        await pumping
        assert taker.pieces == [b"one", b"two"]
        assert taker.in_task == [True, False]


async def test_what_has_to_wait_waits_in_the_task_and_nothing_is_handled_meanwhile():
    async with conversation() as talk:
        taker = Taker(waits_at=b"two")
        pumping = await talk.begin(taker)
        await talk.send(chunk(b"two"))
        await taker.waiting.wait()
        await talk.send(chunk(b"three"), chunk(b"four"))
        await talk.arrived()
        assert taker.pieces == [b"one", b"two"]
        taker.go_on.set()
        await talk.send(END)
        await pumping
        assert b"".join(taker.pieces) == b"onetwothreefour"
        assert taker.in_task[:3] == [False, False, True]


async def test_whoever_is_woken_by_something_else_than_the_body_takes_it_up_alone():
    async with conversation() as talk:
        taker = Taker(waits_at=b"two")
        pumping = await talk.begin(taker)
        await asyncio.sleep(0)  # the task waits for what comes next
        talk.response.connection.resume_writing()  # the server takes the rest of the request
        await asyncio.sleep(0)
        await talk.send(chunk(b"two"))
        await taker.waiting.wait()
        await talk.send(chunk(b"three"))
        await talk.arrived()
        for _ in range(3):  # whoever else were to take it would by now
            await asyncio.sleep(0)
        assert taker.pieces == [b"one", b"two"]
        taker.go_on.set()
        await talk.send(END)
        await asyncio.wait_for(pumping, 10)
        assert b"".join(taker.pieces) == b"onetwothree"


async def test_a_reader_that_waits_holds_back_its_server():
    async with conversation() as talk:
        taker = Taker(waits_at=b"one")
        pumping = talk.pump(taker)
        await talk.send(chunk(b"one"))
        await taker.waiting.wait()
        flood = asyncio.ensure_future(talk.send(*[chunk(b"x" * 65536)] * 400))
        done, _ = await asyncio.wait([flood], timeout=0.2)
        assert not done
        assert talk.response.unread < 2 * 1024 * 1024
        taker.go_on.set()
        await flood
        await talk.send(END)
        await pumping
        assert sum(map(len, taker.pieces)) == 3 + 400 * 65536


@pytest.mark.parametrize("at", [b"one", b"two"], ids=["in the task", "in the callback"])
async def test_a_fault_of_whoever_handles_it_is_raised_as_it_is_and_closes_the_connection(at):
    async with conversation() as talk:
        taker = Taker(fails_at=at)
        pumping = await talk.begin_late(taker)
        if at == b"two":
            await talk.send(chunk(b"two"))
        with pytest.raises(ZeroDivisionError):
            await pumping
        assert talk.response.connection is None


@pytest.mark.parametrize("at", [b"one", b"two"], ids=["in the task", "in the callback"])
async def test_who_has_enough_gets_no_more(at):
    async with conversation() as talk:
        taker = Taker(enough_at=at)
        pumping = await talk.begin_late(taker)
        if at == b"two":
            await talk.send(chunk(b"two"))
        await pumping
        await talk.send(chunk(b"more"), END)
        assert await talk.response.read() == b"more"
        assert taker.pieces[-1] == at


async def test_silence_is_bounded():
    async with conversation(read=0.05) as talk:
        with pytest.raises(httpx.ReadTimeout):
            await talk.response.pump(Taker())


@pytest.mark.parametrize("waits", [True, False], ids=["during a wait", "before it"])
async def test_a_body_that_is_to_end_within_a_time_is_not_read_longer_whatever_arrives(waits):
    async with conversation() as talk:
        taker = Taker()
        if not waits:
            talk.response.end_within(0.05)
        pumping = await talk.begin(taker)
        if waits:
            talk.response.end_within(0.05)
        while not pumping.done():
            await talk.send(chunk(b": comment"))
            await asyncio.sleep(0)
        with pytest.raises(httpx.ReadTimeout):
            await pumping
        assert talk.response.connection is None


async def test_a_server_that_goes_on_is_not_silent():
    async with conversation() as talk:
        taker = Taker()
        pumping = talk.pump(taker)
        due = []
        loop = asyncio.get_running_loop()
        for number in range(1, 4):
            now = loop.time()
            while loop.time() == now:  # noqa: ASYNC110 - the clock of uvloop has milliseconds
                await asyncio.sleep(0)
            await talk.send(chunk(b"x"))
            await taker.until(number)
            due.append(talk.response.due)
        assert due == sorted(set(due))  # each piece gives it more time
        await talk.send(END)
        await pumping


@pytest.mark.parametrize(
    ("fault", "error"),
    [(Conversation.reset, httpx.ReadError), (lambda talk: talk.send(b"no chunk\r\n"), httpx.RemoteProtocolError)],
    ids=["breaks off", "cannot be read"],
)
async def test_a_server_that_breaks_off_or_cannot_be_read_is_an_error(fault, error):
    async with conversation() as talk:
        pumping = await talk.begin(Taker())
        await fault(talk)
        with pytest.raises(error):
            await pumping


@pytest.mark.parametrize("waits_at", [b"never", b"one", b"two"])
async def test_who_is_cancelled_leaves_nothing_open(waits_at):
    async with conversation() as talk:
        taker = Taker(waits_at=waits_at)
        pumping = await talk.begin(taker)
        if waits_at == b"two":
            await talk.send(chunk(b"two"))
            await taker.waiting.wait()
            await asyncio.sleep(0)
        pumping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pumping
        assert talk.response.connection is None


async def test_what_nobody_waits_for_any_more_is_let_go_of():
    async with conversation() as talk:
        taker = Taker(fails_at=b"two")
        pumping = await talk.begin(taker)
        await asyncio.sleep(0)  # the task waits for what comes next
        talk.response.parser.feed(chunk(b"two"))
        talk.response.wake()
        pumping.cancel()  # before the task has been woken
        with pytest.raises(asyncio.CancelledError):
            await pumping
        assert taker.pieces == [b"one", b"two"]
        gc.collect()  # a coroutine that nobody awaited would be told of, which fails the test


async def test_a_body_that_comes_all_at_once_is_taken_in_parts_between_which_others_run():
    others, sizes = [], []

    async def other():
        while True:
            others.append(len(sizes))
            await asyncio.sleep(0)

    async def take(data):
        sizes.append(len(data))
        return False

    async with conversation() as talk, asyncio.TaskGroup() as group:
        running = group.create_task(other())
        await talk.send(chunk(b"a" * 20 * READ_BYTES), END)
        await talk.response.pump(take)
        running.cancel()
    assert (sum(sizes), max(sizes)) == (20 * READ_BYTES, READ_BYTES)
    assert len(set(others)) > len(sizes) // 2
