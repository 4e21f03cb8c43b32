"""A proxy without sockets: its requests go to the fake servers as calls, in one event loop.

A wait of the proxy, such as that before a retry, takes no time: its clock goes on by as much at once.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import httpx
import uvicorn
from starlette.types import ASGIApp
from uvicorn.lifespan.on import LifespanOn

from proxy.cases.fake_servers import FakeServers


class PlayedClock:
    """The time of a replay, from that of the recording on. Implements `ports.Clock`.

    Attributes:
        began_at: the time of the recording, in seconds since 1970.
    """

    def __init__(self, began_at: float) -> None:
        self.began_at = began_at
        self._slept = 0.0
        self._began = self.monotonic()

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return asyncio.get_running_loop().time() + self._slept

    def time(self) -> float:
        """Seconds since 1970."""
        return self.began_at + self.monotonic() - self._began

    async def sleep(self, seconds: float) -> None:
        """Let time pass at once."""
        self._slept += seconds
        await asyncio.sleep(0)


class FakeTransport(httpx.AsyncBaseTransport):
    """Carries every request of the proxy to the fake servers, whatever its address: there is no other place.

    Args:
        servers: what stands behind the proxy.
        addresses: base URL of an upstream -> its path there, for upstreams that keep an address of their own.
    """

    def __init__(self, servers: FakeServers, addresses: Mapping[str, str]) -> None:
        self._servers = servers
        self._addresses = addresses

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The response of the fake servers. Raises what they raise."""
        body = await request.aread()
        url = str(request.url)
        path = request.url.path
        for address, own in self._addresses.items():
            if url.startswith(address):
                path = own + url.removeprefix(address).partition("?")[0]
        headers = [(name.lower(), value) for name, value in request.headers.raw]
        reply = await self._servers.reply({"method": request.method, "path": path, "headers": headers}, body)
        return httpx.Response(reply.status, headers=[*reply.headers], stream=_Stream(reply.parts))


class _Stream(httpx.AsyncByteStream):
    """The body of a response of the fake servers."""

    def __init__(self, parts: AsyncIterator[bytes]) -> None:
        self._parts = parts

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._parts


@asynccontextmanager
async def lifespan_of(app: ASGIApp) -> AsyncIterator[None]:
    """Run an application's background tasks."""
    lifespan = LifespanOn(uvicorn.Config(app, log_config=None, lifespan="on"))
    await lifespan.startup()
    try:
        yield
    finally:
        await lifespan.shutdown()
