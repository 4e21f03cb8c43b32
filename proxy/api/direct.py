"""Past the router, for the few paths that nearly every request asks for: one look, and no patterns."""

from collections.abc import Awaitable, Mapping

from starlette.types import ASGIApp, Receive, Scope, Send


class Direct:
    """POSTs to a path that is known by heart go straight to its endpoint, everything else to the router."""

    def __init__(self, posts: Mapping[str, ASGIApp], router: ASGIApp) -> None:
        self._posts = posts
        self._router = router

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """ASGI."""
        endpoint = self._posts.get(scope["path"]) if scope.get("method") == "POST" else None
        return (endpoint or self._router)(scope, receive, send)
