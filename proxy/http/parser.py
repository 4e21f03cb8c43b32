"""HTTP/1.1 as bytes: writes the heads of requests, and parses responses. Pure: no socket, no clock.

llhttp, Node's parser (through httptools), parses heads and chunks. It refuses messages that two parsers could read
differently (a Content-Length beside a Transfer-Encoding, a lone LF, a folded header), because a wrong end of a response
would become the beginning of the next. This module checks the rest: the size of a head, the framing of a body, the
bytes between chunks, and bytes after a response.

    ResponseParser:   head --(1xx: again)--> counted | chunked | until the end | no body --> complete
"""

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

import httpx
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from msgspec import Struct

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]

# Four times Node's limit for all headers (`--max-http-header-size`), eight times nginx's `proxy_buffer_size`. The
# heads of interim responses count as well.
MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 256
# The bytes between two pieces of a body: sizes of chunks, extensions (no provider has been seen to send any), trailers.
MAX_FRAMING_BYTES = 1024
_FRAMING_OF_A_CHUNK = 128  # the additional bytes for each chunk, if many arrive at once
_LAST_LINE_ENDS = 4  # the bytes after the last chunk and the trailers; llhttp skips further line ends

TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
"""The name of a header (RFC 9110, section 5.6.2), as a regular expression."""

_VALUE = rb"[\t\x20-\x7e\x80-\xff]*"

HARMLESS = bytes({ord("\t"), *range(0x20, 0x7F), *range(0x80, 0x100)})
"""The bytes that may stand in the value of a header."""

_REQUEST_LINE = re.compile(TOKEN + rb" [\x21-\x7e]+")
_REQUEST_HEADER = re.compile(TOKEN + rb": " + _VALUE)
_IDLE = re.compile(rb"timeout=([0-9]{1,6})\b", re.IGNORECASE)
_VERSIONS = ("1.0", "1.1")
_LOWEST, _SWITCHING, _FIRST_FINAL, _NO_CONTENT, _NOT_MODIFIED = 100, 101, 200, 204, 304


def request_head(method: str, target: bytes, headers: Headers) -> bytes:
    """The head of a request.

    Raises:
        httpx.LocalProtocolError: a part is not valid, such as a value with a line break.
    """
    line = method.encode("ascii") + b" " + target
    if not _REQUEST_LINE.fullmatch(line):
        raise httpx.LocalProtocolError(f"Illegal request line {line[:80]!r}")
    return b"%b HTTP/1.1\r\n%b\r\n" % (line, header_lines(headers))


def header_lines(headers: Headers) -> bytes:
    """Headers as lines of a request's head. Raises `httpx.LocalProtocolError`, as `request_head` does."""
    lines = []
    for name, value in headers:
        line = name + b": " + value
        if not _REQUEST_HEADER.fullmatch(line):
            raise httpx.LocalProtocolError(f"Illegal header {name[:80]!r}")
        lines.append(line + b"\r\n")
    return b"".join(lines)


class Head(Struct, frozen=True):
    """The status line and the headers of a response, with names in lower case."""

    status: int
    reason: bytes
    version: str  # "1.0" or "1.1"
    headers: Headers


