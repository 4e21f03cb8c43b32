"""Transports: the proxy's own, and an adapter for any transport of httpx.

A request is sent once. It is sent again, on a new connection, only if a reused connection turns out to be dead before a
byte of the response has arrived: servers close idle connections without a word, and a request that is on its way then
meets a reset. nginx does the same with the connections that it keeps. A request of a tool is sent again only if its
method may be repeated.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import cast

import httpx
from msgspec.structs import asdict

from proxy.http import connect
from proxy.http.connect import Origin, client_context
from proxy.http.connection import Http1Connection, Http1Response, RequestTimeouts
from proxy.http.pool import Pool
from proxy.http.response import Response


class Http1Transport:
    """HTTP/1.1 over TCP and TLS with persistent connections; without decompression, proxies and redirects.

    Args:
        max_connections: how many connections may be open at the same time. More requests wait in order, within their
            `pool` timeout.
        ssl_context: the context for https; None: `client_context`.
        connect_socket: connects to a port of a host; None: `connect.connect`. Raises `OSError`.
    """

    def __init__(
        self,
        *,
        max_connections: int = 1000,
        ssl_context: ssl.SSLContext | None = None,
        connect_socket: Callable[[str, int], Awaitable[socket.socket]] | None = None,
    ) -> None:
        self._ssl_context = ssl_context
        self._connect_socket = connect_socket
        self._pool = Pool(self._connect, max_connections=max_connections)

    async def send(
        self, origin: Origin, method: str, head: bytes, body: bytes, timeouts: RequestTimeouts, *, repeats: bool = True
    ) -> Http1Response:
        """The response to a request, as in `client.Transport`. Raises `httpx.TransportError`."""
        fresh = False
        while True:
            connection = await self._pool.acquire(origin, timeouts, fresh=fresh)
            try:
                return await connection.request(head, body, timeouts, is_head_request=method == "HEAD")
            except (httpx.NetworkError, httpx.RemoteProtocolError):
                stale = connection.requests > 1 and not connection.has_answered
                if not (stale and repeats):
                    raise
                fresh = True

    async def aclose(self) -> None:
        """Close all connections, idle or in use."""
        await self._pool.aclose()

    async def _connect(self, origin: Origin, seconds: float | None) -> Http1Connection:
        try:
            async with asyncio.timeout(seconds):
                return await self._open(origin)
        except TimeoutError as exc:
            raise httpx.ConnectTimeout(f"No connection to {origin.host} in time.") from exc
        except (OSError, UnicodeError) as exc:  # errors of TLS are OSErrors, and an invalid host name is a UnicodeError
            raise httpx.ConnectError(str(exc) or type(exc).__name__) from exc

    async def _open(self, origin: Origin) -> Http1Connection:
        """A new connection to an origin, after any TLS handshake. Raises `OSError` or `UnicodeError`."""
        loop = asyncio.get_running_loop()
        sock = await (self._connect_socket or connect.connect)(origin.host, origin.port)
        try:
            _, made = await loop.create_connection(
                lambda: Http1Connection(origin, loop),
                sock=sock,
                ssl=(self._ssl_context or client_context()) if origin.secure else None,
                server_hostname=origin.host if origin.secure else None,
            )
        except BaseException:
            sock.close()
            raise
        return made


class HttpxTransport:
    """Adapts any httpx transport for `client.HttpClient`.

    The transport is called without an `httpx.AsyncClient`, which would add a cookie jar shared by all tenants, proxies
    from the environment and redirects, and would take as much CPU time again as the call.
    """

    def __init__(self, transport: httpx.AsyncBaseTransport) -> None:
        self._transport = transport

    async def send(
        self,
        origin: Origin,
        method: str,
        head: bytes,
        body: bytes,
        timeouts: RequestTimeouts,
        *,
        repeats: bool = True,  # noqa: ARG002 - httpx decides
    ) -> Response:
        """The response to a request, as of `client.Transport`."""
        line, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
        headers = [(name, value) for name, _, value in (line.partition(b": ") for line in lines)]
        scheme = "https" if origin.secure else "http"
        url = httpx.URL(scheme=scheme, host=origin.host, port=origin.port, raw_path=line.split(b" ")[1])
        extensions = {"timeout": asdict(timeouts)}
        request = httpx.Request(method, url, headers=headers, content=body, extensions=extensions)
        return _HttpxResponse(await self._transport.handle_async_request(request))

    async def aclose(self) -> None:
        """Close all connections, idle or in use."""
        await self._transport.aclose()


class _HttpxResponse(Response):
    """A response of httpx."""

    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        self.headers = [(name.lower(), value) for name, value in response.headers.raw]
        self._response = response
        # Not `aiter_raw`: httpx considers a response made from bytes, as in tests, as read already.
        self._parts = aiter(cast("httpx.AsyncByteStream", response.stream))

    async def read(self) -> bytes:
        """The next part of the body that is not empty; empty at the end of the body."""
        async for part in self._parts:
            if part:
                return part
        return b""

    async def aclose(self) -> None:
        """Discard the rest of the body. A failure to close the response is ignored."""
        with suppress(httpx.HTTPError):
            await self._response.aclose()
