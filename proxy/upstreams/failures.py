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

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, timezone
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import permutations
from typing import Any, TypeVar

import orjson

from proxy.keys.cooldowns import LONGEST_RATE, KeyCause, KeyRefusal, cooldown_seconds
from proxy.keys.refusals import WORDS_COUNT, cause_of, is_about_request, is_too_large
from proxy.keys.reset_times import CHINA, Reset, reset_of
from proxy.kit.sent import NOTHING, Sent
from proxy.upstreams.full_context import full_context
from proxy.upstreams.profile import Profile
from proxy.wire.chat import Json
from proxy.wire.errors import (
    SHORT_CODE,
    Overloaded,
    ProxyError,
    UpstreamDown,
    UpstreamError,
    UpstreamRefused,
    UpstreamTimeout,
)

E = TypeVar("E", bound=ProxyError)

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
_OTHER_TYPE = "invalid_request_error"
FIRST_CLIENT_ERROR = 400
_FIRST_SERVER_ERROR, _LAST_STATUS = 500, 599


@dataclass(frozen=True, slots=True)
class ErrorMeaning:
    """The meaning of an upstream's own code in OpenAI's terms. `status` is for errors inside a successful response."""

    status: int
    code: str
    key: KeyCause | None = None  # why a key is refused, if it is about one


_ZAI = "https://api.z.ai"
_AUTH = ErrorMeaning(401, "invalid_api_key", "refused")
_ACCOUNT = ErrorMeaning(403, "account_not_usable", "refused")
_DENIED = ErrorMeaning(403, "permission_denied", "model")
_NO_BALANCE = ErrorMeaning(429, "insufficient_quota", "credit")
# The quota of some hours or days is used up; the message says until when.
_USED_UP = ErrorMeaning(429, "insufficient_quota", "window")
_TOO_FAST = ErrorMeaning(429, "rate_limit_exceeded", "rate")
_BACKEND = ErrorMeaning(502, "upstream_error")

# Z.AI's codes, which are strings of digits (docs.z.ai/api-reference/api-code). Other codes (1210, 1212 ... 1215: faults
# of the request) stay as they are.
ZAI_CODES: Mapping[str, ErrorMeaning] = {
    **dict.fromkeys(("1000", "1001", "1002", "1003", "1004"), _AUTH),
    **dict.fromkeys(("1110", "1111", "1112", "1120", "1121"), _ACCOUNT),
    **dict.fromkeys(("1113", "1309"), _NO_BALANCE),  # with status 429
    "1211": ErrorMeaning(404, "model_not_found"),
    **dict.fromkeys(("1220", "1221", "1222", "1311"), _DENIED),
    **dict.fromkeys(("1230", "1231", "1234"), _BACKEND),
    "1261": ErrorMeaning(400, "context_length_exceeded"),  # see `full_context`
    "1301": ErrorMeaning(400, "content_filter"),
    **dict.fromkeys(("1302", "1303"), _TOO_FAST),
    "1305": ErrorMeaning(429, "rate_limit_exceeded"),  # the service is overloaded; the account is within its limits
    **dict.fromkeys(("1304", "1308", "1310", "1316", "1317"), _USED_UP),
    "1313": _ACCOUNT,  # banned for unfair use; with status 429
}
# The code for the client if the key or account that is refused is the operator's.
_OPERATOR_CODES: Mapping[KeyCause, str] = {
    "refused": "upstream_auth_failed",
    "model": "upstream_auth_failed",
    "credit": "upstream_quota_exceeded",
}
_FORBIDDEN, _NOT_FOUND, _METHOD_NOT_ALLOWED = 403, 404, 405
_REQUEST_TIMEOUT, _TOO_LARGE, _TOO_MANY_REQUESTS = 408, 413, 429
# What web servers and frameworks say of a path that they do not know.
_NO_SUCH_PATH = frozenset({"not found", "404", "404 not found", "404 page not found", "http 404", "page not found"})
_AUTH_STATUSES = (401, 403)
# The statuses that OpenAI's, Anthropic's and Google's names of errors stand for.
_STATUSES: Mapping[str, int] = {
    **dict.fromkeys(
        ("rate_limit_exceeded", "rate_limit_error", "too_many_requests", "insufficient_quota", "resource_exhausted"),
        _TOO_MANY_REQUESTS,
    ),
    **dict.fromkeys(("authentication_error", "invalid_api_key", "unauthenticated"), 401),
    **dict.fromkeys(("permission_error", "permission_denied"), _FORBIDDEN),
    "billing_error": 402,
    **dict.fromkeys(("invalid_request_error", "invalid_argument"), 400),
    "not_found_error": _NOT_FOUND,
    **dict.fromkeys(("overloaded_error", "overloaded", "unavailable"), 503),
}
_OVERLOADED = 503
_STATUS = re.compile(r"[45][0-9]{2}")
_TOO_LARGE_IN_FRONT = "The request is too large for a server in front of the model (HTTP 413)."
_CODE_IN_MESSAGE = re.compile(r"\[(\d{4})\]")
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
_METHODS = re.compile(r"[A-Z]+(?:, ?[A-Z]+)*")
# The statuses that OpenAI's SDKs retry, besides 5xx.
_TRANSIENT = frozenset({_REQUEST_TIMEOUT, 409, _TOO_MANY_REQUESTS})
# Refusals for reasons other than the request: key, balance, permission, an unknown model, time, too many requests.
# A 403 is about one of them if it has an `operator_code`.
_OUR_ACCOUNT = frozenset({401, 402, 404, _REQUEST_TIMEOUT, _TOO_MANY_REQUESTS})
_LONGEST_MESSAGE = 2000
_MOST_WRAPPERS = 8  # real errors have up to three, and deeper ones would need a deep recursion
_UNNAMED = "The upstream reported an error without saying which."


