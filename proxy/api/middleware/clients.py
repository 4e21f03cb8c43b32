"""The clients: which of them a request comes from, by the digest of its key, and the quota that it has.

The path of the ASGI scope decides what is open to all, never a URL made from the Host header (CVE-2026-48710).

A quota bounds the requests per minute, and the requests at the same time. Beyond either, 429 at once. The head of every
response to a client with a rate has what is left of it, in OpenAI's headers.
"""

import math
import re
from base64 import b64decode
from collections.abc import Awaitable, Sequence
from functools import partial
from hashlib import sha256
from hmac import compare_digest

from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.api.access import CALLER, Caller
from proxy.api.body import HEADERS, header
from proxy.api.middleware.cors import is_preflight
from proxy.api.response import RESPONSE, OutgoingResponse
from proxy.api.websocket import refuse_websocket
from proxy.config.model import ClientConfig, Config
from proxy.kit import request_context
from proxy.kit.counted import counted
from proxy.paths import FRONT_PATHS, OPEN_PATHS, UNCOUNTED_PATHS
from proxy.ports import Leases, Rates
from proxy.wire.errors import InvalidApiKey, PageNotAllowed, RateLimitExceeded

_BEARER = re.compile(r"bearer +([\x21-\x7e]+)", re.IGNORECASE)
_BASIC = re.compile(r"basic +([A-Za-z0-9+/]+=*)", re.IGNORECASE)
_KEY = re.compile(r"[\x21-\x7e]+")
_KEY_HEADERS = (b"authorization", b"api-key", b"x-api-key")
_LIMIT = b"x-ratelimit-limit-requests"
_REMAINING = b"x-ratelimit-remaining-requests"
_RESET = b"x-ratelimit-reset-requests"
_A_MOMENT = 1  # second; when one of the client's own requests will be done cannot be known


class Auth:
    """Finds the caller of a request.

    Args:
        app: the layer below.
        config: names the clients that may call. If the keys of requests go to an upstream, they tell callers apart
            without clients.
        needs_key: whether callers need a key of one of these clients; without clients nobody has one. Otherwise anybody
            may call.
        rates: counts the requests of clients with a rate.
        leases: counts the open requests of clients with a bound on them.
    """

    def __init__(self, app: ASGIApp, *, config: Config, needs_key: bool, rates: Rates, leases: Leases) -> None:
        clients = config.clients
        self._app = app
        self._needs_key = needs_key
        self._forwards_keys = config.forwards_client_keys
        self._rates = rates
        self._leases = leases
        self._limited = {client.name: client for client in clients if is_limited(client)}
        self._callers = [(bytes.fromhex(digest), _caller(client)) for client in clients for digest in client.digests]
        # Callers found before, by their whole Authorization header and by their x-api-key. Only right keys get in, so
        # neither outgrows the number of keys. A dict looks up by a hash with a secret of its own, so the time taken
        # does not show how much of a key is right.
        self._found: dict[str, Caller] = {}
        self._found_keys: dict[str, Caller] = {}

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Handle one ASGI connection."""
        path = scope["path"]
        if scope["method"] == "OPTIONS" and is_preflight(scope):  # one that `Cors` has not answered; it carries no key
            origin = header(scope, b"origin") or ""
            request_context.add({"origin": origin[:200]})
            raise PageNotAllowed(origin)
        if path not in OPEN_PATHS or self._front_needs_caller(scope):
            # The same header was right before, and there is no second one that could contradict it.
            known = self._found.get(header(scope, b"authorization") or "")
            if known is None:
                known = self._found_keys.get(header(scope, b"x-api-key") or "")
            is_unambiguous = len(scope[HEADERS]) == len(scope["headers"])
            try:
                caller = known if known and is_unambiguous else self._find(_keys_in(scope))
            except InvalidApiKey as exc:
                refuse_websocket(scope)
                if _is_for_browsers(scope):
                    exc.headers["www-authenticate"] = 'Basic realm="toolproxy: any name, and an administrator\'s key"'
                raise
            scope[CALLER] = caller
            if caller.name:
                request_context.add({"client": caller.name})
                if (client := self._limited.get(caller.name)) and path not in OPEN_PATHS:
                    return self._within_quota(client, scope, receive, send)
        return self._app(scope, receive, send)

    async def _within_quota(self, client: ClientConfig, scope: Scope, receive: Receive, send: Send) -> None:
        """Count a request, answer it, and hold its place until the last byte of its response.

        So a client that waits for its response before it asks again is never refused for a request that it knows is
        over. Raises `RateLimitExceeded`.
        """
        response: OutgoingResponse = scope[RESPONSE]
        limit = None if scope["path"] in UNCOUNTED_PATHS else client.requests_per_minute
        if limit is not None:
            rate = await self._rates.hit(client.name, limit)
            # An upstream's own rate is the proxy's affair, and these headers replace it.
            left, reset = b"%d" % max(0, limit - rate.count), duration(rate.reset).encode()
            response.headers += ((_LIMIT, b"%d" % limit), (_REMAINING, left), (_RESET, reset))
            if not rate.allowed:
                message = f"This key is limited to {counted(limit, 'request')} per minute, and the limit is reached."
                raise RateLimitExceeded(message, retry_after=max(1, math.ceil(rate.reset)))
        if (most := client.max_concurrent_requests) is not None:
            lease = await self._leases.acquire(client.name, most)
            if lease is None:
                message = f"This key is limited to {most} concurrent requests, and all are in use."
                raise RateLimitExceeded(message, retry_after=_A_MOMENT)
            response.before_end.append(partial(self._leases.release, client.name, lease))
        await self._app(scope, receive, send)

    def _front_needs_caller(self, scope: Scope) -> bool:
        """Whether this is a front page whose answer depends on the caller: a key was sent, or none is needed."""
        if scope["path"] not in FRONT_PATHS:
            return False
        return not self._needs_key or any(header(scope, name) is not None for name in _KEY_HEADERS)

    def _find(self, keys: Sequence[str]) -> Caller:
        """The caller with one of these keys. Raises `InvalidApiKey`: no client has any of them."""
        if not self._needs_key:
            return Caller(upstream_key=next(iter(keys), None) if self._forwards_keys else None)
        for key in keys:
            digest = sha256(key.encode()).digest()
            # Every digest is compared, so that the time taken does not show which of them was the nearest.
            found = [caller for known, caller in self._callers if compare_digest(digest, known)]
            if found:
                self._found[f"Bearer {key}"] = self._found_keys[key] = found[0]
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
        match = _BEARER.fullmatch(authorization.strip(" \t"))
        if match is None and _is_for_browsers(scope):
            return [password] if (password := _password_in(authorization.strip(" \t"))) else []
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


def _caller(client: ClientConfig) -> Caller:
    tools = None if client.tools is None else frozenset(client.tools)
    return Caller(client.name, client.models, tools, client.limits, client.admin, client.tool_events)


def is_limited(client: ClientConfig) -> bool:
    """Whether a client has a rate, or a bound on its open requests."""
    return bool(client.requests_per_minute or client.max_concurrent_requests)


def duration(seconds: float) -> str:
    """Seconds as OpenAI writes them: `120ms`, `8.64s`, `1m0s`."""
    milliseconds = math.ceil(seconds * 1000)
    if milliseconds < 1000:  # noqa: PLR2004 - of a second
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes}m{rest / 1000:g}s" if minutes else f"{rest / 1000:g}s"
