"""The transports to an MCP server: streamable HTTP, or a child process. Both are limited in size and time."""

import asyncio
import os
import re
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeAlias

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter
from pydantic import ValidationError

from proxy.http.connect import client_context
from proxy.http.forward_proxy import environment_proxies
from proxy.tools.kinds.mcp.repair import ListReading, readable

# Seconds. A silence of this length while a message is expected, also on an open stream of changes, is a broken session.
_TIMEOUT = httpx2.Timeout(10.0, read=300.0)
# Seconds for the request that ends a session, so that no server delays a stop.
_CLOSE_SECONDS = 1.0
# Seconds for each step of ending a process.
_GRACE_SECONDS = 1.0
# Enough for a picture of a few megabytes as base64 text; a chat model could not use more.
MOST_BYTES = 8 * 1024 * 1024
_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_CHUNK = 64 * 1024
_NOT_FOUND = 404
_SESSION_ID = "mcp-session-id"

Streams: TypeAlias = tuple[Any, Any]
"""The streams of messages from the server and to it, in the client's form."""


@asynccontextmanager
async def over_http(url: str, headers: Mapping[str, str], transport: "SessionTransport") -> AsyncIterator[Streams]:
    """A server at `url`. Redirects stay within its origin, and only proxies are taken from the environment."""
    client = httpx2.AsyncClient(headers=dict(headers), transport=transport, timeout=_TIMEOUT, trust_env=False)
    async with client, streamable_http_client(url, http_client=client, max_sse_event_size=MOST_BYTES) as streams:
        yield streams


@asynccontextmanager
async def over_stdio(
    command: Sequence[str], env: Mapping[str, str], reading: ListReading, *, ended: Callable[[], None]
) -> AsyncIterator[Streams]:
    """A server as a child process, which is ended with the session; `ended` is called if it ends by itself.

    Its environment is `env` and a few harmless variables such as PATH and HOME, without our keys. Its standard error is
    discarded, because it may hold the requests of users. The client's own transport takes minutes for a line of 100 MB
    and blocks everything else in the meantime; here such a line ends the session.

    Raises:
        OSError: the command cannot be started.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=get_default_environment() | dict(env),
        limit=MOST_BYTES,
        start_new_session=True,  # so that its own child processes can be ended with it
    )
    try:
        to_client, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        outgoing, from_client = anyio.create_memory_object_stream[SessionMessage](0)
        async with incoming, outgoing, anyio.create_task_group() as pipes:
            pipes.start_soon(_read, process, to_client, reading, ended)
            pipes.start_soon(_write, process, from_client)
            yield incoming, outgoing
            pipes.cancel_scope.cancel()
    finally:
        await _end(process)


async def _read(
    process: Process,
    to_client: MemoryObjectSendStream[SessionMessage | Exception],
    reading: ListReading,
    ended: Callable[[], None],
) -> None:
    assert process.stdout is not None  # noqa: S101 - for the type checker: it is a pipe
    # A line that is too long is the last one, because the beginning of the next is unknown.
    async with to_client:
        with suppress(ValueError):
            while (line := await process.stdout.readline()) and (message := readable(line, reading)) is not None:
                with suppress(ValidationError):  # some servers print a greeting before their first message
                    await to_client.send(SessionMessage(jsonrpc_message_adapter.validate_json(message, by_name=False)))
    ended()


async def _write(process: Process, from_client: MemoryObjectReceiveStream[SessionMessage]) -> None:
    assert process.stdin is not None  # noqa: S101 - as above
    with suppress(ConnectionError):  # the process is gone; its last output is still read
        async with from_client:
            async for sent in from_client:
                process.stdin.write(sent.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                await process.stdin.drain()


async def _end(process: Process) -> None:
    """End a process: let it end by itself, then terminate it, then kill it and its child processes."""
    assert process.stdin is not None  # noqa: S101 - as above
    process.stdin.close()
    try:
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            _signal(process, number)
            with suppress(TimeoutError):
                async with asyncio.timeout(_GRACE_SECONDS):
                    return await _gone(process)
    finally:
        _signal(process, signal.SIGKILL)  # if this coroutine was cancelled
        # There is no other way to close a pipe that is still open in a child process that escaped.
        process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001


async def _gone(process: Process) -> None:
    """Wait for a process to end, which it cannot before the rest of its output has been read."""
    assert process.stdout is not None  # noqa: S101 - as above
    while await process.stdout.read(_CHUNK):
        pass
    await process.wait()


def _signal(process: Process, number: int | None) -> None:
    if number is None or process.returncode is not None:
        return
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


@dataclass(slots=True)
class Delivery:
    """The outcome of the HTTP request of one call; the error that the MCP client raises does not have it.

    Attributes:
        status: the HTTP status of the answer; None: there was none.
        was_lost: the call was not carried out, because the server could not be reached or does not know the session.
        was_too_large: the answer was larger than any result may be.
    """

    status: int | None = None
    was_lost: bool = False
    was_too_large: bool = False


DELIVERY: Final[ContextVar[Delivery | None]] = ContextVar("toolproxy_mcp_delivery", default=None)
"""The delivery of the call that is made in this context; the client sends each request in the context of its call."""


class SessionTransport(httpx2.AsyncBaseTransport):
    """The HTTP transport of one session, which limits the size of answers.

    Attributes:
        refused: the status with which the last message was refused; None: it was not refused.
        was_too_large: an answer was larger than any may be.
        reading: which pages of the server's list are known.
    """

    def __init__(self) -> None:
        self.reading = ListReading()
        self._made: httpx2.AsyncHTTPTransport | None = None
        self.refused: int | None = None
        self.was_too_large = False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request of the session."""
        request.headers["accept-encoding"] = "identity"
        if request.method == "DELETE":
            return await self._close_session(request)
        delivery = DELIVERY.get() or Delivery()
        try:
            response = await self._inner(request.url).handle_async_request(request)
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            delivery.was_lost = True
            raise
        delivery.status = response.status_code
        if request.method == "POST":
            self.refused = response.status_code if response.is_error else None
        if response.status_code == _NOT_FOUND and _SESSION_ID in request.headers:
            delivery.was_lost = True  # by MCP's specification, the server no longer knows the session
        is_stream = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        if "content-encoding" in response.headers:  # not asked for, and a small compressed body may become huge
            del response.headers["content-encoding"]
            response.stream = _Bounded(response.stream, 0, self.reading)
        else:
            response.stream = _Bounded(response.stream, MOST_BYTES, self.reading, self, delivery, is_stream=is_stream)
        return response

    async def _close_session(self, request: httpx2.Request) -> httpx2.Response:
        if self.refused == _NOT_FOUND:  # there is nothing to close
            return httpx2.Response(_NOT_FOUND)
        with anyio.fail_after(_CLOSE_SECONDS):
            response = await self._inner(request.url).handle_async_request(request)
            await response.aclose()
        return httpx2.Response(response.status_code)

    async def aclose(self) -> None:
        """Close the connections to the server."""
        if self._made is not None:
            await self._made.aclose()

    def _inner(self, url: httpx2.URL) -> httpx2.AsyncHTTPTransport:
        """The transport to the server; all URLs of a session have one origin, and so one proxy or none."""
        if self._made is None:
            proxy = environment_proxies().proxy_for(str(url))
            through = httpx2.Proxy(**proxy.options) if proxy else None
            self._made = httpx2.AsyncHTTPTransport(verify=client_context(), trust_env=False, proxy=through)
        return self._made


