"""One request and its response, as the ASGI application sees them.

As ASGI demands, the head of a response waits for the first bytes of its body. Both then need one system call, and one
packet that the client wakes up for.
"""

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Literal, TypeAlias

from starlette.types import ASGIApp, Message, Scope

from proxy.api.exchange import CONNECTION
from proxy.server.flow import HIGH_WATER, Flow
from proxy.server.head import Fields, Framing, error_response, is_clean, is_field_name, request_id_in, status_line
from proxy.wire.errors import InternalError

_BodyEnd: TypeAlias = Literal["none", "length", "chunked", "close"]
"""How the end of a response's body is told (RFC 9112, section 6.3)."""

# A value that could be read as more than one header is a bug of the proxy, and is not sent.
_NO_HEAD = "A header of the response cannot be sent."
_WITHOUT_BODY = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)

_log = logging.getLogger(__name__)


class Cycle:
    """A request and its response; also the ASGI extension of the request, `api.exchange.ClientConnection`.

    The response begins with the `default_headers`. `on_response` is called when the response is complete.

    Attributes:
        keep_alive: whether the client wants another request on this connection; once the response has begun, whether
            the connection stays open after it.
        body: the bytes of the body that have arrived and have not been taken.
        response_started: whether the application has given the head of the response.
    """

    def __init__(
        self,
        scope: Scope,
        framing: Framing,
        transport: asyncio.Transport,
        flow: Flow,
        *,
        keep_alive: bool,
        default_headers: Fields,
        on_response: Callable[[], None],
    ) -> None:
        self.keep_alive = keep_alive
        self.body = bytearray()
        self.response_started = False
        self._scope = scope
        self._transport = transport
        self._flow = flow
        self._default_headers = default_headers
        self._on_response = on_response
        self._on_left: Callable[[], None] | None = None
        self._has_left = False  # the client
        self._has_small_body = framing.has_small_body
        self._expects_continue = framing.expects_continue
        self._more_body = True
        self._news = asyncio.Event()  # for `receive`: more of the body, or the end of the request
        self._head = b""  # of the response, until it is written
        self._body_end: _BodyEnd = "close" if scope["http_version"] == "1.0" else "chunked"
        self._left = 0  # bytes of a response of known length that are not written yet
        self._is_streaming = False  # the head is written, and chunks follow
        self._is_complete = False  # the response
        # A reference cycle until it is cleared, at the end of the response or of the connection.
        scope["extensions"] = {CONNECTION: self}

    async def run(self, app: ASGIApp) -> None:
        """Let the application answer. If it fails, the client gets a 500, or the connection ends too early."""
        try:
            await app(self._scope, self.receive, self.send)
        except BaseException as exc:  # noqa: BLE001 - there is nobody else whom it could reach
            self._fail(exc)
        else:
            if not self._is_complete and not self._has_left:
                self._fail(None)
        finally:
            self._on_response = _nothing

    def _fail(self, failure: BaseException | None) -> None:
        _log.error("The application failed to answer a request.", exc_info=failure)
        if self._is_complete or self._has_left:
            return
        if self.response_started and not self._head:  # it is written
            self._transport.close()
            return
        request_id = request_id_in(self._scope["headers"])
        error, url = InternalError(request_id), self._scope["raw_path"]
        self._transport.write(error_response(error, request_id, self._default_headers, url=url))
        self.keep_alive = False
        self._complete()

    # -- the request --

    async def receive(self) -> Message:
        """Implements ASGI's `receive`."""
        if self._expects_continue and not self._transport.is_closing():
            self._expects_continue = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not self._has_left and not self._is_complete:
            self._flow.resume_reading()
            await self._news.wait()
            self._news.clear()
        if self._has_left or self._is_complete:
            return {"type": "http.disconnect"}
        body, self.body = bytes(self.body), bytearray()
        return {"type": "http.request", "body": body, "more_body": self._more_body}

    def take_body(self) -> bytes | None:
        """The rest of the body, instead of `receive`; None if the body is not complete or the client has left."""
        if self._more_body or self._has_left:
            return None
        body, self.body = bytes(self.body), bytearray()
        self._flow.resume_reading()
        self._news.clear()  # the next message from `receive` is that the client has left
        return body

    def add_to_body(self, data: bytes) -> None:
        """Take a part of the body that has arrived. Reading pauses while many bytes wait."""
        self.body += data
        if len(self.body) > HIGH_WATER:
            self._flow.pause_reading()
        self._news.set()

    def end_body(self) -> None:
        """Note that the body is complete."""
        self._more_body = False
        self._news.set()

    def call_when_left(self, callback: Callable[[], None] | None) -> bool:
        """Set the one callback for when the client leaves; None removes it. Return False if the client has left."""
        self._on_left = callback
        return not self._has_left

    def leave(self) -> None:
        """Stop the request: its client has left."""
        self._has_left = True
        self._news.set()
        callback, self._on_left = self._on_left, None
        self.drop()
        if callback is not None:
            callback()

    def drop(self) -> None:
        """Forget the lost connection. The turn of this pipelined request may not have come yet."""
        self._on_response = _nothing
        self._scope["extensions"].clear()

    # -- the response --

    def write_chunk(self, data: bytes) -> bool:
        """Write a part of a chunked response that has begun. Return False if the part has to go through `send`."""
        if not self._is_streaming or not data or self._flow.write_paused or self._has_left:
            return False
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    async def send(self, message: Message) -> None:
        """Implements ASGI's `send`. Messages to a client that has left are dropped."""
        if self._flow.write_paused and not self._has_left:
            await self._flow.drain()
        if self._has_left:
            return
        if not self.response_started:
            self._start(message["status"], message.get("headers", ()))
        elif self._is_complete:
            raise RuntimeError("The response is complete already.")
        else:
            self._write(message.get("body", b""), more=message.get("more_body", False))

    def _start(self, status: int, headers: Fields) -> None:
        """Make the head of the response."""
        self.response_started = True
        self._expects_continue = False
        if self._scope["method"] == "HEAD" or status in _WITHOUT_BODY:
            self._body_end = "none"
        has_read_enough = self._has_small_body or not self._more_body
        self.keep_alive = self.keep_alive and has_read_enough and self._body_end != "close"
        lines = [status_line(status)]
        announces_close = False
        fields = (*self._default_headers, *headers)
        for name, value in fields:
            if name == b"content-length":
                if status == HTTPStatus.NO_CONTENT:
                    continue  # which must not have it (RFC 9110, section 8.6)
                if self._body_end != "none":
                    self._body_end, self._left = "length", int(value)
            elif name == b"connection" and b"close" in value.lower():
                self.keep_alive, announces_close = False, True
            lines.append(b"%b: %b\r\n" % (name, value))
        if self._body_end == "chunked":
            lines.append(b"transfer-encoding: chunked\r\n")
        if not self.keep_alive and not announces_close:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        head = b"".join(lines)
        if not (all(map(is_field_name, dict(fields))) and is_clean(head, line_ends=len(lines))):
            raise RuntimeError(_NO_HEAD)
        self._head = head

    def _write(self, body: bytes, *, more: bool) -> None:
        """Write a part of the body, with the head before the first one."""
        match self._body_end:
            case "none":
                body = b""
            case "chunked":
                body = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
                if not more:
                    body += b"0\r\n\r\n"
            case "length":
                self._left -= len(body)
                if self._left < 0 or (self._left and not more):
                    raise RuntimeError("The response is not as long as its Content-Length says.")
        if self._head:
            body, self._head = self._head + body, b""
            self._is_streaming = self._body_end == "chunked"
        if body:
            self._transport.write(body)
        if not more:
            self._complete()

    def _complete(self) -> None:
        self._is_complete = True
        self._is_streaming = False
        self._on_left = None
        self._scope["extensions"].clear()
        self._news.set()
        self._on_response()  # closes the connection, unless keep_alive


def _nothing() -> None:
    pass
