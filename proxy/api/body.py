"""Receiving a request: its headers, and its body within bounds."""

import asyncio
from collections.abc import Mapping
from typing import Final

from starlette.types import Message, Receive, Scope

from proxy.api.body_memory import PLAIN, SHARE, Share
from proxy.api.exchange import CONNECTION, ClientConnection, ClientLeft
from proxy.config.model import ServerConfig
from proxy.ports import Clock
from proxy.wire.errors import RequestError, RequestTimeout, RequestTooLarge

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
            share.require(int(length) * PLAIN)
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
            share.reserve(size * PLAIN)
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
