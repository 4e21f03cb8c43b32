"""HTTP/1.1 as it is spoken here: uvicorn's protocol, with a bound on everything that a client can draw out or pile up.

uvicorn waits for a request's head for as long as the client likes, counts neither its fields nor its bytes, loses the
body of a request that offers an upgrade, and answers what is no HTTP in plain text. Here

- a head has `header_timeout`, and a client that takes nothing of what is sent `send_timeout`;
- fields and bytes of a head are counted, and so is what a chunked body carries beside its data;
- of pipelined requests, no more than sixteen or so wait for the one before: beyond that, reading pauses;
- a head that two parsers could read in two ways is refused, in OpenAI's envelope, and its connection closed;
- an upgrade is not taken up, which leaves a request like any other (RFC 9110, section 7.8);
- an answer that is given before the body has come is read by a client that is still sending: of a small body the rest
  is thrown away and the connection goes on; with any other it ends, as announced, and not before the client has heard.

Bodies are bounded where they are read, in `api.body`.
"""

import asyncio
import re
from asyncio import TimerHandle, Transport
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import Any, NoReturn
from urllib.parse import unquote

import httptools
import orjson
from uvicorn._types import ASGIVersions
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from proxy.config import ServerConfig
from proxy.ids import new_id
from proxy.loop.errors import HeadersTooLarge, HttpRefused, MethodNotAllowed, ProxyError, RequestTimeout
from proxy.ports import Observer
from proxy.server.cycle import Cycle

# Requests of one connection that are parsed and wait until those before are answered. Clients that pipeline at all send
# a few at once; each takes some two kilobytes, and 7,000 of them fit into a single read.
_MOST_WAITING = 16
_END_OF_HEAD = b"\r\n\r\n"
# How long, and for how much, a client that was answered is heard out; closed at once, the answer would be lost to a
# reset. nginx: lingering_timeout 5 s, any number of bytes.
_LINGER_SECONDS = 5.0
_LINGER_BYTES = 64 * 1024 * 1024
# The rest of a body that is not worth a new connection (Go: maxPostHandlerReadBytes).
_SMALL_BODY = 256 * 1024
# What the framing of a chunk may take, and what of a read is data; the rest is extensions and trailers (Go's rule).
_CHUNK_OVERHEAD = 16
_ASGI: ASGIVersions = {"version": "3.0", "spec_version": "2.3"}
# Of a field, beside its name and its value: the colon, a space, the line's end.
_FIELD_OVERHEAD = 4
_NO_UPGRADE = frozenset({b"upgrade", b"http2-settings"})
_VERSIONS = ("1.1", "1.0")
# TRACE, handed on to an upstream, would come back with the upstream's key in it.
_NEVER = frozenset({b"CONNECT", b"TRACE"})
# RFC 9110, section 7.2: a host and perhaps a port, as RFC 3986 writes them. What stands before an `@` or behind a `/`
# would be another host, or a path, to whoever makes a URL of it.
_HOST = re.compile(rb"(?:\[[0-9A-Za-z:.]+\]|[\w.~!$&'()*+,;=%-]*)(?::[0-9]*)?", re.ASCII)
_SHORT_URL = 256  # of those that are remembered
_ALLOWED = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a client may do to a connection; seconds and bytes.

    header_timeout    from connecting, or from the first byte of a further request, to the end of the head
    send_timeout      in which at least something of what is sent has to be taken
    max_headers       fields of one request, trailers included
    max_header_bytes  of the request line and all fields
    linger            for what it is still sending when it has its answer
    """

    header_timeout: float
    send_timeout: float
    max_headers: int
    max_header_bytes: int
    linger: float

    @classmethod
    def of(cls, server: ServerConfig) -> "Bounds":
        """Those of the configuration."""
        return cls(
            header_timeout=server.header_timeout_seconds,
            send_timeout=server.send_timeout_seconds,
            max_headers=server.max_headers,
            max_header_bytes=server.max_header_bytes,
            linger=min(_LINGER_SECONDS, server.body_timeout_seconds),
        )


def _split(url: bytes) -> tuple[str, bytes, bytes]:
    """A URL's path, the same as it was written, and its query."""
    parsed = httptools.parse_url(url)
    path = parsed.path.decode("ascii")
    return unquote(path) if "%" in path else path, parsed.path, parsed.query or b""


_target = lru_cache(256)(_split)  # nearly all requests ask for the same few


