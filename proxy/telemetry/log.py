"""The log: one line on standard error for each request, turn and tool call, as JSON or as text for people.

Events go from `LogObserver` to the stream by a path of our own: structlog's takes 4 % of a request. The lines of
libraries come through its formatter in the same form. Every secret of the configuration is
masked in every line. An exception is shown by its type and place, since its message may quote a request; message
content is written only with `telemetry.log_content`.
"""

import asyncio
import json
import logging
import os
import re
import stat
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Any, Final, TextIO, TypeAlias

import orjson
import structlog

from proxy.config.model import TelemetryConfig
from proxy.config.redaction import redactor
from proxy.kit import request_context
from proxy.kit.terminal import style_of
from proxy.telemetry.console import Console
from proxy.telemetry.events import Content, Handler, level_of

Line: TypeAlias = Mapping[str, Any]

_JSON: Final = orjson.OPT_UTC_Z
_NOT_ASCII: Final = re.compile(r"[^ -~]")
# A pipe, which several workers may share, keeps this many bytes of one write together (pipe(7), PIPE_BUF).
_PIPE_BYTES: Final = 4096
_INTEGER_BITS: Final = 63  # of a number that orjson writes, whatever its sign
_now = partial(datetime.now, UTC)


class LineStream:
    """Takes whole lines, from any thread, and writes those of one iteration of the event loop together.

    A system call for each line costs more than the line. Lines that cannot be written are lost: a full disk or a closed
    pipe is no reason to refuse requests.

    Args:
        stream: where the lines go.
        mask: removes secrets from a text of one or more lines.

    Attributes:
        stream: where the lines go.
    """

    def __init__(self, stream: TextIO, mask: Callable[[str], str] = str) -> None:
        self.stream = stream
        self._mask = mask
        self._is_file = _is_file(stream)
        self._waiting: deque[str] = deque()
        self._writing = threading.Lock()
        self._scheduled_on: asyncio.AbstractEventLoop | None = None

    def write(self, line: str) -> int:
        """Write a line with its end: after this iteration of the event loop, or at once where none is running."""
        self._waiting.append(line)
        if self._scheduled_on is None or not self._scheduled_on.is_running():
            loop = asyncio._get_running_loop()  # noqa: SLF001 - the public function raises where there is none
            if loop is None:
                self._write_out()
            else:
                self._scheduled_on = loop
                loop.call_soon(self._write_out)
        return len(line)

    def flush(self) -> None:
        """Do nothing: `write` flushes. Loggers call this method after each line."""

    def _write_out(self) -> None:
        self._scheduled_on = None
        lines: list[str] = []
        with suppress(IndexError):  # that was the last line, or another thread has just taken it
            while True:
                lines.append(self._waiting.popleft())
        for piece in ["".join(lines)] if self._is_file else _in_pieces(lines):
            with suppress(OSError, ValueError), self._writing:
                self.stream.write(self._mask(piece))
                self.stream.flush()


@dataclass(frozen=True, slots=True)
class _Output:
    """Where lines are written, and how.

    Attributes:
        level: events below it are not written.
        content: whether message content and the messages of exceptions are written.
        render: makes a line's text, without its end; empty where nothing is to be written.
        stream: takes the lines.
        hides: whether events of a name are left out, whatever their level.
    """

    level: int
    content: bool
    render: Callable[[Line], str]
    stream: LineStream
    hides: Callable[[str], bool]

    def text(self, level: str, event: object, fields: Line) -> str:
        """The text of a line: time, level and event, then the fields of the request, then those of the event."""
        if "exc_info" in fields:
            style = _exception_in_full if self.content else exception_without_message
            fields = structlog.processors.ExceptionRenderer(style)(None, "", {**fields})
        if self.content:
            fields = {name: value.text() if isinstance(value, Content) else value for name, value in fields.items()}
        if None in fields.values():
            fields = {name: value for name, value in fields.items() if value is not None}
        # orjson writes the time, in a quarter of the time that `isoformat` takes.
        line = {"timestamp": _now(), "level": level, "event": event, **request_context.fields.get({}), **fields}
        return self.render(line)

    def foreign_text(self, _: object, level: str, fields: MutableMapping[str, Any]) -> str:
        """The text of a line of a library, or of a tool that logs; a processor of structlog."""
        return self.text(level, fields.pop("event", None), fields)


_output: _Output | None = None  # as `configure` has set it up


