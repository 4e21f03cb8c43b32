"""Every other `/v1/*`: handed to the upstream of the request's model, the answer streamed back as it comes."""

import asyncio
import re

import structlog
from starlette.types import Receive, Scope, Send

from proxy.api.body import header, parse_object, read_body
from proxy.api.caller import Caller, caller_of
from proxy.api.race import until_disconnect
from proxy.core.errors import MaxDurationExceeded, ModelNotAllowed, NotFound, RequestError
from proxy.core.rawjson import replace_model
from proxy.ports import Model, Ports, RawRequest

_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    b"upgrade expect".split()
)
# What belongs between this client and this proxy alone, and what would choose another account at the upstream.
_NOT_FORWARDED = _HOP_BY_HOP | frozenset(
    b"host content-length authorization api-key x-api-key cookie openai-organization openai-project "
    b"x-organization-id x-request-id forwarded x-forwarded-for x-forwarded-host x-forwarded-proto x-real-ip".split()
)
_NOT_RELAYED = _HOP_BY_HOP | frozenset(b"set-cookie date server x-request-id".split())

# Our own multipart part for the model comes from OpenAI SDKs; its name may be quoted or not.
_FORM_MODEL = re.compile(rb'name="?model"?\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]{1,256})\r\n')


class Passthrough:
    """The endpoint, as an ASGI callable."""

    def __init__(self, ports: Ports) -> None:
        self._router = ports.router
        self._max_body_bytes = ports.config.server.max_body_bytes
        self._max_duration = ports.config.limits.max_duration

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        body = await read_body(scope, receive, max_bytes=self._max_body_bytes)
        model, body = self._route(scope, body, caller_of(scope))
        structlog.contextvars.bind_contextvars(model=model.name, upstream=model.upstream.name)
        path = scope["path"].removeprefix("/v1")
        if query := scope["query_string"].decode("latin-1"):
            path = f"{path}?{query}"
        request = RawRequest(scope["method"], path, _forwarded(scope), body)
        try:
            async with asyncio.timeout(self._max_duration):
                await until_disconnect(receive, _relay(model, request, send))
        except TimeoutError as exc:
            raise MaxDurationExceeded(f"The request took longer than {self._max_duration:g} seconds.") from exc

    def _route(self, scope: Scope, body: bytes, caller: Caller) -> tuple[Model, bytes]:
        """The model that the request names, and the body with the upstream's name for it."""
        is_form = (header(scope, b"content-type") or "").startswith("multipart/form-data")
        name = _model_in_form(body) if is_form else _model_in_json(scope, body)
        model = self._router.resolve(name, client_key=caller.upstream_key)
        if not caller.may_use(model.name):
            raise ModelNotAllowed(model.name)
        if model.upstream_name == name:
            return model, body
        if is_form:
            return model, _FORM_MODEL.sub(lambda match: _renamed(match, model.upstream_name), body)
        return model, replace_model(body, model.upstream_name)


async def _relay(model: Model, request: RawRequest, send: Send) -> None:
    async with model.upstream.open(request) as response:
        dropped = _NOT_RELAYED | _named_by_connection(response.headers)
        headers = [(name, value) for name, value in response.headers if name.lower() not in dropped]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        async for data in response.body:
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _model_in_json(scope: Scope, body: bytes) -> str:
    if not body:
        raise NotFound(f"There is no {scope['method']} {scope['path']} here that works without a model.")
    name = parse_object(body).get("model")
    if not isinstance(name, str) or not name:
        raise RequestError("'model' must be the name of a model.", param="model")
    return name


def _model_in_form(body: bytes) -> str:
    """The form's only part named `model`: with two of them, an upstream might read the one that was not checked."""
    found = _FORM_MODEL.findall(body)
    if len(found) != 1:
        raise RequestError("The form must have exactly one part named 'model'.", param="model")
    return str(found[0].decode("utf-8", "replace"))


def _renamed(match: re.Match[bytes], name: str) -> bytes:
    whole, start = match.group(), match.start()
    return whole[: match.start(1) - start] + name.encode() + whole[match.end(1) - start :]


def _forwarded(scope: Scope) -> list[tuple[bytes, bytes]]:
    dropped = _NOT_FORWARDED | _named_by_connection(scope["headers"])
    return [(name, value) for name, value in scope["headers"] if name not in dropped]


def _named_by_connection(headers: object) -> frozenset[bytes]:
    """Headers that a `Connection` header declares to be for this hop only."""
    named: list[bytes] = []
    for name, value in headers:  # type: ignore[attr-defined]
        if name.lower() == b"connection":
            named += (token.strip().lower() for token in value.split(b","))
    return frozenset(named)
