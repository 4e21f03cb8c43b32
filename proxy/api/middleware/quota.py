"""The quota of each client: requests per minute, and requests at the same time. Beyond either, 429 at once.

The head of every response to a client with a rate has what is left of it, in OpenAI's headers.
"""

import math
from collections.abc import Awaitable, Sequence
from typing import TypeAlias

from msgspec import Struct
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proxy.api.middleware.auth import OPEN_PATHS
from proxy.api.request import CALLER, Caller
from proxy.config import ClientConfig
from proxy.loop.errors import ProxyError, RateLimitExceeded
from proxy.ports import Leases, Rate, Rates

_RATE_HEADERS = (b"x-ratelimit-limit-requests", b"x-ratelimit-remaining-requests", b"x-ratelimit-reset-requests")
Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
_NO_HEADERS: Headers = ()
# Editors count the tokens of fifty texts at once, which costs nobody anything.
UNCOUNTED_PATHS = frozenset({"/v1/messages/count_tokens"})
_A_MOMENT = 1  # second; when one of the client's own requests will be done cannot be known


def is_limited(client: ClientConfig) -> bool:
    """Whether a client has a rate, or a bound on its open requests."""
    return bool(client.requests_per_minute or client.max_concurrent_requests)


class Quota:
    """Counts the requests of clients that have a limit. Stands below `Auth`, which finds the client.

    Args:
        app: the layer below.
        clients: the clients that have a limit.
        rates: the count of the clients' requests per minute.
        leases: the count of the clients' open requests.
    """

    def __init__(self, app: ASGIApp, *, clients: Sequence[ClientConfig], rates: Rates, leases: Leases) -> None:
        self._app = app
        self._rates = rates
        self._leases = leases
        self._limited = {client.name: client for client in clients}

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Implements ASGI."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            caller: Caller = scope[CALLER]
            client = self._limited.get(caller.name or "")
            if client is not None:
                return self._limit(client, scope, receive, send)
        return self._app(scope, receive, send)

    async def _limit(self, client: ClientConfig, scope: Scope, receive: Receive, send: Send) -> None:
        limit = None if scope["path"] in UNCOUNTED_PATHS else client.requests_per_minute
        headers = _NO_HEADERS
        try:
            if limit is not None:
                rate = await self._rates.hit(client.name, limit)
                headers = rate_headers(rate)
                _require_within(rate)
            open_request = await self._open(client)
            try:
                await self._app(scope, receive, _Response(send, headers, open_request).send)
            finally:
                await open_request.close()
        except ProxyError as exc:  # becomes the response further out
            exc.headers.update({name.decode(): value.decode() for name, value in headers})
            raise

    async def _open(self, client: ClientConfig) -> "_OpenRequest":
        """Count one of the requests that the client may have open at the same time.

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


class _Response(Struct, frozen=True):
    """`send` with the rate in the head of the response; the lease is released before the last byte is sent.

    So a client that waits for its response before it asks again is never refused for a request that it knows is over.
    """

    server_send: Send
    headers: Headers
    open_request: _OpenRequest

    def send(self, message: Message) -> Awaitable[None]:
        """Implements ASGI's `send`."""
        if message.get("more_body"):
            return self.server_send(message)
        if message["type"] == "http.response.body":
            return self._finish(message)
        # An upstream's own rate is the proxy's affair, and would contradict these headers.
        others = [header for header in message["headers"] if not self.headers or header[0].lower() not in _RATE_HEADERS]
        return self.server_send({**message, "headers": [*others, *self.headers]})

    async def _finish(self, message: Message) -> None:
        await self.open_request.close()
        await self.server_send(message)


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
