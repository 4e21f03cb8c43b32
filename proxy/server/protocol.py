"""HTTP/1.1 with a client, with a limit on everything that a client can delay or accumulate.

A connection is in one of five states. The state says what the next byte belongs to, and how long the client may take:

    DUE   to the lines before a head, or to the head     header_timeout, since connecting or since the first byte
    HEAD  to a head that has begun                       the same
    BODY  to a body                                      as api.body says; once the request is answered, linger
    IDLE  to a request that has not begun                without bound; once all requests are answered, idle_timeout
    END   to nothing: the byte is discarded              linger, once all requests are answered

    DUE --> HEAD --> BODY --> IDLE --> HEAD if requests are pipelined, otherwise DUE
    any --> END   a request is refused, or the last response is complete while the client is still sending

Requests are parsed ahead, and answered one after the other. The bounds:

- a head has `header_timeout`, and a client that reads nothing of its response has `send_timeout`;
- fields and bytes of a head are counted, and so are the bytes of a chunked body that are not data;
- about sixteen pipelined requests may be open. With more, reading pauses;
- an ambiguous head (`server.head`) is refused, in the shape of its API, and its connection closed;
- an upgrade is ignored, and the request is an ordinary one (RFC 9110, section 7.8);
- a response that is complete before the body has arrived reaches a client that is still sending: the rest of a small
  body is discarded and the connection stays open; with any other the connection ends, as announced, after a delay.

Bodies are bounded where they are read, in `api.body`. The parser is httptools. uvicorn makes the protocol of each
connection, and calls `shutdown`.
"""

import asyncio
from collections import deque
from contextlib import suppress
from enum import Enum, auto
from typing import Any, NoReturn

import httptools
import uvicorn
from uvicorn.server import ServerState

from proxy.ports import Observer
from proxy.server.cycle import Cycle
from proxy.server.flow import Flow
from proxy.server.head import (
    MOST_CACHED_URL,
    Bounds,
    check_head,
    error_response,
    request_id_in,
    split_url,
    without_upgrade,
)
from proxy.wire.errors import HttpRefused, ProxyError, RequestTimeout

# Requests of one connection that are parsed and not answered. Clients that pipeline at all send a few at once; each
# takes some two kilobytes, and 7,000 of them fit into a single read.
_MOST_OPEN = 16
_END_OF_HEAD = b"\r\n\r\n"
# Bytes that a client with a response may still send; nginx has no such bound.
_MOST_DISCARDED = 64 * 1024 * 1024
# Bytes that a chunk's framing may take in addition to the size of its data, for extensions and trailers (Go's rule).
_CHUNK_OVERHEAD = 16
# Bytes of a field beside its name and its value: the colon, a space, the line's end.
_FIELD_OVERHEAD = 4
_ASGI = {"version": "3.0", "spec_version": "2.3"}


class _Reading(Enum):
    """The part of a request that the client's next byte belongs to; see the docstring of this module."""

    DUE = auto()
    HEAD = auto()
    BODY = auto()
    IDLE = auto()
    END = auto()


DUE, HEAD, BODY, IDLE, END = _Reading


class _ParsingEnded(Exception):
    """Ends parsing from within a callback. The fault itself is not raised: its traceback would keep the bytes read."""


