"""How requests travel to one upstream: in bytes over our own transport, or over any httpx transport.

Both clients give the same reply: status, headers, and the body's bytes as they come, still encoded as the headers say.
Both take a function for headers that are different for each request, such as those of the trace that it belongs to.
"""

from collections.abc import Awaitable, Iterable, Iterator
from contextlib import suppress
from typing import Protocol, TypeAlias, cast

import httpx

from proxy import http as http1
from proxy.config import Timeouts
from proxy.http.decode import Inflate
from proxy.http.parser import header_lines, request_head
from proxy.ports import ExtraHeaders

Headers: TypeAlias = Iterable[tuple[bytes, bytes]]

# RFC 9110, section 8.6: these have a Content-Length even where they have no body.
_HAVE_A_LENGTH = frozenset({"POST", "PUT", "PATCH"})


class Reply(Protocol):
    """A response. It has to be closed; read to its end, its connection is used again."""

    @property
    def status(self) -> int:
        """The HTTP status."""
        ...

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """As they came, names in lower case."""
        ...

    def take_whole(self) -> bytes | None:
        """The rest of the body, where all of it has come already; None: there may be more to read."""
        ...

    async def read(self) -> bytes:
        """What has come of the body; nothing at its end. Raises `httpx.HTTPError`."""
        ...

    async def pump(self, handle: http1.Handle) -> None:
        """Give the body to `handle` as it comes, until it has enough or the body ends.

        Raises:
            httpx.HTTPError: the body broke off, or cannot be read.
            Exception: whatever `handle` raises.
        """
        ...

    async def aclose(self) -> None:
        """Do without the rest."""
        ...


class PreparedRequest(Protocol):
    """What all requests of a kind have in common, made and checked once."""

    def with_headers(self, headers: Headers) -> "PreparedRequest":
        """The same with more headers. Raises `httpx.HTTPError` where they cannot stand in a head."""
        ...

    def send(self, content: bytes, *, key: str) -> Awaitable[Reply]:
        """One request, one response. Raises `httpx.HTTPError`, at once or when awaited."""
        ...


class HttpClient(Protocol):
    """The way to one upstream."""

    def prepare(self, method: str, path: str, headers: Headers) -> PreparedRequest:
        """A kind of request; `path` is put behind the upstream's base URL.

        Raises:
            httpx.HTTPError, httpx.InvalidURL: such a request cannot be sent.
        """
        ...

    async def aclose(self) -> None:
        """Close every connection."""
        ...


class Http1Client:
    """Over our own transport, in bytes.

    Args:
        transport: with the connections; closed with the client.
        base_url: the upstream's.
        timeouts: of each request.
        extra_headers: called for each request; gives headers that it has beside those that were prepared. None: none.
    """

    def __init__(
        self,
        transport: http1.Http1Transport,
        base_url: str,
        timeouts: Timeouts,
        *,
        extra_headers: ExtraHeaders | None = None,
    ) -> None:
        self._transport = transport
        self._base = base_url.rstrip("/")
        url = httpx.URL(base_url)
        self._origin = http1.origin_of(url)
        self._host = (b"host", url.netloc)
        self._timeouts = http1.Timeouts(timeouts.connect, timeouts.read, timeouts.write, timeouts.pool)
        self._extra_headers = extra_headers

    def prepare(self, method: str, path: str, headers: Headers) -> PreparedRequest:
        """A kind of request."""
        target = httpx.URL(self._base + path).raw_path
        head = request_head(method.encode("ascii"), target, [self._host, *headers])
        return _Http1Request(self, method, head.removesuffix(b"\r\n"))

    def send(self, method: str, head: bytes, content: bytes, *, key: str) -> Awaitable[Reply]:
        """One request; what is different from request to request is put behind the prepared `head`."""
        if not (key.isascii() and key.isprintable()):
            raise httpx.LocalProtocolError("The key cannot stand in a header.")
        length = b"content-length: %d\r\n" % len(content) if content or method in _HAVE_A_LENGTH else b""
        extra = header_lines(self._extra_headers()) if self._extra_headers else b""
        head = b"%b%bauthorization: Bearer %b\r\n%b\r\n" % (head, extra, key.encode(), length)
        return self._transport.send(self._origin, method, head, content, self._timeouts)

    async def aclose(self) -> None:
        """Close every connection."""
        await self._transport.aclose()


class _Http1Request:
    """A request whose head is written already, but for its last lines."""

    __slots__ = ("_client", "_head", "_method")

    def __init__(self, client: Http1Client, method: str, head: bytes) -> None:
        self._client = client
        self._method = method
        self._head = head

    def with_headers(self, headers: Headers) -> PreparedRequest:
        """The same with more headers."""
        return _Http1Request(self._client, self._method, self._head + header_lines(headers))

    def send(self, content: bytes, *, key: str) -> Awaitable[Reply]:
        """One request."""
        return self._client.send(self._method, self._head, content, key=key)


