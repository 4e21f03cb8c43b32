"""A proxy without sockets: requests are passed from one ASGI application to the other, in one event loop.

A wait of the proxy, such as that before a retry, takes no time: its clock goes on by as much at once.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping, MutableMapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
from starlette.types import ASGIApp, Message, Scope

from proxy.wire.relayed import Headers

_ENDED: Final = None
_SERVER: Final = ("127.0.0.1", 80)
_PEER: Final = ("127.0.0.1", 1)


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


@dataclass(slots=True, eq=False)
class CollectedResponse:
    """A response of an application, while it is being made.

    Attributes:
        status: the HTTP status.
        headers: the headers.
    """

    status: int
    headers: Headers
    _messages: "asyncio.Queue[Message | BaseException | None]"
    _task: "asyncio.Task[None]"
    _left: asyncio.Event
    _is_whole: bool = field(default=False, init=False)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The pieces of the body.

        Raises:
            httpx.RemoteProtocolError: the body has no end.
            Exception: whatever the application raises.
        """
        while not self._is_whole:
            message = await self._messages.get()
            if isinstance(message, BaseException):
                raise message
            if message is _ENDED:
                raise httpx.RemoteProtocolError("The body has no end.")
            self._is_whole = not message.get("more_body", False)
            if message.get("body"):
                yield message["body"]

    async def aclose(self, *, patience: float) -> None:
        """Leave, and wait until the application has ended; it is cancelled where it takes longer than `patience`."""
        self._left.set()
        done, _ = await asyncio.wait([self._task], timeout=patience)
        if not done:
            self._task.cancel()
            await asyncio.wait([self._task])


async def send(app: ASGIApp, scope: Mapping[str, Any], body: bytes) -> CollectedResponse:
    """The response of an application to a request.

    Args:
        app: the application.
        scope: `method`, `path`, `query_string` and `headers` of the request.
        body: its body.

    Raises:
        httpx.RemoteProtocolError: the application has not answered.
        Exception: whatever the application raises.
    """
    messages: asyncio.Queue[Message | BaseException | None] = asyncio.Queue()
    leaving, sent = asyncio.Event(), False

    async def receive() -> Message:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}
        await leaving.wait()
        return {"type": "http.disconnect"}

    async def run() -> None:
        try:
            await app(_scope(scope), receive, messages.put)
        except Exception as exc:  # noqa: BLE001 - raised again for whoever reads the response
            messages.put_nowait(exc)
        messages.put_nowait(_ENDED)

    task = asyncio.create_task(run())  # noqa: TID251 - `CollectedResponse.aclose` ends it
    try:
        first = await messages.get()
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait([task])
        raise
    if isinstance(first, BaseException):
        raise first
    if first is _ENDED:
        raise httpx.RemoteProtocolError("The application has not answered.")
    return CollectedResponse(first["status"], first.get("headers", ()), messages, task, leaving)


def _scope(told: Mapping[str, Any]) -> Scope:
    path = str(told["path"])
    scope: MutableMapping[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "scheme": "http",
        "root_path": "",
        "server": _SERVER,
        "client": _PEER,
        "raw_path": path.encode(),
        "query_string": b"",
        "extensions": {},
        **told,
    }
    return scope


class FakeTransport(httpx.AsyncBaseTransport):
    """Carries every request of the proxy to the fake servers, whatever its address: there is no other place.

    Args:
        servers: the application behind the proxy.
        addresses: base URL of an upstream -> its path there, for upstreams that keep an address of their own.
    """

    def __init__(self, servers: ASGIApp, addresses: Mapping[str, str]) -> None:
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
        scope = {"method": request.method, "path": path, "headers": headers, "query_string": request.url.query}
        response = await send(self._servers, scope, body)
        return httpx.Response(response.status, headers=[*response.headers], stream=_Stream(response))


class _Stream(httpx.AsyncByteStream):
    """The body of a response of the fake servers."""

    def __init__(self, response: CollectedResponse) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._response.pieces():
            yield piece

    async def aclose(self) -> None:
        """Close the connection; messages that the other end still sends are lost."""
        await self._response.aclose(patience=0)


@asynccontextmanager
async def lifespan_of(app: ASGIApp) -> AsyncIterator[None]:
    """Run an application's background tasks."""
    incoming: asyncio.Queue[Message] = asyncio.Queue()
    outgoing: asyncio.Queue[Message] = asyncio.Queue()
    incoming.put_nowait({"type": "lifespan.startup"})
    scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
    running: Awaitable[None] = app(scope, incoming.get, outgoing.put)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(_awaited(running))
        await outgoing.get()
        try:
            yield
        finally:
            incoming.put_nowait({"type": "lifespan.shutdown"})
            with suppress(asyncio.CancelledError):
                await outgoing.get()
            await task


async def _awaited(work: Awaitable[None]) -> None:
    await work