def from_response(
    status: int, headers: Mapping[str, str], body: bytes, *, sent: Sent = NOTHING, zone: timezone = UTC
) -> ProxyError:
    """The error for an HTTP response with an error status.

    4xx keeps its status, message and code; any other status becomes our 502, unless the conversation is too long.

    Args:
        status: the status.
        headers: the headers, with names in lower case.
        body: the body, as far as it was read.
        sent: the request, whose words in the error say nothing of keys.
        zone: the zone of times that name none.
    """
    found = _find(_json(body))
    words = _words(found.get("message") or _plain_text(body))
    if FIRST_CLIENT_ERROR <= status < _FIRST_SERVER_ERROR:
        unnamed = _TOO_LARGE_IN_FRONT if status == _TOO_LARGE else f"HTTP {status}"
        return _refused(status, words or unnamed, found, headers, sent=sent, zone=zone)
    message = f"The upstream failed (HTTP {status})" + (f": {words}" if words else ".")
    failure = full_context(status, words, found) or UpstreamError(message, headers=_advice(headers))
    return _said(failure, status, found)


def knows_no_path(exc: ProxyError) -> bool:
    """Whether a refusal is that of a server that does not know the path: a 404 without a code."""
    words = exc.message.strip().rstrip(".").lower()
    return exc.status == _NOT_FOUND and exc.code is None and words in _NO_SUCH_PATH


def raise_if_failed(body: Any) -> None:
    """Raise the error in the body of a successful response, if there is one."""
    if isinstance(body, list) and body:
        body = body[0]
    if not isinstance(body, dict) or (body.get("choices") and not body.get("error")):
        return
    is_flat_error = ("code" in body and ("message" in body or "msg" in body)) or (
        (body.get("detail") or body.get("errors")) and "choices" not in body
    )
    if not body.get("error") and body.get("success") is not False and not is_flat_error:
        return
    raise _inside(body)


def _inside(body: Json, *, sent: Sent | None = None, zone: timezone = UTC) -> ProxyError:
    """The error in the body of a successful response, which is not yet compared with the request that was `sent`."""
    found = _find(body)
    message = _words(found.get("message") or _UNNAMED)
    status = _status_of(found)
    if status is not None and FIRST_CLIENT_ERROR <= status < _FIRST_SERVER_ERROR:
        refused = _refused(status, message, found, {}, sent=sent, zone=zone)
        if sent is None and isinstance(refused, UpstreamRefused):
            refused.read_again = partial(_inside, body)
        return refused
    failure = full_context(status, message, found) or UpstreamError(f"The upstream failed: {message}")
    if status == _OVERLOADED:
        failure.status = status
    return _said(failure, status, found)


