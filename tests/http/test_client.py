"""The client of an upstream sends the same and gives the same back over both transports."""

import asyncio
import gzip
from contextlib import aclosing

import httpx
import pytest

from proxy.config.model import Timeouts
from proxy.http.client import BearerKey, HttpClient, ServiceClient
from proxy.http.decode import DecodedResponse
from proxy.http.transport import Http1Transport, HttpxTransport
from tests.http.rawserver import OK, forever, raw_server, sends

PATIENCE = Timeouts(connect=5, read=5, write=5, pool=5)


@pytest.fixture(params=["ours", "stock"])
async def client_to(request):
    """Makes clients for a base URL."""
    ours = request.param == "ours"
    transport = Http1Transport() if ours else HttpxTransport(httpx.AsyncHTTPTransport(trust_env=False))
    yield lambda url, timeouts=PATIENCE, **options: HttpClient(transport, url, timeouts, **options)
    await transport.aclose()


async def ask(client, method="POST", path="/chat", headers=(), content=b"{}", *, key="secret"):
    """The whole of a response."""
    response = await client.send(client.prepare(method, path, headers), content, BearerKey(key))
    async with aclosing(DecodedResponse(response)) as plain:
        parts = []
        while part := await plain.read():
            parts.append(part)
    return response, b"".join(parts)


def lines_of(head):
    """The request line, and the headers as a mapping."""
    line, *headers = head.rstrip().split(b"\r\n")
    return line, {name.lower(): value for name, _, value in (header.partition(b": ") for header in headers)}


async def test_a_request_has_its_head_its_key_and_its_length(client_to):
    async with raw_server(forever) as server:
        response, body = await ask(client_to(server.url + "/v4/"), path="/embeddings?x=%20y", headers=[(b"x-a", b"b")])
        line, headers = lines_of(server.heads[0])
        assert line == b"POST /v4/embeddings?x=%20y HTTP/1.1"
        assert headers == {
            b"host": server.url.removeprefix("http://").encode(),
            b"x-a": b"b",
            b"authorization": b"Bearer secret",
            b"content-length": b"2",
        }
        assert (response.status, body, server.bodies) == (200, b"ok", [b"{}"])
        assert response.header(b"content-length") == b"2"
        assert response.header(b"x-nothing") == b""


@pytest.mark.parametrize(("method", "length"), [("POST", b"0"), ("GET", None), ("DELETE", None)])
async def test_a_request_without_a_body_says_so_where_one_is_expected(client_to, method, length):
    async with raw_server(forever) as server:
        await ask(client_to(server.url), method, content=b"")
        assert lines_of(server.heads[0])[1].get(b"content-length") == length


async def test_the_kind_of_a_request_is_made_once_for_many(client_to):
    async with raw_server(forever) as server:
        way = client_to(server.url)
        request = way.prepare("POST", "/chat", [(b"x-a", b"b")])
        for key, content in (("one", b"1"), ("another", b"22")):
            async with aclosing(await way.send(request, content, BearerKey(key))) as response:
                assert await response.read() == b"ok"
        keys = [lines_of(head)[1][b"authorization"] for head in server.heads]
        assert (keys, server.bodies) == ([b"Bearer one", b"Bearer another"], [b"1", b"22"])


@pytest.mark.parametrize("key", ["a\r\nx-injected: 1", "a\nb", "a\0"])
async def test_a_key_cannot_bring_a_header_along(client_to, key):
    async with raw_server(forever) as server:
        with pytest.raises(httpx.LocalProtocolError):
            await ask(client_to(server.url), key=key)
        assert server.heads == []


async def test_a_header_cannot_bring_another_one_along(client_to):
    async with raw_server(forever) as server:
        with pytest.raises(httpx.LocalProtocolError):
            await ask(client_to(server.url), headers=[(b"x-a", b"1\r\nx-b: 2")])
        assert server.heads == []


def compressed(body):
    return b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(body) + body


async def test_an_answer_that_is_compressed_unasked_is_read(client_to):
    async with raw_server(sends(compressed(gzip.compress(b"hello")))) as server:
        response, body = await ask(client_to(server.url))
        assert (response.status, body) == (200, b"hello")


