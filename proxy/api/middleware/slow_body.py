"""A request's body has to come: no long silence in it, and on the whole no slower than a certain rate.

What has arrived of a body takes memory that others may want. While that is scarce, a body has twice the time that a
silence may take, and no more for being large.
"""

import asyncio
from collections.abc import Awaitable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proxy.api.bodies import Share, share_of
from proxy.api.peer import peer_of
from proxy.loop.errors import RequestTimeout
from proxy.ports import Clock


class SlowBody:
    """Bounds the time that reading a body takes, whoever reads it.

    Args:
        app: what is asked.
        timeout: seconds of silence, and of grace before the rate counts.
        min_rate: bytes per second.
        clock: tells the time.
    """

    def __init__(self, app: ASGIApp, *, timeout: float, min_rate: int, clock: Clock) -> None:
        self._app = app
        self._timeout = timeout
        self._min_rate = min_rate
        self._clock = clock

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """ASGI."""
        peer = peer_of(scope)
        if scope["type"] != "http" or (peer is not None and peer.body_is_here):
            return self._app(scope, receive, send)
        return self._app(scope, self._paced(receive, share_of(scope)), send)

    def _paced(self, receive: Receive, share: Share | None) -> Receive:
        """`receive` that raises `RequestTimeout` where the body does not come fast enough."""
        began = self._clock.monotonic()
        size = 0
        complete = False

        async def paced() -> Message:
            nonlocal size, complete
            if complete:
                return await receive()
            earned = size / self._min_rate
            if share is not None and share.is_scarce:
                earned = min(earned, self._timeout)
            message = await self._receive(receive, began + self._timeout + earned)
            size += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            return message

        return paced

    async def _receive(self, receive: Receive, ends_at: float) -> Message:
        """The next piece. Raises `RequestTimeout`."""
        try:
            async with asyncio.timeout(min(self._timeout, ends_at - self._clock.monotonic())):
                return await receive()
        except TimeoutError as exc:
            closing = {"connection": "close"}  # RFC 9110, section 15.5.9
            raise RequestTimeout("The request body did not arrive in time.", headers=closing) from exc
