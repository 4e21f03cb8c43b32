import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.keys.cooldowns import KeyRefusal
from proxy.kit.sent import NOTHING
from proxy.upstreams.answers import Mender
from proxy.upstreams.failures import clipped, from_response, raise_if_failed
from proxy.upstreams.profile import OPENAI
from proxy.wire.errors import ProxyError
from proxy.wire.sse import SseEvent
from tests import hostile
from tests.conformance import recordings
from tests.documents import WHOLE

INNER = {"error": {"type": "invalid_request_error", "code": "400001", "message": "Thinking mode"}}
OUTER = {"message": "Backend request failed", "type": "backend_error", "code": 400}
GMI = orjson.dumps({"error": {**OUTER, "details": orjson.dumps(INNER).decode()}})
SPRING = b'{"timestamp":"t","status":404,"error":"Not Found","path":"/v1"}'
TEXT = "No matching target server found for model foo"
DEEP = b'{"error":{"message":{"deep":1},"code":7,"type":8}}'
INVALID = "invalid_request_error"
MISSING = {"type": "missing", "loc": ["body", "messages", 0, "role"], "msg": "Field required"}
FASTAPI = orjson.dumps({"detail": [MISSING, {"msg": "Too long"}]})
EXTRA = {"type": "extra_forbidden", "loc": ["body", "temperature"], "msg": "Extra inputs are not permitted"}
MISTRAL = orjson.dumps({"object": "error", "message": {"detail": [EXTRA]}, "type": INVALID, "code": 3210})

GEMINI = b'[{"error":{"code":400,"message":"Invalid JSON payload","status":"INVALID_ARGUMENT"}}]'
CLOUDFLARE = b'{"errors":[{"message":"AiError: bad input","code":5006}],"success":false,"result":{},"messages":[]}'


def error_in(body):
    """The error inside an answer with a status of success, or None."""
    try:
        raise_if_failed(body)
    except ProxyError as exc:
        return exc


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (400, b'{"error":{"message":"m","type":"t","param":"p","code":"c"}}', (400, "m", "t", "p", "c")),
        (429, b'{"error":{"code":"1302","message":"slow"}}', (429, "slow (upstream code 1302)", "rate_limit_error", None, "rate_limit_exceeded")),
        (400, b'{"code":"1210","message":"bad"}', (400, "bad", INVALID, None, "1210")),
        (400, GMI, (400, "Thinking mode", INVALID, None, "400001")),
        (404, SPRING, (404, "Not Found", "not_found_error", None, None)),
        (404, TEXT.encode(), (404, TEXT, "not_found_error", None, None)),
        (403, b"<html>forbidden</html>", (403, "HTTP 403", "permission_error", None, None)),
        (401, b'{"detail":"Invalid API Key"}', (401, "Invalid API Key", "authentication_error", None, None)),
        (422, FASTAPI, (422, "messages.0.role: Field required; Too long", INVALID, "messages.0.role", None)),
        (422, MISTRAL, (422, "temperature: Extra inputs are not permitted", INVALID, "temperature", "3210")),
        (400, b'{"detail":{"message":"m","code":"c"}}', (400, "m", INVALID, None, "c")),
        (400, b'{"detail":{"error":{"message":"m","code":"c"}}}', (400, "m", INVALID, None, "c")),
        (400, b'{"detail":["a","b"]}', (400, '["a","b"]', INVALID, None, None)),
        (400, b'{"detail":null}', (400, "HTTP 400", INVALID, None, None)),
        (400, GEMINI, (400, "Invalid JSON payload", INVALID, None, "400")),
        (400, CLOUDFLARE, (400, "AiError: bad input", INVALID, None, "5006")),
        (400, b'{"errors":["a","b"]}', (400, "a", INVALID, None, None)),
        (400, b'{"errors":{"message":"m"},"message":"outer"}', (400, "outer", INVALID, None, None)),
        (400, b"[]", (400, "HTTP 400", INVALID, None, None)),
        (418, b"", (418, "HTTP 418", INVALID, None, None)),
        (422, DEEP, (422, '{"deep":1}', INVALID, None, "7")),
    ],
)  # fmt: skip
def test_a_4xx_keeps_its_status_its_message_and_its_code_in_whatever_shape_they_come(status, body, told):
    error = from_response(status, {}, body)
    assert (error.status, error.message, error.type, error.param, error.code) == told


