"""Reading a request: its headers, its body within bounds, and checks of the fields that the proxy uses."""

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, TypeGuard

import orjson
from starlette.types import Message, Receive, Scope

from proxy.api.body_memory import SHARE, Share
from proxy.api.exchange import CONNECTION, ClientConnection, ClientLeft
from proxy.api.json_bounds import MOST_BLOCKS, MOST_MESSAGES, MOST_VALUES, blocks_in
from proxy.api.known import History, Known
from proxy.config.model import ServerConfig
from proxy.ports import Clock
from proxy.wire.chat import Json
from proxy.wire.errors import InvalidJson, RequestError, RequestTimeout, RequestTooLarge
from proxy.wire.json_values import holds_too_many_values

# OpenAI's own limit for `n`.
MOST_CHOICES = 128
# Every tool is checked before any work is done. OpenAI takes 128; some clients have more.
MOST_TOOLS = 1024

_FLAG = (bool, type(None))  # a union would be created anew for each request

_Fault: TypeAlias = tuple[str, str]
"""The place of a fault within a field, and what the value there must be."""

HEADERS: Final = "toolproxy.headers"
"""The key in a scope under which `header` keeps the first header of each name, from its first call on."""

_LONGEST_CODING = 100  # characters of a content coding that an error quotes
_FORWARDED = frozenset({b"forwarded", b"x-forwarded-for", b"x-real-ip", b"via"})


def header(scope: Scope, name: bytes) -> str | None:
    """The value of the first request header of that name, which is in lower case; None without one."""
    known: Mapping[bytes, bytes] | None = scope.get(HEADERS)
    if known is None:
        known = scope[HEADERS] = dict(reversed(scope["headers"]))
    value = known.get(name)
    return None if value is None else value.decode("latin-1")


def list_header(scope: Scope, name: bytes) -> str | None:
    """The value of a request header that holds a list, all its lines joined (RFC 9110, section 5.3)."""
    first = header(scope, name)
    if first is None or len(scope[HEADERS]) == len(scope["headers"]):  # no header has several lines
        return first
    return b",".join(value for given, value in scope["headers"] if given == name).decode("latin-1")


def is_forwarded(scope: Scope) -> bool:
    """Whether a request says that it came through another proxy."""
    return not _FORWARDED.isdisjoint(name for name, _ in scope["headers"])


async def read_body(scope: Scope, receive: Receive, server: ServerConfig, clock: Clock) -> bytes:
    """The whole body, counted among the bodies of the open requests (`api.body_memory`).

    Raises:
        RequestError: the body is compressed.
        RequestTooLarge: the body is larger than `max_body_bytes`, whatever its Content-Length says.
        Overloaded: the bodies of all open requests would take more memory than they may.
        RequestTimeout: the body does not arrive fast enough.
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
    """A body that has not arrived yet; it must not pause for long, nor be slower than `min_body_rate` on the whole.

    Its bytes take memory that other requests may need. While memory is scarce, a body of any size must be complete
    within twice the longest permitted pause.
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


def parse_object(body: bytes, history: History | None = None, *, param: str | None = None) -> Json:
    """The body as a JSON object.

    Args:
        body: the body.
        history: how its history is parsed; None: it has none.
        param: the field that a body of too many values is said to be wrong in; that of the history if there is one.

    Raises:
        InvalidJson: the body is not JSON, or is nested more than 1024 levels deep.
        RequestError: the body holds too many values, or is JSON, but not an object.
    """
    if holds_too_many_values(body, MOST_VALUES):
        field = param if history is None else history.field
        raise RequestError(f"The request body may hold {MOST_VALUES} values at most.", param=field)
    if history is not None and (fields := history.parse(body)) is not None:
        return fields
    try:
        request = orjson.loads(body) if history is None else history.loads(body)
    except orjson.JSONDecodeError as exc:
        raise InvalidJson(f"The request body is not valid JSON: {exc.msg}.") from exc
    if not isinstance(request, dict):
        raise RequestError("The request body must be a JSON object.")
    return request


