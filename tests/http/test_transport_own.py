"""Where our transport is stricter than the stock one, and what is particular about it."""

import asyncio
import gc
from contextlib import aclosing, suppress
from functools import partial

import httpx
import pytest

from proxy.http.client import ServiceClient
from proxy.http.connect import origin_of
from proxy.http.connection import Http1Connection, Http1Response, RequestTimeouts
from proxy.http.parser import request_head
from proxy.http.transport import Http1Transport
from tests.http.rawserver import OK, forever, raw_server, resets, sends
from tests.http.test_transport import LOOPS, asked, carriers, fetch, fetch_within


@pytest.fixture(params=LOOPS)
def anyio_backend(request):
    return request.param


@pytest.fixture
async def carrier():
    async with carriers("ours") as make:
        yield make


# One response for one request.


@pytest.mark.parametrize(
    "more", [OK.replace(b"ok", b"no"), b"\r\n", b"x"], ids=["a second response", "a line", "a byte"]
)
async def test_what_follows_a_response_is_never_the_next_one(carrier, more):
    async with raw_server(sends(OK + more, then_close=False)) as server:
        transport = carrier()
        for _ in range(3):
            assert (await fetch(transport, server.url)).content == b"ok"
        assert server.connections == 3


async def test_what_follows_a_response_in_a_packet_of_its_own_is_never_the_next_one(carrier):
    async def script(peer):
        await peer.answer(OK)
        await peer.send(OK.replace(b"ok", b"no"))
        await peer.left()

    async with raw_server(script) as server:
        transport = carrier()
        for _ in range(20):
            # It may arrive between the look and the request: then that is an error, but never an answer.
            with suppress(httpx.RemoteProtocolError):
                assert (await fetch(transport, server.url)).content == b"ok"
            await server.until(lambda state: state.open <= 1)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\ncontent-length: 2\n\nok",
        b"HTTP/1.1 200 OK\r\ncontent-length : 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nx: 1\r\n 2\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\nok\n0\n\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nokay\r\n0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1;" + b"e" * 2000 + b"\r\nx\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n" + b"x: y\r\n" * 20_000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 300 + b"\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 5000 + OK,
    ],
)
async def test_what_two_readers_may_read_differently_is_an_error(carrier, answer):
    async with raw_server(sends(answer, then_close=False)) as server:
        with pytest.raises(httpx.RemoteProtocolError):
            await fetch_within(5, carrier(), server.url)


# A connection that dies.


def answers_once(peer_does):
    """A server whose connections each answer one request, and do something else with the next."""

    async def script(peer):
        await peer.answer(OK)
        await peer_does(peer)

    return script


async def closes(peer):
    await peer.request()


begins = sends(b"HTTP/1.1 2")


async def fetch_for_tool(carrier, server, method, *, times):
    """The bodies of the responses to a tool that asks so many times."""
    client, bodies = ServiceClient(carrier(1).ours), []
    for _ in range(times):
        async with aclosing(await client.send(method, server.url, httpx.Headers(), b"")) as response:
            bodies.append(await response.read())
    return bodies


@pytest.mark.parametrize("dies", [closes, resets])
async def test_a_get_that_meets_a_dead_connection_is_sent_again(carrier, dies):
    async with raw_server(answers_once(dies)) as server:
        assert await fetch_for_tool(carrier, server, "GET", times=3) == [b"ok"] * 3
        assert server.connections == 3
        assert len(server.heads) == 5


async def test_a_get_is_sent_again_on_a_new_connection_even_where_others_are_idle(carrier):
    gate = asyncio.Barrier(3)

    async def script(peer):
        await peer.request()
        await gate.wait()
        await peer.send(OK)
        await peer.request()

    async with raw_server(script) as server:
        transport = carrier(3)
        await asyncio.gather(*(fetch(transport, server.url, method="GET") for _ in range(3)))
        with pytest.raises(httpx.ReadTimeout):  # the new one waits at the gate
            await fetch(transport, server.url, method="GET", timeouts={"read": 0.2})
        assert server.connections == 4
        assert len(server.heads) == 5


