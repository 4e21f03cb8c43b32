"""Every path of the proxy: its endpoint, its methods, its name in metrics and traces, and how the layers treat it.

`app.routes` makes the router of this table, and the layers around the endpoints, metrics and traces read it as well.
They stand below the endpoints, so the table names these instead of importing them.
"""

from typing import Final, Literal, NamedTuple

MCP_PATH: Final = "/mcp"
"""The path whose requests are refused for a budget only if they call a tool, which their bodies say."""


class Route(NamedTuple):
    """A path.

    Attributes:
        path: as Starlette writes it. A pattern takes all paths that no row before it takes.
        endpoint: a module below `proxy` and its class, which is made of the `Ports`.
        methods: those that the endpoint answers. Any other is refused, and never passed to an upstream. Without
            methods, the endpoint answers all of them.
        access: "open": the path needs no key, and its requests never wait for a place. "front": the same, and it tells
            a caller with a key more.
        is_counted: whether its requests count against limits.
        part: what of the configuration has to be on, for the path to be there.
    """

    path: str
    endpoint: str
    methods: str = ""
    access: Literal["key", "open", "front"] = "key"
    is_counted: bool = True
    part: Literal["", "debug", "mcp", "metrics"] = ""


ROUTES: Final = (
    Route("/", "pages.front:FrontPage", "GET", "front"),
    Route("/v1", "pages.front:FrontPage", "GET", "front"),
    Route("/favicon.ico", "pages.front:Icon", "GET", "open"),
    Route("/chat", "pages.chat:ChatPage", "GET", "open"),
    Route("/healthz", "api.endpoints:Healthz", "GET", "open"),
    Route("/health", "api.endpoints:Healthz", "GET", "open"),  # load-test tools ask here, as vLLM and SGLang have it
    Route("/readyz", "api.endpoints:Readyz", "GET", "open"),
    Route("/metrics", "api.endpoints:MetricsEndpoint", "GET", "open", part="metrics"),
    Route("/debug", "pages.debug.endpoint:Debug", "GET", part="debug"),
    Route("/debug/requests/{id}", "pages.debug.endpoint:Debug", "GET", part="debug"),
    Route("/debug/requests/{id}/case", "pages.debug.endpoint:CaseEndpoint", "GET", part="debug"),
    Route("/debug/usage", "pages.debug.usage:UsageEndpoint", "GET", part="debug"),
    Route("/v1/chat/completions", "api.apis:chat_completions", "POST"),
    Route("/chat/completions", "api.apis:chat_completions", "POST"),
    Route("/v1/responses", "api.apis:create_response", "POST"),
    Route("/responses", "api.apis:create_response", "POST"),
    *(
        Route(f"{root}/{path}", endpoint, methods)
        for root in ("/v1/responses", "/responses")
        for path, endpoint, methods in (
            ("compact", "api.endpoints:NotServed", ""),
            ("input_tokens", "api.endpoints:NotServed", ""),
            ("{id}", "api.stored_responses:ResponseById", "GET, DELETE"),
            ("{id}/input_items", "api.stored_responses:InputItems", "GET"),
            ("{id}/cancel", "api.stored_responses:CancelResponse", "POST"),
            ("{rest:path}", "api.endpoints:NotServed", ""),
        )
    ),
    Route("/v1/conversations", "api.endpoints:NotServed"),
    Route("/v1/conversations/{rest:path}", "api.endpoints:NotServed"),
    Route("/v1/messages", "api.apis:create_message", "POST"),
    # Editors count the tokens of fifty texts at once, which costs nothing.
    Route("/v1/messages/count_tokens", "api.apis:CountTokens", "POST", is_counted=False),
    Route("/v1/messages/{rest:path}", "api.endpoints:NotServed"),
    Route("/v1/models", "api.endpoints:Models", "GET"),
    Route("/v1/models/{id:path}", "api.endpoints:Models", "GET"),
    Route("/v1/search", "api.search:Search", "POST"),
    Route(MCP_PATH, "api.mcp:McpEndpoint", "POST", part="mcp"),
    Route("/v1/{path:path}", "api.passthrough:Passthrough"),
)
# Of the paths that are passed to upstreams, those with a name of their own in metrics and traces.
_PASSED: Final = (
    "/v1/audio/speech", "/v1/audio/transcriptions", "/v1/audio/translations", "/v1/batches", "/v1/completions",
    "/v1/embeddings", "/v1/files", "/v1/images/edits", "/v1/images/generations", "/v1/moderations", "/v1/rerank",
)  # fmt: skip

FRONT_PATHS: Final = frozenset(route.path for route in ROUTES if route.access == "front")
OPEN_PATHS: Final = FRONT_PATHS | {route.path for route in ROUTES if route.access == "open"}
UNCOUNTED_PATHS: Final = frozenset(route.path for route in ROUTES if not route.is_counted)

OTHER_ROUTE: Final = "other"
_OWN: Final = [route.path for route in ROUTES if route.methods]
NAMED_PATHS: Final = frozenset(path for path in _OWN if "{" not in path).union(_PASSED)
_PREFIXES: Final = tuple(dict.fromkeys(path.partition("{")[0] for path in _OWN if "{" in path))


def route_of(path: str) -> str:
    """The name of a path in metrics and traces: the path itself, one with `{id}`, or "other"."""
    if path in NAMED_PATHS:
        return path
    return next((f"{prefix}{{id}}" for prefix in _PREFIXES if path.startswith(prefix)), OTHER_ROUTE)
