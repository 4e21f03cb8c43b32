"""Reading a request: its headers, its body within bounds, and the checks of what the proxy uses of it."""

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, TypeGuard

import orjson
from starlette.types import Message, Receive, Scope

from proxy.api.body_memory import SHARE, Share
from proxy.api.exchange import CONNECTION, ClientConnection, ClientLeft
from proxy.config import ServerConfig
from proxy.loop import rawjson
from proxy.loop.chat import Json
from proxy.loop.errors import InvalidJson, RequestError, RequestTimeout, RequestTooLarge
from proxy.ports import Clock

# OpenAI's own limit for `n`.
MOST_CHOICES = 128
# All of them are checked before anything is done. OpenAI takes 2,048 messages and 128 tools; long agents have had more.
MOST_MESSAGES, MOST_TOOLS = 10_000, 1024

_Fault: TypeAlias = tuple[str, str]
"""The place in a field that is at fault, and what it must be."""

HEADERS: Final = "toolproxy.headers"
"""The key in a scope for the first header of each name, there once `header` has been called."""

_LONGEST_CODING = 100  # characters of it in an error
_FORWARDED = frozenset({b"forwarded", b"x-forwarded-for", b"x-real-ip", b"via"})


def header(scope: Scope, name: bytes) -> str | None:
    """The value of a request header, the first one where there are several; `name` in lower case."""
    known: Mapping[bytes, bytes] | None = scope.get(HEADERS)
    if known is None:
        known = scope[HEADERS] = dict(reversed(scope["headers"]))
    value = known.get(name)
    return None if value is None else value.decode("latin-1")


def list_header(scope: Scope, name: bytes) -> str | None:
    """The value of a request header that is a list, all its lines together (RFC 9110, section 5.3)."""
    first = header(scope, name)
    if first is None or len(scope[HEADERS]) == len(scope["headers"]):  # no name has several lines
        return first
    return b",".join(value for given, value in scope["headers"] if given == name).decode("latin-1")


def is_forwarded(scope: Scope) -> bool:
    """Whether a request comes through another proxy, by its own account."""
    return not _FORWARDED.isdisjoint(name for name, _ in scope["headers"])


async def read_body(scope: Scope, receive: Receive, server: ServerConfig, clock: Clock) -> bytes:
    """The whole body, counted among those of the open requests (`api.body_memory`).

    Raises:
        RequestError: it is compressed.
        RequestTooLarge: more than `max_body_bytes`, whatever its Content-Length says.
        Overloaded: the bodies of all open requests would take more memory than they may.
        RequestTimeout: it does not come fast enough.
        ClientLeft: the client left while it was sending.
    """
    coding = header(scope, b"content-encoding")
    if coding and coding.lower() != "identity":
        raise _encoded(coding)
    share: Share | None = scope.get(SHARE)
    connection: ClientConnection | None = scope.get("extensions", {}).get(CONNECTION)
    body = connection.take_body() if connection is not None else None
    if body is None:
        body = await _receive_body(scope, receive, share, server, clock)
    elif len(body) > server.max_body_bytes:
        raise _too_large(server)
    if share is not None:
        share.count_parsed(body)
    return body


async def _receive_body(
    scope: Scope, receive: Receive, share: Share | None, server: ServerConfig, clock: Clock
) -> bytes:
    """A body that is still to come: no long silence in it, and on the whole no slower than `min_body_rate`.

    Its bytes take memory that other requests may want. While that is scarce, a body has twice the time that a silence
    may take, and no more for being large.
    """
    length = header(scope, b"content-length")
    if length is not None and length.isdigit():
        if int(length) > server.max_body_bytes:
            raise _too_large(server)
        if share is not None:
            share.announce(int(length))
    began, silence = clock.monotonic(), server.body_timeout_seconds
    parts: list[bytes] = []
    size = 0
    while True:
        earned = size / server.min_body_rate
        if share is not None and share.is_scarce:
            earned = min(earned, silence)
        message = await _receive_part(receive, min(silence, began + silence + earned - clock.monotonic()))
        part = message.get("body", b"")
        size += len(part)
        if size > server.max_body_bytes:
            raise _too_large(server)
        if share is not None:
            share.count_arrived(size)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


async def _receive_part(receive: Receive, seconds: float) -> Message:
    """The next part of a body. Raises `RequestTimeout`, `ClientLeft`."""
    try:
        async with asyncio.timeout(seconds):
            message = await receive()
    except TimeoutError as exc:
        closing = {"connection": "close"}  # RFC 9110, section 15.5.9
        raise RequestTimeout("The request body did not arrive in time.", headers=closing) from exc
    if message["type"] == "http.disconnect":
        raise ClientLeft
    return message


