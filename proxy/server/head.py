"""The head of a request: its limits, and the checks that a parser leaves to the server. Also checks of response heads.

A head that two parsers could read differently is refused, because a proxy in front of this one, or the upstream behind
it, may read the head in the other way.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from http.client import responses
from typing import TypeAlias
from urllib.parse import unquote

import httptools
import orjson
from msgspec import Struct

from proxy.app.routes import error_shape
from proxy.config.model import ServerConfig
from proxy.http.parser import HARMLESS, TOKEN
from proxy.kit.request_context import request_id_of
from proxy.wire.errors import HeadersTooLarge, HttpRefused, MethodNotAllowed, ProxyError

Fields: TypeAlias = Iterable[tuple[bytes, bytes]]

# How long a client with a complete response may continue sending, so that a reset does not destroy the response.
# nginx: lingering_timeout 5 s.
_LINGER_SECONDS = 5.0
# If more of a body is left, a new connection is cheaper (Go: maxPostHandlerReadBytes).
_SMALL_BODY = 256 * 1024
_UPGRADE_FIELDS = frozenset({b"upgrade", b"http2-settings"})
_VERSIONS = ("1.1", "1.0")
# TRACE, relayed to an upstream, would return the upstream's key.
_REFUSED_METHODS = frozenset({b"CONNECT", b"TRACE"})
_ALLOWED = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"
# RFC 9110, section 7.2: a host and perhaps a port, in the syntax of RFC 3986. With an `@` or a `/` in it, software that
# makes a URL of it would take a part of it for another host, or for a path.
_HOST = re.compile(rb"(?:\[[0-9A-Za-z:.]+\]|[\w.~!$&'()*+,;=%-]*)(?::[0-9]*)?", re.ASCII)
_NAME = re.compile(TOKEN)
MOST_CACHED_URL = 256  # characters; longer URLs are not normal, and would fill the cache of `split_url`


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The limits of a client's connection, in seconds and bytes.

    header_timeout    from connecting, or from the first byte of a further request, to the end of the head
    send_timeout      the longest time in which a client may read nothing of its response
    max_headers       fields of one request, trailers included
    max_header_bytes  of the request line and all fields
    linger            the time for the rest of a request when the client already has its response
    """

    header_timeout: float
    send_timeout: float
    max_headers: int
    max_header_bytes: int
    linger: float

    @classmethod
    def of(cls, server: ServerConfig) -> "Bounds":
        """The configured limits."""
        return cls(
            header_timeout=server.header_timeout_seconds,
            send_timeout=server.send_timeout_seconds,
            max_headers=server.max_headers,
            max_header_bytes=server.max_header_bytes,
            linger=min(_LINGER_SECONDS, server.body_timeout_seconds),
        )

    def too_large(self) -> HeadersTooLarge:
        """The error for a head that exceeds these limits."""
        most = f"{self.max_headers} header fields and {self.max_header_bytes} bytes of them"
        return HeadersTooLarge(f"A request may have at most {most}.")


class Framing(Struct, frozen=True):
    """The framing of a message, as its head declares it."""

    has_small_body: bool  # of a known length
    is_chunked: bool
    expects_continue: bool  # the client waits for `100 Continue` before it sends the body


def check_head(  # noqa: C901, PLR0911 - a flat list of rules
    method: bytes, version: str, headers: Fields
) -> Framing | ProxyError:
    """The framing of a request, or the fault that the parser did not find.

    The fault is returned and not raised, because its traceback would keep the bytes that were read.
    """
    if version not in _VERSIONS:
        return HttpRefused("This server speaks HTTP/1.1.", status=HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
    if method in _REFUSED_METHODS:
        message = "CONNECT and TRACE are not supported."
        return MethodNotAllowed(message, headers={"allow": _ALLOWED})
    hosts = []
    has_small_body = is_chunked = expects_continue = False
    for name, value in headers:
        if name == b"host":
            hosts.append(value)
        elif name == b"content-length":
            has_small_body = int(value) <= _SMALL_BODY
        elif name == b"transfer-encoding":
            if value.strip().lower() != b"chunked" or version == "1.0":
                return HttpRefused("The only supported transfer coding is 'chunked'.", status=501)
            is_chunked = True
        elif name == b"expect" and version != "1.0":  # RFC 9110, section 10.1.1
            if value.lower() != b"100-continue":
                return HttpRefused("The only supported expectation is '100-continue'.", status=417)
            expects_continue = True
    if len(hosts) != 1 and (version == "1.1" or hosts):  # RFC 9112, section 3.2
        return HttpRefused("A request must have exactly one Host.")
    if hosts and not _HOST.fullmatch(hosts[0]):
        return HttpRefused("The Host of the request is neither a name nor an address.")
    return Framing(has_small_body, is_chunked, expects_continue)


def without_upgrade(method: bytes, url: bytes, version: str, headers: Fields) -> bytes:
    """The head without an offer to upgrade in `Connection`: the parser would take an offer for the end of the request.

    `Upgrade` itself stays, so that an endpoint can refuse the upgrade.
    """
    lines = [b"%s %s HTTP/%s\r\n" % (method, url, version.encode())]
    for name, value in headers:
        if name == b"connection":
            tokens = [token for token in value.split(b",") if token.strip().lower() not in _UPGRADE_FIELDS]
            lines.append(b"connection: %s\r\n" % b",".join(tokens))
        elif name != b"http2-settings":
            lines.append(b"%s: %s\r\n" % (name, value))
    return b"".join((*lines, b"\r\n"))


@lru_cache(256)  # nearly all requests have one of a few URLs
def split_url(url: bytes) -> tuple[str, bytes, bytes]:
    """A URL's path, the path as it was written, and the query."""
    parsed = httptools.parse_url(url)
    path = parsed.path.decode("ascii")
    return unquote(path) if "%" in path else path, parsed.path, parsed.query or b""


@lru_cache(128)  # there are not many, but an upstream may invent some
def status_line(status: int) -> bytes:
    """The first line of a response."""
    return b"HTTP/1.1 %d %b\r\n" % (status, responses.get(status, "").encode())


@lru_cache(128)  # few are used, and one may be as long as a head
def is_field_name(name: bytes) -> bool:
    """Whether these bytes may be the name of a header."""
    return _NAME.fullmatch(name) is not None


def is_clean(block: bytes, *, line_ends: int) -> bool:
    """Whether a block has that many CRLFs, and no other control character."""
    return block.count(b"\r\n") == line_ends and block.translate(None, HARMLESS) == b"\r\n" * line_ends


def request_id_in(headers: Fields) -> str:
    """The id of a request that no application sees, as the application would choose it."""
    return request_id_of(next((value.decode("latin-1") for name, value in headers if name == b"x-request-id"), None))


def error_response(error: ProxyError, request_id: str, headers: Fields, *, url: bytes = b"") -> bytes:
    """The whole response for a request that no application sees; the connection ends with it.

    The response has the `headers` of every response. The URL, as far as it was read, decides the form of the error.
    """
    shape = error_shape(url.partition(b"?")[0].decode("latin-1"))
    body = orjson.dumps(shape.envelope(error, request_id))
    fields = [
        *headers,
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
        (b"x-request-id", request_id.encode()),
        *((name.encode(), value.encode()) for name, value in shape.headers(error, request_id).items()),
    ]
    lines = [b"%b: %b\r\n" % field for field in fields]
    return b"".join((status_line(shape.status_of(error)), *lines, b"\r\n", body))