@pytest.mark.parametrize("dies", [closes, resets])
async def test_a_post_that_meets_a_dead_connection_is_sent_once_more_if_it_goes_to_an_upstream(dies):
    async with raw_server(answers_once(dies)) as server:
        transport, url = Http1Transport(), httpx.URL(server.url)
        head = request_head("POST", b"/", [(b"host", url.netloc), (b"content-length", b"2")])
        send = partial(transport.send, origin_of(url), "POST", head, b"{}", RequestTimeouts(5, 5, 5, 5))
        for _ in range(2):
            response = await send()
            assert await response.read() == b"ok"
        assert (server.connections, len(server.heads)) == (2, 3)
        await transport.aclose()


@pytest.mark.parametrize(("method", "dies"), [("POST", closes), ("POST", resets), ("GET", begins)])
async def test_a_post_of_a_tool_and_a_get_whose_response_has_begun_are_never_sent_twice(carrier, method, dies):
    async with raw_server(answers_once(dies)) as server:
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            await fetch_for_tool(carrier, server, method, times=2)
        assert len(server.heads) == 2


async def test_a_get_on_a_new_connection_is_not_sent_again(carrier):
    async with raw_server(sends(b"")) as server:
        with pytest.raises(httpx.RemoteProtocolError):
            await fetch(carrier(), server.url, method="GET")
        assert server.connections == 1


# Requests that do not end as they should.


