"""Connections to checked addresses: a name is resolved once, and the connection is made to the checked address.

The check is below httpcore, where connections are opened, so that nothing above it (a redirect, a retry, a reused
connection) can reach an unchecked address. SNI, certificate and Host header still use the name.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeAlias

import httpcore

from proxy.loop.results import ToolError, ToolUnavailable
from proxy.tools.threads import DaemonThreads
from proxy.tools.web.guard import Address, UrlGuard, literal

Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""Finds the addresses of a host, best first. Raises `OSError` if it has none."""

RESOLVE_SECONDS = 5.0
_MOST_TRIED = 3  # addresses of one name; each may take the whole timeout


class SystemResolver:
    """The system's own resolver, in threads of its own."""

    def __init__(self) -> None:
        self._threads = DaemonThreads("toolproxy-dns", most=8)

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """The addresses of a host. Raises `OSError`."""
        found = await self._threads.run(lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        return list(dict.fromkeys(str(address[0]) for *_, address in found))


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Opens TCP connections for httpcore, to addresses that the guard permits."""

    def __init__(
        self,
        guard: UrlGuard,
        resolve: Resolve,
        *,
        network: httpcore.AsyncNetworkBackend | None = None,
        patience: float = RESOLVE_SECONDS,
    ) -> None:
        self._guard = guard
        self._resolve = resolve
        self._patience = patience
        self._network = network or httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's signature
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """A connection to the first address of `host` that answers.

        Raises:
            ToolError: the guard refuses one of the addresses; then none is used, because the choice is random.
            httpcore.ConnectError: no address answers.
        """
        failure: Exception = httpcore.ConnectError("no address")
        for address in (await self._addresses(host, port))[:_MOST_TRIED]:
            try:
                return await self._network.connect_tcp(str(address), port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as exc:
                failure = exc
        raise failure

    async def check(self, host: str, port: int) -> None:
        """Raise `ToolError` if a connection to `host` would be refused."""
        await self._addresses(host, port)

    async def _addresses(self, host: str, port: int) -> list[Address]:
        written = literal(host)
        addresses = [written] if written else await self._resolved(host, port)
        for address in addresses:
            self._guard.check_address(host, port, address)
        return addresses

    async def _resolved(self, host: str, port: int) -> list[Address]:
        try:
            async with asyncio.timeout(self._patience):
                found = await self._resolve(host, port)
        except TimeoutError as exc:
            raise ToolUnavailable(f"The name {host} could not be looked up in time.") from exc
        except socket.gaierror as exc:
            if exc.errno == socket.EAI_AGAIN:
                raise ToolUnavailable(f"The name {host} cannot be looked up now.") from exc
            raise ToolError(f"There is no host named {host}.") from exc
        except (OSError, UnicodeError) as exc:
            raise ToolError(f"The name {host} could not be looked up.") from exc
        addresses = [address for text in found if (address := literal(text))]
        if not addresses:
            raise ToolError(f"The name {host} has no address.")
        return addresses
