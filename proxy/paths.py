"""The paths of the proxy, as the layers around its endpoints tell them apart. `app.routes` has the endpoints."""

from typing import Final

FRONT_PATHS: Final = frozenset({"/", "/v1"})
"""Paths that say what this is. They need no key, and tell a caller with one more."""

OPEN_PATHS: Final = FRONT_PATHS | {"/chat", "/health", "/healthz", "/metrics", "/readyz"}
"""Paths that need no key and never wait for a place."""

UNCOUNTED_PATHS: Final = frozenset({"/v1/messages/count_tokens"})
"""Paths whose requests count against no limit: editors count the tokens of fifty texts at once, which costs nothing."""

MCP_PATH: Final = "/mcp"
"""The path whose requests are refused for a budget only if they call a tool, which their bodies say."""

OTHER_ROUTE: Final = "other"
_ROUTES: Final = OPEN_PATHS | UNCOUNTED_PATHS | {
    "/chat/completions", MCP_PATH, "/responses", "/debug", "/debug/usage", "/v1/audio/speech",
    "/v1/audio/transcriptions", "/v1/audio/translations", "/v1/batches", "/v1/chat/completions",
    "/v1/completions", "/v1/embeddings", "/v1/files",
    "/v1/images/edits", "/v1/images/generations", "/v1/messages", "/v1/models", "/v1/moderations", "/v1/rerank",
    "/v1/responses", "/v1/search",
}  # fmt: skip
_ROUTES_WITH_ID: Final = ("/v1/responses/", "/responses/", "/v1/models/", "/debug/requests/")


def route_of(path: str) -> str:
    """A path as metrics and traces name it: as one of the routes, or "other"."""
    if path in _ROUTES:
        return path
    return next((f"{prefix}{{id}}" for prefix in _ROUTES_WITH_ID if path.startswith(prefix)), OTHER_ROUTE)
