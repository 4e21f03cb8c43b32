"""The exceptions of the proxy: the type shows whose fault an error is.

A client is answered with a `ProxyError`, whose class gives the HTTP status and OpenAI's `type` and `code`.

    RequestError 4xx           the client's request
    Overloaded 503, MaxDurationExceeded 504, InternalError 500    this proxy
    UpstreamError 502 or 504   the upstream: unreachable, too slow, cut off, or not valid
    NoFinalAnswer 502          the model

A `ConfigurationError` never reaches a client: it ends the start. The exceptions of tools are in `loop.results`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypedDict, Unpack

CLIENT_CLOSED_REQUEST: Final = 499
"""nginx's status for a client that left; only logs and records have it."""

SHORT_CODE: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""The codes of upstreams that the log may have."""

_FAILED_DEPENDENCY: Final = 424


class _ErrorFields(TypedDict, total=False):
    status: int
    type: str
    code: str | None
    retry_after: int
    is_limit: bool
    operator_code: str | None
    details: Mapping[str, object] | None


class ProxyError(Exception):
    """An error that the client gets, in OpenAI's envelope.

    Status, type, code and `retry_after` are arguments of the class, `class Full(ProxyError, status=503, code="full")`,
    or of a single error that differs from its class.

    Attributes:
        message: the message for people; never holds a secret or a traceback.
        param: the field of the request that is at fault, if one is.
        headers: response headers (`retry-after`, `x-should-retry`).
        retry_after: seconds, for the header.
        why: the cause, for the log alone, because it may hold addresses.
        details: details for programs, on surfaces whose errors have room for them.
        is_limit: whether the request has reached a limit of the proxy.
        was_shown: whether the client has seen a part of the upstream call that failed, so that it cannot be made again.
        upstream_status: the status that the upstream gave, or meant inside a successful response; None: none.
        upstream_code: the upstream's own code, where it is a short name; None: it has none.
    """

    status: int = 500
    type: str = "server_error"
    code: str | None = "internal_error"
    retry_after: int | None = None
    why: str | None = None
    details: Mapping[str, object] | None = None
    is_limit: bool = False
    was_shown: bool = False
    upstream_status: int | None = None
    upstream_code: str | None = None

    def __init_subclass__(cls, **fields: Unpack[_ErrorFields]) -> None:
        super().__init_subclass__()
        for name, value in fields.items():
            setattr(cls, name, value)

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
        **fields: Unpack[_ErrorFields],
    ) -> None:
        super().__init__(message)
        self.__dict__.update(fields)
        self.message = message
        self.param = param
        self.headers = dict(headers or {})
        if self.retry_after:
            self.headers["retry-after"] = str(self.retry_after)

    def envelope(self) -> dict[str, dict[str, str | None]]:
        """The body: `{"error": {"message", "type", "param", "code"}}`."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


class RequestError(ProxyError, status=400, type="invalid_request_error", code="invalid_request"):
    """The base class of errors in the client's request."""


class InvalidJson(RequestError, code="invalid_json"):
    """The body is not JSON, or is nested too deep to be read."""


class InvalidApiKey(RequestError, status=401, code="invalid_api_key"):
    """The request has no key, or a key that no client has."""

    def __init__(self) -> None:
        super().__init__(
            "No valid API key was given. Send the key that the operator of this proxy gave you as "
            "'Authorization: Bearer KEY'.",  # not 'x-api-key' as well: Claude Code replaces messages with that in them
            headers={"www-authenticate": "Bearer", "x-should-retry": "false"},
        )


class ModelNotAllowed(RequestError, status=403, type="permission_error", code="model_not_allowed"):
    """The client may not use the model."""

    def __init__(self, model: str) -> None:
        super().__init__(f"This key may not use the model {model!r}.", param="model")


class PageNotAllowed(RequestError, status=403, type="permission_error", code="origin_not_allowed"):
    """A web page of an origin that is not listed asks whether it may call, or calls a proxy that no keys protect."""

    def __init__(self, origin: str) -> None:
        super().__init__(
            f"Web pages of {origin[:200]!r} may not call this proxy: server.cors.origins does not list it."
        )


