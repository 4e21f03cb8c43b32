"""Connections to checked addresses: a name is resolved once, and the connection is made to the checked address.

The check is below the transport, where connections are opened, so that nothing above it (a redirect, a retry, a reused
connection) can reach an unchecked address. SNI, certificate and Host header still use the name.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from aiohappyeyeballs import AddrInfoType

from proxy.http.connect import connect_to
from proxy.loop.results import ToolError, ToolUnavailable
from proxy.tools.threads import DaemonThreads
from proxy.tools.web.guard import Address, UrlGuard, literal

Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""Finds the addresses of a host, best first. Raises `OSError` if it has none."""

RESOLVE_SECONDS = 5.0
_MOST_TRIED = 3  # addresses of one name
_NUMERIC = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV


class SystemResolver:
    """The system's own resolver, in threads of its own."""

    def __init__(self) -> None:
        self._threads = DaemonThreads("toolproxy-dns", most=8)

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """The addresses of a host. Raises `OSError`."""
        found = await self._threads.run(lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        return list(dict.fromkeys(str(address[0]) for *_, address in found))


class GuardedConnect:
    """Connects to hosts at addresses that the guard permits; `connect_socket` of `Http1Transport`.

    `connect` connects to the first of several addresses that answers; a name may take `patience` seconds.
    """

    def __init__(
        self,
        guard: UrlGuard,
        resolve: Resolve,
        *,
        connect: Callable[[Sequence[AddrInfoType]], Awaitable[socket.socket]] = connect_to,
        patience: float = RESOLVE_SECONDS,
    ) -> None:
        self._guard = guard
        self._resolve = resolve
        self._connect = connect
        self._patience = patience

    async def __call__(self, host: str, port: int) -> socket.socket:
        """A socket connected to the first address of `host` that answers.

        Raises:
            ToolError: the guard refuses one of the addresses; then none is used, because the choice is random.
            OSError: no address answers.
        """
        addresses = (await self.check(host, port))[:_MOST_TRIED]
        # Numbers are not looked up, so this does not block.
        return await self._connect(
            [
                found
                for address in addresses
                for found in socket.getaddrinfo(str(address), port, type=socket.SOCK_STREAM, flags=_NUMERIC)
            ]
        )

    async def check(self, host: str, port: int) -> list[Address]:
        """The addresses of a host. Raises `ToolError` if a connection to one of them would be refused."""
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