@pytest.mark.parametrize("status", [500, 503, 302, 599])
def test_anything_else_is_our_502(status):
    error = from_response(status, {}, b'{"error":{"message":"internal"}}')
    assert (error.status, error.code) == (502, "upstream_error")
    assert error.message == f"The upstream failed (HTTP {status}): internal"


@pytest.mark.parametrize(
    ("status", "headers", "body", "passed_on"),
    [
        (429, {"retry-after": "7"}, b"{}", {"retry-after": "7"}),
        (503, {"retry-after": "7", "retry-after-ms": "6500"}, b"{}", {"retry-after": "7", "retry-after-ms": "6500"}),
        (429, {}, b'{"error":{"code":"1113"}}', {"x-should-retry": "false"}),
        (401, {"x-should-retry": "true"}, b"{}", {"x-should-retry": "false"}),
        (400, {"x-should-retry": "false", "set-cookie": "a"}, b"{}", {"x-should-retry": "false"}),
    ],
)
def test_whether_and_when_a_retry_helps_is_passed_on(status, headers, body, passed_on):
    assert from_response(status, headers, body).headers == passed_on


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"code": 500, "msg": "broken", "success": False}, 502, "The upstream failed: broken"),
        ({"error": {"message": "cut", "status_code": 400}}, 400, "cut"),
        ({"error": {"code": 429, "message": "slow"}, "choices": [{}]}, 429, "slow"),
        ({"error": "boom"}, 502, "The upstream failed: boom"),
        ({"success": False}, 502, "The upstream failed: The upstream reported an error without saying which."),
    ],
)
def test_an_error_inside_a_success_is_found(body, status, message):
    error = error_in(body)
    assert (error.status, error.message) == (status, message)


NAMED = [
    ({"code": "429"}, 429, "rate"),
    ({"code": "rate_limit_exceeded"}, 429, "rate"),
    ({"type": "rate_limit_error"}, 429, "rate"),
    ({"status": "RESOURCE_EXHAUSTED"}, 429, "rate"),
    ({"code": "insufficient_quota"}, 429, "credit"),
    ({"type": "billing_error"}, 402, "credit"),
    ({"type": "authentication_error"}, 401, "refused"),
    ({"code": "invalid_api_key"}, 401, "refused"),
    ({"status": "401"}, 401, "refused"),
    ({"type": "permission_error"}, 403, None),
    ({"type": "invalid_request_error"}, 400, None),
    ({"status_code": "422"}, 422, None),
    ({"type": "overloaded_error"}, 503, None),
    ({"code": "503"}, 503, None),
    ({"code": "500"}, 502, None),
    ({"code": "400001"}, 502, None),
    ({"type": "server_error"}, 502, None),
]


@pytest.mark.parametrize(("named", "status", "cause"), NAMED)
def test_an_error_inside_a_success_that_names_itself_in_words_has_the_status_that_they_mean(named, status, cause):
    for body in ({"error": {**named, "message": "m"}}, {"type": "error", "error": {**named, "message": "m"}}):
        error = error_in(body)
        assert (error.status, getattr(error, "cause", None)) == (status, cause)


@pytest.mark.parametrize("named", [{"code": "429"}, {"type": "rate_limit_error"}])
def test_a_time_after_which_to_retry_survives_inside_a_success(named):
    error = error_in({"error": {**named, "message": "m", "retry_after": 17}}).read_again(sent=NOTHING)
    assert error.as_refusal(0.0) == KeyRefusal("rate", 17)


@pytest.mark.parametrize(("status", "body"), [(502, b"<html>502 Bad Gateway</html>"), (503, b""), (504, b"{}")])
def test_a_failure_without_words_says_its_status_once(status, body):
    assert from_response(status, {}, body).message == f"The upstream failed (HTTP {status})."


def test_a_413_of_a_server_in_front_of_the_model_is_said_in_words():
    error = from_response(413, {}, b"<html><h1>413 Request Entity Too Large</h1></html>")
    assert (error.status, error.message) == (
        413, "The request is too large for a server in front of the model (HTTP 413)."
    )  # fmt: skip
    assert from_response(413, {}, b'{"error": "Payload of 9 MB"}').message == "Payload of 9 MB"


@pytest.mark.parametrize(
    "body", [{"choices": [{}]}, {"choices": [], "error": None}, {"id": ""}, {"object": "list"}, []]
)
def test_a_success_is_none(body):
    assert error_in(body) is None


