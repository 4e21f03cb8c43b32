"""Ends the sessions with MCP servers that a request began with its user's credentials."""

from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.api.credentials import CREDENTIALS
from proxy.wire.credentials import Credentials


class UserSessions:
    """Ends them with the request, however that ends. The innermost layer, so that nothing else waits for them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        try:
            await self._app(scope, receive, send)
        finally:
            credentials: Credentials | None = scope.get(CREDENTIALS)
            if credentials is not None:
                credentials.end()
