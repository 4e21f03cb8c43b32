"""Cross-origin requests: which web pages may call the proxy, and which headers a browser lets them read."""

import re
from collections.abc import Awaitable
from http import HTTPStatus
from secrets import token_hex
from typing import Final

import orjson
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.api.body import header
from proxy.config.model import CorsConfig
from proxy.wire.errors import PageNotAllowed, RequestError

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
LOCAL_HOST: Final = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?")
"""A Host header that names this machine. A page whose own name leads here (DNS rebinding) sends that name."""

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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection. The preflight of an origin that is not listed is refused below, by `Auth`."""
        is_asked = scope["method"] == "OPTIONS" and is_preflight(scope)
        if is_asked and not self.is_allowed_origin(header(scope, b"origin") or ""):
            await self.app(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    def preflight_response(self, request_headers: Headers) -> Response:
        """The response to a preflight. It needs an id of its own, because it never reaches the layer that gives ids."""
        response = super().preflight_response(request_headers)
        if response.status_code != HTTPStatus.OK:
            why = bytes(response.body).decode()  # "Disallowed CORS method"
            response.body = orjson.dumps(RequestError(f"{why}: server.cors does not permit it.").envelope())
            response.headers["content-type"] = "application/json"
            response.headers["content-length"] = str(len(response.body))
        response.headers["x-request-id"] = token_hex(16)
        return response


def is_preflight(scope: Scope) -> bool:
    """Whether a browser asks with an OPTIONS request whether a web page may send a request (Fetch standard)."""
    return header(scope, b"origin") is not None and header(scope, b"access-control-request-method") is not None


class PageGuard:
    """Refuses the requests of web pages that need no permission of the browser, where no key protects the proxy.

    A browser sends a form, or `text/plain`, to any address without asking first, and a page whose name was made to lead
    to this machine counts as the proxy's own. Such a page could spend the operator's credit, though not read much.

    Args:
        app: the layer below.
        cors: the origins that may call; None: none may.
        is_public: whether the proxy listens beyond loopback, so that its own pages may have any name.
    """

    def __init__(self, app: ASGIApp, *, cors: CorsConfig | None, is_public: bool) -> None:
        self._app = app
        self._origins = frozenset(cors.origins if cors else ())
        self._is_public = is_public

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Handle one ASGI connection."""
        if scope["method"] not in _SAFE_METHODS and (origin := header(scope, b"origin")):
            self._require_allowed(scope, origin)
        return self._app(scope, receive, send)

    def _require_allowed(self, scope: Scope, origin: str) -> None:
        """Raise `PageNotAllowed` for a page of another origin that a browser has not asked about."""
        if origin in self._origins or "*" in self._origins:
            return
        host = header(scope, b"host") or ""
        if origin.partition("://")[2] == host:
            if not (self._is_public or LOCAL_HOST.fullmatch(host)):
                raise PageNotAllowed(origin)
        elif not (header(scope, b"content-type") or "").lower().startswith("application/json"):
            raise PageNotAllowed(origin)
