"""What any transport under the proxy has to do, tried on ours and on the stock one: real sockets, hostile servers."""

import asyncio
import socket
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest

from proxy.http.connect import origin_of
from proxy.http.connection import RequestTimeouts
from proxy.http.parser import request_head
from proxy.http.transport import Http1Transport
from tests.http.rawserver import OK, forever, raw_server, resets, sends

LOOPS = [pytest.param(("asyncio", {"use_uvloop": uv}), id="uvloop" if uv else "asyncio") for uv in (False, True)]
TIMEOUTS = {"connect": 5, "read": 5, "write": 5, "pool": 5}


@pytest.fixture(params=LOOPS)
def anyio_backend(request):
    return request.param


class OursForHttpx(httpx.AsyncBaseTransport):
    """Our transport as httpx would call it, so that both are tried in the same way."""

    def __init__(self, transport):
        self.ours = transport

    async def handle_async_request(self, request):
        url, method = request.url, request.method
        head = request_head(method, url.raw_path, request.headers.raw)
        timeouts = RequestTimeouts(**request.extensions["timeout"])
        response = await self.ours.send(
            origin_of(url), method, head, request.content, timeouts, repeats=method == "GET"
        )
        return httpx.Response(response.status, headers=response.headers, stream=Read(response))

    async def aclose(self):
        await self.ours.aclose()


class Read(httpx.AsyncByteStream):
    def __init__(self, response):
        self.response = response

    async def __aiter__(self):
        while part := await self.response.read():
            yield part

    async def aclose(self):
        await self.response.aclose()


@asynccontextmanager
async def carriers(kind, **default):
    """A way to make transports of a kind, which are closed at the end."""
    async with AsyncExitStack() as made:

        def make(max_connections=100, **options):
            options = default | options
            if kind == "ours":
                ours = Http1Transport(max_connections=max_connections, ssl_context=options.get("verify"))
                transport = OursForHttpx(ours)
            else:
                limits = httpx.Limits(max_connections=max_connections, max_keepalive_connections=max_connections)
                transport = httpx.AsyncHTTPTransport(limits=limits, trust_env=False, **options)
            made.push_async_callback(transport.aclose)
            return transport

        make.kind = kind
        yield make


@pytest.fixture(params=["ours", "stock"])
async def carrier(request):
    async with carriers(request.param) as make:
        yield make


def asked(url, *, method="POST", timeouts=None, **request):
    request.setdefault("content", b"{}")
    return httpx.Request(method, url, **request, extensions={"timeout": TIMEOUTS | (timeouts or {})})


async def fetch(transport, url, **request):
    """A whole exchange: the response, read."""
    response = await transport.handle_async_request(asked(url, **request))
    try:
        await response.aread()
    finally:
        await response.aclose()
    return response


async def fetch_within(seconds, *args, **kwargs):
    async with asyncio.timeout(seconds):
        return await fetch(*args, **kwargs)


# Requests.


async def test_a_request_arrives_as_it_was_made(carrier):
    async with raw_server(forever) as server:
        await fetch(carrier(), server.url + "/a/b%20c?d=%2F", content=b"body", headers={"X-Case": "Kept"})
        line, *headers = server.heads[0].rstrip().split(b"\r\n")
        assert line == b"POST /a/b%20c?d=%2F HTTP/1.1"
        assert f"host: {server.url.removeprefix('http://')}".encode() in [header.lower() for header in headers]
        assert b"X-Case: Kept" in headers
        assert b"content-length: 4" in [header.lower() for header in headers]
        assert server.bodies == [b"body"]


async def test_a_large_body_arrives_whole(carrier):
    body = bytes(range(256)) * 40_000
    async with raw_server(forever) as server:
        await fetch(carrier(), server.url, content=body)
        assert server.bodies == [body]


@pytest.mark.parametrize(
    "bad",
    [
        {"headers": [(b"x-a", b"1\r\nx-b: 2")]},
        {"headers": [(b"x-a", b"1\nx-b: 2")]},
        {"headers": [(b"x-a", b"1\0")]},
        {"headers": [(b"x-a: 1\r\nx-b", b"2")]},
        {"headers": [(b"x a", b"2")]},
        {"method": "GET / HTTP/1.1\r\nx-a: 1\r\n\r\nPOST"},
    ],
)
async def test_a_header_cannot_bring_another_one_along(carrier, bad):
    async with raw_server(forever) as server:
        with pytest.raises(httpx.LocalProtocolError):
            await fetch(carrier(), server.url, **bad)
        assert server.heads == []