class KeyRefused(UpstreamRefused):
    """The upstream refused a call on account of its key.

    Attributes:
        cause: the reason.
        reset: when the key can be used again, as far as the upstream says.
        is_certain: whether that is certain; if not, the key is not put to rest.
        is_final: whether every key was tried that could be, so that a retry is of no use.
    """

    cause: KeyCause
    reset: Reset | None = None
    is_certain: bool = True
    is_final: bool = False

    def as_refusal(self, now: float) -> KeyRefusal:
        """The refusal as the table of rests takes it; `now` is in seconds since 1970."""
        seconds = None if self.reset is None else self.reset.seconds_from(now)
        wait = retry_after(self, now) or None
        if self.cause == "rate" and wait is None and seconds is not None and seconds > LONGEST_RATE:
            return KeyRefusal("window", seconds)
        if self.cause == "window":
            return KeyRefusal("window", seconds if seconds is not None else wait)
        return KeyRefusal(self.cause, wait if wait is not None or not seconds or seconds < 0 else seconds)

    def blame_operator(self, upstream: str, advice: str = "", *, source: str | None = None) -> None:
        """As for any refusal; a rate, or a window that is used up, is a 429, whatever status it came with."""
        super().blame_operator(upstream, advice, source=source)
        if self.operator_code is None and self.status != _TOO_MANY_REQUESTS:
            self.status, self.type = _TOO_MANY_REQUESTS, _TYPES[_TOO_MANY_REQUESTS]

    @classmethod
    def of(cls, fields: Json) -> "KeyRefused":
        """The refusal that a recorded case of 0.2 tells."""
        refused = cls(fields["message"], status=fields["status"], type=fields["type"], headers=fields.get("headers"))
        refused.code, refused.param = fields.get("code"), fields.get("param")
        refused.operator_code, refused.cause = fields.get("operator_code"), fields["cause"]
        return refused

    def rest_for(self, seconds: float) -> None:
        """Replace the upstream's `Retry-After`, which is that of one key, by the time until any can be used."""
        self.is_final = True
        if not self.is_certain:
            return
        self.retry_after = max(1, math.ceil(seconds))
        others = {name: value for name, value in self.headers.items() if not name.startswith("retry-after")}
        self.headers = {**others, "retry-after": str(self.retry_after)}


def _refused(
    status: int, message: str, found: Json, headers: Mapping[str, str], *, sent: Sent | None, zone: timezone
) -> UpstreamError:
    """The error for a refusal, 4xx, with the fields `found`. Without `sent`, its words say nothing of keys."""
    given = _code_of(found, message, status, sent)
    meaning = ZAI_CODES.get(given or "")
    if meaning is _BACKEND:
        return _said(UpstreamError(f"The upstream failed: {message}"), status, found)
    code, shown, kind = given, message, _text(found.get("type"))
    if meaning is not None:
        code, shown = meaning.code, f"{message} (upstream code {given})"
    if (full := full_context(status, shown, found)) is not None:
        return _said(full, status, found)
    if meaning is not None:
        cause, is_certain = meaning.key, True
    else:
        cause, is_certain = cause_of(status, {(given or "").lower(), (kind or "").lower()}, message, sent)
    advice = _advice(headers)
    if status == _METHOD_NOT_ALLOWED and _METHODS.fullmatch(headers.get("allow", "")):
        advice["allow"] = headers["allow"]  # RFC 9110, section 15.5.6
    operator_code = _OPERATOR_CODES.get(cause) if cause is not None else None
    if status == _FORBIDDEN and cause is None and not is_about_request(message):
        operator_code = _OPERATOR_CODES["refused"]
    if operator_code or cause == "window" or (status == _TOO_MANY_REQUESTS and is_too_large(message)):
        advice["x-should-retry"] = "false"
    refused = (UpstreamRefused if cause is None else KeyRefused)(
        shown,
        status=status,
        type=kind or _TYPES.get(status, _OTHER_TYPE),
        code=code,
        param=_text(found.get("param")),
        headers=advice,
        operator_code=operator_code,
    )
    if isinstance(refused, KeyRefused) and cause is not None:
        refused.cause, refused.is_certain = cause, is_certain
        zone = zone if meaning is None else CHINA
        is_quoted = sent.says if sent is not None else lambda _: True
        refused.reset = reset_of(headers, found, message, zone=zone, is_quoted=is_quoted)
    return _said(refused, status, found, given)


