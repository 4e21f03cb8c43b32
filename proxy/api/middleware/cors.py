"""Cross-origin requests: which pages of other origins a browser lets call the proxy, and read which headers."""

from secrets import token_hex

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from proxy.config import CorsConfig

_METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
_EXPOSED = (
    "x-request-id", "request-id", "x-tool-turns", "x-tool-calls", "x-tool-stop", "x-tools-ignored",
    "retry-after", "x-should-retry",
    "x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests",
)  # fmt: skip


class Cors(CORSMiddleware):
    """Answers preflights, which carry no key, and adds the headers without which a page cannot read a response.

    It is the outermost layer, so that a page can read errors too. Credentials stay off: the page puts the key into a
    header, and no cookie or remembered password authenticates a request of another origin.

    Args:
        app: the layer below.
        cors: the origins that may call.
    """

    def __init__(self, app: ASGIApp, *, cors: CorsConfig) -> None:
        super().__init__(
            app,
            allow_origins=cors.origins,
            allow_methods=_METHODS,
            allow_headers=("*",),  # SDKs send a dozen of their own
            expose_headers=_EXPOSED,
            max_age=cors.max_age,
        )

    def preflight_response(self, request_headers: Headers) -> Response:
        """The response to a preflight. It needs an id of its own, because it never reaches the layer that gives ids."""
        response = super().preflight_response(request_headers)
        response.headers["x-request-id"] = token_hex(16)
        return response
