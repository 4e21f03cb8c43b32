"""Connecting to servers: origins, connected sockets, and trusted certificates."""

import asyncio
import functools
import os
import socket
import ssl
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from typing import Any, TypeAlias

import certifi
import httpx
from msgspec import Struct

# RFC 8305, section 8: the time until the next address is tried as well, if an address has not answered.
STAGGER_SECONDS = 0.25

_PORTS = {"http": 80, "https": 443}
_LONGEST_REASON = 300
_MOST_CAUSES = 20

_Address: TypeAlias = tuple[int, int, int, str, Any]  # as getaddrinfo returns it


class Origin(Struct, frozen=True, cache_hash=True):
    """The server at the other end of a connection, which requests to the same origin may share."""

    host: str
    port: int
    secure: bool = False


def origin_of(url: httpx.URL) -> Origin:
    """The origin of a URL. Raises `httpx.UnsupportedProtocol` if its scheme is neither http nor https."""
    if url.scheme not in _PORTS:
        raise httpx.UnsupportedProtocol(f"{url.scheme or 'No scheme'}: only http and https are supported.")
    return Origin(url.raw_host.decode("ascii"), url.port or _PORTS[url.scheme], url.scheme == "https")


@functools.cache
def client_context() -> ssl.SSLContext:
    """The TLS context for all upstreams, tools, pages and MCP servers. It verifies certificates and host names.

    It trusts the system's certificates (OpenSSL's variables `SSL_CERT_FILE` and `SSL_CERT_DIR` name other ones) or, if
    the system has none, Mozilla's list. It is made once, when first needed: reading certificates takes some 20 ms.
    """
    paths = ssl.get_default_verify_paths()
    known = any(path and os.path.exists(path) for path in (paths.cafile, paths.capath))  # noqa: PTH110 - may be None
    context = ssl.create_default_context(cafile=None if known else certifi.where())
    context.set_alpn_protocols(["http/1.1"])
    return context


async def connect(host: str, port: int) -> socket.socket:
    """A socket connected to the first address of a host that answers (RFC 8305, "happy eyeballs").

    Raises:
        OSError: no address answers, or there is no such host.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    first, *others = interleaved(found)
    if not others:
        return await _connect(first)
    outcome = await _race((first, *others))
    if isinstance(outcome, OSError):
        raise outcome
    return outcome


def interleaved(addresses: Iterable[_Address]) -> Sequence[_Address]:
    """The addresses with alternating families, the resolver's first: a family without a route costs one attempt."""
    families: dict[int, list[_Address]] = {}
    for address in addresses:
        families.setdefault(address[0], []).append(address)
    turns = zip_longest(*families.values())
    return [address for address in chain.from_iterable(turns) if address is not None]


async def _race(addresses: Sequence[_Address]) -> socket.socket | OSError:
    """The first socket that is connected, or the error of the first address that was tried."""
    tasks: list[asyncio.Task[socket.socket | OSError]] = []
    winner: socket.socket | None = None
    try:
        async with asyncio.TaskGroup() as group:
            for number, address in enumerate(addresses, 1):
                tasks.append(group.create_task(_attempt(address)))
                winner = await _first_of(tasks, STAGGER_SECONDS if number < len(addresses) else None)
                if winner is not None:
                    break
            for task in tasks:
                task.cancel()
    finally:
        results = [task.result() for task in tasks if task.done() and not task.cancelled()]
        for result in results:
            if result is not winner and isinstance(result, socket.socket):
                result.close()
    return winner or results[0]


async def _first_of(
    tasks: Iterable["asyncio.Task[socket.socket | OSError]"], seconds: float | None
) -> socket.socket | None:
    """The first socket of all attempts; None: the newest attempt has failed, or the time is up."""
    *_, newest = tasks
    ends = None if seconds is None else asyncio.get_running_loop().time() + seconds
    while True:
        for task in tasks:
            if task.done() and isinstance(result := task.result(), socket.socket):
                return result
        pending = [task for task in tasks if not task.done()]
        if not pending or (ends is not None and newest.done()):
            return None
        left = None if ends is None else ends - asyncio.get_running_loop().time()
        done, _ = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            return None


async def _attempt(address: _Address) -> socket.socket | OSError:
    try:
        return await _connect(address)
    except OSError as exc:
        return exc


async def _connect(address: _Address) -> socket.socket:
    family, kind, protocol, _, where = address
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # each write is a whole request
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # notices a silent server that has vanished
        await asyncio.get_running_loop().sock_connect(sock, where)
    except BaseException:
        sock.close()
        raise
    return sock


def reason(exc: BaseException) -> str:
    """The cause of a network exception, for the log.

    This is the operating system's message if there is one, as for a refused connection or an untrusted certificate. Any
    other exception may quote a request, so only its type is given.
    """
    found = type(exc).__name__
    for link in causes(exc):
        if isinstance(link, OSError) and str(link):
            found = f"{type(link).__name__}: {str(link)[:_LONGEST_REASON]}"
    return found


def causes(exc: BaseException) -> Iterator[BaseException]:
    """An exception and its causes, at most 20 in all, because a chain can be circular."""
    link: BaseException | None = exc
    for _ in range(_MOST_CAUSES):
        if link is None:
            return
        yield link
        link = link.__cause__ or link.__context__
