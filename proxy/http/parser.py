"""HTTP/1.1 as its client writes and reads it. Pure: no socket, no clock.

A response is read strictly, as llhttp and nginx do it and h11 does not: what two readers could understand differently
(a Content-Length beside a Transfer-Encoding, a lone LF, a folded header) is a fault, for the next response on the
connection would begin where the reader believes that this one has ended.

    ResponseParser:   head --(1xx: again)--> counted | chunked --> trailers | until the end | no body --> complete
"""

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TypeAlias

import httpx
from msgspec import Struct

from proxy.http.fields import TOKEN, field_name, is_clean

Headers: TypeAlias = list[tuple[bytes, bytes]]
_State: TypeAlias = Callable[["ResponseParser", bytes, int, list[bytes]], int]

# Twice what Node takes for all headers, and eight times nginx's `proxy_buffer_size`; interim responses count as well.
MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 256
# A size has 16 digits, its extensions (which nobody has been seen to send) the rest.
MAX_CHUNK_LINE_BYTES = 1024

_VALUE = rb"[\t\x20-\x7e\x80-\xff]*"
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: (" + _VALUE + rb"))?")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;" + _VALUE + rb")?")
_LONGEST_LENGTH = 18  # digits
_IDLE = re.compile(rb"timeout=([0-9]{1,6})\b", re.IGNORECASE)
_REQUEST_LINE = re.compile(TOKEN + rb" [\x21-\x7e]+")
_REQUEST_HEADER = re.compile(TOKEN + rb": " + _VALUE)
_CR = ord("\r")
_BEGINNING = b"HTTP/1."
_NO_HEAD = "The head of the response cannot be read."
_NO_CHUNK = "The response's chunks cannot be read."
_FIRST_FINAL, _SWITCHING, _NO_CONTENT, _NOT_MODIFIED = 200, 101, 204, 304


class Head(Struct, frozen=True):
    """Status line and headers of a response; names in lower case."""

    status: int
    reason: bytes
    version: bytes
    headers: Headers


