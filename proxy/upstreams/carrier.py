"""How requests travel to one upstream: over any httpx transport, or, with far less to do, over ours.

Both give the same reply: status, headers, and the body's bytes as they come, still encoded as the headers say.
"""

from collections.abc import Awaitable, Iterable, Iterator
from contextlib import suppress
from typing import Protocol, TypeAlias

import httpx
from msgspec import Struct

from proxy.config import Timeouts
from proxy.core.inflate import Inflate
from proxy.upstreams import http1
from proxy.upstreams.http1.wire import request_head

Headers: TypeAlias = Iterable[tuple[bytes, bytes]]

# RFC 9110, section 8.6: these say that they bring nothing; others do not speak of it.
_SAY_EMPTY = frozenset({"POST", "PUT", "PATCH"})


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

    async def read(self) -> bytes:
        """What has come of the body; nothing at its end. Raises `httpx.HTTPError`."""
        ...

    async def aclose(self) -> None:
        """Do without the rest."""
        ...


class Call(Struct, frozen=True):
    """What is the same in all requests of a kind; `head` is the carrier's own form of it."""

    method: str
    head: bytes | tuple[httpx.URL, list[tuple[bytes, bytes]]]


class Carrier(Protocol):
    """The way to one upstream."""

    def call(self, method: str, path: str, headers: Headers) -> Call:
        """A kind of request, once and for all; `path` is put behind the upstream's base URL.

        Raises:
            httpx.HTTPError, httpx.InvalidURL: it cannot be asked.
        """
        ...

    def send(self, call: Call, content: bytes, *, key: str) -> Awaitable[Reply]:
        """One request, one response. Raises `httpx.HTTPError`, at once or when awaited."""
        ...


def carrier_of(transport: httpx.AsyncBaseTransport, base_url: str, timeouts: Timeouts) -> Carrier:
    """The cheapest way over a transport."""
    if isinstance(transport, http1.Http1Transport):
        return Http1Carrier(transport, base_url, timeouts)
    return HttpxCarrier(transport, base_url, timeouts)


class Http1Carrier:
    """Over our own transport, in bytes. A head is made and checked once; a request adds its key and its length."""

    def __init__(self, transport: http1.Http1Transport, base_url: str, timeouts: Timeouts) -> None:
        self._transport = transport
        self._base = base_url.rstrip("/")
        url = httpx.URL(base_url)
        self._origin = http1.origin_of(url)
        self._host = (b"host", url.netloc)
        self._timeouts = http1.Timeouts(timeouts.connect, timeouts.read, timeouts.write, timeouts.pool)

    def call(self, method: str, path: str, headers: Headers) -> Call:
        """A kind of request."""
        target = httpx.URL(self._base + path).raw_path
        head = request_head(method.encode("ascii"), target, [self._host, *headers])
        return Call(method, head.removesuffix(b"\r\n"))

    def send(self, call: Call, content: bytes, *, key: str) -> Awaitable[Reply]:
        """One request."""
        if not (key.isascii() and key.isprintable()):
            raise httpx.LocalProtocolError("The key cannot stand in a header.")
        assert isinstance(call.head, bytes)  # noqa: S101 - `call` made it
        length = b"content-length: %d\r\n" % len(content) if content or call.method in _SAY_EMPTY else b""
        head = b"%bauthorization: Bearer %b\r\n%b\r\n" % (call.head, key.encode(), length)
        return self._transport.send(self._origin, call.method, head, content, self._timeouts)


class HttpxCarrier:
    """Over the stock transport, or one that was injected.

    Speaks to the transport itself, not to an `AsyncClient`: a client would add a cookie jar that two tenants share,
    environment proxies, redirects, and as much CPU again as the call.
    """

    def __init__(self, transport: httpx.AsyncBaseTransport, base_url: str, timeouts: Timeouts) -> None:
        self._transport = transport
        self._base = base_url.rstrip("/")
        waits = {name: getattr(timeouts, name) for name in ("connect", "read", "write", "pool")}
        self._extensions = {"timeout": waits}

    def call(self, method: str, path: str, headers: Headers) -> Call:
        """A kind of request."""
        return Call(method, (httpx.URL(self._base + path), list(headers)))

    async def send(self, call: Call, content: bytes, *, key: str) -> Reply:
        """One request."""
        assert isinstance(call.head, tuple)  # noqa: S101 - `call` made it
        url, headers = call.head
        sent = [*headers, (b"authorization", b"Bearer " + key.encode())]
        request = httpx.Request(call.method, url, headers=sent, content=content, extensions=self._extensions)
        return HttpxReply(await self._transport.handle_async_request(request))


class HttpxReply:
    """A response of httpx as a `Reply`."""

    __slots__ = ("_parts", "_response", "headers", "status")

    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        self.headers = [(name.lower(), value) for name, value in response.headers.raw]
        self._response = response
        # Not `aiter_raw`: a response made from bytes, as tests inject them, counts as read before anybody has.
        assert isinstance(response.stream, httpx.AsyncByteStream)  # noqa: S101 - an asynchronous transport gave it
        self._parts = aiter(response.stream)

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


class Decoded:
    """A reply whose server compressed it although nobody asked for that."""

    __slots__ = ("_coding", "_inflate", "_pieces", "_reply", "headers", "status")

    def __init__(self, reply: Reply, coding: str) -> None:
        self.status, self.headers = reply.status, reply.headers
        self._reply = reply
        self._coding = coding
        self._inflate: Inflate | None = None
        self._pieces: Iterator[bytes] = iter(())

    async def read(self) -> bytes:
        """What has come of the body, unpacked piece by piece. Raises `ValueError` where it cannot be."""
        inflate = self._inflate = self._inflate or Inflate(self._coding)
        while (piece := next(self._pieces, None)) is None:
            data = await self._reply.read()
            if not data:
                inflate.close()
                return b""
            self._pieces = inflate.feed(data)
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
