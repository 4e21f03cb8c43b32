"""One page over HTTP, from an untrusted server: every hop checked, every byte counted.

It uses httpcore itself: no cookies, no redirects of its own, no proxy from the environment, no body unpacked before it
was counted.
"""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import urljoin

import httpcore

from proxy.http.decode import inflated
from proxy.loop.results import ToolError, ToolUnavailable
from proxy.tools.web.guard import Target, UrlGuard, parse_url
from proxy.tools.web.network import GuardedBackend, Resolve

MOST_REDIRECTS = 5  # what RFC 9309 asks for robots.txt; honest pages need fewer
ACCEPT = "text/html,application/xhtml+xml,application/json;q=0.9,text/*;q=0.9,application/pdf;q=0.5,*/*;q=0.1"
# Seconds. The call as a whole is bounded by the registry.
_TIMEOUTS = {"connect": 5.0, "read": 20.0, "write": 5.0, "pool": 5.0}
_REDIRECTS = (301, 302, 303, 307, 308)

CheckContentType: TypeAlias = Callable[[str], None]
"""Raises `ToolError` for a content type whose body is not worth reading."""

Visit: TypeAlias = Callable[["PageSession", Target], Awaitable[None]]
"""Called before each hop of a page; raises `ToolError` where it may not be taken."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a server, after redirects.

    Attributes:
        target: the URL that answered.
        status: of HTTP.
        content_type: the header, in lower case; empty where there was none.
        body: unpacked, and no longer than was asked for.
        cut: there was more.
    """

    target: Target
    status: int
    content_type: str
    body: bytes
    cut: bool = False


class PageClient:
    """Gets pages.

    Args:
        guard: decides what may be opened.
        resolve: finds addresses.
        user_agent: the User-Agent header.
        ssl_context: makes what certificates are checked with; called once, when it is first needed.
    """

    def __init__(
        self, guard: UrlGuard, resolve: Resolve, *, user_agent: str, ssl_context: Callable[[], ssl.SSLContext]
    ) -> None:
        self._guard = guard
        self._backend = GuardedBackend(guard, resolve)
        self._user_agent = user_agent.encode("ascii")
        self._make_ssl_context = ssl_context
        self._ssl_context: ssl.SSLContext | None = None

    @asynccontextmanager
    async def session(self) -> AsyncIterator["PageSession"]:
        """Connections for one page and what belongs to it; closed at the end, so that none outlives its check."""
        if self._ssl_context is None:
            self._ssl_context = self._make_ssl_context()
        async with httpcore.AsyncConnectionPool(
            ssl_context=self._ssl_context, network_backend=self._backend, max_connections=MOST_REDIRECTS + 2
        ) as pool:
            yield PageSession(pool, self._guard, self._backend, self._user_agent)


class PageSession:
    """The connections of one call."""

    def __init__(
        self, pool: httpcore.AsyncConnectionPool, guard: UrlGuard, backend: GuardedBackend, user_agent: bytes
    ) -> None:
        self._pool = pool
        self._guard = guard
        self._backend = backend
        self._user_agent = user_agent

    async def get(
        self, target: Target, *, most_bytes: int, wanted: CheckContentType, visit: Visit | None = None
    ) -> Answer:
        """A page, its redirects followed.

        Args:
            target: where to begin.
            most_bytes: of the unpacked body.
            wanted: called with the content type before the body is read.
            visit: called before each hop.

        Raises:
            ToolError: refused, or no answer that can be used.
            ToolUnavailable: no answer now.
        """
        for _ in range(MOST_REDIRECTS + 1):
            self._guard.check_target(target)
            if visit is not None:
                await visit(self, target)
            answer = await self._hop(target, most_bytes, wanted)
            if isinstance(answer, Answer):
                return answer
            target = answer
        raise ToolError(f"The server redirects more than {MOST_REDIRECTS} times.")

    async def check(self, target: Target, *, visit: Visit | None = None) -> None:
        """Raise `ToolError` for a page that `get` would refuse, without getting it."""
        self._guard.check_target(target)
        await self._backend.check(target.host, target.port)
        if visit is not None:
            await visit(self, target)

    async def _hop(self, target: Target, most_bytes: int, wanted: CheckContentType) -> Answer | Target:
        with _translated(target):
            async with self._pool.stream(
                b"GET",
                httpcore.URL(
                    scheme=target.scheme.encode(), host=target.host.encode(), port=target.port, target=target.path
                ),
                headers=[
                    (b"Host", target.authority.encode()),
                    (b"User-Agent", self._user_agent),
                    (b"Accept", ACCEPT.encode()),
                    (b"Accept-Encoding", b"identity"),
                ],
                extensions={"timeout": _TIMEOUTS},
            ) as response:
                return await _read(target, response, most_bytes, wanted)


async def _read(
    target: Target, response: httpcore.Response, most_bytes: int, wanted: CheckContentType
) -> Answer | Target:
    location = _header(response, b"location").strip()
    if response.status in _REDIRECTS and location:
        return _next(target, location)
    content_type = _header(response, b"content-type").lower()
    if not 200 <= response.status < 300:  # noqa: PLR2004 - an error's page is not worth reading
        return Answer(target, response.status, content_type, b"")
    wanted(content_type)
    body, cut = await _body(response, most_bytes)
    return Answer(target, response.status, content_type, body, cut)


def _next(target: Target, location: str) -> Target:
    """Where a redirect leads. Raises `ToolError`."""
    try:
        return parse_url(urljoin(target.url, location))
    except ToolError as exc:
        raise ToolError(f"The page redirects. {exc}") from None
    except ValueError:
        raise ToolError("The page redirects to what is no URL.") from None


async def _body(response: httpcore.Response, most_bytes: int) -> tuple[bytes, bool]:
    """The first `most_bytes` of a body, unpacked as it comes, and whether there was more."""
    try:
        body = await inflated(response.aiter_stream(), _header(response, b"content-encoding"), most=most_bytes)
    except ValueError as exc:
        raise ToolError("The page is packed in a way that cannot be read.") from exc
    return body[:most_bytes], len(body) > most_bytes


def _header(response: httpcore.Response, name: bytes) -> str:
    found = next((value for key, value in response.headers if key.lower() == name), b"")
    return found.decode("utf-8", "replace")


@contextmanager
def _translated(target: Target) -> Iterator[None]:
    """Exceptions of httpcore as ours."""
    where = target.authority
    try:
        yield
    except httpcore.TimeoutException as exc:
        raise ToolUnavailable(f"The server {where} did not answer in time.") from exc
    except httpcore.ConnectError as exc:
        if any(isinstance(cause, ssl.SSLError) for cause in exc.args):
            raise ToolError(f"The server {where} has no valid certificate for its name.") from exc
        raise ToolUnavailable(f"The server {where} could not be reached.") from exc
    except httpcore.NetworkError as exc:
        raise ToolUnavailable(f"The connection to {where} broke off.") from exc
    except httpcore.ProtocolError as exc:
        raise ToolError(f"The server {where} broke off, or does not answer in proper HTTP.") from exc
