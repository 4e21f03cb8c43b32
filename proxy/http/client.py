"""Requests to one upstream: each kind is prepared once and sent often, over any transport."""

from collections.abc import AsyncIterable, Awaitable
from typing import Protocol

import httpx
from msgspec import Struct

from proxy.config.model import Timeouts
from proxy.http.connect import Origin, origin_of
from proxy.http.connection import RequestTimeouts
from proxy.http.credentials import Credential
from proxy.http.parser import Headers, header_lines, request_head
from proxy.http.response import Response
from proxy.ports import ExtraHeaders

# RFC 9110, section 8.6: these methods send a Content-Length even without a body.
_HAVE_A_LENGTH = frozenset({"POST", "PUT", "PATCH"})


class Transport(Protocol):
    """Sends a request with a serialized head, as `transport.Http1Transport` does."""

    def send(
        self, origin: Origin, method: str, head: bytes, body: bytes | AsyncIterable[bytes], timeouts: RequestTimeouts
    ) -> Awaitable[Response]:
        """The response to one request. Raises `httpx.HTTPError`.

        Args:
            origin: the server.
            method: the method, as in the head.
            head: the whole head, with the empty line at its end.
            body: the body, or its parts, framed as the head says.
            timeouts: the timeouts.
        """
        ...

    async def aclose(self) -> None:
        """Close all connections, idle or in use."""
        ...


class PreparedRequest(Struct, frozen=True):
    """A kind of request: a method, and the head lines that all requests of the kind share, validated once."""

    method: str
    target: bytes
    head: bytes

    def with_headers(self, headers: Headers) -> "PreparedRequest":
        """This request with more headers. Raises `httpx.HTTPError` if they are not valid."""
        return PreparedRequest(self.method, self.target, self.head + header_lines(headers))


class HttpClient:
    """Sends requests to one upstream.

    Args:
        transport: sends the requests. The client closes it.
        base_url: the base URL of the upstream.
        timeouts: the timeouts of each request.
        extra_headers: called for each request. Returns more lines for the head, such as the headers of a trace, which
            are not validated.
    """

    def __init__(
        self,
        transport: Transport,
        base_url: str,
        timeouts: Timeouts,
        *,
        extra_headers: ExtraHeaders | None = None,
    ) -> None:
        self._transport = transport
        self.base_url = base_url.rstrip("/")
        url = httpx.URL(base_url)
        self._origin = origin_of(url)
        self._host = (b"host", url.netloc)
        self._timeouts = RequestTimeouts(timeouts.connect, timeouts.read, timeouts.write, timeouts.pool)
        self._extra_headers = extra_headers

    def prepare(self, method: str, path: str, headers: Headers) -> PreparedRequest:
        """A kind of request. `path` is appended to the upstream's base URL.

        Raises:
            httpx.HTTPError, httpx.InvalidURL: such a request cannot be sent.
        """
        target = httpx.URL(self.base_url + path).raw_path
        head = request_head(method, target, [self._host, *headers])
        return PreparedRequest(method, target, head.removesuffix(b"\r\n"))

    def send(self, request: PreparedRequest, content: bytes, credential: Credential) -> Awaitable[Response]:
        """The response to one request of a kind. Raises `httpx.HTTPError`, at once or when awaited."""
        length = b"content-length: %d\r\n" % len(content) if content or request.method in _HAVE_A_LENGTH else b""
        extra = self._extra_headers() if self._extra_headers else b""
        proof = credential.lines(request.method, request.target, content)
        head = b"%b%b%b%b\r\n" % (request.head, extra, proof, length)
        return self._transport.send(self._origin, request.method, head, content, self._timeouts)

    async def aclose(self) -> None:
        """Close all connections, idle or in use."""
        await self._transport.aclose()
