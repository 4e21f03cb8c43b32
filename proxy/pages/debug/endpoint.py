"""`GET /debug` and `GET /debug/requests/{id}`: the last requests, for clients that are administrators.

If no clients are configured, the pages can be read from this machine (`api.local`). With `allow_anonymous` nobody can
read them.
"""

import re
from collections.abc import Callable
from hashlib import sha256
from typing import cast

import msgspec
from starlette.datastructures import QueryParams
from starlette.types import Receive, Scope, Send

from proxy.api.access import CALLER, Caller
from proxy.api.body import header
from proxy.api.exchange import send_bytes
from proxy.api.local import is_local
from proxy.api.ports import Ports
from proxy.pages.chat import serves_chat
from proxy.pages.debug.frame import LOOK
from proxy.pages.debug.request import request_page
from proxy.pages.debug.requests import FILTERS, list_page, matches
from proxy.pages.html import Html
from proxy.ports import RecentRequests
from proxy.wire.chat import Json
from proxy.wire.errors import AdminOnly, NotFound, NotRecorded

_SAFE = re.compile("[^A-Za-z0-9._-]")


class Debug:
    """Both pages, as HTML, or as JSON if the client asks for it in `Accept` or with `?format=json`."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._recent_requests = cast("RecentRequests", ports.recent_requests)  # else `app.routes` leaves the path out

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if not may_read(scope, self._ports):
            raise AdminOnly
        has_chat = serves_chat(scope, self._ports)
        request_id = scope["path_params"].get("id")
        if request_id is None:
            query = QueryParams(scope["query_string"])
            chosen = {name: query.get(name, "") for name in FILTERS}
            records = self._recent_requests.latest()
            found = {"requests": [record for record in records if matches(record, chosen)]}
            await respond(scope, send, found, lambda: list_page(records, chosen, has_chat=has_chat))
            return
        record = self._recent_requests.find(request_id)
        if record is None:
            raise NotFound(f"There is no record of request {request_id!r}.")
        await respond(scope, send, record, lambda: request_page(record, has_chat=has_chat))


class CaseEndpoint:
    """`GET /debug/requests/{id}/case`: everything that a request met, as a file that `toolproxy replay` plays again."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._recent_requests = cast("RecentRequests", ports.recent_requests)  # else `app.routes` leaves the path out

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if not may_read(scope, self._ports):
            raise AdminOnly
        request_id: str = scope["path_params"]["id"]
        record = self._recent_requests.find(request_id)
        if self._ports.cases is None:
            raise NotRecorded("Cases are recorded while telemetry.log_content is true in the configuration.")
        if record is not None and record.get("status") is None:
            raise NotRecorded(f"The request {request_id!r} is still open; it can be had as a case when it has ended.")
        case = await self._ports.cases.find(request_id)
        if case is None:
            why = "nothing was recorded of it, because it was refused before it was read, or it is no longer kept"
            raise NotFound(f"There is no case of request {request_id!r}: {why}.")
        name = _SAFE.sub("-", request_id)[:100]
        headers = (
            (b"content-type", b"application/json"),
            (b"content-disposition", f'attachment; filename="case-{name}.json"'.encode()),
            (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"),
        )
        await send_bytes(send, 200, headers, case)


def may_read(scope: Scope, ports: Ports) -> bool:
    """Whether the sender of a request may read these pages."""
    caller: Caller | None = scope.get(CALLER)
    if caller is None:
        return False
    if caller.name is not None or ports.config.server.allow_anonymous:
        return caller.admin
    return is_local(scope)


async def respond(scope: Scope, send: Send, payload: Json, page: Callable[[], Html]) -> None:
    """Send JSON if the client wants it, otherwise a page, or 304 if the browser has the page already.

    A live page is requested every two seconds.
    """
    query = QueryParams(scope["query_string"])
    if query.get("format") == "json" or "application/json" in (header(scope, b"accept") or ""):
        # Written by msgspec: a record may hold a number of any size, which orjson refuses.
        await send_bytes(send, 200, ((b"content-type", b"application/json"),), msgspec.json.encode(payload))
        return
    body = page().encode()
    tag = f'"{sha256(body).hexdigest()[:32]}"'
    headers = (*LOOK.headers, (b"etag", tag.encode()))
    if header(scope, b"if-none-match") == tag:
        await send_bytes(send, 304, headers, b"")
    else:
        await send_bytes(send, 200, headers, body)
