"""Reading a request's body, bounded, and the few things in it that are checked before anything is done."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import orjson
from starlette.types import Receive, Scope

from proxy.api.bodies import Share, share_of
from proxy.api.peer import peer_of
from proxy.api.race import ClientLeft
from proxy.loop import numbers
from proxy.loop.chat import Json
from proxy.loop.errors import InvalidJson, RequestError, RequestTooLarge

# OpenAI's own limit for `n`.
MOST_CHOICES = 128
# Each is looked at before anything is done. OpenAI takes 2,048 messages and 128 tools; long agents have had more.
MOST_MESSAGES, MOST_TOOLS = 10_000, 1024

_Fault: TypeAlias = tuple[str, str]
"""Where in a field something is wrong, and what it should be."""

_HEADERS = "toolproxy.headers"
_FORWARDED = frozenset({b"forwarded", b"x-forwarded-for", b"x-real-ip", b"via"})


def header(scope: Scope, name: bytes) -> str | None:
    """The value of a request header, the first one where there are several; `name` in lower case."""
    known: Mapping[bytes, bytes] = scope.get(_HEADERS) or headers_of(scope)
    value = known.get(name)
    return None if value is None else value.decode("latin-1")


def is_forwarded(scope: Scope) -> bool:
    """Whether a request comes through another proxy, by its own account."""
    return not _FORWARDED.isdisjoint(name for name, _ in scope["headers"])


def headers_of(scope: Scope) -> Mapping[bytes, bytes]:
    """The request's headers by name, the first of each name."""
    known: Mapping[bytes, bytes] | None = scope.get(_HEADERS)
    if known is None:
        known = scope[_HEADERS] = dict(reversed(scope["headers"]))
    return known


async def read_body(scope: Scope, receive: Receive, *, max_bytes: int) -> bytes:
    """The whole body, counted among those of the open requests (`api.bodies`).

    Raises:
        RequestTooLarge: more than `max_bytes`, whatever its Content-Length says.
        Overloaded: the bodies of all open requests would take more memory than they may.
        ClientLeft: the client left while it was sending.
    """
    share = share_of(scope)
    peer = peer_of(scope)
    body = peer.take_body() if peer is not None else None
    if body is None:
        body = await _received(scope, receive, share, max_bytes)
    elif len(body) > max_bytes:
        raise _too_large(max_bytes)
    if share is not None:
        share.count_whole(body)
    return body


async def _received(scope: Scope, receive: Receive, share: Share | None, max_bytes: int) -> bytes:
    """A body that is still to come."""
    length = header(scope, b"content-length")
    if length is not None and length.isdigit():
        if int(length) > max_bytes:
            raise _too_large(max_bytes)
        if share is not None:
            share.announce(int(length))
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        part = message.get("body", b"")
        size += len(part)
        if size > max_bytes:
            raise _too_large(max_bytes)
        if share is not None:
            share.count_arrived(size)
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def parse_object(body: bytes) -> Json:
    """The body as a JSON object.

    Raises:
        InvalidJson: it is no JSON, or nested more than 1024 deep.
        RequestError: it is JSON, but no object.
    """
    try:
        request = numbers.loads(body)
    except orjson.JSONDecodeError as exc:
        raise InvalidJson(f"The request body is not valid JSON: {exc.msg}.") from exc
    if not isinstance(request, dict):
        raise RequestError("The request body must be a JSON object.")
    return request


def written(request: Json) -> bytes:
    """A request as JSON again. Raises `InvalidJson` where it is nested too deep to be written."""
    try:
        return orjson.dumps(request)
    except orjson.JSONEncodeError as exc:
        raise InvalidJson("The request body is nested too deep.") from exc


def parse_chat_request(body: bytes) -> Json:
    """A Chat Completions request, checked as far as the proxy reads it; the rest is the upstream's to judge.

    Raises:
        RequestError: with the field that is at fault as `param`.
    """
    request = parse_object(body)
    model, messages = request.get("model"), request.get("messages")
    if not isinstance(model, str) or not model:
        raise _at_fault("model", "must be the name of a model")
    if not isinstance(messages, list) or not messages:
        raise _at_fault("messages", "must be a list of at least one message")
    if len(messages) > MOST_MESSAGES:
        raise _at_fault("messages", f"may hold {MOST_MESSAGES} messages at most")
    for at, message in enumerate(messages):
        if fault := _fault_of(message):
            place, demand = fault
            raise _at_fault(f"messages[{at}]{place}", demand)
    for name, check in () if _CHECKS.keys().isdisjoint(request) else _CHECKS.items():
        value = request.get(name)
        if value is not None and (fault := check(value)):
            place, demand = fault
            raise _at_fault(f"{name}{place}", demand)
    return request


def _fault_of(message: Any) -> _Fault | None:
    """Where a message is not what the loop can read, and what it should be. There may be thousands of messages."""
    if not isinstance(message, dict):
        return "", "must be an object"
    role, content, calls = message.get("role"), message.get("content"), message.get("tool_calls")
    if role is not None and not isinstance(role, str):
        return ".role", "must be a string"
    if isinstance(content, list) and not _objects(content):
        return ".content", "must hold objects only"
    if calls is not None and not _objects(calls):
        return ".tool_calls", "must be a list of objects, each with a type"
    return None


def _objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) and _typed(item) for item in value)


def _typed(item: Json) -> bool:
    function = item.get("function")
    named = function is None or (isinstance(function, dict) and isinstance(function.get("name"), str | None))
    return named and isinstance(item.get("type", ""), str)


def _is_choice(choice: Json) -> bool:
    allowed = choice.get("allowed_tools")
    listed = allowed.get("tools") if isinstance(allowed, dict) else None
    return _typed(choice) and (listed is None or _objects(listed))


def _choice(value: Any) -> _Fault | None:
    wrong = isinstance(value, dict) and not _is_choice(value)
    return ("", "must have a type, and what it names") if wrong else None


def _tools(value: Any) -> _Fault | None:
    if not _objects(value):
        return "", "must be a list of objects, each with a type"
    return ("", f"may hold {MOST_TOOLS} tools at most") if len(value) > MOST_TOOLS else None


def _boolean(value: Any) -> _Fault | None:
    return None if isinstance(value, bool) else ("", "must be true or false")


def _object(value: Any) -> _Fault | None:
    return None if isinstance(value, dict) else ("", "must be an object")


def _format(value: Any) -> _Fault | None:
    schema = value.get("json_schema") if isinstance(value, dict) else None
    return None if isinstance(schema, dict | None) else (".json_schema", "must be an object")


def _integer(least: int, most: int) -> Callable[[Any], _Fault | None]:
    def check(value: Any) -> _Fault | None:
        fits = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
        return None if fits else ("", f"must be an integer from {least} to {most}")

    return check


# The other fields that are read here; most requests have few of them.
_CHECKS: Mapping[str, Callable[[Any], _Fault | None]] = {
    "tool_choice": _choice,
    "tools": _tools,
    "stream": _boolean,
    "stream_options": _object,
    "response_format": _format,
    "n": _integer(1, MOST_CHOICES),
    "max_tool_calls": _integer(0, 2**31),
}


def _at_fault(param: str, demand: str) -> RequestError:
    return RequestError(f"'{param}' {demand}.", param=param)


def _too_large(max_bytes: int) -> RequestTooLarge:
    return RequestTooLarge(f"The request body is larger than {max_bytes} bytes.")