def _fault_of_host(hosts: list[bytes], version: str) -> ProxyError | None:
    """What is wrong with the Host fields of a request (RFC 9112, section 3.2)."""
    if len(hosts) != 1 and (version == "1.1" or hosts):
        return HttpRefused("A request must have exactly one Host.")
    if hosts and not _HOST.fullmatch(hosts[0]):
        return HttpRefused("The Host of the request is neither a name nor an address.")
    return None


class _ParsingEnded(Exception):
    """Ends the parser's work from within a callback; the fault itself would keep what was read in its traceback."""


class _Flow(FlowControl):
    """When a connection is read: not while a body is not taken, nor while as many requests wait as may."""

    is_full = False

    def fill(self) -> None:
        """Pause reading until there is room again, whoever wants to resume it."""
        self.is_full = True
        self.pause_reading()

    def make_room(self) -> None:
        """Resume reading."""
        self.is_full = False
        self.resume_reading()

    def resume_reading(self) -> None:
        """For a request that takes its body; of no effect while the connection is full."""
        if not self.is_full:
            super().resume_reading()


class Wire(HttpToolsProtocol):
    """One connection of a client."""

    cycle: Cycle
    flow: _Flow

    def __init__(self, *args: Any, bounds: Bounds, observe: Observer, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._bounds = bounds
        self._observe = observe
        self._timer: TimerHandle | None = None
        self._send_timer: TimerHandle | None = None
        self._unsent = 0
        self._in_head = False
        self._in_body = False
        self._has_small_body = False  # one of known and little length
        self._reusable = False  # the connection, once the request that is on its way in has come in
        self._deaf = False
        self._unheard = 0
        self._offered_upgrade = False
        self._head_bytes = 0
        self._fields = 0
        self._excess = 0  # bytes that were read and are no data, since they were last known to be harmless
        self._fault: ProxyError | None = None
        self._unparsed = bytearray()  # what was read beyond as many requests as may wait
        self._answering: Cycle | None = None  # the latest may still wait for its turn, pipelined behind this one

    # -- the connection --

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override] # as uvicorn narrows it
        """From asyncio."""
        super().connection_made(transport)
        self.flow = _Flow(transport)
        self._arm(self._bounds.header_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        """From asyncio."""
        self._disarm()
        self._stop_send_timer()
        self._unset_keepalive_if_required()  # uvicorn leaves it where the connection was reset
        super().connection_lost(exc)
        if self._answering is not None and not self._answering.response_complete:
            self._answering.leave()
        for cycle, _ in self.pipeline:
            assert isinstance(cycle, Cycle)  # noqa: S101 - there are no others
            cycle.drop()
        self.pipeline.clear()
        self._unparsed.clear()

    def data_received(self, data: bytes) -> None:
        """From asyncio."""
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        if self._deaf:
            self._overhear(data)
        # Bodies have no such line ends, as a rule: what follows the last one need not be searched.
        elif (
            not self._unparsed
            and len(self.pipeline) + data.count(_END_OF_HEAD, 0, data.rfind(b"\r") + 2) <= _MOST_WAITING
        ):
            self._parse(data)
        else:
            self._unparsed += data
            self._parse_on()

    def _parse_on(self) -> None:
        """Parse what was read, head by head, until as many requests wait as may; then reading pauses."""
        while self._unparsed and not self._deaf and len(self.pipeline) < _MOST_WAITING:
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
        self._excess += len(data)
        self._feed(data)
        if not self._deaf and self._excess > self._bounds.max_header_bytes:
            self._refuse(self._too_large())
        elif self._in_head or (self.timeout_keep_alive_task is None and self._is_idle()):
            self._arm(self._bounds.header_timeout)  # a head that is not whole, or nothing that is a request at all

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _overhear(self, data: bytes) -> None:
        self._unheard += len(data)
        if self._unheard > _LINGER_BYTES:
            self._close()

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as exc:
            if not self._deaf:
                self._feed_as_if_no_upgrade_were_offered(data[exc.args[0] :])
        except httptools.HttpParserError:
            self._refuse(self._fault or HttpRefused("The request is not valid HTTP."))

    def _feed_as_if_no_upgrade_were_offered(self, rest: bytes) -> None:
        """The parser takes an offer for the end of the request; it is told the head again, without the offer."""
        self._offered_upgrade = False
        method, version = self.parser.get_method(), self.parser.get_http_version()
        lines = [b"%s %s HTTP/%s\r\n" % (method, self.url, version.encode())]
        for name, value in self.headers:
            if name == b"connection":
                tokens = [token for token in value.split(b",") if token.strip().lower() not in _NO_UPGRADE]
                lines.append(b"connection: %s\r\n" % b",".join(tokens))
            elif name not in _NO_UPGRADE:
                lines.append(b"%s: %s\r\n" % (name, value))
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._feed(b"".join((*lines, b"\r\n", rest)))

    # -- what the parser finds --

    def on_message_begin(self) -> None:
        """From the parser."""
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        self.url = b""
        self.headers = []
        self.expect_100_continue = self._has_small_body = False
        self._in_head = True
        self._head_bytes = self._fields = self._excess = 0

    def on_url(self, url: bytes) -> None:
        """From the parser."""
        self.url += url
        self._head_bytes += len(url)
        if self._head_bytes > self._bounds.max_header_bytes:
            self._reject(self._too_large())

    def on_header(self, name: bytes, value: bytes) -> None:
        """From the parser; also for the fields of a trailer, which are counted and not taken for the head's."""
        fields = self._fields = self._fields + 1
        size = self._head_bytes = self._head_bytes + len(name) + len(value) + _FIELD_OVERHEAD
        if size > self._bounds.max_header_bytes or fields > self._bounds.max_headers:
            self._reject(self._too_large())
        if self._in_head:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """From the parser. What is raised here ends the parsing."""
        self._in_head = False
        self._excess = 0
        version = self.parser.get_http_version()
        if fault := self._ambiguity(version):
            self._reject(fault)
        if self.parser.should_upgrade():
            self._offered_upgrade = True
            return
        if self._timer is not None:
            self._disarm()
        waiting = self.cycle is not None and not self.cycle.response_complete
        self.cycle = self._cycle(version)
        self._reusable = self.cycle.keep_alive
        self.cycle.keep_alive = self._reusable and self._has_small_body
        if waiting:  # an earlier request of the same connection is being answered
            self.pipeline.appendleft((self.cycle, self.app))
        else:
            self._start_asgi_task(self.cycle, self.app)
        self._in_body = True

    def _cycle(self, version: str) -> Cycle:
        """The request whose head is complete."""
        parser = self.parser
        path, raw_path, query = _target(self.url) if len(self.url) <= _SHORT_URL else _split(self.url)
        self.scope = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "method": parser.get_method().decode("ascii"),
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
        return Cycle(
            loop=self.loop,
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            # Who expects to be told to continue and is answered early may send its body or not: it could be either.
            keep_alive=version != "1.0" and parser.should_keep_alive() and not self.expect_100_continue,
            on_response=self.on_response_complete,
        )

    def on_body(self, body: bytes) -> None:
        """From the parser."""
        self._excess = max(0, self._excess - 2 * len(body) - _CHUNK_OVERHEAD)
        cycle = self.cycle
        if not cycle.response_complete:
            cycle.body += body
            if len(cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
            cycle.message_event.set()

    def on_message_complete(self) -> None:
        """From the parser."""
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
            self._disarm()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _too_large(self) -> ProxyError:
        most = f"{self._bounds.max_headers} header fields and {self._bounds.max_header_bytes} bytes of them"
        return HeadersTooLarge(f"A request may have {most}.")

    def _reject(self, fault: ProxyError) -> NoReturn:
        self._fault = fault
        raise _ParsingEnded

    def _ambiguity(self, version: str) -> ProxyError | None:
        """What is wrong with a head that the parser found nothing wrong with."""
        if version not in _VERSIONS:
            return HttpRefused("This server speaks HTTP/1.1.", status=HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
        if self.parser.get_method() in _NEVER:
            message = "This server neither opens connections nor echoes requests."
            return MethodNotAllowed(message, headers={"allow": _ALLOWED})
        hosts = []
        for name, value in self.headers:
            if name == b"host":
                hosts.append(value)
            elif name == b"content-length":
                self._has_small_body = int(value) <= _SMALL_BODY
            elif name == b"transfer-encoding" and (value.strip().lower() != b"chunked" or version == "1.0"):
                return HttpRefused("Of transfer codings only 'chunked' is understood.", status=501)
            elif name == b"expect":
                if value.lower() != b"100-continue":
                    return HttpRefused("Of expectations only '100-continue' is met.", status=417)
                self.expect_100_continue = True
        return _fault_of_host(hosts, version)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        assert isinstance(cycle, Cycle)  # noqa: S101 - there are no others
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    # -- the end of a response, and of a connection --

    def on_response_complete(self) -> None:
        """From the cycle."""
        if self._deaf or not (self._answering and self._answering.keep_alive):
            self.server_state.total_requests += 1
            self._end()
            return
        super().on_response_complete()
        if self._unparsed and not self.transport.is_closing():
            self._parse_on()
        if self._in_body and self.cycle.response_complete:  # the rest of a small body
            self._unset_keepalive_if_required()
            self._arm(self._bounds.linger)

    def shutdown(self) -> None:
        """uvicorn: the server stops. A request that is on its way in is not cut off: it is told so."""
        if self.cycle is not None and not self._in_head:
            self._reusable = False
            super().shutdown()

    def timeout_keep_alive_handler(self) -> None:
        """uvicorn: no further request came. A client that still takes what it was answered is not idle."""
        if not self.transport.get_write_buffer_size():
            super().timeout_keep_alive_handler()
            return
        if self._send_timer is None:
            self._start_send_timer()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _too_slow(self) -> None:
        self._timer = None
        if self._in_head and not self._deaf:
            self._refuse(RequestTimeout("The head of the request did not arrive in time."))
        else:
            self._close()

    def _refuse(self, error: ProxyError) -> None:
        """Read nothing more on this connection, and say why where there is room for an answer."""
        self._deaf = True
        self._disarm()
        cycle = self.cycle
        if self._in_body:
            cycle.leave()  # whoever reads this body has nothing more to expect
            if self.pipeline:
                return  # the request before is answered, and the connection ends with it
            if cycle.response_started:
                self._end()
                return
        elif cycle is not None and not cycle.response_complete:
            cycle.keep_alive = False  # the same
            return
        self._answer(error)

    def _answer(self, error: ProxyError) -> None:
        body = orjson.dumps(error.envelope())
        request_id = new_id()
        headers = [
            *self.server_state.default_headers,
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
            (b"x-request-id", request_id.encode()),
            *((name.encode(), value.encode()) for name, value in error.headers.items()),
        ]
        status = HTTPStatus(error.status)
        lines = [b"HTTP/1.1 %d %s" % (status, status.phrase.encode()), *(b": ".join(field) for field in headers)]
        self.transport.write(b"\r\n".join((*lines, b"", body)))
        self._observe("request.refused", request_id=request_id, status=error.status, error=error.code)
        self._end()

    def _end(self) -> None:
        """Nothing more is said on this connection."""
        if self._in_body or self._deaf:
            self._linger()
        else:
            self._close()

    def _linger(self) -> None:
        """Close in such a way that the answer is read: what the client is still sending is taken and thrown away."""
        self._deaf = True
        self._unparsed.clear()
        self.flow.make_room()
        if self.transport.can_write_eof():
            with suppress(OSError):  # it has gone, and asyncio does not know yet
                self.transport.write_eof()
        self._disarm()
        self._arm(self._bounds.linger)

    def _close(self) -> None:
        self.transport.close()
        if self.transport.get_write_buffer_size():
            self._start_send_timer()

    # -- timers --

    def _arm(self, seconds: float) -> None:
        """One deadline at a time; what is under way is not given more time by what comes in meanwhile."""
        if self._timer is None and not self.transport.is_closing():
            self._timer = self.loop.call_later(seconds, self._too_slow)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def pause_writing(self) -> None:
        """asyncio: more is waiting to be sent than the client takes."""
        super().pause_writing()
        self._start_send_timer()

    def resume_writing(self) -> None:
        """From asyncio."""
        super().resume_writing()
        self._stop_send_timer()

    def _start_send_timer(self) -> None:
        self._stop_send_timer()
        self._unsent = self.transport.get_write_buffer_size()
        self._send_timer = self.loop.call_later(self._bounds.send_timeout, self._still_unsent)

    def _stop_send_timer(self) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None

    def _still_unsent(self) -> None:
        """Nothing was taken in all this time, or something was and there is more, or no more."""
        self._send_timer = None
        left = self.transport.get_write_buffer_size()
        if left >= self._unsent:
            self.transport.abort()
        elif left:
            self._start_send_timer()