def parse_chat_request(body: bytes) -> Json:
    """A Chat Completions request. The fields that the proxy reads are checked; the rest is left to the upstream.

    Raises:
        RequestError: a field is not well formed; its name is `param`.
    """
    request = parse_object(body, param="messages")
    model, messages = request.get("model"), request.get("messages")
    if not isinstance(model, str) or not model:
        raise _at_fault("model", "must be the name of a model")
    if not isinstance(messages, list) or not messages:
        raise _at_fault("messages", "must be a list of at least one message")
    if len(messages) > MOST_MESSAGES:
        raise _at_fault("messages", f"may hold {MOST_MESSAGES} messages at most")
    expect_few_blocks(messages, "messages", of=body)
    for at, message in enumerate(messages):
        if fault := message_fault(message):
            place, demand = fault
            raise _at_fault(f"messages[{at}]{place}", demand)
    if not isinstance(request.get("stream"), _FLAG):
        raise _at_fault("stream", "must be true or false")
    if _CHECKS.keys().isdisjoint(request):
        return request
    make_whole(request, "n", "max_tool_calls")
    for name, check in _CHECKS.items():
        value = request.get(name)
        if value is not None and (fault := check(value)):
            place, demand = fault
            raise _at_fault(f"{name}{place}", demand)
    return request


def message_fault(message: Any) -> _Fault | None:
    """The first fault of a message, None without one. It must be fast: there may be thousands of messages."""
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


def whole(value: Any) -> Any:
    """The integer that a number such as 44.0 is, as in JSON Schema; any other value unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def make_whole(fields: Json, *names: str) -> None:
    """Make integers of the fields of these names, where some clients write 44.0."""
    for name in names:
        if isinstance(value := fields.get(name), float):
            fields[name] = whole(value)


def is_integer(value: Any, least: float = -math.inf, most: float = math.inf) -> TypeGuard[int]:
    """Whether a value is an integer within these bounds. True and False are not, though Python has them as integers."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _must_be_integer(least: int, most: int) -> Callable[[Any], _Fault | None]:
    def check(value: Any) -> _Fault | None:
        return None if is_integer(value, least, most) else ("", f"must be an integer from {least} to {most}")

    return check


# The checks of the other fields that the proxy reads. Most requests have none of these.
_CHECKS: Mapping[str, Callable[[Any], _Fault | None]] = {
    "tool_choice": _choice_fault,
    "tools": _tools_fault,
    "stream_options": _object_fault,
    "response_format": _format_fault,
    "n": _must_be_integer(1, MOST_CHOICES),
    "max_tool_calls": _must_be_integer(0, 2**31),
}


def expect(condition: object, param: str, demand: str) -> None:
    """Raise `RequestError` unless the condition holds; `demand` says what the field `param` must be or hold."""
    if not condition:
        raise _at_fault(param, demand)


def expect_few_blocks(messages: Any, param: str, *, of: bytes) -> None:
    """Raise `RequestError` if the messages or items of a request, read from the body `of`, have too many blocks."""
    if len(of) > MOST_BLOCKS and isinstance(messages, list):  # each block takes a byte at least
        count = sum([message.blocks for message in messages if isinstance(message, Known)])
        count += blocks_in([message for message in messages if not isinstance(message, Known)])
        expect(count <= MOST_BLOCKS, param, f"may hold {MOST_BLOCKS} blocks or parts at most")


def _at_fault(param: str, demand: str) -> RequestError:
    return RequestError(f"'{param}' {demand}.", param=param)


def _encoded(coding: str) -> RequestError:
    """The error for a compressed body, with a header that says what is accepted (RFC 9110, section 15.5.16)."""
    return RequestError(
        f"A body with Content-Encoding {coding[:_LONGEST_CODING]!r} cannot be read: send it uncompressed.",
        status=415,
        code="unsupported_media_type",
        headers={"accept-encoding": "identity"},
    )


def _too_large(server: ServerConfig) -> RequestTooLarge:
    return RequestTooLarge(f"The request body is larger than {server.max_body_bytes} bytes.")
