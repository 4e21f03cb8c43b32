"""The router of all paths in `proxy.paths`, and the shape of the errors at each."""

from collections.abc import Awaitable, Mapping, Sequence
from importlib import import_module
from typing import Any

from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from proxy import paths
from proxy.api.endpoints import WrongMethod
from proxy.api.error_shape import ErrorShape
from proxy.api.messages.errors import MESSAGES_ERRORS
from proxy.api.ports import Ports
from proxy.wire.errors import NotFound
from proxy.wire.relayed import Headers

_OPENAI_ERRORS = ErrorShape()
# How the paths of the API end, whatever an app's base_url puts before them.
_BELOW_V1 = tuple(path.removeprefix("/v1") for path in paths.NAMED_PATHS if path.startswith("/v1/"))
# The roots of the paths whose errors have another shape, and the header that a request needs for it; None: no header.
_ERROR_SHAPES: Sequence[tuple[str, bytes | None, ErrorShape]] = (
    ("/v1/messages", None, MESSAGES_ERRORS),
    ("/v1/models", b"anthropic-version", MESSAGES_ERRORS),
)


def error_shape(path: str, headers: Headers = ()) -> ErrorShape:
    """The shape of the errors of a request."""
    for root, needed, shape in _ERROR_SHAPES:
        if (path + "/").startswith(root + "/") and (needed is None or any(name == needed for name, _ in headers)):
            return shape
    return _OPENAI_ERRORS


def router_of(ports: Ports) -> Router:
    """The router of all paths of the proxy."""
    debug, metrics = ports.recent_requests is not None, ports.scrape is not None
    is_on = {"": True, "debug": debug, "mcp": ports.config.server.mcp, "metrics": metrics}
    rows = [row for row in paths.ROUTES if is_on[row.part]]
    endpoints = {name: _endpoint(name, ports) for name in dict.fromkeys(row.endpoint for row in rows)}
    posts: dict[str, ASGIApp] = {}
    routes: list[Route] = []
    for row in rows:
        endpoint, methods = endpoints[row.endpoint], row.methods.split(", ") if row.methods else None
        if methods == ["POST"] and "{" not in row.path:
            posts[row.path] = endpoint
        else:
            routes.append(Route(row.path, endpoint, methods=methods))
        if methods:
            routes.append(Route(row.path, WrongMethod(row.methods)))
    # Without `redirect_slashes=False`, Starlette would redirect to a URL made from the Host header.
    return _Router(posts, routes, default=_not_routed, redirect_slashes=False)


def _endpoint(name: str, ports: Ports) -> ASGIApp:
    """The endpoint of that name in the table. Only those that are on are imported: MCP's SDK takes half a second."""
    module, _, attribute = name.partition(":")
    endpoint: ASGIApp = getattr(import_module(f"proxy.{module}"), attribute)(ports)
    return endpoint


class _Router(Router):
    """Starlette's router, with a shortcut for POST requests: it saves 4 % of a request's instructions.

    `posts` are the endpoints of paths without patterns to which requests are posted. `routes` are all other routes.
    """

    def __init__(self, posts: Mapping[str, ASGIApp], routes: Sequence[Route], **options: Any) -> None:
        super().__init__(routes, **options)
        self._posts = posts

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:  # type: ignore[override]
        """Handle one ASGI connection."""
        endpoint = self._posts.get(scope["path"]) if scope["method"] == "POST" else None
        if endpoint:
            return endpoint(scope, receive, send)
        # Starlette's routes also match a path with a line feed at its end, which a proxy in front takes for another.
        if not scope["path"].isprintable():
            raise NotFound("There is no such path here: it has characters that cannot be printed.")
        return super().__call__(scope, receive, send)


async def _not_routed(scope: Scope, _: Receive, __: Send) -> None:
    """404 for a path without a route. It says so if the path would be right but for the base_url of the app."""
    path: str = scope["path"]
    is_api = path.endswith(_BELOW_V1)
    advice = (
        " The API's paths begin with /v1: is the app's base_url right?" if is_api else " GET / shows what there is."
    )
    raise NotFound(f"There is no {path} here.{advice}")