class HttpProtocol(asyncio.Protocol):
    """A connection of a client.

    `config` and `server_state` are uvicorn's, and `app_state` is the state of the application's lifespan. `observe`
    takes events about refused requests. The first of the `requests` without a complete answer is being answered.
    """

    transport: asyncio.Transport

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        bounds: Bounds,
        observe: Observer,
    ) -> None:
        self.requests: deque[Cycle] = deque()
        self._loop = _loop or asyncio.get_running_loop()
        self._app = config.loaded_app
        self._app_state = app_state
        self._server_state = server_state
        self._bounds = bounds
        # How long each state may last; BODY, once its request is answered.
        linger = bounds.linger
        self._seconds = {HEAD: bounds.header_timeout, BODY: linger, IDLE: config.timeout_keep_alive, END: linger}
        self._observe = observe
        self._parser = self._new_parser()
        self._reading = DUE
        self._is_answering = False  # the first of the requests
        self._timer: asyncio.TimerHandle | None = None
        self._timed: _Reading | None = None  # the state that the timer is of
        self._fault: ProxyError | None = None  # for which a callback has ended the parsing
        self._unparsed = bytearray()  # bytes read after the most requests were open
        self._discarded = 0
        # Of the request that is being read:
        self._url = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._field_count = 0  # with trailers
        self._framing_bytes = 0  # bytes read that are no data of a body, since they were last known to be harmless
        self._read = b""  # what is being parsed, from the read on in which its head began

    @property
    def awaits_request(self) -> bool:
        """Whether the head of a request is due, or on its way."""
        return self._reading in (DUE, HEAD)

    # -- the connection --

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # asyncio's is wider
        """Take the transport of a connection that was accepted."""
        self.transport = transport
        self._flow = Flow(transport, self._loop, self._bounds.send_timeout)
        self._server = _address(transport, "sockname")
        self._client = _address(transport, "peername")
        self._server_state.connections.add(self)  # type: ignore[arg-type] # uvicorn's own kinds of protocols
        self._set_timer()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Stop the requests of a connection that either side has closed."""
        self._server_state.connections.discard(self)
        self._reading = END
        self._stop_timer()
        self._flow.resume_writing()
        if self._is_answering:
            self.requests.popleft().leave()
        self._drop_requests()
        self._unparsed.clear()
        del self._parser  # which refers to this protocol

    def pause_writing(self) -> None:
        """Note that the buffer of the transport is full."""
        self._flow.pause_writing()

    def resume_writing(self) -> None:
        """Note that the buffer of the transport has room again."""
        self._flow.resume_writing()

    def shutdown(self) -> None:
        """Close the connection, or announce this in the response. A request that is arriving is not cut off."""
        if self.awaits_request:
            return
        if self.requests:
            self.requests[-1].keep_alive = False
        else:
            self.transport.close()

    # -- what comes in --

    def data_received(self, data: bytes) -> None:
        """Parse the bytes that have arrived, and start a request that they complete."""
        if self._reading is IDLE and not self.requests:
            self._reading = DUE
        if self._reading is END:
            self._discarded += len(data)
            if self._discarded > _MOST_DISCARDED:
                self._close()
            return
        # The search stops at the last CR, so it costs nothing for body data, which rarely contains one.
        heads = data.count(_END_OF_HEAD, 0, data.rfind(b"\r") + 2)
        # Each head, and the end of a chunked body, is parsed separately, to count bytes for the right request.
        if self._unparsed or heads > 1:
            self._unparsed += data
            self._parse_in_pieces()
        else:
            self._parse(data)
        self._set_timer()
        self._answer_next()

    def _parse_in_pieces(self) -> None:
        """Parse the bytes head by head, until the most requests are open. Then reading pauses."""
        while self._unparsed and self._reading is not END and len(self.requests) < _MOST_OPEN:
            end = self._unparsed.find(_END_OF_HEAD)
            size = len(self._unparsed) if end < 0 else end + len(_END_OF_HEAD)
            piece = bytes(self._unparsed[:size])
            del self._unparsed[:size]
            self._parse(piece)
        if self._unparsed:
            self._flow.fill()
        else:
            self._flow.make_room()

    def _parse(self, data: bytes) -> None:
        self._read = self._read + data if self._reading is HEAD else data
        self._framing_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as exc:
            self._parse_without_upgrade(data[exc.args[0] :])
        except httptools.HttpParserError:
            self._refuse(self._fault or HttpRefused("The request is not valid HTTP."))
        if self._reading is not HEAD:
            self._read = b""
        if self._framing_bytes > self._bounds.max_header_bytes and self._reading is not END:
            self._refuse(self._bounds.too_large())

    def _parse_without_upgrade(self, rest: bytes) -> None:
        parser = self._parser
        head = without_upgrade(parser.get_method(), self._url, parser.get_http_version(), self._fields)
        self._parser = self._new_parser()
        self._read = b""
        self._parse(head + rest)

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # Requests after `Connection: close` are not answered, and are no fault.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    # -- the parser's callbacks; what they raise ends the parsing --

    def on_message_begin(self) -> None:
        """Prepare for a request after its first byte."""
        self._reading = HEAD
        self._url = b""
        self._fields = []
        self._head_bytes = self._field_count = self._framing_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Take a part of the URL."""
        self._url += url
        self._head_bytes += len(url)
        if self._head_bytes > self._bounds.max_header_bytes:
            self._reject(self._bounds.too_large())

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header field. A field of a trailer is counted too, and dropped."""
        count = self._field_count = self._field_count + 1
        size = self._head_bytes = self._head_bytes + len(name) + len(value) + _FIELD_OVERHEAD
        if size > self._bounds.max_header_bytes or count > self._bounds.max_headers:
            self._reject(self._bounds.too_large())
        if self._reading is HEAD:
            self._fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Accept the request. If it offers an upgrade, its head is read once more without the offer."""
        parser, url = self._parser, self._url
        method, version = parser.get_method(), parser.get_http_version()
        if self._read.find(b"%b HTTP/" % url) < 0:
            version = ""  # of RTSP, which the parser also accepts
        framing = check_head(method, version, self._fields)
        if isinstance(framing, ProxyError):
            self._reject(framing)
        if parser.should_upgrade():
            return
        path, raw_path, query = (split_url if len(url) <= MOST_CACHED_URL else split_url.__wrapped__)(url)
        scope = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "method": method.decode("ascii"),
            "scheme": "http",
            "path": path,
            "raw_path": raw_path,
            "query_string": query,
            "root_path": "",
            "headers": self._fields,
            "server": self._server,
            "client": self._client,
            "state": self._app_state.copy(),
        }
        # A client that waits for `100 Continue` and gets its response early may send the body or not.
        keep_alive = version != "1.0" and parser.should_keep_alive() and not framing.expects_continue
        cycle = Cycle(
            scope,
            framing,
            self.transport,
            self._flow,
            keep_alive=keep_alive,
            default_headers=self._server_state.default_headers,
            on_response=self._response_complete,
        )
        self.requests.append(cycle)
        self._reading = BODY
        self._framing_bytes = 0
        if framing.is_chunked:
            self._framing_bytes = len(self._read) - self._read.find(_END_OF_HEAD) - len(_END_OF_HEAD)
        self._stop_timer()  # the next head has a time of its own

    def on_body(self, body: bytes) -> None:
        """Take a part of the body. If all requests are answered, the answered one did not need it."""
        self._framing_bytes = max(0, self._framing_bytes - 2 * len(body) - _CHUNK_OVERHEAD)
        if self.requests:
            self.requests[-1].add_to_body(body)

    def on_message_complete(self) -> None:
        """Note that the request has been read completely."""
        if self._reading is HEAD:
            return  # an upgrade is offered
        if self._framing_bytes > self._bounds.max_header_bytes:  # all of the body may have come in one read
            self._reject(self._bounds.too_large())
        self._reading = IDLE
        if self.requests:
            self.requests[-1].end_body()

    def _reject(self, fault: ProxyError) -> NoReturn:
        self._fault = fault
        raise _ParsingEnded

    # -- the responses --

    def _answer_next(self) -> None:
        """Start the next request, unless one is being answered."""
        if self.requests and not self._is_answering:
            self._is_answering = True
            task = self._loop.create_task(self.requests[0].run(self._app))
            self._server_state.tasks.add(task)
            task.add_done_callback(self._server_state.tasks.discard)

    def _response_complete(self) -> None:
        """Continue with the next request, or close the connection. The cycle calls this."""
        self._server_state.total_requests += 1
        self._is_answering = False
        if not self.requests.popleft().keep_alive:
            self._drop_requests()
            self._end()
        elif not self.transport.is_closing():
            if self._unparsed:
                self._parse_in_pieces()
            self._flow.resume_reading()
            self._set_timer()
            self._answer_next()

    def _refuse(self, error: ProxyError) -> None:
        """Read nothing more on this connection, and answer with the error unless another response is due."""
        reading, self._reading = self._reading, END
        is_started = reading is BODY
        if reading is BODY and self.requests:
            refused = self.requests.pop()
            refused.leave()  # no more of the body will come
            is_started = refused.response_started
            self._is_answering = self._is_answering and bool(self.requests)
        if self.requests:
            self.requests[-1].keep_alive = False  # the connection ends with its response
            return
        if not is_started:
            # Before a head has begun, fields and URL still belong to the previous request.
            fields, url = (self._fields, self._url) if reading in (HEAD, BODY) else ((), b"")
            request_id = request_id_in(fields)
            self.transport.write(error_response(error, request_id, self._server_state.default_headers, url=url))
            self._observe("request.refused", request_id=request_id, status=error.status, error=error.code)
        self._end()

    def _drop_requests(self) -> None:
        """Forget the requests that are not being answered."""
        for cycle in self.requests:
            cycle.drop()
        self.requests.clear()

    def _end(self) -> None:
        """Close the connection so that the response arrives even if the client is still sending."""
        if self._reading not in (BODY, END):
            self._close()
            return
        self._reading = END
        self._unparsed.clear()
        self._flow.make_room()
        if self.transport.can_write_eof():
            with suppress(OSError):  # the client has left, and asyncio does not know yet
                self.transport.write_eof()
        self._set_timer()

    def _close(self) -> None:
        self._reading = END
        self._stop_timer()
        self.transport.close()
        self._flow.watch_sending()

    # -- the timer --

    def _set_timer(self) -> None:
        """Start the timer of the present state. Bytes that arrive do not extend a timer that already runs."""
        state = HEAD if self._reading is DUE else self._reading
        if self.requests and state is not HEAD:
            self._stop_timer()  # the client is not the one to wait for
        elif state is not self._timed:
            self._stop_timer()
            self._timed = state
            self._timer = self._loop.call_later(self._seconds[state], self._time_is_over)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._timed = None

    def _time_is_over(self) -> None:
        self._timer = self._timed = None
        if self._reading is HEAD:
            self._refuse(RequestTimeout("The head of the request did not arrive in time."))
        elif self._reading is IDLE and self.transport.get_write_buffer_size():  # the last response is still being read
            if self._flow.send_timer is None:
                self._flow.watch_sending()
            self._set_timer()
        else:
            self._close()


def _address(transport: asyncio.Transport, name: str) -> tuple[str, int] | None:
    """An end of a connection as ASGI has it, a host and a port."""
    address = transport.get_extra_info(name)
    return (address[0], address[1]) if isinstance(address, tuple) else None
