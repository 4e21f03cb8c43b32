"""Errors in the envelope of the Messages API."""

from proxy.api.error_shape import ErrorShape
from proxy.wire.chat import Json
from proxy.wire.errors import ContextFull, Overloaded, ProxyError, RequestError

REQUEST_ID = b"request-id"  # sent beside x-request-id
_OVERLOADED = 529  # Anthropic's own status
# Claude Code, LangChain, pydantic-ai and LiteLLM recognise a conversation that is too long only by these words.
_TOO_LONG = "prompt is too long"
# By these words Claude Code asks again with a smaller `max_tokens`, instead of compacting the conversation.
_TOO_MUCH = (
    "input length and `max_tokens` exceed context limit: {prompt} + {completion} > {limit}, "
    "decrease input length or `max_tokens` and try again"
)
_CLIENT_FAULTS = range(400, 500)
# The type of an error by its status; other 4xx statuses have `invalid_request_error`, other 5xx statuses `api_error`.
_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    _OVERLOADED: "overloaded_error",
}


def envelope(error: ProxyError, request_id: str) -> Json:
    """The body of an error."""
    status = status_of(error)
    other = "invalid_request_error" if status in _CLIENT_FAULTS else "api_error"
    body: Json = {"type": _TYPES.get(status, other), "message": _message(error), "code": error.code}
    if error.details is not None:
        body["details"] = error.details
    return {"type": "error", "error": body, "request_id": request_id}


def status_of(error: ProxyError) -> int:
    """The status of an error; for an overloaded proxy, it is Anthropic's own."""
    return _OVERLOADED if isinstance(error, Overloaded) else error.status


def _message(error: ProxyError) -> str:
    """The message, which begins with the faulty field, or with the words that clients recognise."""
    where, message = error.param, error.message
    if isinstance(error, ContextFull) and error.asked and error.completion:
        prompt = error.asked - error.completion
        return _TOO_MUCH.format(prompt=prompt, completion=error.completion, limit=error.limit)
    if isinstance(error, ContextFull) and not message.lower().startswith(_TOO_LONG):
        counts = f"{error.asked} tokens > {error.limit} maximum. " if error.limit is not None else ""
        return f"{_TOO_LONG}: {counts}{message}"
    if not isinstance(error, RequestError) or not where or message.startswith(where):
        return message
    return f"{where}: " + message.removeprefix(f"'{where}' ")


MESSAGES_ERRORS = ErrorShape(envelope, status_of, REQUEST_ID.decode(), b"event: error\n")
