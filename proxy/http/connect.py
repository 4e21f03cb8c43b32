"""Connecting to servers: origins, connected sockets, and trusted certificates."""

import asyncio
import functools
import os
import socket
import ssl
from collections.abc import Iterator, Sequence

import aiohappyeyeballs
import certifi
import httpx
from msgspec import Struct

# RFC 8305, section 8: the time without an answer after which the next address is tried too.
STAGGER_SECONDS = 0.25

PORTS = {"http": 80, "https": 443}
"""The schemes of URLs -> the port that each has by default."""

_LONGEST_REASON = 300
_MOST_CAUSES = 20


class Origin(Struct, frozen=True, cache_hash=True):
    """The server at the other end of a connection. Requests to the same origin may share the connection."""

    host: str
    port: int
    secure: bool = False


def origin_of(url: httpx.URL) -> Origin:
    """The origin of a URL. Raises `httpx.UnsupportedProtocol` if its scheme is neither http nor https."""
    if url.scheme not in PORTS:
        raise httpx.UnsupportedProtocol(f"{url.scheme or 'No scheme'}: only http and https are supported.")
    return Origin(url.raw_host.decode("ascii"), url.port or PORTS[url.scheme], url.scheme == "https")


@functools.cache
def client_context() -> ssl.SSLContext:
    """The TLS context for all upstreams, tools, pages and MCP servers. It verifies certificates and host names.

    The context trusts the system's certificates (or those in OpenSSL's `SSL_CERT_FILE` and `SSL_CERT_DIR`) or, if the
    system has none, Mozilla's list. It is made once, when first needed: reading certificates takes about 20 ms.
    """
    paths = ssl.get_default_verify_paths()
    known = any(path and os.path.exists(path) for path in (paths.cafile, paths.capath))  # noqa: PTH110 - may be None
    context = ssl.create_default_context(cafile=None if known else certifi.where())
    context.set_alpn_protocols(["http/1.1"])
    return context


async def connect(host: str, port: int) -> socket.socket:
    """A socket connected to the first address of a host that answers (RFC 8305, "happy eyeballs").

    Raises:
        OSError: no address answers, or the host does not exist.
    """
    return await connect_to(await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM))


async def connect_to(found: Sequence[aiohappyeyeballs.AddrInfoType]) -> socket.socket:
    """A socket connected to the first of these addresses that answers. Raises `OSError`: none does."""
    sock = await aiohappyeyeballs.start_connection(found, happy_eyeballs_delay=STAGGER_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # each write is a whole request
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # notices a silent server that has vanished
    return sock


def reason(exc: BaseException) -> str:
    """The cause of a network exception, for the log.

    The cause is the operating system's message if there is one, for example for a refused connection or an untrusted
    certificate. Any other exception may quote a request, so only its type is returned.
    """
    found = type(exc).__name__
    for link in causes(exc):
        if isinstance(link, OSError) and str(link):
            found = f"{type(link).__name__}: {str(link)[:_LONGEST_REASON]}"
    return found


def causes(exc: BaseException) -> Iterator[BaseException]:
    """An exception and its causes. At most 20 are returned, because a chain can be circular."""
    link: BaseException | None = exc
    for _ in range(_MOST_CAUSES):
        if link is None:
            return
        yield link
        link = link.__cause__ or link.__context__
