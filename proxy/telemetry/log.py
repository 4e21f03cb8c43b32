"""structlog: JSON lines on standard error, one per request, per turn and per tool call.

Never message content, never a secret: what is logged is counts, durations, names and ids. uvicorn's own lines come out
in the same form.
"""

import logging
import sys
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import Any, TextIO

import orjson
import structlog

from proxy.config import TelemetryConfig

_LEVELS = {
    "continuation.sought": logging.DEBUG,
    "state.not_shared": logging.WARNING,
    "configuration.disabled": logging.WARNING,
    "turn.started": logging.DEBUG,
    "turn.completed": logging.INFO,
    "turn.failed": logging.WARNING,
    "upstream.retried": logging.WARNING,
    "upstream.fell_back": logging.WARNING,
    "tool.fell_back": logging.WARNING,
    "mcp.connected": logging.INFO,
    "mcp.lost": logging.WARNING,
    "mcp.tool_refused": logging.WARNING,
    "tool.retried": logging.WARNING,
    "tool.breaker_opened": logging.WARNING,
    "tool.started": logging.DEBUG,
    "tool.completed": logging.INFO,
    "tool.failed": logging.WARNING,
    "tool.crashed": logging.ERROR,
    "request.completed": logging.INFO,
    "probe.completed": logging.DEBUG,
    "request.crashed": logging.ERROR,
}


def configure(config: TelemetryConfig, *, stream: TextIO | None = None) -> None:
    """Set structlog and the standard library's logging up, once per process; `stream`: standard error unless given."""
    stream = stream or sys.stderr
    level = logging.getLevelNamesMapping()[config.log_level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _without_nothing,
    ]
    as_json = config.log_format == "json"
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer(serializer=_dumps)
        if as_json
        else structlog.dev.ConsoleRenderer(
            colors=stream.isatty(),
            exception_formatter=structlog.dev.plain_traceback,  # a rich one shows variables: keys
        )
    )
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
            foreign_pre_chain=shared,
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    # httpx and asyncio are libraries: their debug lines hold URLs and headers.
    root.setLevel(max(level, logging.WARNING))
    logging.getLogger("mcp").setLevel(logging.CRITICAL)  # its tracebacks hold what servers said; we tell of the fault
    logging.getLogger("uvicorn.error").setLevel(max(level, logging.WARNING))


def observer(logger: Any = None) -> Callable[..., None]:
    """An observer that writes every event as one line, at the level of the table above."""
    log = logger or structlog.get_logger()

    def observe(event: str, /, **fields: object) -> None:
        with suppress(OSError, ValueError):  # a full disk or a closed pipe is no reason to refuse requests
            log.log(_LEVELS.get(event, logging.INFO), event, **fields)

    return observe


def _dumps(event: MutableMapping[str, Any], **_: object) -> str:
    return orjson.dumps(event, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def _without_nothing(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Lines without fields that say nothing."""
    for key in [key for key, value in event.items() if value is None]:
        del event[key]
    return event
