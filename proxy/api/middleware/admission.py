"""No more requests at a time than the proxy is configured for: beyond that, 503 at once."""

from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.api.middleware.auth import OPEN_PATHS
from proxy.core.errors import Overloaded


class Admission:
    """Counts the requests that are open, health checks aside."""

    def __init__(self, app: ASGIApp, *, max_concurrent: int) -> None:
        self._app = app
        self._max_concurrent = max_concurrent
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        if self._open >= self._max_concurrent:
            raise Overloaded("The proxy is serving as many requests as it may; try again in a moment.")
        self._open += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._open -= 1
