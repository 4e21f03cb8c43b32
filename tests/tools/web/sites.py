"""Raw HTTP servers on loopback that say what they are told to, and know who came."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class Site:
    """`pages`: path -> the whole response, or what writes it. A site without pages is a canary: nobody may come."""

    pages: dict[str, bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]] = field(default_factory=dict)
    port: int = 0
    connections: int = 0
    requests: list[str] = field(default_factory=list)
    heads: list[bytes] = field(default_factory=list)
    names: list[str | None] = field(default_factory=list)  # what TLS clients called it
    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.heads.append(head)
                path = head.split(b" ", 2)[1].decode()
                self.requests.append(path)
                page = self.pages.get(path, text("not here", status="404 Not Found"))
                if isinstance(page, bytes):
                    writer.write(page)
                    await writer.drain()
                else:
                    await page(writer)
                    return
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self.left.set()
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


def text(body: str | bytes, content_type: str = "text/plain", *more: str, status: str = "200 OK") -> bytes:
    """A whole response."""
    data = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {content_type}", f"Content-Length: {len(data)}", *more, "", ""]
    return "\r\n".join(lines).encode() + data


def html(body: str | bytes) -> bytes:
    return text(body, "text/html; charset=utf-8")


def redirect(location: str, status: int = 302) -> bytes:
    return text("", "text/plain", f"Location: {location}", status=f"{status} Moved")


@asynccontextmanager
async def running(site: Site, *, host: str = "127.0.0.1", port: int = 0, ssl=None) -> AsyncIterator[Site]:
    if ssl is not None:
        ssl.sni_callback = lambda _, name, __: site.names.append(name)
    server = await asyncio.start_server(site.answer, host, port, ssl=ssl)
    site.port = server.sockets[0].getsockname()[1]
    try:
        yield site
    finally:
        server.close()


class Names:
    """A resolver: name -> its answers, one for each time it is asked, the last one again and again."""

    def __init__(self, **answers: list[list[str]]) -> None:
        self._answers = {name.replace("_", "."): list(found) for name, found in answers.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        answers = self._answers[host]
        return answers.pop(0) if len(answers) > 1 else answers[0]
