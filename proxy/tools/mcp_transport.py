"""The two ways to an MCP server: streamable HTTP, or a process of our own. Both bounded, neither from a request."""

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self, TextIO, TypeAlias

import anyio
import httpx2
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

# In seconds. Silence for so long while something is awaited, an open stream of changes included, counts as a break.
_TIMEOUT = httpx2.Timeout(10.0, read=300.0)
# For the word that a session is over, in seconds: no server holds up a stop.
_GOODBYE_SECONDS = 1.0
# A picture of a few megabytes arrives as base64 text; more than this is nothing that a chat model could use.
MOST_BYTES = 16 * 1024 * 1024

Streams: TypeAlias = tuple[Any, Any]
"""Messages from the server and to it, as the client wants them."""


@asynccontextmanager
async def over_http(url: str, headers: Mapping[str, str], carrier: "Carrier") -> AsyncIterator[Streams]:
    """A server at `url`; redirects are followed within its origin only, and nothing is taken from the environment."""
    client = httpx2.AsyncClient(headers=dict(headers), transport=carrier, timeout=_TIMEOUT, trust_env=False)
    async with client, streamable_http_client(url, http_client=client, max_sse_event_size=MOST_BYTES) as streams:
        yield streams


@asynccontextmanager
async def over_stdio(
    command: Sequence[str], env: Mapping[str, str], *, ended: Callable[[], None]
) -> AsyncIterator[Streams]:
    """A server as a process of our own, which ends with the session: asked, then terminated, then killed.

    It sees `env` and a few harmless variables such as PATH and HOME, and none of our keys. What it writes to standard
    error is dropped: it may hold what people have asked. `ended` is called when it is gone.
    """
    program, *arguments = command
    server = StdioServerParameters(command=program, args=arguments, env=dict(env), encoding_error_handler="replace")
    with _nowhere() as nowhere:
        async with stdio_client(server, errlog=nowhere) as (incoming, outgoing):
            yield _Incoming(incoming, ended), outgoing


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123 - the caller closes it


class _Incoming:
    """A process's messages, with a word when there will be no more: the client tells nobody who is not asking."""

    def __init__(self, messages: Any, ended: Callable[[], None]) -> None:
        self._messages = messages
        self._ended = ended

    async def receive(self) -> Any:
        return await self._messages.receive()

    async def aclose(self) -> None:
        await self._messages.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._messages.__anext__()
        except StopAsyncIteration:
            self._ended()
            raise

    async def __aenter__(self) -> Self:
        await self._messages.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._messages.__aexit__(kind, exc, traceback)


class Carrier(httpx2.AsyncBaseTransport):
    """Carries one session's HTTP and bounds what comes back.

    Attributes:
        refused: the status with which the last message was refused; None: it was not.
    """

    def __init__(self) -> None:
        self._inner = httpx2.AsyncHTTPTransport(trust_env=False)
        self.refused: int | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request."""
        request.headers["accept-encoding"] = "identity"
        if request.method == "DELETE":
            return await self._say_goodbye(request)
        response = await self._inner.handle_async_request(request)
        if request.method == "POST":
            self.refused = response.status_code if response.is_error else None
        # A stream of events has no end; the client bounds each event.
        is_stream = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        if "content-encoding" in response.headers:  # not asked for, and a small one may hide a huge body
            del response.headers["content-encoding"]
            response.stream = _Bounded(response.stream, 0)
        elif not is_stream:
            response.stream = _Bounded(response.stream, MOST_BYTES)
        return response

    async def _say_goodbye(self, request: httpx2.Request) -> httpx2.Response:
        with anyio.fail_after(_GOODBYE_SECONDS):
            response = await self._inner.handle_async_request(request)
            await response.aclose()
        return httpx2.Response(response.status_code)

    async def aclose(self) -> None:
        """Close its connections."""
        await self._inner.aclose()


class _Bounded(httpx2.AsyncByteStream):
    """A body that fails instead of going on for ever."""

    def __init__(self, body: httpx2.SyncByteStream | httpx2.AsyncByteStream, most: int) -> None:
        self._body = body
        self._most = most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        taken = 0
        assert isinstance(self._body, httpx2.AsyncByteStream)  # noqa: S101 - for the type checker: we are asynchronous
        async for part in self._body:
            taken += len(part)
            if taken > self._most:
                raise httpx2.StreamError("the answer is compressed, or larger than any result may be")
            yield part

    async def aclose(self) -> None:
        """Let go of the connection."""
        if isinstance(self._body, httpx2.AsyncByteStream):
            await self._body.aclose()
