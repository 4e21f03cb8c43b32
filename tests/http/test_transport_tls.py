"""TLS as both transports have to speak it: against an authority of the test's own."""

import datetime as dt
import ssl

import httpx
import pytest
import trustme

from tests.http.rawserver import forever, raw_server, sends
from tests.http.test_transport import (
    LOOPS,
    carriers,
    expect_a_reader_that_stops_the_server,
    expect_a_stream_as_it_comes,
    fetch,
)

AUTHORITY = trustme.CA()
LONG_AGO = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


@pytest.fixture(params=LOOPS)
def anyio_backend(request):
    return request.param


@pytest.fixture(params=["ours", "stock"])
async def carrier(request):
    """Makes transports that trust the authority."""
    context = ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    async with carriers(request.param, verify=context) as make:
        yield make


def tls_server(script, *names, authority=AUTHORITY, name="localhost", seen=None, **certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*(names or ("localhost", "127.0.0.1")), **certificate).configure_cert(context)
    if seen is not None:
        context.sni_callback = lambda _, server_name, __: seen.append(server_name)
    return raw_server(script, ssl=context, name=name)


async def test_a_server_with_a_good_certificate_is_spoken_to_and_its_connection_kept(carrier):
    seen = []
    async with tls_server(forever, seen=seen) as server:
        transport = carrier()
        for _ in range(5):
            assert (await fetch(transport, server.url, content=b"x" * 300_000)).content == b"ok"
        assert (server.connections, seen) == (1, ["localhost"])
        assert b"host: localhost:" in server.heads[0].lower()


async def test_an_address_is_verified_too(carrier):
    async with tls_server(forever, name="127.0.0.1") as server:
        assert (await fetch(carrier(), server.url)).content == b"ok"


@pytest.mark.parametrize(
    "fault",
    [
        {"authority": trustme.CA()},
        {"names": ["elsewhere.example"]},
        {"names": ["127.0.0.1"]},
        {"not_before": LONG_AGO, "not_after": LONG_AGO + dt.timedelta(days=1)},
    ],
    ids=["unknown authority", "another name", "an address instead of the name", "expired"],
)
async def test_a_server_with_a_bad_certificate_is_told_nothing(carrier, fault):
    names = fault.pop("names", ["localhost"])
    try:
        async with tls_server(forever, *names, **fault) as server:
            with pytest.raises(httpx.ConnectError):
                await fetch(carrier(), server.url)
            assert server.heads == []
    finally:
        fault["names"] = names


async def test_a_server_that_does_not_speak_tls_is_a_connect_error(carrier):
    async def script(peer):
        await peer.reader.read(10)
        await peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with raw_server(script) as server:
        with pytest.raises(httpx.ConnectError):
            await fetch(carrier(), server.url.replace("http:", "https:"))


async def test_a_handshake_without_end_is_a_connect_timeout(carrier):
    async def script(peer):
        await peer.left()

    async with raw_server(script) as server:
        with pytest.raises(httpx.ConnectTimeout):
            await fetch(carrier(), server.url.replace("http:", "https:"), timeouts={"connect": 0.1})
        await server.until(lambda state: state.open == 0)


async def test_a_stream_comes_as_it_is_written(carrier):
    await expect_a_stream_as_it_comes(carrier(), tls_server)


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhe"])
async def test_a_cut_response_is_an_error(carrier, begun):
    async with tls_server(sends(begun)) as server:
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            await fetch(carrier(), server.url)


async def test_a_connection_that_was_closed_while_idle_is_not_used(carrier):
    if carrier.kind == "stock":
        pytest.skip("httpcore asks the socket, from which the event loop has read the good-bye already")
    async with tls_server(sends(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")) as server:
        transport = carrier()
        for number in range(1, 4):
            assert (await fetch(transport, server.url)).content == b"ok"
            await server.until(lambda state, n=number: state.connections == n and state.open == 0)


async def test_a_reader_that_does_not_read_stops_the_server(carrier):
    await expect_a_reader_that_stops_the_server(carrier(), tls_server, most=50_000_000)
