r"""Failures of upstreams: translates the formats of their errors into our errors, and decides about retries.

{"error": {"message", "type", "param", "code"}}          OpenAI; Z.AI (code: a string of digits, no type), Groq, vLLM
{"error": {..., "details": "{\"error\": {...}}"}}      GMI: the real error is JSON inside a string
{"code": "1210", "message": "..."}                       Z.AI, some 400s
{"code": 500, "msg": "...", "success": false}            Z.AI's SDK classes, with HTTP 200
{"timestamp", "status", "error": "Not Found", "path"}    Spring, for a wrong path: `error` is a string
{"detail": "..."}, {"detail": [{"loc", "msg", "type"}]}  Mistral, and any server built with FastAPI
[{"error": {"code", "message", "status"}}]               Gemini: a list of one error
{"errors": [{"message", "code"}], "success": false}      Cloudflare
{"choices": [{"error": {"code", "message"}}]}            OpenRouter, with HTTP 200
text, HTML                                               GMI's 404, any load balancer
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from itertools import permutations
from typing import Any

import orjson

from proxy.upstreams.full_context import full_context
from proxy.upstreams.profile import Profile
from proxy.wire.chat import Json
from proxy.wire.errors import Overloaded, ProxyError, UpstreamDown, UpstreamError, UpstreamRefused, UpstreamTimeout

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
_OTHER_TYPE = "invalid_request_error"
FIRST_CLIENT_ERROR = 400
_FIRST_SERVER_ERROR, _LAST_STATUS = 500, 599


@dataclass(frozen=True, slots=True)
class ErrorMeaning:
    """The meaning of an upstream's own code in OpenAI's terms. `status` is for errors inside a successful response."""

    status: int
    code: str
    final: bool = False  # a retry would only make it worse
    operator_code: str | None = None  # the code if the account is the operator's


_ZAI = "https://api.z.ai"
_KEY_REFUSED, _NO_CREDIT = "upstream_auth_failed", "upstream_quota_exceeded"
_AUTH = ErrorMeaning(401, "invalid_api_key", final=True, operator_code=_KEY_REFUSED)
_ACCOUNT = ErrorMeaning(403, "account_not_usable", final=True, operator_code=_KEY_REFUSED)
_DENIED = ErrorMeaning(403, "permission_denied", final=True, operator_code=_KEY_REFUSED)
_BACKEND = ErrorMeaning(502, "upstream_error")

# Z.AI's codes, which are strings of digits. Other codes (1210, 1212 ... 1215: faults of the request) stay as they are.
ZAI_CODES: Mapping[str, ErrorMeaning] = {
    **dict.fromkeys(("1000", "1001", "1002", "1003", "1004"), _AUTH),
    **dict.fromkeys(("1110", "1111", "1112"), _ACCOUNT),
    # No balance; sent with status 429.
    "1113": ErrorMeaning(429, "insufficient_quota", final=True, operator_code=_NO_CREDIT),
    "1211": ErrorMeaning(404, "model_not_found"),
    **dict.fromkeys(("1220", "1221", "1222"), _DENIED),
    **dict.fromkeys(("1230", "1231", "1234"), _BACKEND),
    "1261": ErrorMeaning(400, "context_length_exceeded"),  # see `full_context`
    "1301": ErrorMeaning(400, "content_filter"),
    "1302": ErrorMeaning(429, "rate_limit_exceeded"),
    "1305": ErrorMeaning(429, "rate_limit_exceeded"),  # the service is overloaded; the account is within its limits
    # The quota of a period is used up; the message has the end of the period.
    "1308": ErrorMeaning(429, "insufficient_quota", final=True),
    "1313": ErrorMeaning(429, "rate_limit_exceeded", final=True),  # banned for unfair use
}
_AUTH_STATUSES = (401, 403)
_PAYMENT_REQUIRED = 402
# The codes of OpenAI, DeepSeek and similar servers for an account without credit; some have the status 429.
_NO_CREDIT_CODES = frozenset({
    "insufficient_quota", "insufficient_balance", "insufficient_credits", "billing_hard_limit_reached",
    "billing_not_active",
})  # fmt: skip
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
_METHODS = re.compile(r"[A-Z]+(?:, ?[A-Z]+)*")
_METHOD_NOT_ALLOWED = 405
_REQUEST_TIMEOUT, _TOO_MANY_REQUESTS = 408, 429
# The statuses that OpenAI's SDKs retry, besides 5xx.
_TRANSIENT = frozenset({_REQUEST_TIMEOUT, 409, _TOO_MANY_REQUESTS})
# Refusals for reasons other than the request: key, balance, permission, an unknown model, time, too many requests.
_OUR_ACCOUNT = frozenset({401, 402, 403, 404, _REQUEST_TIMEOUT, _TOO_MANY_REQUESTS})
_LONGEST_MESSAGE = 2000
_MOST_WRAPPERS = 8  # real errors have up to three, and deeper ones would need a deep recursion
_UNNAMED = "The upstream reported an error without saying which."


def from_response(status: int, headers: Mapping[str, str], body: bytes) -> ProxyError:
    """The error for an HTTP response with an error status.

    4xx keeps its status, message and code; any other status becomes our 502, unless the conversation is too long.
    """
    found = _find(_first(_json(body)))
    message = _words(found.get("message") or _plain_text(body) or f"HTTP {status}")
    if FIRST_CLIENT_ERROR <= status < _FIRST_SERVER_ERROR:
        return _refused(status, message, found, headers)
    failure = UpstreamError(f"The upstream failed (HTTP {status}): {message}", headers=_advice(headers))
    return full_context(status, message, found) or failure


def raise_if_failed(body: Any) -> None:
    """Raise the error in the body of a successful response, if there is one."""
    body = _first(body)
    if not isinstance(body, dict) or (body.get("choices") and not body.get("error")):
        return
    is_flat_error = ("code" in body and ("message" in body or "msg" in body)) or (
        (body.get("detail") or body.get("errors")) and "choices" not in body
    )
    if not body.get("error") and body.get("success") is not False and not is_flat_error:
        return
    found = _find(body)
    message = _words(found.get("message") or _UNNAMED)
    status = _status_of(found)
    if status is not None and FIRST_CLIENT_ERROR <= status < _FIRST_SERVER_ERROR:
        raise _refused(status, message, found, {})
    raise full_context(status, message, found) or UpstreamError(f"The upstream failed: {message}")


def _refused(status: int, message: str, found: Json, headers: Mapping[str, str]) -> UpstreamError:
    given = None if found.get("code") is None else _words(found["code"])
    meaning = ZAI_CODES.get(given or "")
    if meaning is _BACKEND:
        return UpstreamError(f"The upstream failed: {message}")
    code = given
    if meaning is not None:
        code, message = meaning.code, f"{message} (upstream code {given})"
    if (full := full_context(status, message, found)) is not None:
        return full
    advice = _advice(headers)
    if status == _METHOD_NOT_ALLOWED and _METHODS.fullmatch(headers.get("allow", "")):
        advice["allow"] = headers["allow"]  # RFC 9110, section 15.5.6
    operator_code = meaning.operator_code if meaning is not None else _account_code(status, given)
    if operator_code or status in _AUTH_STATUSES or (meaning is not None and meaning.final):
        advice["x-should-retry"] = "false"
    return UpstreamRefused(
        message,
        status=status,
        type=_text(found.get("type")) or _TYPES.get(status, _OTHER_TYPE),
        code=code,
        param=_text(found.get("param")),
        headers=advice,
        operator_code=operator_code,
    )


def _account_code(status: int, code: str | None) -> str | None:
    """The code for clients if the upstream refuses the operator's key or account; None: it does not."""
    if status == _PAYMENT_REQUIRED or code in _NO_CREDIT_CODES:
        return _NO_CREDIT
    return _KEY_REFUSED if status in _AUTH_STATUSES else None