def request_head(method: bytes, target: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The head of a request.

    Raises:
        httpx.LocalProtocolError: it would hold more, or something else, than it says: a line break in a value, say.
    """
    line = method + b" " + target
    if not _REQUEST_LINE.fullmatch(line):
        raise httpx.LocalProtocolError(f"Illegal request line {line[:80]!r}")
    return b"%b HTTP/1.1\r\n%b\r\n" % (line, header_lines(headers))


def header_lines(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Headers as lines of a request's head. Raises `httpx.LocalProtocolError`, as `request_head` does."""
    lines = []
    for name, value in headers:
        line = name + b": " + value
        if not _REQUEST_HEADER.fullmatch(line):
            raise httpx.LocalProtocolError(f"Illegal header {name[:80]!r}")
        lines.append(line + b"\r\n")
    return b"".join(lines)


class ResponseParser:
    """Takes the bytes of one response in, however they are cut, and gives those of its body out.

    Feed it until it is `complete`; where the connection ends before, tell it with `end`.

    Args:
        to_head: the request was HEAD, so that no body follows, whatever the headers say.

    Raises:
        httpx.RemoteProtocolError: this is no HTTP/1.1, or not read by everybody in the same way.
    """

    __slots__ = ("_head_bytes", "_left", "_rest", "_state", "_to_head", "complete", "head", "idle_seconds", "reusable")

    def __init__(self, *, to_head: bool = False) -> None:
        self.head: Head | None = None
        self.complete = False
        self.reusable = False  # whether another request may follow on this connection, once this response is complete
        self.idle_seconds: int | None = None  # how long the server says that it keeps an idle connection
        self._to_head = to_head
        # Plain functions: a bound method kept here would be a cycle, which only the garbage collector ends.
        self._state: _State = ResponseParser._in_head
        self._rest = b""
        self._left = 0
        self._head_bytes = 0

    def feed(self, data: bytes, pieces: list[bytes]) -> None:
        """Take what has come, and put what of it is the body's behind `pieces`."""
        if self._rest:
            data, self._rest = self._rest + data, b""
        at, size = 0, len(data)
        while at < size and not self.complete:
            at = self._state(self, data, at, pieces)
        if at < size:
            self.reusable = False  # somebody answers what was not asked

    def end(self) -> None:
        """The connection has ended.

        Raises:
            httpx.RemoteProtocolError: in the middle of the response.
        """
        if self.head is None:
            raise httpx.RemoteProtocolError("Server disconnected without sending a response.")
        if self._state is not ResponseParser._until_the_end:
            raise httpx.RemoteProtocolError("Server disconnected in the middle of its response.")
        self.complete = True

    def _in_head(self, data: bytes, at: int, _: list[bytes]) -> int:
        if not data.startswith(_BEGINNING[: len(data) - at], at):
            raise httpx.RemoteProtocolError("The response is not HTTP/1.1.")
        end = data.find(b"\r\n\r\n", at)
        length = (end + 4 if end >= 0 else len(data)) - at
        if self._head_bytes + length > MAX_HEAD_BYTES:
            raise httpx.RemoteProtocolError(f"The response has more than {MAX_HEAD_BYTES} bytes of headers.")
        if end < 0:
            line = data.find(b"\n", at)
            if line > 0 and data[line - 1] != _CR:
                raise httpx.RemoteProtocolError(_NO_HEAD)
            return self._keep(data, at)
        self._head_bytes += length
        head = _parsed(data[at:end])
        if head.status == _SWITCHING:
            raise httpx.RemoteProtocolError("The server switches protocols, unasked.")
        if head.status >= _FIRST_FINAL:
            self.head = head
            self._begin_body(head)
        return end + 4

    def _begin_body(self, head: Head) -> None:
        fields = dict(head.headers)
        self.reusable = _keeps_alive(head, says=b"connection" in fields)
        if (says := fields.get(b"keep-alive")) and (hint := _IDLE.search(says)):
            self.idle_seconds = int(hint[1])
        if self._to_head or head.status in (_NO_CONTENT, _NOT_MODIFIED):
            self.complete = True
        elif b"transfer-encoding" in fields:
            codings = _joined(head.headers, b"transfer-encoding")
            if codings.lower() != b"chunked" or b"content-length" in fields:
                raise httpx.RemoteProtocolError("The response's length is said in a way that is not understood.")
            self.reusable = self.reusable and head.version == b"1"
            self._state = ResponseParser._in_chunk_line
        elif b"content-length" in fields:
            single = len(fields) == len(head.headers)  # no name stands twice
            self._left = _length([fields[b"content-length"]] if single else _values(head.headers, b"content-length"))
            self._state = ResponseParser._counted
            self.complete = not self._left
        else:
            self.reusable = False
            self._state = ResponseParser._until_the_end

    def _counted(self, data: bytes, at: int, pieces: list[bytes]) -> int:
        piece = data[at : at + self._left] if at or len(data) > self._left else data
        pieces.append(piece)
        self._left -= len(piece)
        self.complete = not self._left
        return at + len(piece)

    def _until_the_end(self, data: bytes, at: int, pieces: list[bytes]) -> int:
        pieces.append(data[at:] if at else data)
        return len(data)

    def _in_chunk_line(self, data: bytes, at: int, pieces: list[bytes]) -> int:
        end = data.find(b"\r\n", at, at + MAX_CHUNK_LINE_BYTES)
        if end < 0:
            return self._keep_line(data, at, MAX_CHUNK_LINE_BYTES)
        size = _chunk_size(data[at:end])
        at = end + 2
        if not size:
            self._state = ResponseParser._in_trailers
            return at
        end = at + size
        if data[end : end + 2] == b"\r\n":  # the whole chunk is here, as one event of a stream mostly is
            pieces.append(data[at:end])
            return end + 2
        self._left = size
        self._state = ResponseParser._in_chunk
        return at

    def _in_chunk(self, data: bytes, at: int, pieces: list[bytes]) -> int:
        piece = data[at : at + self._left]
        pieces.append(piece)
        self._left -= len(piece)
        if not self._left:
            self._state = ResponseParser._after_chunk
        return at + len(piece)

    def _after_chunk(self, data: bytes, at: int, _: list[bytes]) -> int:
        if data.startswith(b"\r\n", at):
            self._state = ResponseParser._in_chunk_line
            return at + 2
        if data[at:] == b"\r":
            return self._keep(data, at)
        raise httpx.RemoteProtocolError("A chunk of the response is longer than it says.")

    def _in_trailers(self, data: bytes, at: int, _: list[bytes]) -> int:
        """Trailers say nothing that we would pass on; they only have to end."""
        end = data.find(b"\r\n", at)
        if end < 0:
            return self._keep_line(data, at, MAX_HEAD_BYTES - self._head_bytes)
        self._head_bytes += end - at
        if self._head_bytes > MAX_HEAD_BYTES or b"\n" in data[at:end]:
            raise httpx.RemoteProtocolError("The response's trailers are too long, or none.")
        self.complete = end == at
        return end + 2

    def _keep_line(self, data: bytes, at: int, most: int) -> int:
        """What cannot be read yet: the beginning of a line."""
        if data.find(b"\n", at) >= 0 or len(data) - at > most:
            raise httpx.RemoteProtocolError(_NO_CHUNK)
        return self._keep(data, at)

    def _keep(self, data: bytes, at: int) -> int:
        self._rest = data[at:]
        return len(data)


def _parsed(block: bytes) -> Head:
    """A head, without the line end of its last line."""
    first, *lines = block.split(b"\r\n")
    status = _status(first)
    if len(lines) > MAX_HEADERS:
        raise httpx.RemoteProtocolError(f"The response has more than {MAX_HEADERS} headers.")
    headers: Headers = []
    for line in lines:
        said, colon, value = line.partition(b":")
        name = field_name(said)
        if name is None or not colon:
            raise httpx.RemoteProtocolError(_NO_HEAD)
        headers.append((name, value.strip(b" \t")))
    if not is_clean(block, line_ends=len(lines)):
        raise httpx.RemoteProtocolError(_NO_HEAD)
    return Head(*status, headers)


@lru_cache(32)
def _status(line: bytes) -> tuple[int, bytes, bytes]:
    """Status, reason and version of a status line; servers have few of them."""
    match = _STATUS.fullmatch(line)
    if match is None:
        raise httpx.RemoteProtocolError(_NO_HEAD)
    return int(match[2]), match[3] or b"", match[1]


@lru_cache(1024)  # a stream's chunks are of few sizes
def _chunk_size(line: bytes) -> int:
    """The size that the line before a chunk says."""
    match = _CHUNK.fullmatch(line)
    if match is None:
        raise httpx.RemoteProtocolError(_NO_CHUNK)
    return int(match[1], 16)


def _keeps_alive(head: Head, *, says: bool) -> bool:
    if not says:
        return head.version == b"1"
    tokens = {token.strip().lower() for token in _joined(head.headers, b"connection").split(b",")}
    return b"close" not in tokens and (head.version == b"1" or b"keep-alive" in tokens)


def _length(said: list[bytes]) -> int:
    """The length that all of these say: said twice alike it is still one length (RFC 9110, section 8.6)."""
    if len(said) == 1 and said[0].isdigit() and len(said[0]) <= _LONGEST_LENGTH:
        return int(said[0])
    values = {value.strip() for value in b",".join(said).split(b",")}
    value = values.pop()
    if values or not value.isdigit() or len(value) > _LONGEST_LENGTH:
        raise httpx.RemoteProtocolError("The response's Content-Length cannot be read.")
    return int(value)


def _values(headers: Headers, wanted: bytes) -> list[bytes]:
    return [value for name, value in headers if name == wanted]


def _joined(headers: Headers, wanted: bytes) -> bytes:
    return b",".join(_values(headers, wanted))
