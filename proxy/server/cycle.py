"""One request and its response, as the ASGI application sees them, and the flow control of their connection.

uvicorn's cycle writes the head of a response as soon as it is known, and its body after it: two system calls, and two
packets that a client wakes up for. Here the head waits for the first bytes of the body, as ASGI demands.
"""

import asyncio
from collections.abc import Callable, Iterable
from http import HTTPStatus
from logging import Logger

from starlette.types import Message
from uvicorn._types import HTTPScope
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from proxy.api.exchange import CONNECTION
from proxy.server.head import is_clean, is_field_name

# What could be read as more than one header is a bug of ours, and is not sent.
_NO_HEAD = "A header of the response cannot be sent."
_WITHOUT_BODY = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)


class Flow(FlowControl):
    """Pauses reading while a body is not taken or too many requests wait, and aborts when the client takes nothing."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, send_timeout: float) -> None:
        super().__init__(transport)
        self._loop = loop
        self._send_timeout = send_timeout
        self._unsent = 0
        self.send_timer: asyncio.TimerHandle | None = None
        self.is_full = False  # as many requests wait as may

    def fill(self) -> None:
        """Pause reading until `make_room`, whatever else would resume it."""
        self.is_full = True
        self.pause_reading()

    def make_room(self) -> None:
        """Resume reading after `fill`."""
        self.is_full = False
        self.resume_reading()

    def resume_reading(self) -> None:
        """Resume reading for a request that takes its body; without effect while the connection is full."""
        if not self.is_full:
            super().resume_reading()

    def pause_writing(self) -> None:
        """Start the timer: the buffer of the transport is full."""
        super().pause_writing()
        self.watch_sending()

    def resume_writing(self) -> None:
        """Stop the timer: the client reads, or has left."""
        super().resume_writing()
        if self.send_timer is not None:
            self.send_timer.cancel()
            self.send_timer = None

    def watch_sending(self) -> None:
        """Abort the connection where the client takes nothing of what is buffered now for `send_timeout` seconds."""
        if self.send_timer is not None:
            self.send_timer.cancel()
        unsent = self._unsent = self._transport.get_write_buffer_size()
        self.send_timer = self._loop.call_later(self._send_timeout, self._check_sending) if unsent else None

    def _check_sending(self) -> None:
        if self._transport.get_write_buffer_size() >= self._unsent:
            self._transport.abort()
        else:
            self.watch_sending()


class Cycle(RequestResponseCycle):
    """uvicorn's cycle, which is also the ASGI extension of its request. Implements `api.exchange.ClientConnection`."""

    def __init__(
        self,
        scope: HTTPScope,
        transport: asyncio.Transport,
        flow: Flow,
        *,
        default_headers: list[tuple[bytes, bytes]],
        on_response: Callable[[], None],
        logger: Logger,
        expect_100_continue: bool,
        keep_alive: bool,
    ) -> None:
        super().__init__(
            scope=scope,
            transport=transport,
            flow=flow,
            logger=logger,
            access_logger=logger,
            access_log=False,
            default_headers=default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=expect_100_continue,
            keep_alive=keep_alive,
            on_response=on_response,
        )
        # A reference cycle until it is cleared, at the end of the response or of the connection.
        scope["extensions"] = {CONNECTION: self}  # type: ignore[dict-item] # an object where uvicorn expects a dict
        self._head = b""  # of the response, until it is written
        self._is_streaming = False  # the head is written, and chunks follow
        self._has_body = True  # the response, by its status and the request's method (RFC 9110, section 6.4.1)
        self._on_left: Callable[[], None] | None = None

    def take_body(self) -> bytes | None:
        """The rest of the body, in place of `receive`; None where it is not complete, or the client has left."""
        if self.more_body or self.disconnected:
            return None
        body, self.body = bytes(self.body), bytearray()
        if self.flow.read_paused:
            self.flow.resume_reading()
        self.message_event.clear()  # the next message from `receive` is that the client has left
        return body

    def write_chunk(self, data: bytes) -> bool:
        """Write a part of a chunked response that has begun; False where it has to be sent."""
        if not self._is_streaming or not data or self.flow.write_paused or self.disconnected:
            return False
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    def call_when_left(self, callback: Callable[[], None] | None) -> bool:
        """Set the one callback for when the client leaves; None removes it. False where the client has left already."""
        self._on_left = callback
        return not self.disconnected

    def leave(self) -> None:
        """Stop the request: its client has left."""
        self.disconnected = True
        self.message_event.set()
        callback, self._on_left = self._on_left, None
        self.scope["extensions"].clear()
        if callback is not None:
            callback()

    def drop(self) -> None:
        """Forget the connection, which is lost before the turn of this pipelined request has come."""
        self.on_response = lambda: None
        self.scope["extensions"].clear()

    async def send(self, message: Message) -> None:  # type: ignore[override] # as Starlette types it
        """Implements ASGI's `send`. What is sent to a client that has left is dropped."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if not self.response_started:
            self._start(message["status"], message.get("headers", ()))
        elif self.response_complete:
            raise RuntimeError("The response is complete already.")
        else:
            self._write(message.get("body", b""), more=message.get("more_body", False))

    def _start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Make the head of the response."""
        self.response_started = True
        self.waiting_for_100_continue = False
        self._has_body = self.scope["method"] != "HEAD" and status not in _WITHOUT_BODY
        lines = [STATUS_LINE[status]]
        announces_close = False
        for name, value in (*self.default_headers, *headers):
            if not is_field_name(name):
                raise RuntimeError(_NO_HEAD)
            if name == b"content-length":
                if status == HTTPStatus.NO_CONTENT:
                    continue  # which must not have it (RFC 9110, section 8.6)
                self.expected_content_length = int(value) if self._has_body else 0
                self.chunked_encoding = False
            elif name == b"connection" and b"close" in value.lower():
                self.keep_alive, announces_close = False, True
            lines.append(b"%b: %b\r\n" % (name, value))
        if self.chunked_encoding is None and self._has_body:
            if self.scope["http_version"] == "1.0":  # which has no chunks: the body ends with the connection
                self.keep_alive = False
            else:
                self.chunked_encoding = True
                lines.append(b"transfer-encoding: chunked\r\n")
        if not self.keep_alive and not announces_close:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        head = b"".join(lines)
        if not is_clean(head, line_ends=len(lines)):
            raise RuntimeError(_NO_HEAD)
        self._head = head

    def _write(self, body: bytes, *, more: bool) -> None:
        """Write a part of the body, with the head before the first one."""
        if not self._has_body:
            data = b""
        elif self.chunked_encoding:
            data = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            if not more:
                data += b"0\r\n\r\n"
        else:
            data = body
            if self.chunked_encoding is False:
                self.expected_content_length -= len(body)
                if self.expected_content_length < 0:
                    raise RuntimeError("The response is longer than its Content-Length says.")
        if self._head:
            data, self._head = self._head + data, b""
            self._is_streaming = bool(self.chunked_encoding)
        if data:
            self.transport.write(data)
        if not more:
            if self.expected_content_length:
                raise RuntimeError("The response is shorter than its Content-Length says.")
            self.response_complete = True
            self._is_streaming = False
            self._on_left = None
            self.scope["extensions"].clear()
            self.message_event.set()
            self.on_response()  # closes the connection, unless keep_alive