# Responses.


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"hello"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b""),
        (b"HTTP/1.1 200\r\nContent-Length: 5\r\n\r\nhello", b"hello"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n003;ext=1\r\nllo\r\n0\r\n\r\n", b"hello"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n", b"hello"),
        (b"HTTP/1.1 200 OK\r\n\r\nhello", b"hello"),
        (b"HTTP/1.0 200 OK\r\n\r\nhello", b"hello"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK, b"ok"),
    ],
    ids=["counted", "empty", "no reason", "chunked", "trailers", "until the end", "1.0", "interim"],
)
@pytest.mark.parametrize("pace", ["at once", "by bytes"])
async def test_a_body_is_read_to_its_end(carrier, answer, body, pace):
    parts = [answer] if pace == "at once" else [answer[at : at + 1] for at in range(len(answer))]
    async with raw_server(sends(*parts)) as server:
        response = await fetch(carrier(), server.url)
        assert (response.status_code, response.content) == (200, body)
        assert "x-sum" not in response.headers
        assert "link" not in response.headers


async def test_headers_are_read_as_they_stand(carrier):
    answer = b"HTTP/1.1 418 I'm a teapot\r\nX-A:1\r\nx-a: \t two words \t\r\nX-Empty:\r\nX-Latin: \xe4\r\ncontent-length: 0\r\n\r\n"
    async with raw_server(sends(answer)) as server:
        response = await fetch(carrier(), server.url)
        assert response.status_code == 418
        headers = [(name.lower(), value) for name, value in response.headers.raw]
        assert headers == [
            (b"x-a", b"1"),
            (b"x-a", b"two words"),
            (b"x-empty", b""),
            (b"x-latin", b"\xe4"),
            (b"content-length", b"0"),
        ]


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"),
        ("HEAD", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ("POST", b"HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n"),
    ],
)
async def test_a_response_without_a_body_leaves_its_connection_usable(carrier, method, answer):
    async def script(peer):
        await peer.answer(answer)
        await forever(peer)

    async with raw_server(script) as server:
        transport = carrier()
        assert (await fetch(transport, server.url, method=method)).content == b""
        assert (await fetch(transport, server.url)).content == b"ok"
        assert server.connections == 1


async def test_a_stream_is_given_on_as_it_comes(carrier):
    await expect_a_stream_as_it_comes(carrier(), raw_server)


async def expect_a_stream_as_it_comes(transport, serve):
    """The first part of a stream arrives before its server writes the second; `serve` makes the server."""
    gate = asyncio.Event()

    async def script(peer):
        await peer.answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\none\n\r\n")
        await gate.wait()
        await peer.send(b"4\r\ntwo\n\r\n0\r\n\r\n")

    async with serve(script) as server:
        response = await transport.handle_async_request(asked(server.url))
        parts = response.stream.__aiter__()
        assert await anext(parts) == b"one\n"
        gate.set()
        assert [part async for part in parts] == [b"two\n"]
        await response.aclose()


async def test_a_reader_that_does_not_read_stops_the_server(carrier):
    await expect_a_reader_that_stops_the_server(carrier(), raw_server, most=100_000_000)


async def expect_a_reader_that_stops_the_server(transport, serve, *, most):
    """A server with so many bytes waits for its reader, who gets all of them."""
    sent = 0

    async def script(peer):
        nonlocal sent
        await peer.answer(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % most)
        while sent < most:
            await peer.send(b"x" * 100_000)
            sent += 100_000

    async with serve(script) as server:
        response = await transport.handle_async_request(asked(server.url))
        settled = -1
        while settled != sent:  # nothing is taken any more when nothing has been for a while
            settled = sent
            await asyncio.sleep(0.1)
        assert settled < 20_000_000
        assert sum([len(part) async for part in response.stream]) == most
        await response.aclose()


# What goes wrong.


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-le",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhell",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhell",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5, 6\r\n\r\nhello!",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nbad name: 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: a\0b\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"<html>hello</html>\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
    ],
)
async def test_a_response_that_is_cut_or_wrong_is_an_error_and_frees_its_connection(carrier, answer):
    if answer.startswith(b"HTTP/1.1 101") and carrier.kind == "stock":
        pytest.skip("httpx lets its callers switch protocols")
    async with raw_server(sends(answer)) as server:
        transport = carrier(1)
        for _ in range(2):
            with pytest.raises(httpx.RemoteProtocolError):
                await fetch_within(5, transport, server.url)
        assert server.connections == 2


