"""Connections through a forward proxy.

    https://api.example   client --CONNECT api.example:443--> proxy --> server; then TLS with the server, end to end
    http://api.example    client --GET http://api.example/--> proxy --> server

httpx's transport is not used, because its pool counts a connection through a proxy as open for good if the TLS
handshake fails or is cancelled. Once that has happened for every connection, no request would get one.
"""

import asyncio
from typing import Any

import httpx

from proxy.http import connect
from proxy.http.connect import Origin, client_context
from proxy.http.connection import Http1Connection, Http1Response, RequestTimeouts
from proxy.http.forward_proxy import ForwardProxy, Proxies, authority
from proxy.http.transport import Http1Transport

_END_OF_HEAD = b"\r\n\r\n"
_MOST_HEAD_BYTES = 64 * 1024  # as of any response
_AUTHENTICATION_REQUIRED = 407


class ProxyRefused(ConnectionError):
    """A forward proxy did not connect to the server. The message names the proxy."""


class ProxiedTransport(Http1Transport):
    """HTTP/1.1 through a forward proxy, for all requests."""

    def __init__(self, proxy: ForwardProxy, *, max_connections: int = 1000) -> None:
        super().__init__(max_connections=max_connections)
        self._proxy = proxy

    async def send(
        self, origin: Origin, method: str, head: bytes, body: bytes, timeouts: RequestTimeouts, *, repeats: bool = True
    ) -> Http1Response:
        """The response to a request; see `Http1Transport.send`."""
        if origin.secure:
            return await super().send(origin, method, head, body, timeouts, repeats=repeats)
        response = await super().send(origin, method, self._absolute(origin, head), body, timeouts, repeats=repeats)
        if response.status == _AUTHENTICATION_REQUIRED:  # only a proxy sends it, and the client cannot help it
            await response.aclose()
            refused = self._refused(response.status)
            raise httpx.ConnectError(str(refused)) from refused
        return response

    def _absolute(self, origin: Origin, head: bytes) -> bytes:
        """The head of a plain request in the form for proxies (RFC 9112, section 3.2.2)."""
        method, rest = head.split(b" ", 1)
        where = authority(origin).encode().removesuffix(b":80")
        return b"%b http://%b%b%b\r\n" % (method, where, rest.removesuffix(b"\r\n"), self._proxy.authorization)

    async def _open(self, origin: Origin) -> Http1Connection:
        proxy, loop = self._proxy.origin, asyncio.get_running_loop()
        made = Http1Connection(origin, loop)
        tunnel = _Tunnel(origin, self._proxy, loop.create_future())
        first: asyncio.Protocol = tunnel if origin.secure else made
        try:
            sock = await connect.connect(proxy.host, proxy.port)
        except (OSError, UnicodeError) as exc:
            raise ProxyRefused(f"the proxy {self._proxy} cannot be reached: {exc}") from exc
        try:
            transport, _ = await loop.create_connection(
                lambda: first,
                sock=sock,
                ssl=client_context() if proxy.secure else None,
                server_hostname=proxy.host if proxy.secure else None,
            )
        except BaseException:
            sock.close()
            raise
        if not origin.secure:
            return made
        try:
            status = await tunnel.status
            if not 200 <= status < 300:  # noqa: PLR2004 - any of these is a tunnel (RFC 9110, section 9.3.6)
                raise self._refused(status)  # noqa: TRY301 - closed as after any other failure
            made.connection_made(transport)  # start_tls tells it of a failure, and does not introduce the new transport
            through = await loop.start_tls(transport, made, client_context(), server_hostname=origin.host)
        except BaseException:
            transport.abort()
            raise
        made.connection_made(through)
        return made

    def _refused(self, status: int) -> ProxyRefused:
        return ProxyRefused(f"the proxy {self._proxy} answers with {status}")


class _Tunnel(asyncio.Protocol):
    """Asks a proxy for a connection to an origin. `status` is the answer; nothing else may be sent before it."""

    def __init__(self, origin: Origin, proxy: ForwardProxy, status: "asyncio.Future[int]") -> None:
        self.status = status
        self._proxy = proxy
        self._request = b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (
            (where := authority(origin).encode()),
            where,
            proxy.authorization,
        )
        self._head = bytearray()

    def connection_made(self, transport: Any) -> None:
        """Send the request."""
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Read the head of the answer. Nothing follows the head, because the client speaks first."""
        self._head += data
        end = self._head.find(_END_OF_HEAD)
        if self.status.done() or (end < 0 and len(self._head) <= _MOST_HEAD_BYTES):
            return
        version, _, rest = bytes(self._head).partition(b" ")
        if end < 0 or not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
            self.status.set_exception(ProxyRefused(f"the proxy {self._proxy} does not answer in HTTP/1.1"))
        else:
            self.status.set_result(int(rest[:3]))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Fail if the answer is not complete."""
        if not self.status.done():
            self.status.set_exception(ProxyRefused(f"the proxy {self._proxy} has closed the connection"))


class EnvironmentTransport:
    """A transport for requests to any server: each goes through the proxy for its origin, or directly."""

    def __init__(self, proxies: Proxies) -> None:
        self._proxies = proxies
        self._transports: dict[ForwardProxy | None, Http1Transport] = {None: Http1Transport()}

    async def send(
        self, origin: Origin, method: str, head: bytes, body: bytes, timeouts: RequestTimeouts, *, repeats: bool = True
    ) -> Http1Response:
        """The response to a request, as of `Http1Transport.send`."""
        proxy = self._proxies.proxy_for(f"{'https' if origin.secure else 'http'}://{authority(origin)}")
        if proxy not in self._transports:
            assert proxy is not None  # noqa: S101 - for the type checker
            self._transports[proxy] = ProxiedTransport(proxy)
        return await self._transports[proxy].send(origin, method, head, body, timeouts, repeats=repeats)

    async def aclose(self) -> None:
        """Close all connections, idle or in use."""
        for transport in self._transports.values():
            await transport.aclose()
