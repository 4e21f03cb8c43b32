"""A server on real sockets that does to its clients whatever it is told to."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@dataclass
class Peer:
    """One connection, seen from the server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    server: "RawServer"

    async def request(self) -> bytes:
        """The next request: its head, and its body as long as its Content-Length says."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        self.server.heads.append(head)
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        body = await self.reader.readexactly(int(lengths[0].split(b":")[1]) if lengths else 0)
        self.server.bodies.append(body)
        return body

    async def send(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()

    async def answer(self, *parts: bytes) -> None:
        """Read a request, and send this."""
        await self.request()
        await self.send(*parts)

    def reset(self) -> None:
        """Close without a good-bye: the other side gets ECONNRESET."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def left(self) -> None:
        """Wait until the client has closed."""
        while await self.reader.read(65536):
            pass


@dataclass
class RawServer:
    """What has happened so far."""

    url: str = ""
    connections: int = 0
    open: int = 0
    most_open: int = 0
    heads: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def until(self, condition: Callable[["RawServer"], bool]) -> None:
        """Wait until a condition of the numbers above is true."""
        async with self.changed, asyncio.timeout(10):
            await self.changed.wait_for(lambda: condition(self))

    async def count(self, change: int) -> None:
        async with self.changed:
            self.open += change
            self.connections += max(change, 0)
            self.most_open = max(self.most_open, self.open)
            self.changed.notify_all()


@asynccontextmanager
async def raw_server(
    script: Callable[[Peer], Awaitable[None]], *, host: str = "127.0.0.1", ssl=None, name: str | None = None
) -> AsyncIterator[RawServer]:
    """Serve every connection with `script`; when it returns, the connection is closed."""
    state = RawServer()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await state.count(1)
        try:
            await script(Peer(reader, writer, state))
            writer.close()
        except (OSError, EOFError):
            pass
        finally:
            if not writer.is_closing():
                writer.transport.abort()
            await state.count(-1)

    served: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served[asyncio.ensure_future(serve(reader, writer))] = writer

    server = await asyncio.start_server(connected, host, 0, ssl=ssl)
    port = server.sockets[0].getsockname()[1]
    shown = name or (f"[{host}]" if ":" in host else host)
    state.url = f"{'https' if ssl else 'http'}://{shown}:{port}"
    try:
        yield state
    finally:
        server.close()
        for task in served:
            task.cancel()
        await asyncio.gather(*served, return_exceptions=True)
        for writer in served.values():
            with suppress(AttributeError):  # asyncio's transports of 3.11 do where they have just closed by themselves
                writer.transport.abort()  # also where the task had not begun


async def forever(peer: Peer, answer: bytes = OK) -> None:
    """A well-behaved server: answers every request with `ok`."""
    while True:
        await peer.answer(answer)


async def resets(peer: Peer) -> None:
    """A server that reads a request, and closes without a good-bye."""
    await peer.request()
    peer.reset()


def sends(*parts: bytes, then_close: bool = True) -> Callable[[Peer], Awaitable[None]]:
    """A server that answers every connection's first request with this."""

    async def script(peer: Peer) -> None:
        await peer.answer(*parts)
        if not then_close:
            await peer.left()

    return script