class AdminOnly(RequestError, status=403, type="permission_error", code="admin_only"):
    """The client is not an administrator."""

    def __init__(self) -> None:
        super().__init__("Only clients with 'admin: true' may read this. Without clients, anyone on this machine may.")


class NotAllowed(RequestError, status=403, type="permission_error", code="not_allowed"):
    """The client may not do this."""


class NotFound(RequestError, status=404, code="not_found"):
    """The path does not exist."""


class ModelNotFound(NotFound, code="model_not_found"):
    """The configuration does not name the model, or the model's upstream is disabled.

    `advice` says in whole sentences which model to use instead.
    """

    def __init__(
        self, model: str, *, why: str = "does not exist", advice: str = "GET /v1/models lists the models."
    ) -> None:
        super().__init__(f"The model {model!r} {why}. {advice}", param="model")
        self.model = model


class ItemNotFound(NotFound, code=None):
    """The item of an `item_reference` is not stored, or is another client's."""

    def __init__(self, item_id: str) -> None:
        message = f"Item with id {item_id!r} not found. Items are not persisted when `store` is set to false."
        super().__init__(message, param="input")


class PreviousResponseNotFound(RequestError, code="previous_response_not_found"):
    """The response of a `previous_response_id` is not stored, or is another client's."""

    def __init__(self, response_id: str) -> None:
        super().__init__(f"Previous response with id {response_id!r} not found.", param="previous_response_id")


class MethodNotAllowed(RequestError, status=405, code="method_not_allowed"):
    """The path exists, but not for this method."""


class UpgradeRequired(RequestError, status=426, code="websocket_not_supported"):
    """A WebSocket was asked for, which is not offered. At this status clients go on over HTTP, without a retry."""


class RequestTimeout(RequestError, status=408, code="request_timeout"):
    """The body did not arrive in time."""


class RequestTooLarge(RequestError, status=413, code="request_too_large", is_limit=True):
    """The body is larger than `server.max_body_bytes`."""


class RateLimitExceeded(RequestError, status=429, type="rate_limit_error", code="rate_limit_exceeded", is_limit=True):
    """The client has sent as many requests as it may, or has as many open."""


class BudgetExceeded(RequestError, status=429, type="insufficient_quota", code="budget_exceeded", is_limit=True):
    """The client has used up its budget until the next day or month."""


class NotRecorded(RequestError, status=409, code="not_recorded"):
    """Cases are not recorded, or the request is still open."""


class CaseTooLarge(RequestError, status=413, code="case_too_large"):
    """The case of a request has more bytes than a case may have."""

    def __init__(self, size: int, most: int) -> None:
        self.size = size
        super().__init__(f"The case of this request has {size:,} bytes, and at most {most:,} are permitted.")


class HeadersTooLarge(RequestError, status=431, code="headers_too_large"):
    """The request has more header fields, or more bytes of them, than the server accepts."""


class HttpRefused(RequestError):
    """The request is not valid HTTP, is ambiguous, or needs a feature that this server does not have."""


class Overloaded(ProxyError, status=503, code="overloaded", retry_after=1, is_limit=True):
    """The proxy has no room for another request."""


class Stopping(Overloaded, is_limit=False):
    """The proxy is stopping; a retry has to use another connection, to reach another process."""

    def __init__(self) -> None:
        super().__init__("The proxy is stopping; send the request again.", headers={"connection": "close"})


class MaxDurationExceeded(ProxyError, status=504, code="max_duration_exceeded", is_limit=True):
    """The request took longer than `limits.max_duration`."""


class UpstreamError(ProxyError, status=502, type="upstream_error", code="upstream_error"):
    """The upstream could not be reached, broke off, or sent something that is not a completion."""

    unreachable: bool = False  # no connection could be made, so the request cannot have caused the error


class UpstreamTimeout(UpstreamError, status=504, code="upstream_timeout"):
    """The upstream was silent for too long."""