def parse_object(body: bytes) -> Json:
    """The body as a JSON object.

    Raises:
        InvalidJson: it is no JSON, or nested more than 1024 deep.
        RequestError: it is JSON, but no object.
    """
    try:
        request = rawjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise InvalidJson(f"The request body is not valid JSON: {exc.msg}.") from exc
    if not isinstance(request, dict):
        raise RequestError("The request body must be a JSON object.")
    return request


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
        if fault := _message_fault(message):
            place, demand = fault
            raise _at_fault(f"messages[{at}]{place}", demand)
    if not isinstance(request.get("stream"), bool | None):
        raise _at_fault("stream", "must be true or false")
    for name, check in () if _CHECKS.keys().isdisjoint(request) else _CHECKS.items():
        value = request.get(name)
        if value is not None and (fault := check(value)):
            place, demand = fault
            raise _at_fault(f"{name}{place}", demand)
    return request


def _message_fault(message: Any) -> _Fault | None:
    """Where a message is not what the loop can read, and what it should be. There may be thousands of messages."""
    if not isinstance(message, dict):
        return "", "must be an object"
    role, content, calls = message.get("role"), message.get("content"), message.get("tool_calls")
    if role is not None and not isinstance(role, str):
        return ".role", "must be a string"
    if isinstance(content, list) and not _are_well_typed(content):
        return ".content", "must hold well-formed parts only"
    if calls is not None and not _are_well_typed(calls):
        return ".tool_calls", "must be a list of objects whose 'type' and function 'name' are strings"
    return None


def _are_well_typed(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) and _is_well_typed(item) for item in value)


def _is_well_typed(item: Json) -> bool:
    function = item.get("function")
    named = function is None or (isinstance(function, dict) and isinstance(function.get("name"), str | None))
    return named and isinstance(item.get("type", ""), str)


def _choice_fault(value: Any) -> _Fault | None:
    if not isinstance(value, dict):
        return None
    allowed = value.get("allowed_tools")
    listed = allowed.get("tools") if isinstance(allowed, dict) else None
    if _is_well_typed(value) and (listed is None or _are_well_typed(listed)):
        return None
    return "", "must be a string, or an object with a string 'type' and a well-formed 'function' or 'allowed_tools'"


def _tools_fault(value: Any) -> _Fault | None:
    if not _are_well_typed(value):
        return "", "must be a list of objects whose 'type' and function 'name' are strings"
    return ("", f"may hold {MOST_TOOLS} tools at most") if len(value) > MOST_TOOLS else None


def _format_fault(value: Any) -> _Fault | None:
    schema = value.get("json_schema") if isinstance(value, dict) else None
    return None if isinstance(schema, dict | None) else (".json_schema", "must be an object")


def _object_fault(value: Any) -> _Fault | None:
    return None if isinstance(value, dict) else ("", "must be an object")


def is_integer(value: Any, least: float = -math.inf, most: float = math.inf) -> TypeGuard[int]:
    """Whether a value is an integer within these bounds; true and false, which Python counts among them, are none."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _must_be_integer(least: int, most: int) -> Callable[[Any], _Fault | None]:
    def check(value: Any) -> _Fault | None:
        return None if is_integer(value, least, most) else ("", f"must be an integer from {least} to {most}")

    return check


# The other fields that the proxy reads; most requests have none of them.
_CHECKS: Mapping[str, Callable[[Any], _Fault | None]] = {
    "tool_choice": _choice_fault,
    "tools": _tools_fault,
    "stream_options": _object_fault,
    "response_format": _format_fault,
    "n": _must_be_integer(1, MOST_CHOICES),
    "max_tool_calls": _must_be_integer(0, 2**31),
}


def expect(condition: object, param: str, demand: str) -> None:
    """Raise `RequestError` unless the condition holds; `demand` is what the field `param` must be or hold."""
    if not condition:
        raise _at_fault(param, demand)


def _at_fault(param: str, demand: str) -> RequestError:
    return RequestError(f"'{param}' {demand}.", param=param)


def _encoded(coding: str) -> RequestError:
    """The error for a compressed body; the header says what is taken instead (RFC 9110, section 15.5.16)."""
    return RequestError(
        f"A body with Content-Encoding {coding[:_LONGEST_CODING]!r} cannot be read: send it uncompressed.",
        status=415,
        code="unsupported_media_type",
        headers={"accept-encoding": "identity"},
    )


def _too_large(server: ServerConfig) -> RequestTooLarge:
    return RequestTooLarge(f"The request body is larger than {server.max_body_bytes} bytes.")
