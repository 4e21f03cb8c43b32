"""One request and its response, as the ASGI application sees them under `wire.Wire`.

uvicorn's cycle writes the head of a response as soon as it is known, and its body after it: two system calls, and two
packets that a client wakes up for. Here the head waits for the first bytes of the body, as ASGI demands.

Beyond ASGI, an application can ask in `scope[PEER]` what it would otherwise need a timer or a task of its own for:
whether the body is here already, for that body, to be called back when the client leaves, and to write a chunk at once.
"""

from asyncio import AbstractEventLoop
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from starlette.types import Message
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from proxy.api.peer import PEER
from proxy.http.fields import field_name, is_clean

# What could be read as more than one header is a bug of ours, and goes nowhere.
_NO_HEAD = "A header of the response cannot be sent."
_WITHOUT_BODY = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)


def _nothing() -> None:
    """What is to be done after a response that will never be."""


class Cycle(RequestResponseCycle):
    """What uvicorn makes of one request. Implements `api.peer.Peer`."""

    def __init__(self, *, loop: AbstractEventLoop, **known: Any) -> None:
        super().__init__(**known)
        self.loop = loop
        self.scope[PEER] = self  # type: ignore[typeddict-unknown-key]
        self._head = b""
        self._has_body = True  # the response, by its status and the request's method (RFC 9110, section 6.4.1)
        self._is_streaming = False  # the head is written, and chunks follow
        self._left: Callable[[], None] | None = None

    @property
    def body_is_here(self) -> bool:
        """Whether `receive` gives all that is still to come of the body without waiting."""
        return not self.more_body

    def take_body(self) -> bytes | None:
        """All that is still to come of the body, at once and in place of `receive`; None: it has to be waited for."""
        if self.more_body or self.disconnected:
            return None
        body, self.body = bytes(self.body), bytearray()
        self.flow.resume_reading()
        self.message_event.clear()  # what is received next is that the client has left
        return body

    def write_chunk(self, data: bytes) -> bool:
        """Write a part of a response whose head and first part were sent; False where it has to be sent as well."""
        if not self._is_streaming or not data or self.flow.write_paused or self.disconnected:
            return False
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    def call_when_left(self, callback: Callable[[], None] | None) -> bool:
        """Have `callback` called when the client leaves, instead of what was to be called; False where it has left."""
        self._left = callback
        return not self.disconnected

    def leave(self) -> None:
        """The client has left."""
        self.disconnected = True
        self.message_event.set()
        self._let_go()
        callback, self._left = self._left, None
        if callback is not None:
            callback()

    def drop(self) -> None:
        """Forget the connection, which is lost before this request's turn has come."""
        self.on_response = _nothing
        self._let_go()

    def _let_go(self) -> None:
        """Leave the scope, in which nobody looks for us any more: only the garbage collector would undo that circle."""
        self.scope.pop(PEER, None)  # type: ignore[typeddict-item]

    async def send(self, message: Message) -> None:  # type: ignore[override] # as Starlette types it
        """ASGI. What is sent to a client that has left goes nowhere."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if not self.response_started:
            self._start(message["status"], message.get("headers", ()))
        elif self.response_complete:
            raise RuntimeError("The response is complete already.")
        else:
            self._go_on(message.get("body", b""), more=message.get("more_body", False))

    def _start(self, status: int, headers: Any) -> None:
        """Make the head of the response."""
        self.response_started = True
        self.waiting_for_100_continue = False
        self._has_body = self.scope["method"] != "HEAD" and status not in _WITHOUT_BODY
        lines = [STATUS_LINE[status]]
        closes = False
        for name, value in (*self.default_headers, *headers):
            if field_name(name) is None:
                raise RuntimeError(_NO_HEAD)
            if name == b"content-length":
                if status == HTTPStatus.NO_CONTENT:
                    continue  # which must not have it (RFC 9110, section 8.6)
                self.expected_content_length = int(value) if self._has_body else 0
                self.chunked_encoding = False
            elif name == b"connection" and b"close" in value.lower():
                self.keep_alive, closes = False, True
            lines.append(b"%b: %b\r\n" % (name, value))
        self._settle_framing(lines)
        if not self.keep_alive and not closes:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        head = b"".join(lines)
        if not is_clean(head, line_ends=len(lines)):
            raise RuntimeError(_NO_HEAD)
        self._head = head

    def _settle_framing(self, lines: list[bytes]) -> None:
        """How the end of the body is known, where its length is not."""
        if self.chunked_encoding is not None or not self._has_body:
            return
        if self.scope["http_version"] == "1.0":  # knows no chunks: the end of the connection is the end of the body
            self.keep_alive = False
            return
        self.chunked_encoding = True
        lines.append(b"transfer-encoding: chunked\r\n")

    def _go_on(self, body: bytes, *, more: bool) -> None:
        """Write a part of the body, the head before the first one."""
        data = self._framed(body, more=more)
        if self._head:
            data, self._head = self._head + data, b""
            self._is_streaming = bool(self.chunked_encoding)
        if data:
            self.transport.write(data)
        if not more:
            self._finish()

    def _framed(self, body: bytes, *, more: bool) -> bytes:
        if not self._has_body:
            return b""
        if self.chunked_encoding:
            framed = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            return framed if more else framed + b"0\r\n\r\n"
        if self.chunked_encoding is False:
            self.expected_content_length -= len(body)
            if self.expected_content_length < 0:
                raise RuntimeError("The response is longer than its Content-Length says.")
        return body

    def _finish(self) -> None:
        if self.expected_content_length:
            raise RuntimeError("The response is shorter than its Content-Length says.")
        self.response_complete = True
        self._is_streaming = False
        self._left = None
        self._let_go()
        self.message_event.set()
        self.on_response()  # which closes the connection, unless keep_alive
