"""Reading a request: its headers, its body within bounds, and checks of the fields that the proxy uses."""

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeAlias

import orjson
from msgspec import Meta, Struct
from starlette.types import Message, Receive, Scope

from proxy.api.body_memory import SHARE, Share
from proxy.api.exchange import CONNECTION, ClientConnection, ClientLeft
from proxy.api.fields import MOST, Count, Name, expect, read_fields, refuse
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

_OF_TOOLS = "objects whose 'type' and function 'name' are strings"
_DEMANDS = {
    "model": "must be the name of a model",
    "messages": f"must be a list of 1 to {MOST_MESSAGES} messages",
    "stream": "must be true or false",
    "tool_choice": (
        "must be a string, or an object with a string 'type' and a well-formed 'function' or 'allowed_tools'"
    ),
    "tools": f"must be a list of at most {MOST_TOOLS} {_OF_TOOLS}",
    "stream_options": "must be an object",
    "response_format": "must be an object",
    "response_format.json_schema": "must be an object",
    "n": f"must be an integer from 1 to {MOST_CHOICES}",
    "max_tool_calls": f"must be an integer from 0 to {MOST}",
}
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
        raise RequestError(f"The request body may have at most {MOST_VALUES} values.", param=field)
    if history is not None and (fields := history.parse(body)) is not None:
        return fields
    try:
        request = orjson.loads(body) if history is None else history.loads(body)
    except orjson.JSONDecodeError as exc:
        raise InvalidJson(f"The request body is not valid JSON: {exc.msg}.") from exc
    if not isinstance(request, dict):
        raise RequestError("The request body must be a JSON object.")
    return request


class _Function(Struct, frozen=True):
    name: str | None = None


class _Tool(Struct, frozen=True):
    type: str = ""
    function: _Function | None = None


class _AllowedTools(Struct, frozen=True):
    tools: list[_Tool] | None = None


class _Choice(_Tool, frozen=True):
    allowed_tools: _AllowedTools | None = None


class _Format(Struct, frozen=True):
    json_schema: Json | None = None


class _ChatFields(Struct, frozen=True):
    model: Name
    messages: Annotated[list[Any], Meta(min_length=1, max_length=MOST_MESSAGES)]
    stream: bool | None = None
    tool_choice: str | _Choice | None = None
    tools: Annotated[list[_Tool], Meta(max_length=MOST_TOOLS)] | None = None
    stream_options: Json | None = None
    response_format: _Format | None = None
    n: Annotated[int, Meta(ge=1, le=MOST_CHOICES)] | None = None
    max_tool_calls: Count | None = None


def parse_chat_request(body: bytes) -> Json:
    """A Chat Completions request. The fields that the proxy reads are checked; the rest is left to the upstream.

    Raises:
        RequestError: a field is not well formed; its name is `param`.
    """
    request = parse_object(body, param="messages")
    messages = read_fields(request, _ChatFields, _DEMANDS).messages
    expect_few_blocks(messages, "messages", of=body)
    for at, message in enumerate(messages):
        if fault := message_fault(message):
            place, demand = fault
            refuse(f"messages[{at}]{place}", demand)
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
        return ".tool_calls", f"must be a list of {_OF_TOOLS}"
    return None


def _are_well_typed(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) and _is_well_typed(item) for item in value)


def _is_well_typed(item: Json) -> bool:
    function = item.get("function")
    named = function is None or (isinstance(function, dict) and isinstance(function.get("name"), str | None))
    return named and isinstance(item.get("type", ""), str)


def expect_few_blocks(messages: Any, param: str, *, of: bytes) -> None:
    """Raise `RequestError` if the messages or items of a request, read from the body `of`, have too many blocks."""
    if len(of) > MOST_BLOCKS and isinstance(messages, list):  # each block takes a byte at least
        count = sum([message.blocks for message in messages if isinstance(message, Known)])
        count += blocks_in([message for message in messages if not isinstance(message, Known)])
        expect(count <= MOST_BLOCKS, param, f"may hold {MOST_BLOCKS} blocks or parts at most")


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
