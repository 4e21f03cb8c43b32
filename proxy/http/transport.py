"""The httpx transport, and the door for callers that have bytes already.

A request is sent once. Only where a connection that was used before turns out to be dead, before a byte of the
response, is it sent again, on a new one, and only if its method may be repeated: RFC 9112, section 9.3.1, forbids a
proxy more than that, and nginx does the same. Few POSTs fail for it: before each use the kernel is asked whether the
server has closed the connection.
"""

import asyncio
import ssl
from collections.abc import AsyncIterable, AsyncIterator

import httpx

from proxy.http import connect as dial
from proxy.http.connect import Origin
from proxy.http.connection import Http1Connection, Reply, Timeouts
from proxy.http.parser import request_head
from proxy.http.pool import Pool, Usage
from proxy.http.trust import client_context

_REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})  # RFC 9110, section 9.2.2
_PORTS = {"http": 80, "https": 443}


class Http1Transport(httpx.AsyncBaseTransport):
    """HTTP/1.1 over TCP and TLS, with connections that are kept. Nothing is decompressed; no proxies, no redirects.

    Args:
        max_connections: at the same time; more requests wait, in order, for as long as their `pool` timeout permits.
        ssl_context: for https; None: the system's certificates, names checked.
    """

    def __init__(self, *, max_connections: int = 1000, ssl_context: ssl.SSLContext | None = None) -> None:
        self._ssl_context = ssl_context
        self._pool = Pool(self._connect, max_connections=max_connections)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """One request of httpx.

        Raises:
            httpx.TransportError: what went wrong, of the kind that the stock transport raises.
        """
        reply = await self.send(
            origin_of(request.url),
            request.method,
            request_head(request.method.encode("ascii"), request.url.raw_path, request.headers.raw),
            _body(request),
            Timeouts(**request.extensions.get("timeout", {})),
        )
        head = reply.head
        return httpx.Response(
            head.status,
            headers=head.headers,
            stream=_Stream(reply),
            extensions={"http_version": b"HTTP/1." + head.version, "reason_phrase": head.reason},
        )

    async def send(
        self, origin: Origin, method: str, head: bytes, body: bytes | AsyncIterable[bytes], timeouts: Timeouts
    ) -> Reply:
        """A request whose head is written already.

        Args:
            origin: where to.
            method: as in the head.
            head: all of it, with the empty line; a body has the length that it says.
            body: bytes, or parts that are framed as the head says.
            timeouts: how long for what.

        Raises:
            httpx.TransportError: there is no response.
        """
        fresh = False
        while True:
            connection = None if fresh else self._pool.take(origin)
            if connection is None:
                connection = await self._pool.acquire(origin, timeouts, fresh=fresh)
            try:
                return await connection.request(head, body, timeouts, to_head=method == "HEAD")
            except (httpx.NetworkError, httpx.RemoteProtocolError):
                stale = connection.requests > 1 and not connection.heard
                if not stale or method not in _REPEATABLE or not isinstance(body, bytes):
                    raise
                fresh = True

    @property
    def usage(self) -> Usage:
        """How many connections there are, and how many requests want one."""
        return self._pool.usage

    async def aclose(self) -> None:
        """Close every connection, also those in use."""
        await self._pool.aclose()

    async def _connect(self, origin: Origin, patience: float | None) -> Http1Connection:
        try:
            async with asyncio.timeout(patience):
                return await self._connected(origin)
        except TimeoutError as exc:
            raise httpx.ConnectTimeout(f"No connection to {origin.host} in time.") from exc
        except (OSError, UnicodeError) as exc:  # TLS's errors are OSErrors; a name that is none is a UnicodeError
            raise httpx.ConnectError(str(exc) or type(exc).__name__) from exc

    async def _connected(self, origin: Origin) -> Http1Connection:
        loop = asyncio.get_running_loop()
        sock = await dial.connect(origin.host, origin.port)
        context = (self._ssl_context or client_context()) if origin.secure else None
        try:
            _, connection = await loop.create_connection(
                lambda: Http1Connection(origin, loop),
                sock=sock,
                ssl=context,
                server_hostname=origin.host if origin.secure else None,
            )
        except BaseException:
            sock.close()
            raise
        return connection


class _Stream(httpx.AsyncByteStream):
    """A reply's body, as httpx reads one."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while data := await self._reply.read():
            yield data

    async def aclose(self) -> None:
        self._reply.close()


def origin_of(url: httpx.URL) -> Origin:
    """Whom a URL is at. Raises `httpx.UnsupportedProtocol` where it is neither http nor https."""
    if url.scheme not in _PORTS:
        raise httpx.UnsupportedProtocol(f"{url.scheme or 'No scheme'}: only http and https are spoken.")
    return Origin(url.raw_host.decode("ascii"), url.port or _PORTS[url.scheme], url.scheme == "https")


def _body(request: httpx.Request) -> bytes | AsyncIterable[bytes]:
    """The body, framed as its headers say. Raises `httpx.LocalProtocolError` where they lie."""
    stream = request.stream
    length = request.headers.get("content-length")
    chunked = "transfer-encoding" in request.headers
    if isinstance(stream, httpx.ByteStream) and not chunked:
        body = b"".join(stream)
        if len(body) != int(length or 0):
            raise httpx.LocalProtocolError(_WRONG_LENGTH)
        return body
    if not isinstance(stream, AsyncIterable):
        raise RuntimeError("A synchronous stream cannot be sent by an asynchronous transport.")  # noqa: TRY004 - httpx raises this
    return _chunked(stream) if chunked else _counted(stream, int(length or 0))


_WRONG_LENGTH = "The body is not as long as its Content-Length says."


async def _chunked(parts: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    async for part in parts:
        if part:
            yield b"%x\r\n%b\r\n" % (len(part), part)
    yield b"0\r\n\r\n"


async def _counted(parts: AsyncIterable[bytes], length: int) -> AsyncIterator[bytes]:
    left = length
    async for part in parts:
        left -= len(part)
        if left < 0:
            break
        yield part
    if left:
        raise httpx.LocalProtocolError(_WRONG_LENGTH)
