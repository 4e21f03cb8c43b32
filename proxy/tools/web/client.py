"""Gets one page over HTTP from an untrusted server: every hop is checked, and every byte is counted.

It uses the proxy's own transport, which has no cookies, redirects and proxies from the environment, and so that no body
is decompressed before it is counted.
"""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import urljoin

import httpx

from proxy.http.connect import Origin
from proxy.http.connection import Http1Response, RequestTimeouts
from proxy.http.decode import DecodedResponse
from proxy.http.parser import request_head
from proxy.http.transport import Http1Transport
from proxy.loop.results import ToolError, ToolUnavailable, UrlNotAllowed
from proxy.tools.web.guard import Target, UrlGuard, parse_url
from proxy.tools.web.network import RESOLVE_SECONDS, GuardedConnect, Resolve

MOST_REDIRECTS = 5  # the number in RFC 9309 for robots.txt; ordinary pages need fewer
ACCEPT = "text/html,application/xhtml+xml,application/json;q=0.9,text/*;q=0.9,application/pdf;q=0.5,*/*;q=0.1"
# Seconds. The registry limits the time of the whole call.
_TIMEOUTS = RequestTimeouts(connect=RESOLVE_SECONDS + 5.0, read=20.0, write=5.0, pool=5.0)
_REDIRECTS = (301, 302, 303, 307, 308)

CheckContentType: TypeAlias = Callable[[str], None]
"""Raises `ToolError` for a content type whose body need not be read."""

Visit: TypeAlias = Callable[["PageSession", Target], Awaitable[None]]
"""Called before each hop of a page; raises `ToolError` if the hop is not permitted."""


@dataclass(frozen=True, slots=True)
class PageAnswer:
    """The answer of a server, after redirects.

    Attributes:
        target: the URL that answered.
        status: the HTTP status.
        content_type: the header, in lower case; empty if there was none.
        body: the decompressed body, up to the requested length.
        cut: whether the body was longer.
    """

    target: Target
    status: int
    content_type: str
    body: bytes
    cut: bool = False


@dataclass(frozen=True, slots=True)
class PageSession:
    """The connections of one call."""

    _transport: Http1Transport
    _guard: UrlGuard
    _connect: GuardedConnect
    _user_agent: bytes

    async def get(
        self, target: Target, *, most_bytes: int, wanted: CheckContentType, visit: Visit | None = None
    ) -> PageAnswer:
        """The page at the end of any redirects.

        Args:
            target: the first URL.
            most_bytes: the limit for the decompressed body.
            wanted: called with the content type before the body is read.
            visit: called before each hop.

        Raises:
            ToolError: the page was refused, or the answer cannot be used.
            ToolUnavailable: there was no answer; a retry may succeed.
        """
        for _ in range(MOST_REDIRECTS + 1):
            self._guard.check_target(target)
            if visit is not None:
                await visit(self, target)
            answer = await self._hop(target, most_bytes, wanted)
            if isinstance(answer, PageAnswer):
                return answer
            target = answer
        raise ToolError(f"The server redirects more than {MOST_REDIRECTS} times.")

    async def check(self, target: Target, *, visit: Visit | None = None) -> None:
        """Raise `ToolError` for a page that `get` would refuse, without requesting it."""
        self._guard.check_target(target)
        await self._connect.check(target.host, target.port)
        if visit is not None:
            await visit(self, target)

    async def _hop(self, target: Target, most_bytes: int, wanted: CheckContentType) -> PageAnswer | Target:
        headers = [
            (b"Host", target.authority.encode()),
            (b"User-Agent", self._user_agent),
            (b"Accept", ACCEPT.encode()),
            (b"Accept-Encoding", b"identity"),
        ]
        origin = Origin(target.host, target.port, target.scheme == "https")
        with _translated(target):
            head = request_head("GET", target.path.encode(), headers)
            response = await self._transport.send(origin, "GET", head, b"", _TIMEOUTS)
            try:
                return await _read(target, response, most_bytes, wanted)
            finally:
                await response.aclose()


@asynccontextmanager
async def page_session(
    guard: UrlGuard, resolve: Resolve, *, user_agent: str, ssl_context: Callable[[], ssl.SSLContext]
) -> AsyncIterator[PageSession]:
    """The connections for one page and its robots.txt; closed at the end, so that none outlives its check."""
    connect = GuardedConnect(guard, resolve)
    transport = Http1Transport(max_connections=MOST_REDIRECTS + 2, ssl_context=ssl_context(), connect_socket=connect)
    async with aclosing(transport):
        yield PageSession(transport, guard, connect, user_agent.encode("ascii"))


async def _read(
    target: Target, response: Http1Response, most_bytes: int, wanted: CheckContentType
) -> PageAnswer | Target:
    location = response.header(b"location").decode("utf-8", "replace").strip()
    if response.status in _REDIRECTS and location:
        try:
            return parse_url(urljoin(target.url, location))
        except UrlNotAllowed as exc:
            raise UrlNotAllowed(f"The page redirects. {exc}") from None
        except ValueError:
            raise ToolError("The page redirects to an invalid URL.") from None
    content_type = response.header(b"content-type").decode("utf-8", "replace").lower()
    if not 200 <= response.status < 300:  # noqa: PLR2004 - the body of an error is not needed
        return PageAnswer(target, response.status, content_type, b"")
    wanted(content_type)
    body, decoded = bytearray(), DecodedResponse(response)
    try:
        while len(body) <= most_bytes and (piece := await decoded.read()):
            body += piece
    except httpx.DecodingError as exc:
        raise ToolError("The page is packed in a way that cannot be read.") from exc
    return PageAnswer(target, response.status, content_type, bytes(body[:most_bytes]), cut=len(body) > most_bytes)


@contextmanager
def _translated(target: Target) -> Iterator[None]:
    """A context manager that raises exceptions of the transport as ours."""
    where = target.authority
    try:
        yield
    except httpx.TimeoutException as exc:
        raise ToolUnavailable(f"The server {where} did not answer in time.") from exc
    except httpx.ConnectError as exc:
        if isinstance(exc.__cause__, ssl.SSLError):
            raise ToolError(f"The server {where} has no valid certificate for its name.") from exc
        raise ToolUnavailable(f"The server {where} could not be reached.") from exc
    except httpx.NetworkError as exc:
        raise ToolUnavailable(f"The connection to {where} broke off.") from exc
    except httpx.ProtocolError as exc:
        raise ToolError(f"The server {where} broke off, or does not answer in proper HTTP.") from exc
