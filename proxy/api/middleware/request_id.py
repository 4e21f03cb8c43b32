"""Around every layer that can fail: each response gets `x-request-id`, each request a log line, and no bug gets out."""

import asyncio
import traceback
from collections.abc import Callable
from contextlib import suppress

from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.api.body import header
from proxy.api.error_shape import ErrorShape
from proxy.api.exchange import ClientLeft, send_json
from proxy.api.response import RESPONSE, OutgoingResponse
from proxy.kit import request_context
from proxy.kit.timeouts import elapsed
from proxy.paths import OPEN_PATHS
from proxy.ports import Clock, Observer
from proxy.wire.errors import (
    CLIENT_CLOSED_REQUEST,
    InternalError,
    ModelNotFound,
    ProxyError,
    Stopping,
    logged_code,
    upstream_fields,
)
from proxy.wire.relayed import Headers

_ERROR_SECONDS = 2.0
_LONGEST_LOGGED = 100  # characters of the name of an unknown model


class RequestId:
    """Gives a request its id and log line, and turns what is raised below into a response of its `error_shape`."""

    def __init__(
        self, app: ASGIApp, *, error_shape: Callable[[str, Headers], ErrorShape], observe: Observer, clock: Clock
    ) -> None:
        self._app = app
        self._error_shape = error_shape
        self._observe = observe
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        began = self._clock.monotonic()
        request_id = request_context.request_id_of(header(scope, b"x-request-id"))
        request_context.fields.set({"request_id": request_id})
        where = {"method": scope["method"], "path": scope["path"]}
        is_probe = scope["path"] in OPEN_PATHS
        if not is_probe:
            self._observe("request.started", **where)
        response = scope[RESPONSE] = OutgoingResponse(send, request_id, self._observe, self._clock, began)
        status = await self._answer(scope, receive, response)
        del scope[RESPONSE]  # it refers to the server's `send`, and so to this scope
        response.encode_error = None  # which refers to the response
        event = "probe.completed" if is_probe else "request.completed"
        seconds = elapsed(began, self._clock.monotonic())
        kind = {"event_stream": True} if response.is_event_stream else {}
        self._observe(event, **where, status=status, seconds=seconds, first_byte=response.first_byte, **kind)
        request_context.fields.set({})  # this task may go on, and the request has ended

    async def _answer(self, scope: Scope, receive: Receive, response: OutgoingResponse) -> int:
        """Run the application; the status of the response, for the log."""
        try:
            try:
                await self._app(scope, receive, response.send)
            finally:
                if response.before_end:
                    await response.settle()
        except ClientLeft as exc:
            _release_frames(exc)
            return CLIENT_CLOSED_REQUEST
        except ProxyError as exc:
            if fields := {**({"error": logged_code(exc.code)} if exc.code else {}), **upstream_fields(exc)}:
                request_context.add(fields)
            if isinstance(exc, ModelNotFound):
                request_context.add({"unknown_model": exc.model[:_LONGEST_LOGGED]})
            if exc.is_limit:
                self._observe("limit.reached", kind=exc.code)
            await self._send_failure(scope, response, exc)
            _release_frames(exc)
        except asyncio.CancelledError:  # by the server, which stops; `while_wanted` handles its own cancellation
            request_context.add({"error": Stopping.code})
            await self._send_failure(scope, response, Stopping())
        except Exception:  # noqa: BLE001 - the last line of defence: the log has the traceback, the client has the id
            self._observe("request.crashed", exc_info=True)
            await self._send_failure(scope, response, InternalError(response.request_id))
        return response.status or CLIENT_CLOSED_REQUEST

    async def _send_failure(self, scope: Scope, response: OutgoingResponse, error: ProxyError) -> None:
        """Send an error: with its status where the response has not begun, in a stream as its last event.

        Any other response that has begun stays incomplete: the server closes the connection, by which the client knows.
        """
        shape, request_id = self._error_shape(scope["path"], scope["headers"]), response.request_id
        with suppress(TimeoutError):  # a client that does not read is not waited for; the connection is closed
            async with asyncio.timeout(_ERROR_SECONDS):
                if response.status is None:
                    body, headers = shape.envelope(error, request_id), shape.headers(error, request_id)
                    await send_json(response.send, body, status=shape.status_of(error), headers=headers)
                elif response.is_event_stream and not response.is_complete:
                    encode = response.encode_error
                    data = encode(error) if encode else shape.last_event(error, request_id)
                    await response.send({"type": "http.response.body", "body": data})


def _release_frames(failure: BaseException) -> None:
    """Clear the frames on a failure's way, which hold the whole conversation.

    Some of them hold the failure too, as those of a TaskGroup do. Such a reference cycle would stay in memory until the
    garbage collector runs, which is seldom (`server.graceful`).
    """
    link: BaseException | None = failure
    seen: set[int] = set()
    while link is not None and id(link) not in seen:  # causes may form a circle
        seen.add(id(link))
        traceback.clear_frames(link.__traceback__)
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