async def refuses_early(peer):
    """A server that does not wait for the body of a request."""
    await peer.reader.readuntil(b"\r\n\r\n")
    await peer.send(b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\n\r\nno!")


async def test_a_whole_body_that_is_answered_early_does_not_leave_its_rest_on_the_connection(carrier):
    async def script(peer):
        await refuses_early(peer)
        await peer.server.until(lambda state: state.connections == 2)

    async with raw_server(script) as server:
        transport = carrier()
        response = await fetch_within(5, transport, server.url, content=b"x" * 50_000_000)
        assert (response.status_code, response.content) == (413, b"no!")
        response = await fetch_within(5, transport, server.url)
        assert server.connections == 2


async def test_a_slow_reader_of_the_request_is_not_a_silent_one(carrier):
    body = b"x" * 8_000_000

    async def script(peer):
        head = await peer.reader.readuntil(b"\r\n\r\n")
        assert b"content-length: 8000000" in head.lower()
        left = len(body)
        while left:
            left -= len(await peer.reader.read(500_000))
            await asyncio.sleep(0.01)
        await peer.send(OK)

    async with raw_server(script) as server:
        assert (await fetch(carrier(), server.url, content=body, timeouts={"write": 0.5})).content == b"ok"


# Nothing is left behind.


async def _cancel_a_hundred(transport, server, *, rounds):
    """Cancelled after so many rounds of the event loop; in every other call, when half of them wait for the others."""
    tasks = [asyncio.ensure_future(fetch(transport, server.url)) for _ in range(100)]
    if rounds % 2:
        await server.until(lambda state: state.open >= 50)
    for _ in range(rounds):
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {asyncio.CancelledError}


async def test_a_thousand_cancelled_requests_leave_nothing_behind(carrier):
    async def script(peer):
        number = server.connections
        if number % 3:
            await peer.request()
        if number % 3 == 2:
            await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf")
        await peer.left()

    async with raw_server(script) as server:
        transport = carrier(50)
        tasks_before = len(asyncio.all_tasks())
        for rounds in range(10):
            await _cancel_a_hundred(transport, server, rounds=rounds)
        await server.until(lambda state: state.open == 0)
        assert len(asyncio.all_tasks()) == tasks_before
    gc.collect()
    assert not [thing for thing in gc.get_objects() if isinstance(thing, Http1Connection | Http1Response)]
    async with raw_server(forever) as server:  # every place is free again
        await asyncio.gather(*(fetch(transport, server.url) for _ in range(50)))
        assert server.connections == 50


async def test_a_request_makes_no_garbage_that_only_the_collector_finds(carrier):
    async with raw_server(forever) as server:
        transport = carrier()
        await fetch(transport, server.url)
        gc.collect()
        gc.disable()
        try:
            for _ in range(10):
                await fetch(transport, server.url)
            assert not [thing for thing in gc.get_objects() if isinstance(thing, Http1Response)]
        finally:
            gc.enable()


async def test_a_cancelled_request_that_was_answered_leaves_the_next_one_on_its_connection_alone(carrier):
    patient = RequestTimeouts(5, 5, 5, 5)

    async def leaving(pool, url):
        connection = await pool.acquire(origin_of(url), patient)
        first.cancel()  # answered, but its task has not run since; the connection is this request's already
        head = request_head("POST", b"/", [(b"host", url.netloc), (b"content-length", b"2")])
        response = await connection.request(head, b"ok", patient)
        return await response.read()

    async with raw_server(forever) as server:
        transport = carrier(1)
        first = asyncio.ensure_future(fetch(transport, server.url))
        await server.until(lambda state: state.open == 1)
        pool = transport.ours._pool  # noqa: SLF001 - between the pool and the connection nothing else can be done
        assert await leaving(pool, httpx.URL(server.url)) == b"ok"
        with pytest.raises(asyncio.CancelledError):
            await first
        assert (server.connections, server.bodies) == (1, [b"{}", b"ok"])
        assert (await fetch(transport, server.url)).content == b"ok"
        assert server.connections == 1


async def test_closing_tells_whoever_reads_and_whoever_waits(carrier):
    begun = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhe"
    async with raw_server(sends(begun, then_close=False)) as server:
        transport = carrier(1)
        response = await transport.handle_async_request(asked(server.url))
        reading = asyncio.ensure_future(response.aread())
        waiting = asyncio.ensure_future(fetch(transport, server.url))
        await asyncio.sleep(0)
        await transport.aclose()
        with pytest.raises(httpx.ReadError):
            await reading
        with pytest.raises(httpx.CloseError):
            await waiting
        await response.aclose()
        response = await transport.handle_async_request(asked(server.url))  # it can be used again
        await response.aclose()


async def test_a_reply_can_be_closed_twice_and_read_after_its_end(carrier):
    async with raw_server(forever) as server:
        response = await carrier().handle_async_request(asked(server.url))
        for body in ([b"ok"], []):
            assert [part async for part in response.stream] == body
        await response.stream.aclose()
        await response.stream.aclose()


async def response_of(transport, server):
    url = httpx.URL(server.url)
    head = request_head("GET", b"/", [(b"host", url.netloc)])
    return await transport.ours.send(origin_of(url), "GET", head, b"", RequestTimeouts(5, 5, 5, 5))


async def everything(response):
    parts = []
    while part := await response.read():
        parts.append(part)
    return b"".join(parts)


async def test_a_body_that_came_with_its_head_is_taken_at_once(carrier):
    async with raw_server(forever) as server:
        response = await response_of(carrier(), server)
        assert response.take_whole() == b"ok"
        assert await response.read() == b""


@pytest.mark.parametrize("rest", [b"k", b""], ids=["goes on", "breaks off"])
async def test_a_body_of_which_there_is_more_to_come_is_read(carrier, rest):
    taken = asyncio.Event()

    async def in_parts(peer):
        await peer.request()
        await peer.send(OK.removesuffix(b"k"))
        await taken.wait()
        await peer.send(rest)

    async with raw_server(in_parts) as server:
        response = await response_of(carrier(), server)
        assert response.take_whole() is None
        taken.set()
        if rest:
            assert await everything(response) == b"ok"
        else:
            with pytest.raises(httpx.RemoteProtocolError):
                await everything(response)
            assert response.take_whole() is None


async def test_the_latest_connection_is_used_first(carrier):
    async def script(peer):
        number = server.connections
        while True:
            await peer.answer(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n%d" % number)

    async with raw_server(script) as server:
        transport = carrier()
        await asyncio.gather(*(fetch(transport, server.url) for _ in range(5)))
        assert len({(await fetch(transport, server.url)).content for _ in range(5)}) == 1
        assert server.connections == 5


async def test_what_a_server_says_of_its_patience_is_believed(carrier):
    short = OK.replace(b"\r\n\r\n", b"\r\nKeep-Alive: timeout=1, max=5\r\n\r\n")
    long = OK.replace(b"\r\n\r\n", b"\r\nKeep-Alive: timeout=5\r\n\r\n")
    for answer, kept in ((short, 0), (long, 1)):
        async with raw_server(partial(forever, answer=answer)) as server:
            transport = carrier()
            for _ in range(2):
                await fetch(transport, server.url)
            assert server.connections == 2 - kept
