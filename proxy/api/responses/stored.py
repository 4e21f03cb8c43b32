"""`GET` and `DELETE /v1/responses/{id}`, `GET /v1/responses/{id}/input_items`: what is kept, for whom it is kept."""

import re
from collections.abc import Sequence
from urllib.parse import parse_qsl

from starlette.types import Receive, Scope, Send

from proxy.api.body import read_body
from proxy.api.body_memory import share_of
from proxy.api.caller import caller_of
from proxy.api.replies import send_json
from proxy.api.request import Exchanges
from proxy.api.responses.state import Responses, run_of
from proxy.loop.chat import Json
from proxy.loop.errors import NotFound, RequestError
from proxy.ports import Ports

_DEFAULT_LIMIT, _MOST = 20, 100  # OpenAI's
_COUNT = re.compile(r"[0-9]{1,9}")


class StoredResponse:
    """A kept response, as an ASGI callable."""

    def __init__(self, ports: Ports) -> None:
        self._store = ports.store
        self._exchanges = Exchanges(ports)

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        """ASGI."""
        identity = scope["path_params"]["id"]
        caller = caller_of(scope)
        kept = Responses(self._store, caller.scope, share_of(scope))
        if scope["method"] == "DELETE":
            await kept.forget(identity)
            await self._exchanges.forget(caller, run_of(identity))
            await send_json(send, {"id": identity, "object": "response", "deleted": True})
            return
        if _query(scope).get("stream") == "true":
            raise RequestError("A kept response is not streamed.", param="stream")
        await send_json(send, (await kept.find(identity)).response)


class InputItems:
    """The conversation that a kept response answers, as an ASGI callable."""

    def __init__(self, ports: Ports) -> None:
        self._store = ports.store

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        """ASGI."""
        kept = Responses(self._store, caller_of(scope).scope, share_of(scope))
        await send_json(send, page_of(await kept.input_of(scope["path_params"]["id"]), _query(scope)))


class CancelResponse:
    """`POST /v1/responses/{id}/cancel`, as an ASGI callable: a kept response is finished and cannot be cancelled."""

    def __init__(self, ports: Ports) -> None:
        self._store = ports.store
        self._server, self._clock = ports.config.server, ports.clock

    async def __call__(self, scope: Scope, receive: Receive, _: Send) -> None:
        """ASGI."""
        await read_body(scope, receive, self._server, self._clock)  # see `NothingHere`
        await Responses(self._store, caller_of(scope).scope, share_of(scope)).find(scope["path_params"]["id"])
        raise RequestError("Only a response in the background can be cancelled, and there are none here.")


class NothingHere:
    """404 for what of the Responses API is not served, and not handed to an upstream either."""

    def __init__(self, ports: Ports) -> None:
        self._server, self._clock = ports.config.server, ports.clock

    async def __call__(self, scope: Scope, receive: Receive, _: Send) -> None:
        """ASGI."""
        # A connection whose request was not read to its end is closed, and a client that keeps it asks into nothing.
        await read_body(scope, receive, self._server, self._clock)
        raise NotFound(f"There is no {scope['path']} here.")


def page_of(items: Sequence[Json], query: dict[str, str]) -> Json:
    """A page of items: newest first unless `order=asc`, at most `limit`, those that follow `after`.

    Raises:
        RequestError: one of these is not what it may be.
    """
    order, limit, after = query.get("order", "desc"), query.get("limit", str(_DEFAULT_LIMIT)), query.get("after")
    if order not in ("asc", "desc"):
        raise RequestError("'order' must be asc or desc.", param="order")
    if not (_COUNT.fullmatch(limit) and 1 <= int(limit) <= _MOST):
        raise RequestError(f"'limit' must be an integer from 1 to {_MOST}.", param="limit")
    ordered = list(items) if order == "asc" else list(reversed(items))
    if after is not None:
        known = [item["id"] for item in ordered]
        if after not in known:
            raise RequestError("'after' is not the id of an item of this response.", param="after")
        ordered = ordered[known.index(after) + 1 :]
    page = [_listed(item) for item in ordered[: int(limit)]]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return {"object": "list", "data": page, **ends, "has_more": len(ordered) > len(page)}


def _listed(item: Json) -> Json:
    return {"status": "completed", **item} if item["type"] == "message" else item


def _query(scope: Scope) -> dict[str, str]:
    return dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
