"""W3C Trace Context: the headers that connect the traces of two services (https://www.w3.org/TR/trace-context/)."""

import random
import re
from collections.abc import Awaitable, Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import Final

from msgspec import Struct
from starlette.types import ASGIApp, Receive, Scope, Send

HEADER: Final = b"traceparent"
STATE_HEADER: Final = b"tracestate"

_HEADERS: Final = frozenset({HEADER, STATE_HEADER})
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 0x01
_LONGEST_STATE = 512  # the standard demands that at least so many characters are passed on


class SpanId(Struct, frozen=True):
    """The identity of a span: its trace, its own number, whether it is exported, and the caller's `tracestate`."""

    trace: int
    span: int
    sampled: bool = True
    state: str = ""

    def child(self) -> "SpanId":
        """A new span of the same trace."""
        return SpanId(self.trace, random.getrandbits(64) or 1, self.sampled, self.state)

    def header(self) -> str:
        """The `traceparent` of requests that are sent within this span."""
        return f"00-{_trace_hex(self.trace)}-{self.span:016x}-{'01' if self.sampled else '00'}"

    @property
    def trace_hex(self) -> str:
        """The trace's number in hexadecimal, as headers and logs have it."""
        return _trace_hex(self.trace)


@lru_cache(1024)  # the log lines and each upstream call of a request need it
def _trace_hex(trace: int) -> str:
    return f"{trace:032x}"


parent: ContextVar[SpanId | None] = ContextVar("toolproxy_parent", default=None)
"""The caller's span, if the request that is being answered has one."""


def root() -> SpanId:
    """The first span of a new trace."""
    return SpanId(random.getrandbits(128) or 1, random.getrandbits(64) or 1)


def parse(header: str, state: str = "") -> SpanId | None:
    """The caller's span; None where the header does not follow the standard, which demands that it is then ignored."""
    match = _FORM.fullmatch(header.strip())
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
        return None
    trace, span = int(match[2], 16), int(match[3], 16)
    if not trace or not span:
        return None
    return SpanId(trace, span, bool(int(match[4], 16) & _SAMPLED), state if len(state) <= _LONGEST_STATE else "")


class IncomingTrace:
    """ASGI middleware: removes the caller's `traceparent` and `tracestate` from the request and notes them as `parent`.

    Upstreams and tools receive headers of their own, which name the span of ours that calls them.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Serve a request."""
        if scope["type"] == "http":
            sent = [header for header in scope["headers"] if header[0] in _HEADERS]
            parent.set(_caller(dict(sent)) if sent else None)
            if sent:
                scope["headers"] = [header for header in scope["headers"] if header[0] not in _HEADERS]
        return self._app(scope, receive, send)


def _caller(headers: Mapping[bytes, bytes]) -> SpanId | None:
    state = headers.get(STATE_HEADER, b"").decode("latin-1")
    return parse(headers.get(HEADER, b"").decode("latin-1"), state)
