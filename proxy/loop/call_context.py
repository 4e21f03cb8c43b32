"""The context of tool calls. Pure values."""

import math
from typing import Final

from msgspec import Struct

from proxy.wire.credentials import NO_CREDENTIALS, Credentials
from proxy.wire.search import NO_FILTERS, SearchFilters


class CallContext(Struct, frozen=True):
    """The settings of a request that hold for all of its tool calls.

    Attributes:
        scope: the caller; results are cached and shared only within it.
        filters: the filters of the request. No excluded page is among the sources.
        default_timeout: seconds for a call of a tool without its own timeout.
        max_timeout: the longest timeout of any tool, in seconds.
        tools: the server tools that the caller may use, selected by the request or not; None: all.
        ends: the monotonic time of the deadline, at which calls are cancelled.
        credentials: the user's credentials, for tools that need them.
    """

    scope: str = ""
    filters: SearchFilters = NO_FILTERS
    default_timeout: float = math.inf
    max_timeout: float = math.inf
    tools: frozenset[str] | None = frozenset()
    ends: float = math.inf
    credentials: Credentials = NO_CREDENTIALS


NO_CONTEXT: Final = CallContext()
"""The context of a call that belongs to no request."""
