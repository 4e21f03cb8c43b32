r"""Errors in the shapes in which upstreams write them -> one of ours, with its meaning kept.

{"error": {"message", "type", "param", "code"}}          OpenAI; Z.AI (code: a string of digits, no type), Groq, vLLM
{"error": {..., "details": "{\"error\": {...}}"}}      GMI: the real error is JSON inside a string
{"code": "1210", "message": "..."}                       Z.AI, some 400s
{"code": 500, "msg": "...", "success": false}            Z.AI's SDK classes, with HTTP 200
{"timestamp", "status", "error": "Not Found", "path"}    Spring, for a wrong path: `error` is a string
text, HTML                                               GMI's 404, any load balancer
"""

from collections.abc import Mapping
from typing import Any

import orjson

from proxy.core.chat import Json
from proxy.core.errors import ProxyError, UpstreamError, UpstreamRefused

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
}
_FIRST_CLIENT_ERROR, _FIRST_SERVER_ERROR, _LAST_STATUS = 400, 500, 599

# Z.AI sends these with HTTP 429, and a client that tries again only makes it worse: no balance, window spent.
_NO_USE_RETRYING = frozenset({"1113", "1308"})
_AUTH_STATUSES = (401, 403)
_LONGEST_MESSAGE = 2000


def from_response(status: int, headers: Mapping[str, str], body: bytes) -> ProxyError:
    """The error that an HTTP response with an error status stands for.

    4xx keeps its status, message and code; anything else is our 502.
    """
    found = _find(_json(body))
    message = found.get("message") or _plain_text(body) or f"HTTP {status}"
    if not _FIRST_CLIENT_ERROR <= status < _FIRST_SERVER_ERROR:
        return UpstreamError(f"The upstream failed (HTTP {status}): {_clip(message)}", headers=_advice(headers))
    return _refused(status, message, found, headers)


def from_body(body: Any) -> ProxyError | None:
    """The error inside an answer that pretends to be a success, or None where it is one."""
    if not isinstance(body, dict) or (body.get("choices") and not body.get("error")):
        return None
    if not body.get("error") and body.get("success") is not False and not _is_flat_error(body):
        return None
    found = _find(body)
    message = found.get("message") or "The upstream reported an error without saying which."
    status = _status_of(found)
    if status is None or not _FIRST_CLIENT_ERROR <= status < _FIRST_SERVER_ERROR:
        return UpstreamError(f"The upstream failed: {_clip(message)}")
    return _refused(status, message, found, {})


def _refused(status: int, message: str, found: Json, headers: Mapping[str, str]) -> UpstreamRefused:
    code = None if found.get("code") is None else str(found["code"])
    passed_on = _advice(headers)
    if status in _AUTH_STATUSES or code in _NO_USE_RETRYING:
        passed_on["x-should-retry"] = "false"
    return UpstreamRefused(
        _clip(message),
        status=status,
        type=_text(found.get("type")) or _TYPES.get(status, "invalid_request_error"),
        code=code,
        param=_text(found.get("param")),
        headers=passed_on,
    )


def _advice(headers: Mapping[str, str]) -> dict[str, str]:
    """What an upstream says about trying again."""
    return {name: headers[name] for name in ("retry-after", "x-should-retry") if name in headers}


def _find(body: Any) -> Json:
    """The object that holds message, code, type and param, however deep it lies."""
    if not isinstance(body, dict):
        return {}
    error = body.get("error")
    if isinstance(error, str):
        return {"message": error, "code": None, "status": body.get("status")}
    if isinstance(error, dict):
        inner = _find(_json(_text(error.get("details")) or ""))
        return inner if inner.get("message") else error
    return {**body, "message": body.get("message") or body.get("msg")}


def _is_flat_error(body: Json) -> bool:
    return "code" in body and ("message" in body or "msg" in body)


def _status_of(found: Json) -> int | None:
    """An HTTP status that an error without one carries in its fields."""
    for key in ("status_code", "status", "code"):
        value = found.get(key)
        if isinstance(value, int) and _FIRST_CLIENT_ERROR <= value <= _LAST_STATUS:
            return value
    return None


def _json(body: bytes | str) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _plain_text(body: bytes) -> str:
    """A body that is no JSON as a message; HTML says nothing that helps."""
    text = body.decode("utf-8", "replace").strip()
    return "" if text.startswith(("<", "{", "[")) else text


def _clip(message: Any) -> str:
    text = message if isinstance(message, str) else str(message)
    return text if len(text) <= _LONGEST_MESSAGE else text[:_LONGEST_MESSAGE] + "..."
