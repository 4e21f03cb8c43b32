"""W3C Trace Context: the headers that connect the traces of two services (https://www.w3.org/TR/trace-context/)."""

import random
import re
from collections.abc import Awaitable
from contextvars import ContextVar
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
    """The identity of a span: its trace, its own number, whether it is exported, and the caller's `tracestate`.

    An id of zeros is invalid; drawing one is as unlikely as a collision.
    """

    trace: bytes
    span: bytes
    sampled: bool = True
    state: str = ""

    def child(self) -> "SpanId":
        """A new span of the same trace."""
        return SpanId(self.trace, new_number(), self.sampled, self.state)

    def headers(self, span: bytes) -> bytes:
        """The headers of requests that are sent within a span of this trace, as lines of their heads."""
        flags = "01" if self.sampled else "00"
        lines = f"traceparent: 00-{self.trace.hex()}-{span.hex()}-{flags}\r\n"
        return (f"{lines}tracestate: {self.state}\r\n" if self.state else lines).encode("latin-1")


parent: ContextVar[SpanId | None] = ContextVar("toolproxy_parent", default=None)
"""The caller's span, if the request that is being answered has one."""


def new_number() -> bytes:
    """A number for a span."""
    return random.getrandbits(64).to_bytes(8, "big")


def root() -> SpanId:
    """The first span of a new trace."""
    ids = random.getrandbits(192).to_bytes(24, "big")
    return SpanId(ids[:16], ids[16:])


def parse(header: str, state: str = "") -> SpanId | None:
    """The caller's span; None where the header does not follow the standard, which demands that it is then ignored."""
    match = _FORM.fullmatch(header.strip())
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
        return None
    trace, span = bytes.fromhex(match[2]), bytes.fromhex(match[3])
    if not any(trace) or not any(span):
        return None
    # It is sent on as it is, in the head of a request, so it must not bring a line break along.
    passed_on = len(state) <= _LONGEST_STATE and state.replace("\t", " ").isprintable()
    return SpanId(trace, span, bool(int(match[4], 16) & _SAMPLED), state if passed_on else "")


def incoming_trace(app: ASGIApp) -> ASGIApp:
    """ASGI middleware: removes the caller's `traceparent` and `tracestate` from a request and notes them as `parent`.

    Upstreams and tools receive headers of their own, which name the span of ours that calls them.
    """

    def with_parent(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http":
            is_traced = not _HEADERS.isdisjoint(dict(scope["headers"]))
            parent.set(_take_caller(scope) if is_traced else None)
        return app(scope, receive, send)

    return with_parent


def _take_caller(scope: Scope) -> SpanId | None:
    """The caller's span, whose headers are removed; a state in several of them is joined."""
    sent = {name: [value for header, value in scope["headers"] if header == name] for name in _HEADERS}
    scope["headers"] = [header for header in scope["headers"] if header[0] not in _HEADERS]
    header, state = (b",".join(sent[name]).decode("latin-1") for name in (HEADER, STATE_HEADER))
    return parse(header, state)
