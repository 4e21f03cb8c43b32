"""Codex asks for a WebSocket first: any answer but 426 costs it five slow retries, or ends it."""

import asyncio

import httpx
import pytest

from tests.serving import proxy_of

CLIENTS = "clients: [{name: one, key: key-one}]"
OFFER = "Connection: keep-alive, Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAA\r\n"


async def exchange(url, request):
    """A raw request, and everything that comes back until the connection is closed."""
    host = httpx.URL(url)
    reader, writer = await asyncio.open_connection(host.host, host.port)
    writer.write(request.encode())
    try:
        return (await asyncio.wait_for(reader.read(), 10)).decode()
    finally:
        writer.close()


@pytest.mark.parametrize("path", ["/v1/responses", "/responses", "/v1/responses?x=1"])
@pytest.mark.parametrize("key", ["Authorization: Bearer key-one\r\n", "Authorization: Bearer wrong\r\n", ""])
@pytest.mark.parametrize("upgrade", ["websocket", "h2c, WebSocket"])
async def test_the_offer_of_a_websocket_gets_426_at_once_whatever_the_key(upstream, path, key, upgrade):
    async with proxy_of(upstream, more=CLIENTS) as url:
        answer = await exchange(url, f"GET {path} HTTP/1.1\r\nHost: p\r\n{key}{OFFER}Upgrade: {upgrade}\r\n\r\n")
    assert answer.startswith("HTTP/1.1 426 ")
    assert "connection: close" in answer
    assert '"code":"websocket_not_supported"' in answer


async def test_other_requests_are_what_they_were(upstream):
    request = "GET {} HTTP/1.1\r\nHost: p\r\nConnection: close{}\r\n{}\r\n"
    async with proxy_of(upstream) as url:
        plain = await exchange(url, request.format("/v1/responses", "", ""))
        other = await exchange(url, request.format("/v1/responses", ", Upgrade", "Upgrade: h2c\r\n"))
        elsewhere = await exchange(url, request.format("/v1/models", ", Upgrade", "Upgrade: websocket\r\n"))
    assert [answer[:13] for answer in (plain, other, elsewhere)] == ["HTTP/1.1 405 ", "HTTP/1.1 405 ", "HTTP/1.1 200 "]
    assert "allow: POST" in plain
