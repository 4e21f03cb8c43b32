"""HTTP/1.1 with a client: uvicorn's protocol, with a bound on everything that a client can draw out or pile up.

uvicorn waits for a request's head for as long as the client likes, counts neither its fields nor its bytes, loses the
body of a request that offers an upgrade, and answers invalid HTTP in plain text. Here

- a head has `header_timeout`, and a client that takes nothing of what is sent `send_timeout`;
- fields and bytes of a head are counted, and so are the bytes of a chunked body that are not data;
- of pipelined requests, no more than sixteen or so wait for the one before: beyond that, reading pauses;
- an ambiguous head (`server.head`) is refused, in OpenAI's envelope, and its connection closed;
- an upgrade is not taken up, which leaves an ordinary request (RFC 9110, section 7.8);
- a response that is complete before the body has arrived reaches a client that is still sending: the rest of a small
  body is discarded and the connection stays open; with any other the connection ends, as announced, after a delay.

Bodies are bounded where they are read, in `api.body`.
"""

from asyncio import TimerHandle, Transport
from collections import deque
from contextlib import suppress
from typing import Any, NoReturn

import httptools
from uvicorn._types import ASGIVersions, HTTPScope
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from proxy.kit.request_context import request_id_of
from proxy.ports import Observer
from proxy.server.cycle import Cycle, Flow
from proxy.server.head import MOST_CACHED_URL, Bounds, check_head, error_response, split_url, without_upgrade
from proxy.wire.errors import HttpRefused, ProxyError, RequestTimeout

# Requests of one connection that are parsed and wait until those before are answered. Clients that pipeline at all send
# a few at once; each takes some two kilobytes, and 7,000 of them fit into a single read.
_MOST_WAITING = 16
_END_OF_HEAD = b"\r\n\r\n"
# Bytes that a client with a response may still send; nginx has no such bound.
_MOST_DISCARDED = 64 * 1024 * 1024
# Bytes that the framing of a chunk may take beside as many as its data; the rest is extensions, trailers (Go's rule).
_CHUNK_OVERHEAD = 16
# Bytes of a field beside its name and its value: the colon, a space, the line's end.
_FIELD_OVERHEAD = 4
_ASGI: ASGIVersions = {"version": "3.0", "spec_version": "2.3"}


class _ParsingEnded(Exception):
    """Ends the parser's work from within a callback; the fault itself would keep what was read in its traceback."""


