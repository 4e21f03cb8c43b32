"""How much each client may ask: so many requests per minute, so many at the same time. Beyond that, 429 at once.

A client with a rate finds in the head of every response what is left of it, in OpenAI's headers.
"""

import math
from collections.abc import Awaitable, Sequence
from typing import TypeAlias

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proxy.api.caller import caller_of
from proxy.api.middleware.auth import OPEN_PATHS
from proxy.config import ClientConfig
from proxy.loop.errors import ProxyError, RateLimitExceeded
from proxy.ports import Leases, Rate, Rates

_RATE_HEADERS = (b"x-ratelimit-limit-requests", b"x-ratelimit-remaining-requests", b"x-ratelimit-reset-requests")
Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
_NO_HEADERS: Headers = ()
_A_MOMENT = 1  # second; nobody knows when one of the client's own requests will be done


def is_limited(client: ClientConfig) -> bool:
    """Whether there is anything to count."""
    return bool(client.requests_per_minute or client.max_concurrent_requests)


class Quota:
    """Counts the requests of clients that have a limit. Stands below `Auth`, which finds the client.

    Args:
        app: what is asked.
        clients: those that have a limit.
        rates: of the clients' requests per minute.
        leases: of the clients' open requests.
    """

    def __init__(self, app: ASGIApp, *, clients: Sequence[ClientConfig], rates: Rates, leases: Leases) -> None:
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

    def _client_of(self, scope: Scope) -> ClientConfig | None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            return None
        return self._limited.get(caller_of(scope).name or "")

    async def _limit(self, client: ClientConfig, scope: Scope, receive: Receive, send: Send) -> None:
        limit, headers = client.requests_per_minute, _NO_HEADERS
        try:
            if limit is not None:
                rate = await self._rates.hit(client.name, limit)
                headers = rate_headers(rate)
                _require_within(rate)
            open_request = await self._open(client)
            try:
                await self._app(scope, receive, _Reply(send, headers, open_request))
            finally:
                await open_request.close()
        except ProxyError as exc:  # becomes the response further out
            exc.headers.update({name.decode(): value.decode() for name, value in headers})
            raise

    async def _open(self, client: ClientConfig) -> "_OpenRequest":
        """One of the requests that the client may have open at the same time.

        Raises:
            RateLimitExceeded: it has as many open as it may.
        """
        most = client.max_concurrent_requests
        if most is None:
            return _OpenRequest(self._leases, client.name, None)
        lease = await self._leases.acquire(client.name, most)
        if lease is None:
            message = f"This key may have {most} requests open at the same time, and has them."
            raise RateLimitExceeded(message, retry_after=_A_MOMENT)
        return _OpenRequest(self._leases, client.name, lease)


def _require_within(rate: Rate) -> None:
    """Raise `RateLimitExceeded` where the request that was counted is one too many."""
    if not rate.allowed:
        raise RateLimitExceeded(
            f"This key may send {rate.limit} requests per minute, and has sent them.",
            retry_after=max(1, math.ceil(rate.reset)),
        )


class _OpenRequest:
    """A client's open request; its lease, if it has one, is released once."""

    __slots__ = ("_client", "_lease", "_leases")

    def __init__(self, leases: Leases, client: str, lease: str | None) -> None:
        self._leases = leases
        self._client = client
        self._lease = lease

    async def close(self) -> None:
        """Release the lease."""
        lease, self._lease = self._lease, None
        if lease is not None:
            await self._leases.release(self._client, lease)


class _Reply:
    """`send` with the rate in the head; the lease goes back before the last byte goes out.

    So a client that waits for its answer before it asks again is never refused for a request that it knows is over.
    """

    __slots__ = ("_headers", "_open_request", "_send")

    def __init__(self, send: Send, headers: Headers, open_request: _OpenRequest) -> None:
        self._send = send
        self._headers = headers
        self._open_request = open_request

    async def __call__(self, message: Message) -> None:
        """ASGI."""
        if message["type"] == "http.response.start" and self._headers:
            # An upstream's own rate is the proxy's affair, and would contradict what stands here.
            others = [header for header in message["headers"] if header[0].lower() not in _RATE_HEADERS]
            message = {**message, "headers": [*others, *self._headers]}
        elif message["type"] == "http.response.body" and not message.get("more_body", False):
            await self._open_request.close()
        await self._send(message)


def rate_headers(rate: Rate) -> Headers:
    """OpenAI's headers for what is left of a rate."""
    limit, remaining, reset = _RATE_HEADERS
    return (
        (limit, b"%d" % rate.limit),
        (remaining, b"%d" % rate.remaining),
        (reset, duration(rate.reset).encode()),
    )


def duration(seconds: float) -> str:
    """Seconds as OpenAI writes them: `120ms`, `8.64s`, `1m0s`."""
    milliseconds = math.ceil(seconds * 1000)
    if milliseconds < 1000:  # noqa: PLR2004 - of a second
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes}m{rest / 1000:g}s" if minutes else f"{rest / 1000:g}s"
