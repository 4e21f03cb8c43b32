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
_KEY_HEADERS = (b"authorization", b"api-key", b"x-api-key")


class Auth:
    """Finds the caller of a request. Without configured clients, anybody may call."""

    def __init__(self, app: ASGIApp, *, clients: Sequence[ClientConfig]) -> None:
        self._app = app
        self._callers = [(_digest_of(client), _caller(client)) for client in clients]
        # By Authorization and x-api-key header, those with one right key in the usual form: at most two for each key of
        # a client. A dict looks up by a hash with a secret of its own, so the time taken does not show how much of a
        # key is right.
        self._found: dict[tuple[str | None, str | None], Caller] = {}

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Implements ASGI."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            # The same header was right before, and there is no second one that could contradict it.
            known = self._found.get((header(scope, b"authorization"), header(scope, b"x-api-key")))
            is_unambiguous = len(scope[HEADERS]) == len(scope["headers"])
            try:
                caller = known if known and is_unambiguous else self._find(_keys_in(scope))
            except InvalidApiKey as exc:
                if _is_for_browsers(scope):
                    exc.headers["www-authenticate"] = 'Basic realm="toolproxy: any name, and an administrator\'s key"'
                raise
            scope[CALLER] = caller
            if caller.name:
                request_context.add({"client": caller.name})
        return self._app(scope, receive, send)

    def _find(self, keys: Sequence[str]) -> Caller:
        """The caller with one of these keys.

        Raises:
            InvalidApiKey: no client has any of them.
        """
        if not self._callers:
            return Caller(upstream_key=next(iter(keys), None))
        for key in keys:
            digest = sha256(key.encode()).digest()
            # Every digest is compared, so that the time taken does not show which of them was the nearest.
            found = [caller for known, caller in self._callers if compare_digest(digest, known)]
            if found:
                self._found[f"Bearer {key}", None] = self._found[None, key] = found[0]
                return found[0]
        raise InvalidApiKey


def _keys_in(scope: Scope) -> list[str]:
    """The keys that a request carries, each in a header of its own; none where one of these headers comes twice.

    Of two Authorization headers, a proxy in front of this one or behind it may use the other one.
    """
    names = [name for name, _ in scope["headers"]]
    if any(names.count(name) > 1 for name in _KEY_HEADERS):
        return []
    authorization = header(scope, b"authorization")
    keys = [header(scope, b"x-api-key")]
    if authorization is None:
        keys.append(header(scope, b"api-key"))
    else:
        match = _BEARER.fullmatch(authorization.strip())
        if match is None and _is_for_browsers(scope):
            return [password] if (password := _password_in(authorization.strip())) else []
        keys.insert(0, match[1] if match else None)
    return [key for key in keys if key and _KEY.fullmatch(key)]


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
