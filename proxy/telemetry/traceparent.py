"""W3C Trace Context: the two headers that tie one service's trace to the next one's (https://www.w3.org/TR/trace-context/)."""

import random
import re
from dataclasses import dataclass
from typing import Final

HEADER: Final = b"traceparent"
STATE_HEADER: Final = b"tracestate"

_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 0x01
_LONGEST_STATE = 512  # what the standard demands to be passed on at least


@dataclass(frozen=True, slots=True)
class SpanId:
    """Where a span stands: in which trace, and what it is called there; `sampled`: whether anybody keeps it."""

    trace: int
    span: int
    sampled: bool = True
    state: str = ""

    def child(self) -> "SpanId":
        """A new span of the same trace."""
        return SpanId(self.trace, _some(64), self.sampled, self.state)

    def header(self) -> str:
        """As `traceparent`, for those that are called within this span."""
        return f"00-{self.trace_hex}-{self.span:016x}-{int(self.sampled):02x}"

    @property
    def trace_hex(self) -> str:
        """The trace as it is written."""
        return f"{self.trace:032x}"


def root() -> SpanId:
    """The first span of a new trace."""
    return SpanId(_some(128), _some(64))


def parse(header: str, state: str = "") -> SpanId | None:
    """The caller's span, or None where the header is not what the standard says: it then counts for nothing."""
    match = _FORM.fullmatch(header.strip())
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
        return None
    trace, span = int(match[2], 16), int(match[3], 16)
    if not trace or not span:
        return None
    return SpanId(trace, span, bool(int(match[4], 16) & _SAMPLED), state if len(state) <= _LONGEST_STATE else "")


def _some(bits: int) -> int:
    return random.getrandbits(bits) or 1
