"""Authentication: the client's key, compared as a digest.

The path of the ASGI scope decides what is open to all, never a URL made from the Host header (CVE-2026-48710).
"""

import re
from base64 import b64decode
from collections.abc import Awaitable, Sequence
from hashlib import sha256
from hmac import compare_digest

from starlette.types import ASGIApp, Receive, Scope, Send

from proxy import request_context
from proxy.api.body import HEADERS, header
from proxy.api.request import CALLER, Caller
from proxy.config import ClientConfig
from proxy.loop.errors import InvalidApiKey

OPEN_PATHS = frozenset({"/healthz", "/metrics", "/readyz"})

_BEARER = re.compile(r"bearer +([\x21-\x7e]+)", re.IGNORECASE)
_BASIC = re.compile(r"basic +([A-Za-z0-9+/]+=*)", re.IGNORECASE)
_KEY = re.compile(r"[\x21-\x7e]+")


class Auth:
    """Finds the caller of a request. Without configured clients, anybody may call."""

    def __init__(self, app: ASGIApp, *, clients: Sequence[ClientConfig]) -> None:
        self._app = app
        self._callers = [(_digest_of(client), _caller(client)) for client in clients]
        # By Authorization header, those with a right key in the usual form: no more of them than clients. A dict looks
        # up by a hash with a secret of its own, so the time taken does not show how much of a key is right.
        self._found: dict[str, Caller] = {}

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Implements ASGI."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            # The same header was right before, and there is no second one that could contradict it.
            known = self._found.get(header(scope, b"authorization") or "")
            is_unambiguous = len(scope[HEADERS]) == len(scope["headers"])
            try:
                caller = known if known and is_unambiguous else self._find(_key_in(scope))
            except InvalidApiKey as exc:
                if _is_for_browsers(scope):
                    exc.headers["www-authenticate"] = 'Basic realm="toolproxy: any name, and an administrator\'s key"'
                raise
            scope[CALLER] = caller
            if caller.name:
                request_context.add({"client": caller.name})
        return self._app(scope, receive, send)

    def _find(self, key: str | None) -> Caller:
        """The caller with that key.

        Raises:
            InvalidApiKey: no client has it.
        """
        if not self._callers:
            return Caller(upstream_key=key)
        digest = sha256((key or "").encode()).digest()
        # Every digest is compared, so that the time taken does not show which of them was the nearest.
        found = [caller for known, caller in self._callers if compare_digest(digest, known)]
        if key is None or not found:
            raise InvalidApiKey
        self._found[f"Bearer {key}"] = found[0]
        return found[0]


def _key_in(scope: Scope) -> str | None:
    """The key that a request carries; None where there is none, or more than one.

    Of two Authorization headers, a proxy in front of this one or behind it may use the other one.
    """
    names = [name for name, _ in scope["headers"]]
    if names.count(b"authorization") > 1 or names.count(b"api-key") > 1:
        return None
    authorization = header(scope, b"authorization")
    if authorization is not None:
        match = _BEARER.fullmatch(authorization.strip())
        if match is None and _is_for_browsers(scope):
            return _password_in(authorization.strip())
        return match[1] if match else None
    key = header(scope, b"api-key")
    return key if key and _KEY.fullmatch(key) else None


def _is_for_browsers(scope: Scope) -> bool:
    """Whether a page is requested. A browser has no other means of sending a key than HTTP Basic's password."""
    path: str = scope["path"]
    return path == "/debug" or path.startswith("/debug/")


def _password_in(authorization: str) -> str | None:
    match = _BASIC.fullmatch(authorization)
    try:
        decoded = b64decode(match[1]).decode() if match else ""
    except ValueError:
        return None
    key = decoded.partition(":")[2]
    return key if _KEY.fullmatch(key) else None


def _digest_of(client: ClientConfig) -> bytes:
    if client.key_sha256 is not None:
        return bytes.fromhex(client.key_sha256)
    return sha256((client.key or "").encode()).digest()


def _caller(client: ClientConfig) -> Caller:
    tools = None if client.tools is None else frozenset(client.tools)
    return Caller(client.name, client.models, tools, client.limits, client.admin)
