"""The endpoints of a stored response, `/v1/responses/{id}`: read it, delete it, list its input, refuse to cancel it."""

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

from starlette.types import Receive, Scope, Send

from proxy.api.access import CALLER
from proxy.api.body import read_body
from proxy.api.body_memory import SHARE
from proxy.api.credentials import CredentialReader
from proxy.api.dialect import Stored
from proxy.api.exchange import send_json
from proxy.api.fields import expect
from proxy.api.ports import Ports
from proxy.api.responses.stored import ResponseStore
from proxy.wire.chat import Json
from proxy.wire.errors import RequestError

_DEFAULT_LIMIT, _MAX_LIMIT = 20, 100  # OpenAI's
_WITHOUT_STATUS = frozenset({"reasoning", "additional_tools"})
_FIELDS_OF_PARTS: Mapping[Any, Json] = {
    "output_text": {"annotations": [], "logprobs": []},
    "input_image": {"detail": "auto"},
}
_COUNT = re.compile(r"[0-9]{1,9}")


class _OfResponse:
    """The base of the endpoints of one stored response."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._credentials = CredentialReader(ports)

    def responses(self, scope: Scope) -> ResponseStore:
        """The stored responses that a request may read."""
        ports, credentials = self._ports, self._credentials.credentials_of(scope)
        return ResponseStore(Stored(ports.store, scope[CALLER].scope, scope.get(SHARE), credentials, ports.observe))


class ResponseById(_OfResponse):
    """`GET` and `DELETE /v1/responses/{id}`."""

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        identity, responses = scope["path_params"]["id"], self.responses(scope)
        if scope["method"] == "DELETE":
            await responses.delete(identity)
            await send_json(send, {"id": identity, "object": "response", "deleted": True})
            return
        if _query(scope).get("stream") == "true":
            raise RequestError("A stored response cannot be streamed.", param="stream")
        await send_json(send, (await responses.find(identity)).response)


class InputItems(_OfResponse):
    """`GET /v1/responses/{id}/input_items`: the conversation before a stored response."""

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        items = await self.responses(scope).input_items(scope["path_params"]["id"])
        await send_json(send, page_of(items, _query(scope)))


class CancelResponse(_OfResponse):
    """`POST /v1/responses/{id}/cancel`: always an error, because a stored response is finished."""

    async def __call__(self, scope: Scope, receive: Receive, _: Send) -> None:
        """Handle one ASGI connection."""
        await read_body(scope, receive, self._ports.config.server, self._ports.clock)  # see `endpoints.NotServed`
        await self.responses(scope).find(scope["path_params"]["id"])
        raise RequestError("Only background responses can be cancelled, and this proxy has none.")


def page_of(items: Sequence[Json], query: dict[str, str]) -> Json:
    """A page of items: the newest first unless `order=asc`, at most `limit` items, beginning behind `after`.

    Raises:
        RequestError: one of these parameters has a value that is not allowed.
    """
    order, limit, after = query.get("order", "desc"), query.get("limit", str(_DEFAULT_LIMIT)), query.get("after")
    expect(order in ("asc", "desc"), "order", "must be asc or desc")
    is_limit = _COUNT.fullmatch(limit) and 1 <= int(limit) <= _MAX_LIMIT
    expect(is_limit, "limit", f"must be an integer from 1 to {_MAX_LIMIT}")
    by_id = {item["id"]: item for item in items}  # without duplicates, because `after` can mean only one item
    ordered = list(by_id.values() if order == "asc" else reversed(by_id.values()))
    if after is not None:
        known = [item["id"] for item in ordered]
        if after not in known:
            raise RequestError("'after' is not the id of an item of this response.", param="after")
        ordered = ordered[known.index(after) + 1 :]
    page = [_as_resource(item) for item in ordered[: int(limit)]]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return {"object": "list", "data": page, **ends, "has_more": len(ordered) > len(page)}


def _as_resource(item: Json) -> Json:
    """An item with the fields that OpenAI's lists have and requests may leave out."""
    if item["type"] in _WITHOUT_STATUS:
        return item
    item = _with_defaults(item, {"status": "completed"})
    for key in ("content", "output"):
        if isinstance(parts := item.get(key), list):
            item[key] = [_with_defaults(part, _FIELDS_OF_PARTS.get(part.get("type"), {})) for part in parts]
    return item


def _with_defaults(given: Json, defaults: Json) -> Json:
    return {**given, **{key: value for key, value in defaults.items() if given.get(key) is None}}


def _query(scope: Scope) -> dict[str, str]:
    return dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