class BoundedProtocol(HttpToolsProtocol):
    """A connection of a client."""

    cycle: Cycle
    flow: Flow
    _timer: TimerHandle  # for a head, and for what is discarded; cancelled where neither is the case
    pipeline: deque[tuple[Cycle, Any]]  # type: ignore[assignment] # of our cycles only

    def __init__(self, *args: Any, bounds: Bounds, observe: Observer, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._bounds = bounds
        self._observe = observe
        self._in_head = False
        self._in_body = False
        self._offered_upgrade = False
        self._reusable = False  # the connection, once the request that is on its way in has come in
        self._head_bytes = 0
        self._fields = 0
        self._framing_bytes = 0  # bytes read that are no data of a body, since they were last known to be harmless
        self._fault: ProxyError | None = None
        self._discarding = False  # the client has its response, and whatever it still sends is thrown away
        self._discarded = 0
        self._unparsed = bytearray()  # what was read beyond as many requests as may wait
        self._answering: Cycle | None = None  # `cycle` may still wait for its turn, pipelined behind this one

    # -- the connection --

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override] # as uvicorn narrows it
        """Take the transport of a connection that was accepted."""
        super().connection_made(transport)
        self.flow = Flow(transport, self.loop, self._bounds.send_timeout)
        self._timer = self.loop.call_later(self._bounds.header_timeout, self._timer_expired)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the requests of a connection that is closed, by whichever side."""
        self._timer.cancel()
        self._unset_keepalive_if_required()  # uvicorn leaves it where the connection was reset
        super().connection_lost(exc)
        if self._answering is not None and not self._answering.response_complete:
            self._answering.leave()
        for cycle, _ in self.pipeline:
            cycle.drop()
        self.pipeline.clear()
        self._unparsed.clear()

    def data_received(self, data: bytes) -> None:
        """Parse what has come, and start the requests that it completes."""
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        if self._discarding:
            self._discarded += len(data)
            if self._discarded > _MOST_DISCARDED:
                self._close()
        # The search stops at the last CR, so it costs nothing for body data, which rarely contains one.
        elif (
            not self._unparsed
            and len(self.pipeline) + data.count(_END_OF_HEAD, 0, data.rfind(b"\r") + 2) <= _MOST_WAITING
        ):
            self._parse(data)
        else:
            self._unparsed += data
            self._parse_waiting()

    def _parse_waiting(self) -> None:
        """Parse what was read, head by head, until as many requests wait as may; then reading pauses."""
        while self._unparsed and not self._discarding and len(self.pipeline) < _MOST_WAITING:
            end = self._unparsed.find(_END_OF_HEAD)
            size = len(self._unparsed) if end < 0 else end + len(_END_OF_HEAD)
            piece = bytes(self._unparsed[:size])
            del self._unparsed[:size]
            self._parse(piece)
        if self._unparsed:
            self.flow.fill()
        elif self.flow.is_full:
            self.flow.make_room()

    def _parse(self, data: bytes) -> None:
        self._framing_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as exc:
            if not self._discarding:
                self._parse_without_upgrade(data[exc.args[0] :])
        except httptools.HttpParserError:
            self._refuse(self._fault or HttpRefused("The request is not valid HTTP."))
        if not self._discarding and self._framing_bytes > self._bounds.max_header_bytes:
            self._refuse(self._bounds.too_large())
        elif self._in_head or (
            self.timeout_keep_alive_task is None and (self.cycle is None or self.cycle.response_complete)
        ):
            self._start_timer(self._bounds.header_timeout)  # the head is not complete, or not even begun

    def _parse_without_upgrade(self, rest: bytes) -> None:
        self._offered_upgrade = False
        head = without_upgrade(self.parser.get_method(), self.url, self.parser.get_http_version(), self.headers)
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._parse(head + rest)

    # -- the parser's callbacks; what they raise ends the parsing --

    def on_message_begin(self) -> None:
        """Prepare for a request, of which the first byte was read."""
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        self.url = b""
        self.headers = []
        self._in_head = True
        self._head_bytes = self._fields = self._framing_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Take a part of the URL."""
        self.url += url
        self._head_bytes += len(url)
        if self._head_bytes > self._bounds.max_header_bytes:
            self._reject(self._bounds.too_large())

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header field. A field of a trailer is counted as well, and dropped."""
        fields = self._fields = self._fields + 1
        size = self._head_bytes = self._head_bytes + len(name) + len(value) + _FIELD_OVERHEAD
        if size > self._bounds.max_header_bytes or fields > self._bounds.max_headers:
            self._reject(self._bounds.too_large())
        if self._in_head:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is complete: start the request, or let it wait for the one before."""
        self._in_head = False
        self._framing_bytes = 0
        parser, url = self.parser, self.url
        method, version = parser.get_method(), parser.get_http_version()
        framing = check_head(method, version, self.headers)
        if isinstance(framing, ProxyError):
            self._reject(framing)
        if parser.should_upgrade():
            self._offered_upgrade = True
            return
        self._timer.cancel()
        path, raw_path, query = (split_url if len(url) <= MOST_CACHED_URL else split_url.__wrapped__)(url)
        scope: HTTPScope = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "method": method.decode("ascii"),
            "scheme": "http",
            "path": path,
            "raw_path": raw_path,
            "query_string": query,
            "root_path": "",
            "headers": self.headers,
            "server": self.server,
            "client": self.client,
            "state": self.app_state.copy(),
        }
        # A client that waits for `100 Continue` and gets its response early may send the body or not.
        self._reusable = version != "1.0" and parser.should_keep_alive() and not framing.expects_continue
        cycle = Cycle(
            scope,
            self.transport,
            self.flow,
            default_headers=self.server_state.default_headers,
            on_response=self.on_response_complete,
            logger=self.logger,
            expect_100_continue=framing.expects_continue,
            keep_alive=self._reusable and framing.has_small_body,  # until the body is complete
        )
        must_wait = self.cycle is not None and not self.cycle.response_complete
        self.cycle = cycle
        if must_wait:
            self.pipeline.appendleft((cycle, self.app))
        else:
            self._answering = cycle
            self._start_asgi_task(cycle, self.app)
        self._in_body = True

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._framing_bytes = max(0, self._framing_bytes - 2 * len(body) - _CHUNK_OVERHEAD)
        cycle = self.cycle
        if not cycle.response_complete:
            cycle.body += body
            if len(cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
            cycle.message_event.set()

    def on_message_complete(self) -> None:
        """Note that the request has been read completely."""
        if self._offered_upgrade:
            return
        self._in_body = False
        cycle = self.cycle
        if not cycle.response_complete:
            cycle.more_body = False
            cycle.message_event.set()
            if not cycle.response_started:
                cycle.keep_alive = self._reusable
        else:
            self._timer.cancel()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _reject(self, fault: ProxyError) -> NoReturn:
        self._fault = fault
        raise _ParsingEnded

    # -- the end of a response, and of a connection --

    def on_response_complete(self) -> None:
        """Go on with the next request, or close the connection. Called by the cycle."""
        self.server_state.total_requests += 1
        if self._discarding or not (self._answering and self._answering.keep_alive):
            self._end()
            return
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.pipeline:
            self._answering, app = self.pipeline.pop()
            self._start_asgi_task(self._answering, app)
        else:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        if self._unparsed:
            self._parse_waiting()
        if self._in_body and self.cycle.response_complete:  # the rest of a small body
            self._unset_keepalive_if_required()
            self._start_timer(self._bounds.linger)

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection; one whose client still reads its last response is not idle."""
        if self.transport.get_write_buffer_size():
            if self.flow.send_timer is None:
                self.flow.watch_sending()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        else:
            super().timeout_keep_alive_handler()

    def shutdown(self) -> None:
        """Close the connection, or announce it with the response. A request that is on its way in is not cut off."""
        if self.cycle is not None and not self._in_head:
            self._reusable = False
            super().shutdown()

    def _refuse(self, error: ProxyError) -> None:
        """Read nothing more on this connection, and answer with the error unless another response is due."""
        self._discarding = True
        self._timer.cancel()
        cycle = self.cycle
        if self._in_body:
            cycle.leave()  # no more of the body will come
            if self.pipeline:
                return  # the request before is answered, and the connection ends with it
            if cycle.response_started:
                self._end()
                return
        elif cycle is not None and not cycle.response_complete:
            cycle.keep_alive = False  # the connection ends with its response
            return
        is_at_hand = self._in_head or self._in_body or self._fault  # or else what was read is of the request before
        given = next((value for name, value in self.headers if name == b"x-request-id"), None) if is_at_hand else None
        request_id = request_id_of(given.decode("latin-1") if given is not None else None)
        url, headers = self.url if is_at_hand else b"", self.server_state.default_headers
        self.transport.write(error_response(error, request_id, headers, url=url))
        self._observe("request.refused", request_id=request_id, status=error.status, error=error.code)
        self._end()

    def _end(self) -> None:
        """Close the connection in such a way that the response arrives, though the client may be sending."""
        if not self._in_body and not self._discarding:
            self._close()
            return
        self._discarding = True
        self._unparsed.clear()
        self.flow.make_room()
        if self.transport.can_write_eof():
            with suppress(OSError):  # the client has left, and asyncio does not know yet
                self.transport.write_eof()
        self._timer.cancel()
        self._start_timer(self._bounds.linger)

    def _close(self) -> None:
        self.transport.close()
        self.flow.watch_sending()

    # -- the timer for a head, and for what is discarded --

    def _start_timer(self, seconds: float) -> None:
        """Start the timer; one that runs already is not extended by what comes in meanwhile."""
        if self._timer.cancelled() and not self.transport.is_closing():
            self._timer = self.loop.call_later(seconds, self._timer_expired)

    def _timer_expired(self) -> None:
        self._timer.cancel()  # it has expired
        if self._in_head and not self._discarding:
            self._refuse(RequestTimeout("The head of the request did not arrive in time."))
        else:
            self._close()
