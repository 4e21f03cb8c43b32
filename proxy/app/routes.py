"""The paths of the proxy, the endpoint at each, and the shape of its errors (`proxy.paths`: how layers treat them)."""

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any

from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.api.chat_completions import ChatCompletions
from proxy.api.endpoints import Healthz, MetricsEndpoint, Models, NotServed, Readyz, WrongMethod
from proxy.api.exchange import ErrorShape
from proxy.api.messages.endpoint import CountTokens, CreateMessage
from proxy.api.messages.errors import MESSAGES_ERRORS
from proxy.api.passthrough import Passthrough
from proxy.api.ports import Ports
from proxy.api.responses.by_id import CancelResponse, InputItems, ResponseById
from proxy.api.responses.endpoint import CreateResponse
from proxy.api.search import Search
from proxy.pages.chat import ChatPage
from proxy.pages.debug.endpoint import CaseEndpoint, Debug
from proxy.pages.debug.usage import UsageEndpoint
from proxy.pages.front import FrontPage
from proxy.paths import FRONT_PATHS
from proxy.wire.errors import NotFound
from proxy.wire.relayed import Headers

_OPENAI_ERRORS = ErrorShape()
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
    hot = _hot_paths(ports)
    # Without `redirect_slashes=False`, Starlette would redirect to a URL made from the Host header.
    return _Router(hot, _routes(ports, hot), default=_not_routed, redirect_slashes=False)


class _Router(Router):
    """Starlette's router, with a shortcut for POST requests to a few paths: it saves 4 % of a request's instructions.

    Args:
        posts: the endpoints of these paths.
        routes: all other routes.
        options: the options of Starlette's router.
    """

    def __init__(self, posts: Mapping[str, ASGIApp], routes: Sequence[Route], **options: Any) -> None:
        super().__init__(routes, **options)
        self._posts = posts

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:  # type: ignore[override]
        """Handle one ASGI connection."""
        endpoint = self._posts.get(scope["path"]) if scope.get("method") == "POST" else None
        if endpoint:
            return endpoint(scope, receive, send)
        # Starlette's routes also match a path with a line feed at its end, which a proxy in front takes for another.
        if not scope["path"].isprintable():
            raise NotFound("There is no such path here: it has characters that cannot be printed.")
        return super().__call__(scope, receive, send)


def _hot_paths(ports: Ports) -> dict[str, ASGIApp]:
    """The paths of most requests, each with its application."""
    chat = ChatCompletions(ports)
    create = CreateResponse(ports)
    return {
        "/v1/chat/completions": chat,
        "/chat/completions": chat,
        "/v1/responses": create,
        "/responses": create,
        "/v1/messages": CreateMessage(ports),
        "/v1/messages/count_tokens": CountTokens(ports),
    }


def _routes(ports: Ports, hot: Iterable[str]) -> list[Route]:
    models = Models(ports)
    debug = Debug(ports, ports.recent_requests) if ports.recent_requests else None
    front = FrontPage(ports)
    case = CaseEndpoint(ports, ports.recent_requests) if ports.recent_requests else None
    return [
        *(Route(path, WrongMethod("POST")) for path in hot),
        *(route for root in ("/v1/responses", "/responses") for route in _below_responses(root, ports)),
        *(Route(f"/v1/conversations{rest}", NotServed(ports)) for rest in ("", "/{rest:path}")),
        Route("/v1/messages/{rest:path}", NotServed(ports)),
        *_own("/v1/search", Search(ports), "POST"),
        *(_own("/mcp", _mcp(ports), "POST") if ports.config.server.mcp else ()),
        *(route for path in sorted(FRONT_PATHS) for route in _own(path, front, "GET")),
        *_own("/v1/models", models, "GET"),
        *_own("/v1/models/{id:path}", models, "GET"),
        *_own("/healthz", Healthz(), "GET"),
        *_own("/health", Healthz(), "GET"),  # load-test tools ask here, as vLLM and SGLang have it
        *_own("/chat", ChatPage(ports), "GET"),
        *_own("/readyz", Readyz(ports), "GET"),
        *(_own("/metrics", MetricsEndpoint(ports.scrape, ports), "GET") if ports.scrape else ()),
        *(_own("/debug", debug, "GET") if debug else ()),
        *(_own("/debug/requests/{id}", debug, "GET") if debug else ()),
        *(_own("/debug/requests/{id}/case", case, "GET") if case else ()),
        *(_own("/debug/usage", UsageEndpoint(ports), "GET") if debug else ()),
        Route("/v1/{path:path}", Passthrough(ports)),
    ]


def _below_responses(root: str, ports: Ports) -> list[Route]:
    """The routes below `/responses`, including those that are refused."""
    nothing = NotServed(ports)
    return [
        *(Route(f"{root}/{name}", nothing) for name in ("compact", "input_tokens")),
        *_own(f"{root}/{{id}}", ResponseById(ports), "GET", "DELETE"),
        *_own(f"{root}/{{id}}/input_items", InputItems(ports), "GET"),
        *_own(f"{root}/{{id}}/cancel", CancelResponse(ports), "POST"),
        Route(f"{root}/{{rest:path}}", nothing),
    ]


def _mcp(ports: Ports) -> ASGIApp:
    from proxy.api.mcp import McpEndpoint  # noqa: PLC0415 - the SDK takes half a second to import

    return McpEndpoint(ports)


def _own(path: str, endpoint: ASGIApp, *methods: str) -> tuple[Route, Route]:
    """The routes of a path that is never relayed to an upstream, not even with another method."""
    return Route(path, endpoint, methods=list(methods)), Route(path, WrongMethod(", ".join(methods)))


async def _not_routed(scope: Scope, _: Receive, send: Send) -> None:
    """404 for a path without a route; a WebSocket is closed."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1000})
        return
    raise NotFound(f"There is no {scope['path']} here.")
