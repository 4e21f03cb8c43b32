"""Our exceptions: who is to blame is in the type.

ProxyError                     status, type, code: what the client is told
+-- RequestError               400  the client's request
|   +-- InvalidJson            400  invalid_json
|   +-- InvalidApiKey          401  invalid_api_key
|   +-- ModelNotAllowed        403  model_not_allowed
|   +-- AdminOnly              403  admin_only
|   +-- NotFound               404  not_found
|   |   +-- ModelNotFound      404  model_not_found
|   |   +-- ItemNotFound       404  an item of an earlier response
|   +-- PreviousResponseNotFound  400  previous_response_not_found
|   +-- MethodNotAllowed       405  method_not_allowed
|   +-- RequestTimeout         408  request_timeout
|   +-- RequestTooLarge        413  request_too_large
|   +-- RateLimitExceeded      429  rate_limit_exceeded     of this proxy's own limits for a client
|   +-- HeadersTooLarge        431  headers_too_large
|   +-- HttpRefused            4xx  what is no HTTP, or none that is spoken here
+-- Overloaded                 503  overloaded              this proxy is full
|   +-- Stopping               503  overloaded              or about to stop
+-- MaxDurationExceeded        504  max_duration_exceeded   the request as a whole took too long
+-- UpstreamError              502  upstream_error          unreachable, cut off, not what it should be
|   +-- UpstreamTimeout        504  upstream_timeout
|   +-- UpstreamDown           502  upstream_error          it has failed so often that it is left alone for a while
|   +-- UpstreamRefused        4xx  the upstream's own status, message and code; 502 upstream_auth_failed or
|                                   upstream_quota_exceeded where it refuses the operator's key or account
+-- NoFinalAnswer              502  no_final_answer         the model never answered in words
+-- InternalError              500  internal_error          a bug of ours

ToolError                      never reaches a client: the model is told, and the conversation goes on
+-- ToolTimeout
+-- ToolUnavailable              its service cannot be reached or is busy: another try may succeed
+-- InvalidArguments

StateUnavailable               never reaches a client: what is shared is done without

ConfigurationError             at start: faults with path and line
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

_LONGEST_WHY = 300
_MOST_LINKS = 20  # of causes, which may go round in a circle


class ProxyError(Exception):
    """A fault that a client is told of, in OpenAI's envelope.

    Attributes:
        message: for people; never holds a secret or a traceback.
        param: the field of the request that is at fault, if one is.
        headers: sent beside the error (`retry-after`, `x-should-retry`).
        why: what lies behind it, for the log alone: it may hold addresses.
    """

    why: str | None = None

    status: int = 500
    type: str = "server_error"
    code: str | None = "internal_error"

    def __init__(self, message: str, *, param: str | None = None, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.headers = dict(headers or {})

    def envelope(self) -> dict[str, dict[str, str | None]]:
        """The body: `{"error": {"message", "type", "param", "code"}}`."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


class RequestError(ProxyError):
    """The request itself is at fault."""

    status = 400
    type = "invalid_request_error"
    code: str | None = "invalid_request"


class InvalidJson(RequestError):
    """The body is not JSON, or nested too deep to be read."""

    code = "invalid_json"


class InvalidApiKey(RequestError):
    """No key, or one that is not ours."""

    status = 401
    code = "invalid_api_key"

    def __init__(self) -> None:
        super().__init__(
            "No valid API key was given. Send the key that the operator of this proxy gave you as "
            "'Authorization: Bearer KEY'.",
            headers={"www-authenticate": "Bearer", "x-should-retry": "false"},
        )


class ModelNotAllowed(RequestError):
    """The key is good, but not for this model."""

    status = 403
    type = "permission_error"
    code = "model_not_allowed"

    def __init__(self, model: str) -> None:
        super().__init__(f"This key may not use the model {model!r}.", param="model")


class AdminOnly(RequestError):
    """The key is good, but not an administrator's."""

    status = 403
    type = "permission_error"
    code = "admin_only"

    def __init__(self) -> None:
        super().__init__("Only clients with 'admin: true' may read this, or on loopback anyone where there are none.")


class NotFound(RequestError):
    """No such path."""

    status = 404
    code: str | None = "not_found"


class ModelNotFound(NotFound):
    """A model that the configuration does not name, or whose upstream is disabled."""

    code = "model_not_found"

    def __init__(self, model: str, *, why: str = "does not exist") -> None:
        super().__init__(f"The model {model!r} {why}. GET /v1/models lists the models.", param="model")


class ItemNotFound(NotFound):
    """An `item_reference` to what is not kept, or is another client's."""

    code = None

    def __init__(self, item_id: str) -> None:
        message = f"Item with id {item_id!r} not found. Items are not persisted when `store` is set to false."
        super().__init__(message, param="input")


class PreviousResponseNotFound(RequestError):
    """A `previous_response_id` of what is not kept, or is another client's."""

    code = "previous_response_not_found"

    def __init__(self, response_id: str) -> None:
        super().__init__(f"Previous response with id {response_id!r} not found.", param="previous_response_id")


class MethodNotAllowed(RequestError):
    """The path exists, but not for this method."""

    status = 405
    code = "method_not_allowed"


