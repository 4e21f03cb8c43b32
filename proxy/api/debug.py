"""`GET /debug` and `GET /debug/requests/{id}`: the last requests, for clients that are administrators.

Where there are no clients, whoever sits at this machine is one: both ends of the connection are loopback addresses, the
Host header names one (a web page that has rebound its own name to 127.0.0.1 does not), and no other proxy has forwarded
the request. With `allow_anonymous` nobody is.
"""

import re
from ipaddress import ip_address

from starlette.types import Receive, Scope, Send

from proxy.api.body import header, is_forwarded
from proxy.api.caller import caller_of
from proxy.api.debug_page import POLICY, list_page, story_page
from proxy.api.html import Html
from proxy.api.replies import Headers, send_bytes, send_json
from proxy.loop.errors import AdminOnly, NotFound
from proxy.ports import History, Ports

_LOCAL_HOST = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?")
_HEADERS: Headers = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)


class Debug:
    """Both pages, as an ASGI callable; JSON where the client asks for it."""

    def __init__(self, ports: Ports, history: History) -> None:
        self._history = history
        self._allow_anonymous = ports.config.server.allow_anonymous

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        """ASGI."""
        if not self._may_read(scope):
            raise AdminOnly
        request_id = scope["path_params"].get("id")
        found = self._history.latest() if request_id is None else self._history.find(request_id)
        if found is None:
            raise NotFound(f"The request {request_id!r} is not remembered here.")
        if "application/json" in (header(scope, b"accept") or ""):
            await send_json(send, {"requests": found} if isinstance(found, list) else found)
            return
        page: Html = story_page(found) if isinstance(found, dict) else list_page(found)
        await send_bytes(send, 200, _HEADERS, page.encode())

    def _may_read(self, scope: Scope) -> bool:
        caller = caller_of(scope)
        nobody_is_named = caller.name is None and not self._allow_anonymous
        return caller.admin or (nobody_is_named and _comes_from_this_machine(scope))


def _comes_from_this_machine(scope: Scope) -> bool:
    ends = (scope.get("client"), scope.get("server"))
    host = header(scope, b"host") or ""
    return all(_is_loopback(end) for end in ends) and bool(_LOCAL_HOST.fullmatch(host)) and not is_forwarded(scope)


def _is_loopback(end: object) -> bool:
    """Of an ASGI address: host and port."""
    try:
        return isinstance(end, list | tuple) and ip_address(end[0]).is_loopback
    except ValueError:
        return False
