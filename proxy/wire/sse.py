"""Server-sent events: bytes to events, and events to bytes.

Lines end with LF, CRLF or CR only, as in the standard. (`str.splitlines` also splits at U+2028 and others, which may be
unescaped inside JSON strings.) An event keeps its original bytes, so that a relay need not serialize it again.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec import Struct, field

from proxy.wire.errors import UpstreamError
from proxy.wire.rawjson import dumps_answer

DONE_DATA = b"[DONE]"
"""The data of the event that ends a stream; nothing that follows it counts."""

DONE = b"data: %b\n\n" % DONE_DATA
KEEPALIVE = b": keep-alive\n\n"

KEEPALIVE_BETWEEN_IDS = b": keep-alive\n"
"""The comment for a stream whose events carry an `id`.

There OpenAI's SDK for Python takes each blank line for the end of an event, and fails because that event has no data.
Therefore the line of the comment belongs to the next event.
"""

# An event holds at most one chunk. The longest legitimate chunk is a whole tool call without `tool_stream`, whose
# arguments are bounded by the model's output of 131,072 tokens, far below this. A larger event would keep a worker from
# everybody else for more than 80 ms.
MAX_EVENT_BYTES = 6 * 1024 * 1024

# A CR at the end of the buffer may be half of a CRLF; then the LF is a harmless empty line before the next event.
_EVENT_END = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r(?!\n))")
_LONGEST_END = 4
_DATA = b"data: "
_LINE_ENDS = 2  # of an event of one line
_BLANK_LINE = b"\n\n"
_SHORTEST = len(_DATA) + _LINE_ENDS  # an event with empty data
_CR = ord("\r")  # searching for an integer takes a tenth of the time of searching for bytes
_BOM = b"\xef\xbb\xbf"
_FIELDS = (b"data", b"event", b"id", b"retry", b"")  # a comment is a field without a name
_LONGEST_FIELD = len(b"event:")
_BEGINNING = 64  # the bytes of a body by which a stream is recognised


def begins_stream(data: bytes) -> bool | None:
    """Whether the body of a response that begins with `data` is a stream of events; None: these bytes are too few.

    Servers and gateways call their streams text/plain, application/json, application/octet-stream, or nothing at all.
    """
    if data[:1] == b"{":  # as most whole answers do
        return False
    begin = data[:_BEGINNING].removeprefix(_BOM).lstrip()
    if begin.startswith((b"{", b"[", b"<")):
        return False
    if len(begin) < _LONGEST_FIELD:
        return None if len(data) < _BEGINNING else False
    return begin.split(b":", 1)[0] in _FIELDS


class SseEvent(Struct, frozen=True):
    """An event: its bytes as received, its `data` lines joined, and its type, `message` by default."""

    raw: bytes
    data: bytes
    type: str = "message"


class Decoder(Struct):
    """Splits a byte stream into events, however the bytes are cut.

    Blocks without data are not events. Comments are part of the bytes of the next event; other blocks, such as a lone
    `event: ping` or an empty `data:`, are left out, because clients take them for events whose data they cannot parse.

    Attributes:
        max_event_bytes: the most bytes of an event.
        has_ids: whether any event so far has an `id`. From then on no blank line but those after events is part of the
            bytes: see `KEEPALIVE_BETWEEN_IDS`.
        note_ids: called before the first event with an `id`, and possibly again.

    Raises:
        UpstreamError: an event is longer than `max_event_bytes`.
    """

    max_event_bytes: int = MAX_EVENT_BYTES
    has_ids: bool = False
    note_ids: Callable[[], None] = lambda: None
    _buffer: bytearray = field(default_factory=bytearray)
    _searched: int = 0
    _at_start: bool = True
    _carried: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> Iterable[SseEvent]:
        """The events that `data` completes."""
        if not self._buffer and not self._carried and len(data) <= self.max_event_bytes:
            # Slices, here and in the readers: `startswith` and `endswith` would add 2.8 % to a chunk's instructions.
            is_plain = data[:6] == _DATA and data[-2:] == _BLANK_LINE and _CR not in data
            if is_plain and _SHORTEST < len(data) == data.find(b"\n") + _LINE_ENDS:  # one event, as in most reads
                self._at_start = False
                return [SseEvent(data, data[6:-2])]
            events = _whole_events(data) if is_plain else []
            if events:
                self._at_start = False
                return events
        return self._feed(data)

    def _feed(self, data: bytes) -> Iterator[SseEvent]:
        self._buffer += data
        if self._at_start and len(self._buffer) >= len(_BOM):
            self._at_start = False
            if self._buffer.startswith(_BOM):
                del self._buffer[: len(_BOM)]
        begin = 0
        while end := _EVENT_END.search(self._buffer, max(begin, self._searched)):
            raw = bytes(self._buffer[begin : end.end()])
            begin = self._searched = end.end()
            if (event := self._parse(raw)) is not None:
                yield event
        del self._buffer[:begin]
        self._searched = max(0, len(self._buffer) - _LONGEST_END + 1)
        if len(self._buffer) + len(self._carried) > self.max_event_bytes:
            raise UpstreamError(f"The upstream sent an event of more than {self.max_event_bytes} bytes.")

    def close(self) -> Iterator[SseEvent]:
        """The last event, if the stream ended without the empty line after it, as the streams of some servers do."""
        event = self._parse(bytes(self._buffer) + b"\n\n")
        self._buffer.clear()
        if event is not None:
            yield event

    def _parse(self, raw: bytes) -> SseEvent | None:
        """The event in a block, which ends with an empty line; None: it has no data."""
        data: list[bytes] = []
        kind = "message"
        is_comment = True
        for line in raw.splitlines():
            name, _, value = line.partition(b":")
            is_comment = is_comment and not name
            value = value.removeprefix(b" ")
            if name == b"data":
                data.append(value)
            elif name == b"event":
                kind = value.decode("utf-8", "replace")
            elif name == b"id":
                self.note_ids()
                self.has_ids = True
            elif name == b"error":  # how gpustack reports a failure in a stream: a line of JSON outside of any event
                data, kind = [value], "error"
                break
            elif line.startswith(b"{") and not data:  # an error in the place of events
                data, kind = [raw.strip()], "error"
                break
        if any(data):
            return SseEvent(self._with_carried(raw), b"\n".join(data), kind)
        if is_comment:
            self._carried += raw
        return None

    def _with_carried(self, raw: bytes) -> bytes:
        """The bytes of an event, after the comments before it."""
        comments = bytes(self._carried)
        self._carried.clear()
        if self.has_ids:
            comments = b"".join([line + b"\n" for line in comments.splitlines() if line])
            raw = raw.lstrip(b"\r\n")
        return comments + raw


def _whole_events(data: bytes) -> list[SseEvent]:
    """The events of a read without CR, if it consists of complete events of one `data: ` line each; else none."""
    events: list[SseEvent] = []
    for line in data[:-2].split(b"\n\n"):
        if len(line) <= len(_DATA) or not line.startswith(_DATA):
            return []
        events.append(SseEvent(line + b"\n\n", line[len(_DATA) :]))
    return events if data.count(b"\n") == _LINE_ENDS * len(events) else []


def encode(payload: Any) -> bytes:
    """An event with `payload` as JSON. Raises `UpstreamError` if it is nested too deep to be written."""
    return b"data: %b\n\n" % dumps_answer(payload)