async def test_an_answer_that_is_not_what_it_says_is_an_error(client_to):
    async with raw_server(sends(compressed(b"hello"))) as server:
        with pytest.raises(httpx.DecodingError, match="cannot be unpacked"):
            await ask(client_to(server.url))


async def test_the_patience_of_the_configuration_is_kept(client_to):
    async with raw_server(sends(b"", then_close=False)) as server:
        with pytest.raises(httpx.ReadTimeout):
            await ask(client_to(server.url, Timeouts(read=0.05)))


async def test_closing_half_way_closes_the_connection(client_to):
    begun = OK.replace(b"length: 2", b"length: 9")
    async with raw_server(sends(begun, then_close=False)) as server:
        way = client_to(server.url)
        async with aclosing(await way.send(way.prepare("GET", "/", ()), b"", BearerKey("k"))) as response:
            assert await response.read() == b"ok"
        async with asyncio.timeout(5):
            await server.until(lambda state: state.open == 0)


async def test_extra_headers_are_asked_for_with_each_request(client_to):
    numbers = iter(range(100))

    def extra():
        return b"x-number: %d\r\nx-more: a\r\n" % next(numbers)

    async with raw_server(forever) as server:
        way = client_to(server.url, extra_headers=extra)
        request = way.prepare("POST", "/chat", [(b"x-a", b"b")])
        for _ in range(2):
            async with aclosing(await way.send(request, b"{}", BearerKey("k"))) as response:
                assert await response.read() == b"ok"
        sent = [lines_of(head)[1] for head in server.heads]
    assert [headers[b"x-number"] for headers in sent] == [b"0", b"1"]
    assert {(headers[b"x-a"], headers[b"x-more"], headers[b"authorization"]) for headers in sent} == {
        (b"b", b"a", b"Bearer k")
    }


@pytest.mark.parametrize("enough", [1, 2])
async def test_a_body_is_pumped_until_there_is_enough_or_no_more_of_it(client_to, enough):
    parts = []

    async def handle(part):
        parts.append(part)
        return len(parts) == enough

    async with raw_server(sends(compressed(gzip.compress(b"hello")))) as server:
        way = client_to(server.url)
        response = await way.send(way.prepare("POST", "/chat", ()), b"", BearerKey("k"))
        async with aclosing(DecodedResponse(response)) as plain:
            await plain.pump(handle)
    assert parts == [b"hello"]


@pytest.mark.parametrize("content", [b"from bytes", b""])
async def test_a_response_made_in_memory_is_read(content):
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=content))
    assert (await ask(HttpClient(HttpxTransport(transport), "http://up.example", PATIENCE)))[1] == content


async def test_empty_parts_are_no_end():
    async def parts():
        for part in (b"", b"one", b"", b"two"):
            yield part

    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=parts()))
    assert (await ask(HttpClient(HttpxTransport(transport), "http://up.example", PATIENCE)))[1] == b"onetwo"


@pytest.mark.parametrize(("method", "body", "length"), [("POST", b"", b"0"), ("POST", b"{}", b"2"), ("GET", b"", None)])
async def test_a_request_to_any_service_has_its_host_its_length_and_the_headers_of_its_trace(method, body, length):
    trace = b"traceparent: 00-1\r\ntracestate: a=b\r\n"
    async with raw_server(forever) as server, aclosing(ServiceClient(Http1Transport(), lambda: trace)) as client:
        headers = httpx.Headers({"X-A": "b", "Traceparent": "of another"})
        async with aclosing(await client.send(method, server.url + "/a?q=%20", headers, body)) as response:
            assert (response.status, await response.read()) == (200, b"ok")
        line, sent = lines_of(server.heads[0])
        assert line == b"%b /a?q=%%20 HTTP/1.1" % method.encode()
        assert sent.pop(b"content-length", None) == length
        assert sent == {
            b"host": server.url.removeprefix("http://").encode(),
            b"x-a": b"b",
            b"traceparent": b"00-1",
            b"tracestate": b"a=b",
        }