def configure(config: TelemetryConfig, *, secrets: Iterable[str] = (), stream: TextIO | None = None) -> None:
    """Set up the log of this process, and with it structlog and the standard library's logging."""
    global _output  # noqa: PLW0603 - like the standard library's logging, the log is one per process
    stream = stream or sys.stderr
    level = logging.getLevelNamesMapping()[config.log_level.upper()]
    redact = redactor(secrets)
    lines: Any = LineStream(stream, redact)  # as much of a text stream as logging needs
    if config.log_format == "console" or (config.log_format == "auto" and stream.isatty()):
        console = Console(style_of(stream), details=level <= logging.DEBUG, redact=redact)
        _output = output = _Output(level, config.log_content, console, lines, console.hides)
    else:
        _output = output = _Output(level, config.log_content, _json, lines, lambda _: False)
    structlog.configure(
        processors=[output.foreign_text],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(lines),
    )
    handler = logging.StreamHandler(lines)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, output.foreign_text]
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    # Debug lines of httpx and asyncio hold URLs and headers.
    root.setLevel(max(level, logging.WARNING))
    logging.getLogger("mcp").setLevel(logging.CRITICAL)  # its tracebacks quote servers; faults are events of our own
    logging.getLogger("uvicorn.error").setLevel(max(level, logging.WARNING))


def reconfigure(config: TelemetryConfig, *, secrets: Iterable[str]) -> None:
    """Set up the log anew, on the stream that it has; without effect where `configure` has not been called."""
    if _output is not None:
        configure(config, secrets=secrets, stream=_output.stream.stream)


class LogObserver:
    """Writes every event as one line, at its level of `events.EVENTS`. Implements `ports.Observer` and `Subscriber`.

    In a process that has not called `configure`, events go to structlog as the process has configured that.
    """

    def __call__(self, event: str, /, **fields: object) -> None:
        """Write an event to the log."""
        handler = self.handler(event)
        if handler is not None:
            handler(fields)

    def handles(self, event: str) -> bool:
        """Whether events of that name are written at the configured level."""
        return self.handler(event) is not None

    def handler(self, event: str) -> Handler | None:
        """A function that writes events of that name; None: their level is not written."""
        level, output = level_of(event), _output
        if output is None:
            return lambda fields: structlog.get_logger().log(level, event, **fields)
        if level < output.level or output.hides(event):
            return None
        name = logging.getLevelName(level).lower()

        def write(fields: Line) -> None:
            if text := output.text(name, event, fields):
                output.stream.write(f"{text}\n")

        return write


def exception_without_message(exc_info: structlog.typing.ExcInfo) -> str:
    """An exception, its causes and members, by their types and places: `ZeroDivisionError`, `at run.py:12 in step`."""
    return "\n".join(_types_and_places(exc_info[1], set()))


def _types_and_places(exc: BaseException | None, seen: set[int]) -> list[str]:
    if exc is None or id(exc) in seen:
        return []
    seen.add(id(exc))
    kind = f"{type(exc).__module__}.{type(exc).__qualname__}".removeprefix("builtins.")
    lines = [kind, *_places(exc.__traceback__)]
    for inner in getattr(exc, "exceptions", ()):
        lines += [f"  {line}" for line in _types_and_places(inner, seen)]
    cause = exc.__cause__ or (None if exc.__suppress_context__ else exc.__context__)
    if earlier := _types_and_places(cause, seen):
        lines += ["from", *earlier]
    return lines


def _places(tb: TracebackType | None) -> list[str]:
    return [f"  at {frame.filename}:{frame.lineno} in {frame.name}" for frame in traceback.extract_tb(tb)]


def _exception_in_full(exc_info: structlog.typing.ExcInfo) -> str:
    return "".join(traceback.format_exception(*exc_info)).rstrip()


def _json(line: Line) -> str:
    """A line as JSON. What a terminal would not show as itself is escaped: turned text, line breaks of Unicode, C1."""
    try:
        text = orjson.dumps(line, str, _JSON).decode()
    except orjson.JSONEncodeError:
        text = _odd_as_json(line)
    return text if text.isascii() or text.isprintable() else _NOT_ASCII.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    return character if character.isprintable() else json.dumps(character)[1:-1]


def _odd_as_json(line: Line) -> str:
    """A line as JSON that orjson does not write without help."""
    with suppress(orjson.JSONEncodeError):
        return orjson.dumps(line, str, _JSON | orjson.OPT_NON_STR_KEYS).decode()  # slower
    # A field is nested too deep, or holds half of a surrogate pair: an upstream chooses some of them.
    return orjson.dumps({name: _readable(value) for name, value in line.items()}, option=_JSON).decode()


def _readable(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, int) and value.bit_length() > _INTEGER_BITS:
        return str(value)
    return value if isinstance(value, (float, int, datetime)) else "(unreadable)"


def _in_pieces(lines: Iterable[str]) -> Iterator[str]:
    """Lines joined to pieces that a pipe keeps together, as far as the lines are short enough."""
    piece, piece_bytes = "", 0
    for line in lines:
        line_bytes = len(line.encode("utf-8", "surrogatepass"))  # a library's line may hold half of an emoji
        if piece and piece_bytes + line_bytes > _PIPE_BYTES:
            yield piece
            piece, piece_bytes = "", 0
        piece += line
        piece_bytes += line_bytes
    if piece:
        yield piece


def _is_file(stream: TextIO) -> bool:
    """Whether the stream is an ordinary file, which keeps every write in one piece."""
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (AttributeError, OSError, ValueError):  # it is not the operating system's
        return False