class HttpxClient:
    """Over the stock transport, or one that was injected. Takes the same arguments as `Http1Client`.

    The transport is called directly, without an `AsyncClient`: a client would add a cookie jar that two tenants share,
    environment proxies, redirects, and as much CPU again as the call.
    """

    def __init__(
        self,
        transport: httpx.AsyncBaseTransport,
        base_url: str,
        timeouts: Timeouts,
        *,
        extra_headers: ExtraHeaders | None = None,
    ) -> None:
        self._transport = transport
        self._base = base_url.rstrip("/")
        waits = {name: getattr(timeouts, name) for name in ("connect", "read", "write", "pool")}
        self._extensions = {"timeout": waits}
        self._extra_headers = extra_headers

    def prepare(self, method: str, path: str, headers: Headers) -> PreparedRequest:
        """A kind of request."""
        return _HttpxRequest(self, method, httpx.URL(self._base + path), list(headers))

    async def send(
        self, method: str, url: httpx.URL, headers: list[tuple[bytes, bytes]], content: bytes, *, key: str
    ) -> Reply:
        """One request."""
        extra = self._extra_headers() if self._extra_headers else ()
        sent = [*headers, *extra, (b"authorization", b"Bearer " + key.encode())]
        request = httpx.Request(method, url, headers=sent, content=content, extensions=self._extensions)
        return HttpxReply(await self._transport.handle_async_request(request))

    async def aclose(self) -> None:
        """Close every connection."""
        await self._transport.aclose()


class _HttpxRequest:
    """A request of httpx, but for its body and what is different from request to request."""

    __slots__ = ("_client", "_headers", "_method", "_url")

    def __init__(self, client: HttpxClient, method: str, url: httpx.URL, headers: list[tuple[bytes, bytes]]) -> None:
        self._client = client
        self._method = method
        self._url = url
        self._headers = headers

    def with_headers(self, headers: Headers) -> PreparedRequest:
        """The same with more headers."""
        return _HttpxRequest(self._client, self._method, self._url, [*self._headers, *headers])

    def send(self, content: bytes, *, key: str) -> Awaitable[Reply]:
        """One request."""
        return self._client.send(self._method, self._url, self._headers, content, key=key)


class _ReadReply:
    """A reply that can only be read: there is no shorter way to its body."""

    __slots__ = ()

    async def read(self) -> bytes:
        """What has come of the body; nothing at its end."""
        raise NotImplementedError

    def take_whole(self) -> bytes | None:
        """Whether all of it has come is not known."""
        return None

    async def pump(self, handle: http1.Handle) -> None:
        """Give what is read to `handle`."""
        while (part := await self.read()) and not await handle(part):
            pass


class HttpxReply(_ReadReply):
    """A response of httpx as a `Reply`."""

    __slots__ = ("_parts", "_response", "headers", "status")

    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        self.headers = [(name.lower(), value) for name, value in response.headers.raw]
        self._response = response
        # Not `aiter_raw`: a response made from bytes, as tests inject them, counts as read before anybody has.
        self._parts = aiter(cast("httpx.AsyncByteStream", response.stream))

    async def read(self) -> bytes:
        """What has come of the body; an empty part is not its end."""
        async for part in self._parts:
            if part:
                return part
        return b""

    async def aclose(self) -> None:
        """Do without the rest; what goes wrong with that harms nobody."""
        with suppress(httpx.HTTPError):
            await self._response.aclose()


class Decoded(_ReadReply):
    """A reply whose server compressed it although nobody asked for that."""

    __slots__ = ("_coding", "_inflate", "_pieces", "_reply", "headers", "status")

    def __init__(self, reply: Reply, coding: str) -> None:
        self.status, self.headers = reply.status, reply.headers
        self._reply = reply
        self._coding = coding
        self._inflate: Inflate | None = None
        self._pieces: Iterator[bytes] = iter(())

    async def read(self) -> bytes:
        """What has come of the body, unpacked piece by piece. Raises `httpx.DecodingError` where it cannot be."""
        try:
            inflate = self._inflate = self._inflate or Inflate(self._coding)
            while (piece := next(self._pieces, None)) is None:
                data = await self._reply.read()
                if not data:
                    inflate.close()
                    return b""
                self._pieces = inflate.feed(data)
        except ValueError as exc:
            raise httpx.DecodingError(str(exc)) from exc
        return piece

    async def aclose(self) -> None:
        """Do without the rest."""
        await self._reply.aclose()


def decoded(reply: Reply) -> Reply:
    """The reply with its body as it was before it was compressed, if it was."""
    coding = header(reply, b"content-encoding")
    return Decoded(reply, coding.decode("latin-1")) if coding else reply


def header(reply: Reply, name: bytes) -> bytes:
    """The value of a header, empty where there is none; `name` in lower case."""
    for known, value in reply.headers:
        if known == name:
            return value
    return b""