class RequestTimeout(RequestError):
    """The body did not arrive in time."""

    status = 408
    code = "request_timeout"


class RequestTooLarge(RequestError):
    """The body is larger than `server.max_body_bytes`."""

    status = 413
    code = "request_too_large"


class RateLimitExceeded(RequestError):
    """The client has sent as many requests, or has as many open, as it may; `retry_after` in seconds."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, retry_after: int) -> None:
        super().__init__(message, headers={"retry-after": str(retry_after)})


class HeadersTooLarge(RequestError):
    """More header fields, or more bytes of them, than `server.max_headers` and `server.max_header_bytes`."""

    status = 431
    code = "headers_too_large"


class HttpRefused(RequestError):
    """What is no HTTP, or could be read in two ways, or asks for what this server does not do."""

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class Overloaded(ProxyError):
    """The proxy is full."""

    status = 503
    code = "overloaded"

    def __init__(self, message: str, *, retry_after: int = 1) -> None:
        super().__init__(message, headers={"retry-after": str(retry_after)})


class Stopping(Overloaded):
    """The proxy is about to stop; whoever tries again does so over another connection, and finds another process."""

    def __init__(self) -> None:
        super().__init__("The proxy is stopping; send the request again.")
        self.headers["connection"] = "close"


class MaxDurationExceeded(ProxyError):
    """The request took longer than `limits.max_duration`."""

    status = 504
    code = "max_duration_exceeded"


class UpstreamError(ProxyError):
    """The upstream could not be reached, broke off, or sent what is no completion.

    Attributes:
        unreachable: there was no connection, so that nothing in the request can have caused it.
    """

    unreachable: bool = False
    status = 502
    type = "upstream_error"
    code: str | None = "upstream_error"


class UpstreamTimeout(UpstreamError):
    """The upstream was silent for too long."""

    status = 504
    code = "upstream_timeout"


class UpstreamDown(UpstreamError):
    """The upstream was not asked: it has failed again and again, and its breaker is open."""

    def __init__(self, name: str, *, retry_after: int) -> None:
        message = f"The upstream {name!r} has failed again and again; it is asked again in a while."
        super().__init__(message, headers={"retry-after": str(retry_after)})


class UpstreamRefused(UpstreamError):
    """The upstream said no, and the client is told so in its words.

    Attributes:
        of_account: the code for the client if what is refused is the operator's key or account; None: it is neither
            a key nor an account.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        type: str,  # noqa: A002 - OpenAI's name for it
        code: str | None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
        of_account: str | None = None,
    ) -> None:
        super().__init__(message, param=param, headers=headers)
        self.status = status
        self.type = type
        self.code = code
        self.of_account = of_account

    def blame_operator(self, upstream: str) -> None:
        """Make it a 502: the key or account is the operator's. Only the log has the upstream's own words."""
        if self.of_account is None:
            return
        self.why = f"HTTP {self.status}, {self.code}: {self.message}"
        self.message = f"The upstream {upstream!r} refuses the key or the account of this proxy. Tell its operator."
        self.status, self.type, self.code, self.param = 502, UpstreamError.type, self.of_account, None
        self.headers = {"x-should-retry": "false"}


class NoFinalAnswer(ProxyError):
    """Every means of making the model answer in words has failed."""

    status = 502
    type = "upstream_error"
    code = "no_final_answer"


class InternalError(ProxyError):
    """A bug of ours. The log has the traceback; the client gets the request id to ask with."""

    def __init__(self, request_id: str) -> None:
        super().__init__(f"The proxy failed to handle this request. Tell its operator the request id {request_id}.")


class ToolError(Exception):
    """A tool could not do what it was asked. The message is written for the model; `why` is for the log alone."""

    outcome: ClassVar[str] = "error"

    def __init__(self, message: str, *, why: str | None = None) -> None:
        super().__init__(message)
        self.why = why


class ToolTimeout(ToolError):
    """A tool took longer than it may."""

    outcome = "timeout"


class ToolUnavailable(ToolError):
    """What the tool needs cannot be reached or is busy; another try may succeed."""

    outcome = "unavailable"


class InvalidArguments(ToolError):
    """The model's arguments are no JSON object, or do not fit the tool's schema."""

    outcome = "invalid_arguments"


class StateUnavailable(Exception):
    """What is kept beyond this process cannot be reached. The message says why, and holds no secret."""


class ConfigurationError(Exception):
    """The configuration cannot be used; `faults` has one line for each thing that is wrong with it."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)


def reason(exc: BaseException) -> str:
    """What lies behind an exception of the network, for the `why` of one of ours.

    The operating system's own words where there are any, as for a connection that is refused or a certificate that is
    not trusted. Any other exception may quote what was sent, and is told by its type.
    """
    found, links = type(exc).__name__, 0
    link: BaseException | None = exc
    while link is not None and links < _MOST_LINKS:
        if isinstance(link, OSError) and str(link):
            found = f"{type(link).__name__}: {str(link)[:_LONGEST_WHY]}"
        link, links = link.__cause__ or link.__context__, links + 1
    return found