class _Message(Struct, eq=False):
    """The callbacks for httptools. They do not refer to the parser: a cycle would wait for the garbage collector."""

    reason: list[bytes]
    on_status: Callable[[bytes], None]
    on_body: Callable[[bytes], None]
    headers: list[tuple[bytes, bytes]] = []
    is_complete: bool = False

    def on_message_begin(self) -> None:
        """Stop parsing at the first byte after a complete message."""
        if self.is_complete:
            raise httpx.RemoteProtocolError("Bytes follow the response.")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, or a trailer."""
        self.headers.append((name.lower(), value.strip(b" \t")))

    def on_message_complete(self) -> None:
        """Handle the end of a message."""
        self.is_complete = True


class ResponseParser:
    """Parses one response from bytes in any pieces, and collects the pieces of its body.

    `feed` is called until the response is `complete`, and `end` if the connection ends before.

    Args:
        is_head_request: whether the request was HEAD, so that no body follows, even if headers announce one.

    Attributes:
        head: status and headers; None until all of them have arrived.
        pieces: the pieces of the body that the reader has not taken yet.
        complete: whether the response has ended.
        reusable: whether the connection may have another request once the response is complete.
        idle_seconds: how long the server keeps an idle connection; None if unknown.

    Raises:
        httpx.RemoteProtocolError: from both methods, if the bytes are not HTTP/1.1 or are ambiguous.
    """

    __slots__ = (
        "_framing_bytes", "_head_bytes", "_is_chunked", "_is_head_request", "_left", "_llhttp", "_message", "_tail",
        "complete", "head", "idle_seconds", "pieces", "reusable",
    )  # fmt: skip

    def __init__(self, *, is_head_request: bool = False) -> None:
        self.head: Head | None = None
        self.pieces: list[bytes] = []
        self.complete = False
        self.reusable = False
        self.idle_seconds: int | None = None
        self._is_head_request = is_head_request
        reason: list[bytes] = []
        self._message = _Message(reason, on_status=reason.append, on_body=self.pieces.append)
        self._llhttp = HttpResponseParser(self._message)
        # Old servers pad the sizes of chunks.
        self._llhttp.set_dangerous_leniencies(lenient_spaces_after_chunk_size=True)
        self._head_bytes = 0  # including the heads of interim responses
        self._is_chunked = False
        self._left: int | None = None  # the missing bytes of a body with a Content-Length
        self._tail = b""  # at least the last bytes of the head, or of the chunked body
        self._framing_bytes = 0  # since the last piece of a chunked body

    def feed(self, data: bytes) -> None:
        """Parse the next bytes of the response."""
        try:
            if self.head is None:
                data = self._feed_head(data)
            if not self._is_chunked:
                piece = data[: self._left]
                if piece:
                    self.pieces.append(piece)
                if self._left is not None:
                    self._left -= len(piece)
                    self.complete = not self._left
                    # Bytes beyond the length belong to no request.
                    self.reusable = self.reusable and len(piece) == len(data)
                return
            known = len(self.pieces)
            try:
                self._llhttp.feed_data(data)
            except HttpParserError:
                if not self._message.is_complete:
                    raise
                self.reusable = False  # the further bytes belong to no request
        except (HttpParserError, HttpParserUpgrade) as exc:
            raise httpx.RemoteProtocolError(f"The response cannot be read: {exc}") from None
        came = self.pieces[known:] if known else self.pieces
        size = len(data)
        self._framing_bytes = size - sum(map(len, came)) + (0 if came else self._framing_bytes)
        if self._framing_bytes > MAX_FRAMING_BYTES + _FRAMING_OF_A_CHUNK * len(came):
            raise httpx.RemoteProtocolError("The response has too many bytes between its chunks.")
        self._tail = data if size > _LAST_LINE_ENDS else self._tail[-_LAST_LINE_ENDS:] + data
        if self._message.is_complete:
            self.complete = True
            self.reusable = self.reusable and bool(self._tail[-_LAST_LINE_ENDS - 1 :].strip(b"\r\n"))

    def end(self) -> None:
        """Handle the end of the connection. Raises `httpx.RemoteProtocolError` if the response is not complete."""
        if self.head is None:
            raise httpx.RemoteProtocolError("Server disconnected without sending a response.")
        if self._is_chunked or self._left is not None:
            raise httpx.RemoteProtocolError("Server disconnected in the middle of its response.")
        self.complete = True

    def _feed_head(self, data: bytes) -> bytes:
        """Parse heads up to the head of the final response, and return the bytes after it."""
        message = self._message
        while data:
            if not self._tail and not data.startswith(b"H"):  # llhttp would skip empty lines
                raise httpx.RemoteProtocolError("The response is not HTTP/1.1.")
            known = self._tail + data
            end = known.find(b"\r\n\r\n")
            size = len(data) if end < 0 else end + 4 - len(self._tail)
            self._head_bytes += size
            if self._head_bytes > MAX_HEAD_BYTES:
                raise httpx.RemoteProtocolError(f"The response has more than {MAX_HEAD_BYTES} bytes of headers.")
            self._llhttp.feed_data(data[:size])
            if end < 0:
                self._tail = known[-3:]
                break
            data, self._tail = data[size:], b""
            status, version = self._llhttp.get_status_code(), self._llhttp.get_http_version()
            head = Head(status, b"".join(message.reason), version, message.headers)
            message.headers, message.is_complete = [], False
            message.reason.clear()
            if len(head.headers) > MAX_HEADERS:
                raise httpx.RemoteProtocolError(f"The response has more than {MAX_HEADERS} headers.")
            if status == _SWITCHING:
                raise httpx.RemoteProtocolError("The server switches protocols, unasked.")
            if status < _LOWEST or version not in _VERSIONS or head.reason.translate(None, HARMLESS):
                raise httpx.RemoteProtocolError("The response is not HTTP/1.1.")
            if status >= _FIRST_FINAL:
                self.head = head
                self._begin_body(head)
                return data
        return b""

    def _begin_body(self, head: Head) -> None:
        """Decide how the body ends (RFC 9112, section 6.3), and whether the connection may be kept."""
        fields = dict(head.headers)
        if len(fields) < len(head.headers):
            for name in fields:
                fields[name] = b",".join([value for known, value in head.headers if known == name])
        self.reusable = head.version == "1.1"
        if options := fields.get(b"connection"):
            tokens = options.lower().translate(None, b" \t").split(b",")
            self.reusable = b"close" not in tokens and (self.reusable or b"keep-alive" in tokens)
        if (options := fields.get(b"keep-alive")) and (hint := _IDLE.search(options)):
            self.idle_seconds = int(hint[1])
        if self._is_head_request or head.status in (_NO_CONTENT, _NOT_MODIFIED):
            self._left = 0
        elif codings := fields.get(b"transfer-encoding"):
            if codings.lower() != b"chunked":
                raise httpx.RemoteProtocolError("The response's transfer coding is not understood.")
            self._is_chunked = True
            self.reusable = self.reusable and head.version == "1.1"
        elif length := fields.get(b"content-length"):
            self._left = int(length)
        else:
            self.reusable = False
        self.complete = self._left == 0