async def test_a_body_without_a_length_that_is_cut_cannot_be_told_from_a_whole_one(carrier):
    async with raw_server(sends(b"HTTP/1.1 200 OK\r\n\r\nhel")) as server:
        assert (await fetch(carrier(), server.url)).content == b"hel"


@pytest.mark.parametrize(
    "begun",
    [b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhe", b"HTTP/1.1 200 OK\r\n\r\nhe"],
    ids=["counted", "until the end"],
)
async def test_a_connection_that_is_reset_in_the_middle_is_a_read_error(carrier, begun):
    gate = asyncio.Event()

    async def script(peer):
        await peer.answer(begun)
        await gate.wait()
        peer.reset()

    async with raw_server(script) as server:
        response = await carrier().handle_async_request(asked(server.url))
        gate.set()
        with pytest.raises(httpx.ReadError):
            await response.aread()
        await response.aclose()


async def test_a_connection_that_is_reset_before_its_response_is_a_read_error(carrier):
    async with raw_server(resets) as server:
        with pytest.raises(httpx.ReadError):
            await fetch(carrier(), server.url)


async def test_a_connection_that_breaks_while_its_request_is_sent_is_an_error(carrier):
    async def script(peer):
        await peer.reader.readuntil(b"\r\n\r\n")
        peer.reset()

    async with raw_server(script) as server:
        transport = carrier(1)
        for _ in range(2):
            with pytest.raises((httpx.NetworkError, httpx.RemoteProtocolError)):
                await fetch(transport, server.url, content=b"x" * 50_000_000)


async def test_headers_without_end_are_not_read_for_ever(carrier):
    async def script(peer):
        await peer.answer(b"HTTP/1.1 200 OK\r\n")
        while True:
            await peer.send(b"x-more: " + b"y" * 1000 + b"\r\n")

    async with raw_server(script) as server:
        with pytest.raises(httpx.RemoteProtocolError):
            await fetch_within(10, carrier(), server.url)


async def test_nobody_listens(carrier):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(httpx.ConnectError):
            await fetch(carrier(), f"http://127.0.0.1:{taken.getsockname()[1]}")


async def test_a_name_that_does_not_exist(carrier):
    with pytest.raises((httpx.ConnectError, httpx.ConnectTimeout)):
        await fetch(carrier(), "http://nobody.invalid/", timeouts={"connect": 3})


async def test_a_scheme_that_is_not_spoken(carrier):
    with pytest.raises(httpx.UnsupportedProtocol):
        await fetch(carrier(), "ftp://127.0.0.1/")


# Time.


async def test_a_server_that_does_not_accept_is_a_connect_timeout(carrier):
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for filler in (first, second):  # what the kernel accepts in the server's place
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        transport = carrier(1)
        for _ in range(2):
            with pytest.raises(httpx.ConnectTimeout):
                await fetch(transport, f"http://127.0.0.1:{listener.getsockname()[1]}", timeouts={"connect": 0.05})


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhe"])
async def test_a_silent_server_is_a_read_timeout_and_frees_its_connection(carrier, begun):
    async with raw_server(sends(begun, then_close=False)) as server:
        transport = carrier(1)
        for _ in range(2):
            with pytest.raises(httpx.ReadTimeout):
                await fetch(transport, server.url, timeouts={"read": 0.05})
        assert server.connections == 2


async def test_a_slow_server_is_none_that_is_silent(carrier):
    async def script(peer):
        await peer.answer(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(6):
            await asyncio.sleep(0.1)
            await peer.send(b"1\r\nx\r\n")
        await peer.send(b"0\r\n\r\n")

    async with raw_server(script) as server:
        assert (await fetch(carrier(), server.url, timeouts={"read": 0.35})).content == b"xxxxxx"


async def test_a_server_that_does_not_read_is_a_write_timeout(carrier):
    async def script(peer):
        await asyncio.Event().wait()

    async with raw_server(script) as server:
        transport = carrier(1)
        for _ in range(2):
            with pytest.raises(httpx.WriteTimeout):
                await fetch(transport, server.url, content=b"x" * 20_000_000, timeouts={"write": 0.2})


async def test_time_may_be_unlimited(carrier):
    async with raw_server(forever) as server:
        nothing = dict.fromkeys(TIMEOUTS)
        assert (await fetch(carrier(), server.url, timeouts=nothing)).content == b"ok"


# Connections.


async def test_a_connection_is_used_again(carrier):
    async with raw_server(forever) as server:
        transport = carrier()
        for _ in range(5):
            assert (await fetch(transport, server.url)).content == b"ok"
        assert server.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nConnection: x, Close\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
    ],
)
async def test_a_connection_that_the_server_means_to_close_is_not_used_again(carrier, answer):
    async with raw_server(sends(answer, then_close=False)) as server:
        transport = carrier()
        for _ in range(2):
            assert (await fetch(transport, server.url)).content == b"ok"
        assert server.connections == 2


