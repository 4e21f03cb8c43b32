"""The keys of an entry of `type: http`."""

from typing import Any, Literal

from proxy.config.model import HeaderName, Served, Text, ToolConfig, ToolHeaderValue
from proxy.loop.limits import Bytes
from proxy.wire.credentials import headers_in


class HttpToolConfig(ToolConfig, tag="http", frozen=True, kw_only=True):
    """`type: http`: any HTTP API. `{name}` inserts an argument (docs/tools.md says where)."""

    description: Text  # What the tool does and when to use it. The model reads this.
    url: Text  # URL. Path and query may have placeholders; scheme, host and port may not.
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "GET"  # HTTP method.
    headers: dict[HeaderName, ToolHeaderValue] = {}  # Headers, for keys. They have no placeholders.
    query: dict[str, Any] = {}  # Query parameters: single values or lists, with or without placeholders.
    body: Any = None  # Body, sent as JSON. None: POST, PUT and PATCH send the arguments that have no placeholder.
    parameters: dict[str, Any] = {}  # JSON Schema of the arguments, of type object.
    result: Any = "text"  # `text`, or {json_pointer: /a/b} for that part of a JSON answer (RFC 6901).
    idempotent: bool = False  # A repeated POST or PATCH does no harm, which `retries` requires.
    serves: Served | None = None  # Hosted tool that this tool replaces in requests that declare it.
    # Bytes that are read of an answer. Longer text is cut, longer JSON is refused.
    max_response_bytes: Bytes = 4 * 1024 * 1024

    @property
    def user_headers(self) -> frozenset[str]:
        """See `ToolConfig.user_headers`."""
        return headers_in(self.headers.values())

    @property
    def served(self) -> tuple[str, ...]:
        """See `ToolConfig.served`."""
        return (self.serves,) if self.serves else ()
