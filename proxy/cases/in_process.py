"""A proxy without sockets: the client calls the proxy, and the proxy calls the fake servers, in one event loop.

A wait of the proxy, such as that before a retry, takes no time: its clock goes on by as much at once.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx
import uvicorn
from starlette.types import ASGIApp, Message
from uvicorn.lifespan.on import LifespanOn

from proxy.cases.expectations import Received
from proxy.cases.fake_servers import FakeServers

_SCOPE: Final[Mapping[str, Any]] = {
    "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "scheme": "http",
    "root_path": "", "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1),
}  # fmt: skip


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


async def response_of(app: ASGIApp, asked: Mapping[str, Any], body: bytes) -> Received:
    """The response of an application to a request, when the application has ended.

    Args:
        app: the application.
        asked: `method`, `path`, `query_string` and `headers` of the request, as an ASGI scope has them.
        body: the body of the request.
    """
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[Message] = []
    has_ended = asyncio.Event()

    async def receive() -> Message:
        if not messages:
            await has_ended.wait()
        return messages.pop() if messages else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            has_ended.set()

    await app({**_SCOPE, "extensions": {}, "raw_path": asked["path"].encode(), **asked}, receive, send)
    if not sent:
        return Received(None, {}, b"")
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in sent[0].get("headers", ())}
    answer = b"".join(message.get("body", b"") for message in sent)
    return Received(sent[0]["status"], headers, answer, None if has_ended.is_set() else "The body has no end.")


@asynccontextmanager
async def lifespan_of(app: ASGIApp) -> AsyncIterator[None]:
    """Run an application's background tasks."""
    lifespan = LifespanOn(uvicorn.Config(app, log_config=None, lifespan="on"))
    await lifespan.startup()
    try:
        yield
    finally:
        await lifespan.shutdown()