def _code_of(found: Json, message: str, status: int, sent: Sent | None) -> str | None:
    """The code of an error, which may be in the message, as in `[1113][Insufficient balance...]` of Z.AI."""
    given = None if found.get("code") is None else _words(found["code"])
    if given in ZAI_CODES or status not in WORDS_COUNT or sent is None:
        return given
    within = _CODE_IN_MESSAGE.match(message)
    return within[1] if within and within[1] in ZAI_CODES and not sent.says(within[0]) else given


def _said(failure: E, status: int | None, found: Json, code: str | None = None) -> E:
    """A failure with the upstream's own status and code, for the log."""
    code = code or (None if found.get("code") is None else _words(found["code"]))
    failure.upstream_status = status
    failure.upstream_code = code if code is not None and SHORT_CODE.fullmatch(code) else None
    return failure


def _advice(headers: Mapping[str, str]) -> dict[str, str]:
    """The upstream's headers about retries."""
    return {name: headers[name] for name in ("retry-after", "retry-after-ms", "x-should-retry") if name in headers}


def _find(body: Any, wrappers: int = _MOST_WRAPPERS) -> Json:
    """The object that holds message, code, type and param, inside of at most so many `wrappers`."""
    if isinstance(body, list) and body:
        body = body[0]
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
        fault = errors[0] if isinstance(errors, list) else errors
        return {**body, **(fault if isinstance(fault, dict) else {"message": fault})}
    detail = message.get("detail") if isinstance(message, dict) else body.get("detail")
    return {**body, **_detailed(detail, wrappers - 1)} if detail else {**body, "message": message}


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
    """The HTTP status in the fields of an error that came without one, as a number or in words; None: there is none."""
    if meaning := ZAI_CODES.get(_words(found.get("code"))):
        return meaning.status
    for key in ("status_code", "status", "code"):
        value = found.get(key)
        if isinstance(value, str) and _STATUS.fullmatch(value):
            value = int(value)
        if isinstance(value, int) and FIRST_CLIENT_ERROR <= value <= _LAST_STATUS:
            return value
    named = (_words(found.get(key)).lower() for key in ("code", "type", "status", "message"))
    return next((_STATUSES[name] for name in named if name in _STATUSES), None)


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
    if isinstance(failure, KeyRefused) and failure.is_final:
        return False
    if isinstance(failure, UpstreamRefused):
        return failure.status in _TRANSIENT
    return isinstance(failure, UpstreamError)


def may_work_elsewhere(failure: ProxyError, *, uses_client_key: bool) -> bool:
    """Whether another upstream may answer, because this one is down, slow, full, or refuses our account.

    A faulty request would fail at every upstream.

    Args:
        failure: the failure of the upstream.
        uses_client_key: whether the key was the client's own. If such a key is refused, a fallback would serve
            anybody who makes up a key, at the operator's cost.
    """
    if isinstance(failure, UpstreamRefused):
        if uses_client_key and failure.status in _AUTH_STATUSES:
            return False
        return isinstance(failure, KeyRefused) or failure.operator_code is not None or failure.status in _OUR_ACCOUNT
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


def advise(failure: ProxyError, now: float) -> None:
    """Add the headers by which SDKs retry, where the upstream gives the time in its own form only.

    Args:
        failure: a failure that is the answer.
        now: seconds since 1970.
    """
    if not isinstance(failure, KeyRefused) or failure.retry_after or failure.status != _TOO_MANY_REQUESTS:
        return
    refusal = failure.as_refusal(now)
    if refusal.cause == "window":
        failure.headers["x-should-retry"] = "false"
    if refusal.cause in ("window", "rate") and not retry_after(failure, now):
        failure.rest_for(cooldown_seconds(refusal))
