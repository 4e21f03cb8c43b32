"""The client, upstream, search service and MCP server of `bench.stalls`, all of them hostile, in one process.

    python -m bench.hostile      prints its port, and then takes orders from standard input, one a line:

    NAME SIZE                    what the MCP server lists from now on is that of this input; prints `listed`
    NAME SIZE PROXY_PORT         plays that input of `bench.inputs`; prints the status of the answer, and how many bytes
                                 the proxy was sent
    NAME SIZE PROXY_PORT SECONDS plays it again and again for so long; prints the status of the last answer, and how
                                 many there were

So the process that watches the proxy does nothing else. An input is made before it is played, and then sent as fast as
the proxy takes it.
"""

import asyncio
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import orjson

from bench.inputs import ANSWER, INPUTS, MB, QUIET, Played, found, response
from bench.targets import KEY

_WAIT_SECONDS = 60.0
# Of the time that an input took, before the next: Linux lets no process have all of a core, and takes 50 ms at once.
_PAUSE = 0.3


@dataclass(slots=True)
class World:
    """Everything but the proxy and whoever watches it."""

    port: int = 0
    playing: Played = QUIET
    answered: int = 0
    pages: Iterator[bytes] | None = None

    async def serve(self) -> asyncio.Server:
        """Listen on a free port."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=64 * MB)
        self.port = server.sockets[0].getsockname()[1]
        return server

    def list_tools(self, name: str, size: int) -> None:
        """What the MCP server lists from now on."""
        make = INPUTS[name].pages
        self.pages = make(size) if make else None

    async def play(self, name: str, size: int, proxy: int) -> tuple[int, int]:
        """Send one input; the status of the answer, and how many bytes the proxy was sent."""
        self.playing, self.answered = INPUTS[name].make(size), 0
        playing, body = self.playing, self.playing.body
        status, answer = await _request(proxy, playing.path, body, playing.content_type)
        if playing.follow_up is not None:
            body = playing.follow_up(orjson.loads(answer))
            status, answer = await _request(proxy, playing.path, body, playing.content_type)
        return status, len(body) + sum(map(len, playing.answers)) + len(playing.search)

    async def play_again(self, name: str, size: int, proxy: int, seconds: float) -> tuple[int, int]:
        """Send one input again and again; the status of the last answer, and how many there were."""
        self.playing = INPUTS[name].make(size)
        playing, ends, status, count = self.playing, time.monotonic() + seconds, 0, 0
        body = playing.body
        if playing.follow_up is not None:
            self.answered = 0
            _, answer = await _request(proxy, playing.path, body, playing.content_type)
            body = playing.follow_up(orjson.loads(answer))
        while time.monotonic() < ends:
            began, self.answered = time.monotonic(), 1 if playing.follow_up else 0
            status, _ = await _request(proxy, playing.path, body, playing.content_type)
            count += 1
            await asyncio.sleep(_PAUSE * (time.monotonic() - began))
        return status, count

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
            body = await reader.readexactly(int(length[1])) if length else b""
            writer.write(self._answer(head.split()[1].decode(), body))
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def _answer(self, path: str, body: bytes) -> bytes:
        if path.startswith("/mcp"):
            return self._mcp(body)
        if path.startswith("/search"):
            return self.playing.search or found(1)
        answers = self.playing.answers or (ANSWER,)
        self.answered += 1
        return answers[min(self.answered, len(answers)) - 1]

    def _mcp(self, body: bytes) -> bytes:
        asked = orjson.loads(body) if body else {}
        match asked.get("method"):
            case "initialize":
                server = {"name": "hostile", "version": "1"}
                result = orjson.dumps(
                    {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": server}
                )
            case "tools/list":
                result = next(self.pages, b'{"tools":[]}') if self.pages else b'{"tools":[]}'
            case "tools/call":
                result = orjson.dumps({"content": [{"type": "text", "text": "ok"}]})
            case _:
                return b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        return response(b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (orjson.dumps(asked.get("id")), result))


async def _request(port: int, path: str, body: bytes, content_type: str) -> tuple[int, bytes]:
    """Send a request as a client that reads everything; the status (0: none came) and the body of a whole answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=64 * MB)
    head = f"POST {path} HTTP/1.1\r\nhost: proxy\r\nauthorization: Bearer {KEY}\r\ncontent-type: {content_type}\r\n"
    try:
        writer.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
        async with asyncio.timeout(_WAIT_SECONDS):
            answer = await reader.read()
    except (OSError, TimeoutError):
        return 0, b""
    finally:
        writer.close()
    status, _, rest = answer.partition(b"\r\n")
    return int(status.split()[1]) if status.startswith(b"HTTP/") else 0, rest.partition(b"\r\n\r\n")[2]


async def main() -> None:
    """Serve, and play what standard input names, one input a line."""
    world = World()
    async with await world.serve():
        print(world.port, flush=True)
        loop = asyncio.get_running_loop()
        while line := (await loop.run_in_executor(None, sys.stdin.readline)).split():
            match line:
                case name, size:
                    world.list_tools(name, int(size))
                    print("listed", flush=True)
                case name, size, proxy:
                    print(*await world.play(name, int(size), int(proxy)), flush=True)
                case name, size, proxy, seconds:
                    print(*await world.play_again(name, int(size), int(proxy), float(seconds)), flush=True)


if __name__ == "__main__":
    os.nice(5)  # what measures on the same core comes first
    asyncio.run(main())
