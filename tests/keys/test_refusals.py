import orjson
import pytest

from proxy.upstreams.failures import KeyRefused, from_response, may_work_elsewhere, raise_if_failed

NOW = 1_772_798_400.0  # 2026-03-06 12:00:00 UTC, 20:00 in China
HOUR = 3600


def of(status, error, headers=None):
    return from_response(status, headers or {}, orjson.dumps({"error": error}))


def cause(error):
    return error.cause if isinstance(error, KeyRefused) else None


ZAI = {
    "refused": ["1000", "1001", "1002", "1003", "1004", "1110", "1111", "1112", "1120", "1121", "1313"],
    "credit": ["1113", "1309"],
    "window": ["1304", "1308", "1310", "1316", "1317"],
    "rate": ["1302", "1303"],
    "model": ["1220", "1221", "1222", "1311"],
    None: ["1210", "1211", "1212", "1214", "1215", "1230", "1234", "1300", "1301", "1305"],
}


@pytest.mark.parametrize(("expected", "code"), [(expected, code) for expected, codes in ZAI.items() for code in codes])
def test_every_code_of_zais_is_about_the_key_or_not_whatever_its_status(expected, code):
    for status in (400, 401, 403, 429):
        if expected is not None or code in ("1230", "1234", "1305") or status == 400:
            assert cause(of(status, {"code": code, "message": "m"})) == expected
    if expected is not None:
        with pytest.raises(KeyRefused) as inside:
            raise_if_failed({"error": {"code": code, "message": "m"}})
        assert inside.value.cause == expected
        assert cause(of(429, {"type": "rate_limit_error", "message": f"[{code}][No.][trace]"})) == expected


@pytest.mark.parametrize(
    ("status", "error", "expected"),
    [
        (401, {"message": "no"}, "refused"),
        (402, {"message": "no"}, "credit"),
        (400, {"message": "Your credit balance is too low to access the API."}, None),
        (400, {"message": "m", "code": "insufficient_quota"}, "credit"),
        (404, {"message": "m", "code": "account_deactivated"}, "refused"),
        (422, {"message": "m", "type": "billing_error"}, "credit"),
        (429, {"message": "Your credit balance is too low to access the API."}, "credit"),
        (429, {"message": "You exceeded your current quota.", "code": "insufficient_quota"}, "credit"),
        (403, {"message": "Sorry, your account balance is insufficient. Insufficient balance"}, "credit"),
        (429, {"message": "余额不足或无可用资源包,请充值。"}, "credit"),
        (403, {"message": "API key not valid. Please pass a valid API key."}, "refused"),
        (403, {"message": "The API key 'k-1' is disabled."}, "refused"),
        (403, {"message": "Access denied: your account is in arrears"}, "credit"),
        (400, {"message": "m", "type": "authentication_error"}, "refused"),
        (403, {"message": "Your account has been suspended."}, "refused"),
        (403, {"message": "Your account was disabled, for it violates our usage policies."}, "refused"),
        (403, {"message": "This key may not call this endpoint"}, "refused"),
        (403, {"message": "Permission denied"}, "refused"),
        (403, {"message": "Your plan does not include the model glm-5"}, "model"),
        (403, {"message": "You do not have access to this model"}, "model"),
        (403, {"message": "The prompt was flagged by our content policy"}, None),
        (403, {"message": "Country, region or territory not supported"}, None),
        (403, {"message": "Forbidden"}, None),
        (429, {"message": "Rate limit reached"}, "rate"),
        (429, {"message": "The engine is currently overloaded"}, None),
        (429, {"message": "m", "type": "engine_overloaded_error"}, None),
        (429, {"message": "m", "type": "usage_limit_reached"}, "window"),
        (429, {"message": "You have reached your weekly limit"}, "window"),
        (429, {"message": "已达到 5 小时的使用上限"}, "window"),
        (400, {"message": "Invalid value: 'credit balance is too low'. Supported are 'a' and 'invalid api key'."}, None),
        (400, {"message": "The parameter top_p is not valid"}, None),
        (404, {"message": "no such model for this api key"}, None),
        (413, {"message": "Request too large for your rate limit", "code": "rate_limit_exceeded"}, None),
        (422, {"message": "insufficient balance"}, None),
        (500, {"message": "invalid api key"}, None),
    ],
)  # fmt: skip
def test_what_a_refusal_is_about_is_found_by_its_status_its_code_and_its_words(status, error, expected):
    assert cause(of(status, error)) == expected


@pytest.mark.parametrize(
    ("status", "error", "headers", "expected"),
    [
        (429, {"code": "1308", "message": "Your limit will reset at 2026-03-06 21:00:00"}, {}, ("window", HOUR)),
        (429, {"code": "1310", "message": "您的限额将在 2026-03-06 21:00:00 重置。"}, {}, ("window", HOUR)),
        (429, {"code": "1308", "message": "m"}, {}, ("window", None)),
        (429, {"message": "Your weekly limit is reached"}, {"retry-after": "7200"}, ("window", 2 * HOUR)),
        (429, {"message": "usage limit", "resets_in_seconds": 60}, {}, ("window", 60)),
        (429, {"message": "m"}, {"anthropic-ratelimit-unified-reset": str(int(NOW + HOUR))}, ("window", HOUR)),
        (429, {"message": "m"}, {"x-ratelimit-reset": "20"}, ("rate", 20)),
        (429, {"message": "m"}, {"retry-after": "7"}, ("rate", 7)),
        (429, {"message": "m"}, {"retry-after": "18000"}, ("rate", 5 * HOUR)),  # of which the table makes 10 minutes
        (429, {"message": "m"}, {"retry-after": "0"}, ("rate", None)),
        (429, {"message": "m"}, {}, ("rate", None)),
        (429, {"message": "slow", "details": [{"retryDelay": "35s"}]}, {}, ("rate", 35)),
    ],
)
def test_the_time_that_a_refusal_names(status, error, headers, expected):
    refusal = of(status, error, headers).as_refusal(NOW)
    assert (refusal.cause, refusal.seconds) == expected


@pytest.mark.parametrize(
    ("status", "error", "operator_code", "retries"),
    [
        (401, {"message": "m"}, "upstream_auth_failed", "false"),
        (429, {"code": "1313", "message": "m"}, "upstream_auth_failed", "false"),
        (403, {"message": "Forbidden"}, "upstream_auth_failed", "false"),
        (403, {"message": "flagged by moderation"}, None, None),
        (400, {"code": "1311", "message": "m"}, "upstream_auth_failed", "false"),
        (402, {"message": "Your credit balance is too low"}, "upstream_quota_exceeded", "false"),
        (429, {"code": "1309", "message": "m"}, "upstream_quota_exceeded", "false"),
        (429, {"code": "1310", "message": "m"}, None, "false"),
        (429, {"code": "1302", "message": "m"}, None, None),
    ],
)
def test_who_is_to_blame_and_whether_a_retry_helps(status, error, operator_code, retries):
    failure = of(status, error)
    assert (failure.operator_code, failure.headers.get("x-should-retry")) == (operator_code, retries)
    assert may_work_elsewhere(failure, uses_client_key=False) is (error["message"] != "flagged by moderation")
