"""The names of headers that are treated alike wherever they occur: those of one hop, those that are ours, secrets."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

HOP_BY_HOP: Final = frozenset({
    "connection", "expect", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te",
    "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip
"""Headers for one connection, which are never passed on (RFC 9110, section 7.6.1, and the older ones in use)."""

WRITTEN_BY_US: Final = HOP_BY_HOP | {"accept-encoding", "content-encoding", "content-length", "host"}
"""Headers of a request that follow from its address and its body, or from how an answer is read within its bound.
Nobody else may set them."""

READ_BY_US: Final = WRITTEN_BY_US | {
    "accept", "access-control-request-headers", "access-control-request-method", "anthropic-beta", "anthropic-version",
    "api-key", "authorization", "content-type", "cookie", "forwarded", "if-none-match", "mcp-protocol-version",
    "mcp-session-id", "origin", "session-id", "session_id", "thread-id", "traceparent", "tracestate", "via",
    "x-api-key", "x-claude-code-session-id", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip",
    "x-request-id", "x-server-tools", "x-session-id", "x-tool-events",
}  # fmt: skip
"""Headers of a client's request that mean something to the proxy itself, so that they cannot hold a user's credential
for a tool."""

SECRET_NAME: Final = re.compile("auth|cookie|credential|key|pass|secret|signature|token", re.IGNORECASE)
"""Matches the names of variables and headers whose values are secrets."""


def header_faults(headers: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The headers of an entry that nobody may set: the key of each, and the fault."""
    return ((f"headers.{name}", "is set by the proxy") for name in headers if name.lower() in WRITTEN_BY_US)