def _advice(headers: Mapping[str, str]) -> dict[str, str]:
    """The upstream's headers about retries."""
    return {name: headers[name] for name in ("retry-after", "retry-after-ms", "x-should-retry") if name in headers}


def _find(body: Any, wrappers: int = _MOST_WRAPPERS) -> Json:
    """The object that holds message, code, type and param, inside of at most so many `wrappers`."""
    if not isinstance(body, dict) or not wrappers:
        return {}
    error = body.get("error")
    if isinstance(error, str):
        return {"message": error, "code": None, "status": body.get("status")}
    if isinstance(error, dict):
        inner = _find(_json(_text(error.get("details")) or ""), wrappers - 1)
        return inner if inner.get("message") else error
    message = body.get("message") or body.get("msg")
    if not message and (errors := body.get("errors")):
        fault = _first(errors)
        return {**body, **(fault if isinstance(fault, dict) else {"message": fault})}
    detail = message.get("detail") if isinstance(message, dict) else body.get("detail")
    return {**body, **_detailed(detail, wrappers - 1)} if detail else {**body, "message": message}


def _first(errors: Any) -> Any:
    """The first item of a list; any other value as it is."""
    return (errors[0] if errors else None) if isinstance(errors, list) else errors


def _detailed(detail: Any, wrappers: int) -> Json:
    """Message and param from `detail`, which is a text, a list of faults in the request, or an error object."""
    if isinstance(detail, dict):
        return _find(detail, wrappers)
    faults = [fault for fault in detail if isinstance(fault, dict)] if isinstance(detail, list) else []
    if not faults:
        return {"message": detail}
    texts = [": ".join(filter(None, (_place(fault), _words(fault.get("msg"))))) for fault in faults]
    return {"message": "; ".join(texts), "param": _place(faults[0]), "type": None}


