import gzip
import tracemalloc
from contextlib import aclosing

import httpx
import pytest
import respx

from proxy.config.model import Timeouts, UpstreamConfig
from proxy.http.client import HttpClient
from proxy.http.transport import HttpxTransport
from proxy.upstreams.endpoint import Endpoint
from proxy.wire.errors import Overloaded, UpstreamError, UpstreamTimeout

URL = "https://up.example/v4"


async def post(response):
    """What a POST gives when this is the response or the exception."""
    client = HttpClient(HttpxTransport(httpx.AsyncHTTPTransport()), URL + "/", Timeouts())
    endpoint = Endpoint.of("up", client, UpstreamConfig(base_url=URL, api_key="k"))
    with respx.mock:
        respx.post(f"{URL}/chat/completions").mock(side_effect=[response])
        try:
            async with aclosing(await endpoint.respond(endpoint.whole, b"{}")) as good:
                return await endpoint.read_whole(good)
        except Exception as exc:  # noqa: BLE001
            return exc
        finally:
            await client.aclose()


async def test_a_good_answer_is_read():
    assert await post(httpx.Response(200, content=b"fine")) == b"fine"


@pytest.mark.parametrize(
    ("exception", "kind", "told"),
    [
        (httpx.ConnectTimeout("x"), UpstreamTimeout, "did not accept the connection in time"),
        (httpx.WriteTimeout("x"), UpstreamTimeout, "did not take the request in time"),
        (httpx.ReadTimeout("x"), UpstreamTimeout, "did not answer in time"),
        (httpx.PoolTimeout("x"), Overloaded, "All connections to the upstream 'up' are in use"),
        (httpx.ConnectError("10.0.0.7 refused"), UpstreamError, "could not be reached"),
        (httpx.LocalProtocolError("bad header"), UpstreamError, "broke off"),
    ],
)
async def test_foreign_exceptions_are_ours_and_keep_addresses_to_themselves(exception, kind, told):
    got = await post(exception)
    assert type(got) is kind
    assert told in got.message
    assert "10.0.0.7" not in got.message
    assert got.why == type(exception).__name__, "what it says may be what was sent"
    no_connection = isinstance(exception, httpx.ConnectError | httpx.ConnectTimeout)
    assert getattr(got, "unreachable", False) == no_connection


async def test_a_redirect_is_not_followed_and_not_tried_again():
    got = await post(httpx.Response(302, headers={"location": "https://evil.example/"}))
    assert (got.status, got.headers) == (502, {"x-should-retry": "false"})
    assert "evil" not in got.message


async def test_an_error_body_that_breaks_off_is_an_upstream_error():
    async def body():
        yield b"{"
        raise httpx.ReadError("cut")

    assert "broke off" in (await post(httpx.Response(400, content=body()))).message


async def test_an_error_body_without_end_is_read_no_further_than_it_says_anything():
    async def body():
        while True:
            yield b"x" * 65536

    assert (await post(httpx.Response(400, content=body()))).status == 400


async def test_what_is_compressed_although_identity_was_asked_for_is_unpacked():
    raw = httpx.Response(200, stream=Bytes(gzip.compress(b"fine", mtime=0)), headers={"content-encoding": "gzip"})
    assert await post(raw) == b"fine"


@pytest.mark.parametrize(
    ("coding", "body"), [("br", b"x"), ("gzip", b"x"), ("gzip", gzip.compress(b"fine", mtime=0)[:-2])]
)
async def test_what_cannot_be_unpacked_is_an_upstream_error(coding, body):
    failure = await post(httpx.Response(200, stream=Bytes(body), headers={"content-encoding": coding}))
    assert isinstance(failure, UpstreamError)
    assert "cannot be decoded" in failure.message


async def test_a_bomb_does_not_fill_the_memory():
    bomb = gzip.compress(b"0" * 200_000_000, mtime=0)
    response = httpx.Response(500, stream=Bytes(bomb), headers={"content-encoding": "gzip"})
    tracemalloc.start()
    assert isinstance(await post(response), UpstreamError)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5_000_000


class Bytes(httpx.AsyncByteStream):
    """A body as it comes over the wire, still compressed."""

    def __init__(self, data):
        self._data = data

    async def __aiter__(self):
        yield self._data