class UpstreamDown(UpstreamError):
    """The upstream was not called: it has failed again and again, and its breaker is open."""

    def __init__(self, name: str, *, retry_after: int) -> None:
        message = f"The upstream {name!r} has failed repeatedly. Try again later."
        super().__init__(message, retry_after=retry_after)


class UpstreamRefused(UpstreamError):
    """The upstream refused the request; the client gets its status and its message."""

    operator_code: str | None = None  # the code for the client if the operator's key or account is refused
    read_again: Callable[..., ProxyError] | None = None  # the error, once its words are compared with the request

    def blame_operator(self, upstream: str, advice: str = "", *, source: str | None = None) -> None:
        """Make the error one of the operator's, whose key or account is refused.

        The error is a 502, and only the log gets the upstream's message. If callers are the operator, it is a 424 that
        says everything, because agents and SDKs do not repeat a 424.

        Args:
            upstream: the upstream's name in the configuration.
            advice: a suggestion to the operator.
            source: where the key comes from, for callers who are the operator; None: they are somebody else.
        """
        if self.operator_code is None:
            return
        said = f"HTTP {self.status}: {self.message}"
        self.why = f"{said} {advice}".rstrip()
        if source is None:
            self.status = 502
            self.message = f"The upstream {upstream!r} refuses the key or the account of this proxy. Tell its operator."
        else:
            self.status = _FAILED_DEPENDENCY
            refusal = f"The upstream {upstream!r} refuses the key or the account of {source}: {said.rstrip('.')}."
            self.message = f"{refusal} {advice} To try the key: toolproxy check --probe".replace("  ", " ")
        self.type, self.code, self.param = UpstreamError.type, self.operator_code, None
        self.headers = {"x-should-retry": "false"}
        if self.retry_after:
            self.headers["retry-after"] = str(self.retry_after)


class ContextFull(UpstreamRefused, status=400, type="invalid_request_error", code="context_length_exceeded"):
    """The conversation is longer than the model's context.

    Args:
        message: the upstream's message.
        asked: the tokens of the request; None: the upstream does not say.
        limit: the tokens of the context; None: likewise.
        completion: the tokens of the request that are kept for the answer, if the others fit into the context without
            them; None: they do not fit, or the upstream does not say.
    """

    def __init__(
        self, message: str, *, asked: int | None = None, limit: int | None = None, completion: int | None = None
    ) -> None:
        super().__init__(message)
        self.asked, self.limit, self.completion = asked, limit, completion


class NoFinalAnswer(ProxyError, status=502, type="upstream_error", code="no_final_answer"):
    """The model gave no answer in any of the attempts at making it answer. A retry would repeat all of them."""

    def __init__(self, message: str) -> None:
        super().__init__(message, headers={"x-should-retry": "false"})


class InternalError(ProxyError):
    """A bug in the proxy. The log has the traceback, and the client gets the request id."""

    def __init__(self, request_id: str) -> None:
        super().__init__(f"The proxy failed to handle this request. Tell its operator the request id {request_id}.")


class ConfigurationError(Exception):
    """The configuration cannot be used; `faults` has a line for each error in it."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)


def fault_of(error: ProxyError) -> dict[str, object]:
    """An error as the fields of an event; the upstream's words are content of messages, which it may quote."""
    said = upstream_fields(error)
    content = {"upstream_message": error.message} if said else None
    return {"code": logged_code(error.code), "status": error.status, "why": error.why, **said, "content": content}


def logged_code(code: str | None) -> str | None:
    """A code as the log may have it: an upstream's own one may be any text, which would be content."""
    return code if code is None or SHORT_CODE.fullmatch(code) else UpstreamError.code


def upstream_fields(error: ProxyError) -> dict[str, object]:
    """The upstream's own status and code for an error, as far as it gave any."""
    said = {"upstream_status": error.upstream_status, "upstream_code": error.upstream_code}
    return {name: value for name, value in said.items() if value is not None}
