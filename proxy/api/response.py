"""The response of a request, on its way through the middleware to the server: the one `send` that all layers share."""

from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import Struct
from starlette.types import Message, Send

from proxy.kit.timeouts import elapsed
from proxy.ports import Clock, Observer
from proxy.wire.errors import ProxyError

RESPONSE: Final = "toolproxy.response"
"""The key of a request's `OutgoingResponse` in its scope."""


class OutgoingResponse(Struct):
    """A response: the headers that the layers add, and how much of it has been sent.

    Attributes:
        server_send: `send` of the layer around.
        request_id: for the head.
        observe: of the application.
        clock: of the application.
        began: when the request came.
        headers: further ones for the head; each replaces the application's of the same name.
        before_end: awaited before the last byte is sent, or at the end of a request without one, the latest first. What
            is cancelled in that is awaited once more.
        status: of the response; None: it has not begun.
        first_byte: seconds from the request to the head.
        is_event_stream: whether its content type is that of server-sent events.
        is_complete: whether its last byte was sent.
        encode_error: makes the last bytes of a stream that fails, where they depend on those before; None: the error
            has the shape of its API.
    """

    server_send: Send
    request_id: str
    observe: Observer
    clock: Clock
    began: float
    headers: list[tuple[bytes, bytes]] = []
    before_end: list[Callable[[], Awaitable[None]]] = []
    status: int | None = None
    first_byte: float | None = None
    is_event_stream: bool = False
    is_complete: bool = False
    encode_error: Callable[[ProxyError], bytes] | None = None

    def send(self, message: Message) -> Awaitable[None]:
        """Pass an ASGI message on."""
        if message.get("more_body"):
            return self.server_send(message)
        if message["type"] == "http.response.start":
            return self.server_send(self._start(message))
        if self.before_end:
            return self._send_last(message)
        self.is_complete = True
        return self.server_send(message)

    def _start(self, message: Message) -> Message:
        headers = message["headers"]
        for name, value in headers:
            if name == b"content-type":
                self.is_event_stream = value.startswith(b"text/event-stream")
        if self.headers:
            ours = [name for name, _ in self.headers]
            headers = [field for field in headers if field[0].lower() not in ours]
        self.status = message["status"]
        self.first_byte = elapsed(self.began, self.clock.monotonic())
        stream = self.is_event_stream
        self.observe("response.started", status=self.status, event_stream=stream, seconds=self.first_byte)
        return {**message, "headers": [*headers, *self.headers, (b"x-request-id", self.request_id.encode())]}

    async def _send_last(self, message: Message) -> None:
        await self.settle()
        self.is_complete = True
        await self.server_send(message)

    async def settle(self) -> None:
        """Await all of `before_end`."""
        while self.before_end:
            await self.before_end[-1]()
            self.before_end.pop()