@pytest.mark.parametrize(
    ("code", "status", "meaning", "final"),
    [
        ("1000", 401, "invalid_api_key", True),
        ("1113", 429, "insufficient_quota", True),
        ("1211", 404, "model_not_found", False),
        ("1261", 400, "context_length_exceeded", False),
        ("1301", 400, "content_filter", False),
        ("1302", 429, "rate_limit_exceeded", False),
        ("1308", 429, "insufficient_quota", True),
    ],
)
def test_zais_codes_keep_their_meaning_in_a_response_and_inside_a_success(code, status, meaning, final):
    body = {"error": {"code": code, "message": "m"}}
    for error in (from_response(status, {}, orjson.dumps(body)), error_in(body)):
        assert (error.status, error.code, error.message) == (status, meaning, f"m (upstream code {code})")
        assert (error.headers.get("x-should-retry") == "false") is final


@pytest.mark.parametrize("code", ["1230", "1234"])
def test_a_fault_behind_zai_is_no_fault_of_the_request(code):
    assert from_response(400, {}, orjson.dumps({"error": {"code": code, "message": "m"}})).status == 502


@pytest.mark.parametrize(
    "message",
    ["Request 9 input tokens exceeds the model's maximum context length", "Please reduce the length of the messages"],
)
def test_a_prompt_that_is_too_long_is_known_by_what_is_said_of_it(message):
    error = from_response(400, {}, orjson.dumps({"code": "1210", "message": message}))
    assert (error.status, error.code) == (400, "context_length_exceeded")


def answer_in(raw):
    return Mender(OPENAI, None, {}).completion(raw)


def chunk_in(raw):
    return Mender(OPENAI, None, {}).chunk(SseEvent(raw, raw))


@pytest.mark.parametrize("read", [answer_in, chunk_in])
@pytest.mark.parametrize(
    ("body", "told"),
    [
        (GEMINI, (400, "Invalid JSON payload")),
        (CLOUDFLARE, (502, "The upstream failed: AiError: bad input")),
        (b'{"errors":[{"message":"m","status":404}]}', (404, "m")),
    ],
)
def test_lists_of_errors_are_errors_inside_a_success_too(read, body, told):
    with pytest.raises(ProxyError) as raised:
        read(body)
    assert (raised.value.status, raised.value.message) == told


@pytest.mark.parametrize(
    "body", [b'{"detail":' * 900 + b"{}" + b"}" * 900, b'{"message":{"detail":' * 450 + b"{}" + b"}}" * 450]
)
def test_an_error_in_hundreds_of_wrappers_keeps_its_status(body):
    assert from_response(400, {}, body).status == 400


def test_details_that_are_no_error_hide_none():
    body = {"error": {"message": "the real one", "code": "c", "details": '{"foo": 1}'}}
    assert from_response(400, {}, orjson.dumps(body)).message == "the real one"


def test_what_an_error_says_in_other_than_words_is_told_as_far_as_it_can_be():
    error = error_in({"error": {"message": ["x"], "code": {"a": 1}, "status": 400}})
    assert (error.message, error.code) == ('["x"]', '{"a":1}')
    deep = orjson.loads(b"[" * 1000 + b"]" * 1000)
    error = error_in({"error": {"message": deep, "code": deep, "status": 400}})
    assert (error.message, error.code) == ("(nested too deep)", "(nested too deep)")


def test_a_message_is_bounded():
    assert clipped("x" * 10_000) == "x" * 2000 + "..."


@pytest.mark.skipif(not recordings.FOLDER.is_dir(), reason="no recordings beside the project")
def test_recorded_error_bodies_are_understood():
    refused = [exchange for exchange in recordings.load("groq__test_tool_regular_error") if exchange.status >= 400]
    assert refused
    for exchange in refused:
        error = from_response(exchange.status, {}, exchange.body)
        assert error.status == exchange.status
        assert error.message in exchange.body.decode()


@given(
    hostile.mutated(st.sampled_from([*WHOLE, {"error": {"message": "m", "code": "1113", "details": "{}"}}])),
    st.integers(400, 599),
)
def test_whatever_an_upstream_says_of_a_failure_it_is_one_in_openais_words(body, status):
    raw = hostile.written(body)
    errors = [from_response(status, {}, raw), from_response(status, {}, raw[: len(raw) // 2]), error_in(_readable(raw))]
    for error in (error for error in errors if error is not None):
        assert isinstance(error, ProxyError)
        assert error.status in (status, 502) or 400 <= error.status < 500
        told = error.envelope()["error"]
        assert isinstance(told["message"], str)
        assert isinstance(told["type"], str)
        assert all(value is None or isinstance(value, str) for value in told.values())
        assert len(orjson.dumps(told)) < 40_000


def _readable(raw):
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
