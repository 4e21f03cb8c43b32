"""structlog: JSON lines on standard error, one per request, per turn and per tool call.

Never a secret, and message content only with `telemetry.log_content`: what is logged is counts, durations, names and
ids. uvicorn's own lines come out in the same form. The last line of defence is here as well: an exception is told by
its type and its place, not in its own words, which may quote what it was given; and every secret of the configuration
is masked in every line.
"""

import logging
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Any, TextIO

import orjson
import structlog

from proxy import request_context
from proxy.config import TelemetryConfig
from proxy.ports import Content
from proxy.telemetry.events import level_of
from proxy.telemetry.lines import TurnStream
from proxy.telemetry.observer import Handler
from proxy.telemetry.redact import redactor

_JSON = orjson.OPT_UTC_Z
_JSON_LINE = _JSON | orjson.OPT_APPEND_NEWLINE
_now = partial(datetime.now, UTC)


def configure(config: TelemetryConfig, *, secrets: Iterable[str] = (), stream: TextIO | None = None) -> None:
    """Set structlog and the standard library's logging up, once per process.

    Args:
        config: level and format.
        secrets: what must not stand in any line, wherever it came from.
        stream: standard error unless given.
    """
    stream = stream or sys.stderr
    level = logging.getLevelNamesMapping()[config.log_level.upper()]
    complete = _Completed(content=config.log_content)
    renderer = _as_json if config.log_format == "json" else _for_people(stream)
    lines: Any = TurnStream(stream, redactor(secrets))  # as much of a text stream as a logger needs
    structlog.configure(
        processors=[complete, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: lines,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(lines)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
            foreign_pre_chain=[complete],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    # httpx and asyncio are libraries: their debug lines hold URLs and headers.
    root.setLevel(max(level, logging.WARNING))
    logging.getLogger("mcp").setLevel(logging.CRITICAL)  # its tracebacks hold what servers said; we tell of the fault
    logging.getLogger("uvicorn.error").setLevel(max(level, logging.WARNING))


class LogObserver:
    """An observer that writes every event as one line, at the level that `events` gives it."""

    def __init__(self) -> None:
        self._log = structlog.get_logger().bind()  # bound once, not anew for each line

    def __call__(self, event: str, /, **fields: object) -> None:
        """One event."""
        handler = self.handler(event)
        if handler is not None:
            handler(fields)

    def wants(self, event: str) -> bool:
        """Whether events of that name are written at the configured level."""
        return self.handler(event) is not None

    def handler(self, event: str) -> Handler | None:
        """What writes events of that name; None: they are not loud enough."""
        level = level_of(event)
        if not self._log.is_enabled_for(level):
            return None
        name = logging.getLevelName(level).lower()
        # What the logger's own methods come down to; on their way there they cost as much again as the line.
        processors, logger = self._log._processors, self._log._logger  # noqa: SLF001
        match processors:
            case [_Completed() as complete, renderer] if renderer is _as_json:
                return _writer_of_json(name, event, complete, logger.put)
        return _writer(name, event, processors, logger.msg)


def _writer_of_json(level: str, event: str, complete: "_Completed", put: Callable[[bytes], None]) -> Handler:
    """As shipped: bytes from the beginning, and what is alike in all lines of the event is written once."""
    alone = b',"level":"%b","event":%b' % (level.encode(), orjson.dumps(event))
    opening = alone + b","

    def write(fields: Mapping[str, Any]) -> None:
        said = complete.said(fields)
        rest = _json(said, _JSON_LINE)
        put(b'{"timestamp":%b%b%b' % (orjson.dumps(_now(), None, _JSON), opening if said else alone, rest[1:]))

    return write


def _writer(
    level: str, event: str, processors: Sequence[structlog.typing.Processor], put: Callable[[Any], None]
) -> Handler:
    """As structlog is configured, or is by itself where `configure` was not called."""

    def write(fields: Mapping[str, Any]) -> None:
        line: Any = {"event": event, **fields}
        for process in processors:
            line = process(None, level, line)
        with suppress(OSError, ValueError):  # a full disk or a closed pipe is no reason to refuse requests
            put(line)

    return write


class _Completed:
    """A line's fields: when, how loud, what; then what is known of the request, and what the event says itself.

    One processor for all of it: each of structlog's own costs as much as the rest of the line.
    """

    def __init__(self, *, content: bool) -> None:
        self._content = content
        self._render_exception = structlog.processors.ExceptionRenderer(_in_full if content else told)

    def __call__(self, _: Any, level: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        name = event.pop("event", None)
        # A time is left to orjson to write, which takes a quarter of the time that `isoformat` does.
        return {"timestamp": _now(), "level": level, "event": name, **self.said(event)}

    def said(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """What is known of the request, and what an event says itself: all that follows its name."""
        if "exc_info" in fields:
            fields = self._render_exception(None, "", {**fields})
        if self._content:
            fields = {name: value.text() if isinstance(value, Content) else value for name, value in fields.items()}
        for value in fields.values():  # what is known of the request is never nothing
            if value is None:
                fields = {name: value for name, value in fields.items() if value is not None}
                break
        return {**request_context.fields(), **fields}


def told(exc_info: structlog.typing.ExcInfo) -> str:
    """An exception, its causes and members, by their types and places: `ZeroDivisionError at run.py:12 in step`."""
    return "\n".join(_told(exc_info[1], set()))


def _told(exc: BaseException | None, seen: set[int]) -> list[str]:
    if exc is None or id(exc) in seen:
        return []
    seen.add(id(exc))
    kind = f"{type(exc).__module__}.{type(exc).__qualname__}".removeprefix("builtins.")
    lines = [kind, *_places(exc.__traceback__)]
    for inner in getattr(exc, "exceptions", ()):
        lines += [f"  {line}" for line in _told(inner, seen)]
    cause = exc.__cause__ or (None if exc.__suppress_context__ else exc.__context__)
    if earlier := _told(cause, seen):
        lines += ["from", *earlier]
    return lines


def _places(tb: TracebackType | None) -> list[str]:
    return [f"  at {frame.filename}:{frame.lineno} in {frame.name}" for frame in traceback.extract_tb(tb)]


def _in_full(exc_info: structlog.typing.ExcInfo) -> str:
    return "".join(traceback.format_exception(*exc_info)).rstrip()


def _for_people(stream: TextIO) -> structlog.typing.Processor:
    render = structlog.dev.ConsoleRenderer(
        colors=stream.isatty(),
        exception_formatter=structlog.dev.plain_traceback,  # a rich one shows variables: keys
    )
    return lambda logger, method, event: render(logger, method, {**event, "timestamp": _text(event["timestamp"])})


def _text(when: object) -> str:
    return orjson.dumps(when, str, orjson.OPT_UTC_Z).decode().strip('"')


def _as_json(_: Any, __: str, event: MutableMapping[str, Any]) -> str:
    return _json(event, _JSON).decode()


def _json(fields: Mapping[str, Any], options: int) -> bytes:
    try:
        return orjson.dumps(fields, str, options)
    except orjson.JSONEncodeError:
        return _json_in_any_case(fields, options)


def _json_in_any_case(fields: Mapping[str, Any], options: int) -> bytes:
    with suppress(orjson.JSONEncodeError):
        return orjson.dumps(fields, str, options | orjson.OPT_NON_STR_KEYS)  # which costs something
    # What an upstream put where a word or a number belongs, nested too deep, or half of an emoji.
    plain = {name: _readable(value) for name, value in fields.items()}
    return orjson.dumps(plain, option=options)


def _readable(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return value if isinstance(value, (float, int, datetime)) else "(unreadable)"