class _Bounded(httpx2.AsyncByteStream):
    """A body that fails if a message in it is longer than `most` bytes, or holds too many values.

    `told` learn of it, because the client has one error for all that it cannot read. A message is passed on when it is
    complete: the whole body, or one event of a stream.
    """

    def __init__(
        self,
        body: httpx2.SyncByteStream | httpx2.AsyncByteStream,
        most: int,
        reading: ListReading,
        *told: SessionTransport | Delivery,
        is_stream: bool = False,
    ) -> None:
        self._body = body
        self._most = most
        self._reading = reading
        self._told = told
        self._is_stream = is_stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        held = bytearray()
        assert isinstance(self._body, httpx2.AsyncByteStream)  # noqa: S101 - for the type checker: we are asynchronous
        async for part in self._body:
            searched = max(0, len(held) - 3)  # the end of an event may be cut in two
            held += part
            while self._is_stream and (end := _EVENT_END.search(held, searched)):
                yield self._permitted(bytes(held[: end.end()]))
                del held[: end.end()]
                searched = 0
            if len(held) > self._most:
                self._fail()
        yield self._permitted(bytes(held))

    def _permitted(self, message: bytes) -> bytes:
        permitted = None if len(message) > self._most else readable(message, self._reading)
        return self._fail() if permitted is None else permitted

    def _fail(self) -> NoReturn:
        for one in self._told:
            one.was_too_large = True
        raise httpx2.StreamError("the answer is compressed, or larger than any result may be")

    async def aclose(self) -> None:
        """Give the connection back to its pool."""
        if isinstance(self._body, httpx2.AsyncByteStream):
            await self._body.aclose()
