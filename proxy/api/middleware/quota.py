"""How much each client may ask: so many requests per minute, so many at the same time. Beyond that, 429 at once.

A client with a rate finds in the head of every response what is left of it, in OpenAI's headers.
"""

import math
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proxy.api.caller import caller_of
from proxy.api.middleware.auth import OPEN_PATHS
from proxy.config import ClientConfig
from proxy.core.errors import ProxyError, RateLimitExceeded
from proxy.ports import Leases, Rate, Rates

_RATE_HEADERS = (b"x-ratelimit-limit-requests", b"x-ratelimit-remaining-requests", b"x-ratelimit-reset-requests")
_A_MOMENT = 1  # second; nobody knows when one of the client's own requests will be done


def is_limited(client: ClientConfig) -> bool:
    """Whether there is anything to count."""
    return bool(client.requests_per_minute or client.max_concurrent_requests)


class Quota:
    """Counts the requests of clients that have a limit. Stands below `Auth`, which finds the client.

    Args:
        app: what is asked.
        clients: those that have a limit.
        rates: None where no client has one.
        leases: of the clients' open requests.
    """

    def __init__(self, app: ASGIApp, *, clients: Sequence[ClientConfig], rates: Rates | None, leases: Leases) -> None:
        self._app = app
        self._rates = rates
        self._leases = leases
        self._limited = {client.name: client for client in clients}

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """ASGI."""
        client = self._client_of(scope)
        if client is None:
            return self._app(scope, receive, send)
        return self._limit(client, scope, receive, send)

    async def _limit(self, client: ClientConfig, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[str, str] = {}
        try:
            await self._count(client, headers)
            async with self._one_more(client) as open_request:
                await self._app(scope, receive, _Reply(send, headers, open_request))
        except ProxyError as exc:  # becomes the response further out
            exc.headers.update(headers)
            raise

    def _client_of(self, scope: Scope) -> ClientConfig | None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            return None
        return self._limited.get(caller_of(scope).name or "")

    async def _count(self, client: ClientConfig, headers: dict[str, str]) -> None:
        """Count the request; `headers` learns what is left.

        Raises:
            RateLimitExceeded: it is one too many.
        """
        if client.requests_per_minute is None or self._rates is None:
            return
        rate = await self._rates.hit(client.name, client.requests_per_minute)
        headers.update(rate_headers(rate))
        if not rate.allowed:
            raise RateLimitExceeded(
                f"This key may send {rate.limit} requests per minute, and has sent them.",
                retry_after=max(1, math.ceil(rate.reset)),
            )

    @asynccontextmanager
    async def _one_more(self, client: ClientConfig) -> AsyncIterator[AsyncExitStack]:
        """One of the requests that the client may have open; whoever closes the stack first gives it back.

        Raises:
            RateLimitExceeded: it has as many open as it may.
        """
        async with AsyncExitStack() as open_request:
            most = client.max_concurrent_requests
            if most is not None:
                lease = await self._leases.acquire(client.name, most)
                if lease is None:
                    message = f"This key may have {most} requests open at the same time, and has them."
                    raise RateLimitExceeded(message, retry_after=_A_MOMENT)
                open_request.push_async_callback(self._leases.release, client.name, lease)
            yield open_request


class _Reply:
    """`send` with the rate in the head; the lease goes back before the last byte goes out.

    So a client that waits for its answer before it asks again is never refused for a request that it knows is over.
    """

    def __init__(self, send: Send, headers: Mapping[str, str], open_request: AsyncExitStack) -> None:
        self._send = send
        self._headers = [(name.encode(), value.encode()) for name, value in headers.items()]
        self._open_request = open_request

    async def __call__(self, message: Message) -> None:
        """ASGI."""
        if message["type"] == "http.response.start" and self._headers:
            # An upstream's own rate is the proxy's affair, and would contradict what stands here.
            others = [header for header in message["headers"] if header[0].lower() not in _RATE_HEADERS]
            message = {**message, "headers": [*others, *self._headers]}
        elif message["type"] == "http.response.body" and not message.get("more_body", False):
            await self._open_request.aclose()
        await self._send(message)


def rate_headers(rate: Rate) -> dict[str, str]:
    """OpenAI's headers for what is left of a rate."""
    values = (str(rate.limit), str(rate.remaining), duration(rate.reset))
    return {name.decode(): value for name, value in zip(_RATE_HEADERS, values, strict=True)}


def duration(seconds: float) -> str:
    """Seconds as OpenAI writes them: `120ms`, `8.64s`, `1m0s`."""
    milliseconds = math.ceil(seconds * 1000)
    if milliseconds < 1000:  # noqa: PLR2004 - of a second
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes}m{rest / 1000:g}s" if minutes else f"{rest / 1000:g}s"
