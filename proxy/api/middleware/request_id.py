"""The outermost layer: every response has `x-request-id`, every request has its log line, no bug reaches a client."""

import asyncio
import re
import traceback
from collections.abc import Awaitable
from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proxy import request_context
from proxy.api.body import header
from proxy.api.middleware.auth import OPEN_PATHS
from proxy.api.race import ClientLeft
from proxy.api.replies import farewell_of, forget_farewell, send_error
from proxy.ids import new_id
from proxy.loop.errors import InternalError, ProxyError, Stopping
from proxy.ports import Clock, Observer, elapsed

# Goes into headers and logs: nothing that could break out of either.
_SANE = re.compile(r"[A-Za-z0-9._-]{1,128}")
_FAREWELL_SECONDS = 2.0
_CLIENT_CLOSED_REQUEST = 499  # nginx's status for it; only ever seen in the log


class RequestId:
    """Gives a request its id and its log line, and turns whatever is raised below into a response."""

    def __init__(self, app: ASGIApp, *, observe: Observer, clock: Clock) -> None:
        self._app = app
        self._observe = observe
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = self._clock.monotonic()
        given = header(scope, b"x-request-id")
        request_id = given if given and _SANE.fullmatch(given) else new_id()
        request_context.start(request_id)
        where = {"method": scope["method"], "path": scope["path"]}
        is_probe = scope["path"] in OPEN_PATHS
        if not is_probe:
            self._observe("request.started", **where)
        response = _Watched(send, request_id, scope, observe=self._observe, began=began, clock=self._clock)
        status = await self._answer(scope, receive, response, request_id)
        forget_farewell(scope)
        self._observe(
            "probe.completed" if is_probe else "request.completed",
            **where,
            status=status,
            seconds=elapsed(self._clock, began),
            first_byte=response.first_byte,
            **({"event_stream": True} if response.is_event_stream else {}),
        )
        request_context.clear()

    async def _answer(self, scope: Scope, receive: Receive, response: "_Watched", request_id: str) -> int:
        try:
            await self._app(scope, receive, response.send)
        except ClientLeft as exc:
            _forget_frames(exc)
            return _CLIENT_CLOSED_REQUEST
        except ProxyError as exc:
            if exc.code:
                request_context.add({"error": exc.code})
            await response.fail(exc)
            _forget_frames(exc)
        except asyncio.CancelledError:  # the server stops, and the time for finishing is over; nobody else cancels us
            request_context.add({"error": Stopping.code})
            await response.fail(Stopping())
        except Exception:  # noqa: BLE001 - the last line of defence: the log has the traceback, the client has the id
            self._observe("request.crashed", exc_info=True)
            await response.fail(InternalError(request_id))
        return response.status or _CLIENT_CLOSED_REQUEST


def _forget_frames(failure: BaseException) -> None:
    """Let go of what the frames on a failure's way hold, the whole conversation among it.

    Some of them hold the failure too, as those of a TaskGroup do: in such a circle all of it would be kept until the
    garbage collector comes, which is seldom here.
    """
    link: BaseException | None = failure
    seen: set[int] = set()
    while link is not None and id(link) not in seen:  # nothing keeps causes from going round in a circle
        seen.add(id(link))
        traceback.clear_frames(link.__traceback__)
        link.__traceback__ = None
        link = link.__cause__ or link.__context__


class _Watched:
    """`send` with the request id added to the head of the response, which remembers how far the response has come."""

    def __init__(
        self, send: Send, request_id: str, scope: Scope, *, observe: Observer, began: float, clock: Clock
    ) -> None:
        self._send = send
        self._scope = scope
        self._header = (b"x-request-id", request_id.encode())
        self._observe = observe
        self._began = began
        self._clock = clock
        self._complete = False
        self.is_event_stream = False
        self.status: int | None = None
        self.first_byte: float | None = None  # seconds after the request has come

    def send(self, message: Message) -> Awaitable[None]:
        """ASGI."""
        if message["type"] == "http.response.start":
            message = self._start(message)
        elif not message.get("more_body", False):
            self._complete = True
        return self._send(message)

    def _start(self, message: Message) -> Message:
        headers = message["headers"]
        self.status = message["status"]
        for name, value in headers:
            if name == b"content-type":
                self.is_event_stream = value.startswith(b"text/event-stream")
        self.first_byte = elapsed(self._clock, self._began)
        stream = self.is_event_stream
        self._observe("response.started", status=self.status, event_stream=stream, seconds=self.first_byte)
        return {**message, "headers": [*headers, self._header]}

    async def fail(self, error: ProxyError) -> None:
        """Tell the client: with the proper status while there is none yet, in a stream as its last event.

        Any other response that has begun stays incomplete: the server closes the connection, and the client knows.
        """
        with suppress(TimeoutError):  # a client that does not read is not waited for; the connection is closed
            async with asyncio.timeout(_FAREWELL_SECONDS):
                if self.status is None:
                    await send_error(self.send, error)
                elif self.is_event_stream and not self._complete:
                    await self.send({"type": "http.response.body", "body": farewell_of(self._scope)(error)})