async def test_a_connection_that_was_closed_while_idle_is_never_used(carrier):
    async with raw_server(sends(OK)) as server:
        transport = carrier()
        for asked_for in range(1, 20):
            assert (await fetch(transport, server.url)).content == b"ok"
            await server.until(lambda state, n=asked_for: state.connections == n and state.open == 0)


async def test_what_comes_on_an_idle_connection_is_never_an_answer(carrier):
    wrong = OK.replace(b"ok", b"no")
    gate, sent = asyncio.Event(), asyncio.Event()

    async def script(peer):
        await peer.answer(OK)
        await gate.wait()
        await peer.send(wrong)
        sent.set()
        await peer.answer(OK)

    async with raw_server(script) as server:
        transport = carrier()
        assert (await fetch(transport, server.url)).content == b"ok"
        gate.set()
        await sent.wait()
        assert (await fetch(transport, server.url)).content == b"ok"


async def test_a_response_that_is_closed_half_read_frees_its_connection(carrier):
    begun = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n"
    async with raw_server(sends(begun, then_close=False)) as server:
        transport = carrier(1)
        for _ in range(3):
            response = await transport.handle_async_request(asked(server.url))
            await response.aclose()
        await server.until(lambda state: state.open == 0)
        assert server.connections == 3  # each response had one to itself: what is half read is of no further use


async def test_no_more_connections_than_permitted(carrier):
    async with raw_server(forever) as server:
        transport = carrier(5)
        answers = await asyncio.gather(*(fetch(transport, server.url) for _ in range(100)))
        assert {answer.content for answer in answers} == {b"ok"}
        assert server.most_open <= 5


async def test_whoever_waits_for_a_connection_too_long_is_told(carrier):
    async with raw_server(sends(b"HTTP/1.1 200 OK\r\n\r\n", then_close=False)) as server:
        transport = carrier(1)
        response = await transport.handle_async_request(asked(server.url))
        for _ in range(2):
            with pytest.raises(httpx.PoolTimeout):
                await fetch(transport, server.url, timeouts={"pool": 0.05})
        await response.aclose()
        response = await transport.handle_async_request(asked(server.url))
        await response.aclose()


async def test_two_servers_share_the_limit(carrier):
    async with raw_server(forever) as one, raw_server(forever) as other:
        transport = carrier(1)
        for server in (one, other, one):
            assert (await fetch(transport, server.url)).content == b"ok"


@pytest.mark.parametrize("begun", [None, b"", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhe"])
async def test_cancelling_closes_the_connection_and_frees_its_place(carrier, begun):
    async def script(peer):
        if begun is None:
            await peer.reader.read(10)
        else:
            await peer.answer(begun)
        if server.connections > 3:
            await peer.send(OK)
        await peer.left()

    async with raw_server(script) as server:
        transport = carrier(1)
        for number in range(1, 4):
            task = asyncio.ensure_future(fetch(transport, server.url))
            await server.until(lambda state, n=number: state.connections == n)
            await asyncio.sleep(0.01)  # somewhere on the way
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await server.until(lambda state: state.open == 0)


async def test_closing_the_transport_closes_its_connections(carrier):
    async with raw_server(forever) as server:
        transport = carrier()
        await asyncio.gather(*(fetch(transport, server.url) for _ in range(5)))
        kept = server.open
        await transport.aclose()
        await server.until(lambda state: state.open == 0)
        assert kept == server.connections  # until then they were open for further requests


async def test_the_sixth_version_of_the_protocol(carrier):
    try:
        async with raw_server(forever, host="::1") as server:
            assert (await fetch(carrier(), server.url)).content == b"ok"
            assert f"host: {server.url.removeprefix('http://')}".encode() in server.heads[0].lower()
    except OSError:
        pytest.skip("this machine has no IPv6")
