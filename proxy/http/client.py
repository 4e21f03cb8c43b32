"""Clients over any transport: of one upstream, whose kinds of requests are prepared once, and of any service."""

from collections.abc import Awaitable
from typing import Protocol

import httpx
from msgspec import Struct

from proxy.config.model import Timeouts
from proxy.http.connect import Origin, origin_of
from proxy.http.connection import RequestTimeouts
from proxy.http.parser import Headers, header_lines, request_head
from proxy.http.response import Response
from proxy.ports import ExtraHeaders

# RFC 9110, section 8.6: these methods send a Content-Length even without a body.
_HAVE_A_LENGTH = frozenset({"POST", "PUT", "PATCH"})
_REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})  # RFC 9110, section 9.2.2
_NO_TIMEOUTS = RequestTimeouts()


class Transport(Protocol):
    """Sends a request with a serialized head, as `transport.Http1Transport` does."""

    def send(
        self, origin: Origin, method: str, head: bytes, body: bytes, timeouts: RequestTimeouts, *, repeats: bool = True
    ) -> Awaitable[Response]:
        """The response to one request. Raises `httpx.HTTPError`.

        The head is whole, with the empty line at its end. If the request `repeats`, it is sent again where a connection
        that was used before turns out to be dead.
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


class BearerKey:
    """A key that is sent with every request of an upstream, and proves who sends it.

    Attributes:
        secrets: the key, which no error may quote.
        uses_client_key: whether it is the client's own key, so that the client gets errors about it.
        line: the header line with the key; empty: the key cannot be sent in a header.
    """

    def __init__(self, key: str, *, uses_client_key: bool = False) -> None:
        self.secrets = (key,)
        self.uses_client_key = uses_client_key
        can_be_sent = key.isascii() and key.isprintable()
        self.line = b"authorization: Bearer %b\r\n" % key.encode() if can_be_sent else b""


class HttpClient:
    """Sends requests to one upstream, and closes its transport.

    `extra_headers` is called for each request and returns more lines for its head, such as those of a trace, which are
    not validated.
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

    def send(self, request: PreparedRequest, content: bytes, credential: BearerKey) -> Awaitable[Response]:
        """The response to one request of a kind. Raises `httpx.HTTPError`, at once or when awaited."""
        if not credential.line:
            raise httpx.LocalProtocolError("The key cannot be sent in a header.")
        length = b"content-length: %d\r\n" % len(content) if content or request.method in _HAVE_A_LENGTH else b""
        extra = self._extra_headers() if self._extra_headers else b""
        head = b"%b%b%b%b\r\n" % (request.head, extra, credential.line, length)
        return self._transport.send(self._origin, request.method, head, content, self._timeouts)

    async def aclose(self) -> None:
        """Close all connections, idle or in use."""
        await self._transport.aclose()


class ServiceClient:
    """Sends requests to any server: no redirects, cookies and time limits. The arguments are as in `HttpClient`."""

    def __init__(self, transport: Transport, extra_headers: ExtraHeaders | None = None) -> None:
        self._transport = transport
        self._extra_headers = extra_headers

    async def send(self, method: str, url: str, headers: httpx.Headers, body: bytes) -> Response:
        """The response to a request, whose headers lack Host and the length of the body.

        A request that may not be repeated is sent once, even if its connection is dead.

        Raises:
            httpx.HTTPError: the request cannot be sent, or gets no response.
            httpx.InvalidURL: the URL is none, or is too long.
        """
        where = httpx.URL(url)
        if self._extra_headers is not None:
            headers.update([line.partition(b": ")[::2] for line in self._extra_headers().splitlines()])
        fields = [(b"host", where.netloc), *headers.raw]
        if body or method in _HAVE_A_LENGTH:
            fields.append((b"content-length", b"%d" % len(body)))
        head = request_head(method, where.raw_path, fields)
        repeats = method in _REPEATABLE
        return await self._transport.send(origin_of(where), method, head, body, _NO_TIMEOUTS, repeats=repeats)

    async def aclose(self) -> None:
        """Close all connections, idle or in use."""
        await self._transport.aclose()