def _place(fault: Json) -> str | None:
    """The path of a fault in the request, such as `messages.0.content`."""
    where = fault.get("loc")
    return ".".join(str(step) for step in where if step != "body") if isinstance(where, list) else None


def _status_of(found: Json) -> int | None:
    """The HTTP status in the fields of an error that came without one; None: there is none."""
    if meaning := ZAI_CODES.get(_words(found.get("code"))):
        return meaning.status
    for key in ("status_code", "status", "code"):
        value = found.get(key)
        if isinstance(value, int) and FIRST_CLIENT_ERROR <= value <= _LAST_STATUS:
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
    """A body that is not JSON as a message; empty for HTML, which explains nothing."""
    text = body.decode("utf-8", "replace").strip()
    return "" if text.startswith(("<", "{", "[")) else text


def _words(value: Any) -> str:
    """Any JSON value as text, for upstreams that send another type in place of a text."""
    try:
        return value if isinstance(value, str) else orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        return "(nested too deep)"


def clipped(text: str) -> str:
    """A message of bounded length. Keys in it have to be masked before, because half a key would not be found."""
    return text if len(text) <= _LONGEST_MESSAGE else text[:_LONGEST_MESSAGE] + "..."


def other_endpoint(profile: Profile, base_url: str) -> str | None:
    """The base URL at the same host for the keys of another plan; None: there is none."""
    base = base_url.rstrip("/")
    for own, other in permutations(profile.key_plans, 2):
        if base.endswith(own):
            return base.removesuffix(own) + other
    return None


def key_advice(profile: Profile, base_url: str) -> str:
    """Advice for the operator about a key that this endpoint refuses; "" if there is none.

    It names only the public address, because clients read the advice and must not learn the operator's own address.
    """
    other = other_endpoint(profile, base_url)
    if other is None:
        return ""
    path, plan = next((path, plan) for path, plan in profile.key_plans.items() if other.endswith(path))
    return f"Z.AI has another endpoint for {plan}: set ZAI_BASE_URL={_ZAI}{path} if the key is one of them."


def is_transient(failure: ProxyError) -> bool:
    """Whether the same call is likely to succeed a moment later."""
    if failure.headers.get("x-should-retry") == "false" or isinstance(failure, (UpstreamTimeout, UpstreamDown)):
        return False
    if isinstance(failure, UpstreamRefused):
        return failure.status in _TRANSIENT
    return isinstance(failure, UpstreamError)


def may_work_elsewhere(failure: ProxyError, *, of_client: bool) -> bool:
    """Whether another upstream may answer, because this one is down, slow, full, or refuses our account.

    A faulty request would fail at every upstream.

    Args:
        failure: the failure of the upstream.
        of_client: whether the key was the client's own. If such a key is refused, a fallback would serve anybody who
            makes up a key, at the operator's cost.
    """
    if isinstance(failure, UpstreamRefused):
        if of_client and failure.status in _AUTH_STATUSES:
            return False
        return failure.operator_code is not None or failure.status in _OUR_ACCOUNT
    return isinstance(failure, (UpstreamError, Overloaded))


def retry_after(failure: ProxyError, now: float) -> float:
    """The seconds from `now`, on a wall clock, after which a retry is permitted; 0: no time is given, or it is over.

    `retry-after-ms` is OpenAI's, and finer than Retry-After, which is in seconds or a date (RFC 9110, section 10.2.3).
    """
    milliseconds = failure.headers.get("retry-after-ms", "")
    if _NUMBER.fullmatch(milliseconds):
        return float(milliseconds) / 1000
    value = failure.headers.get("retry-after", "")
    if _NUMBER.fullmatch(value):
        return float(value)
    try:
        when = parsedate_to_datetime(value)
        return max(0.0, (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() - now)
    except (ValueError, OverflowError):
        return 0.0
