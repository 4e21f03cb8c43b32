"""Nothing that a request says puts a key to rest: whatever an upstream quotes of it, and however it quotes it."""

from urllib.parse import quote

import orjson
import pytest

from proxy.keys.cooldowns import cooldown_seconds
from proxy.kit.sent import Sent
from proxy.upstreams.failures import KeyRefused, from_response

NOW = 1_795_000_000.0
PHRASES = {
    "your credit balance is too low": "credit",
    "insufficient balance": "credit",
    "账户余额不足": "credit",
    "this is an invalid api key": "refused",
    "your account has been suspended": "refused",
    "unauthorized by your plan": "refused",
    "no permission": "refused",
    "your plan does not include this model": "model",
    "you have reached your weekly limit": "window",
    "your usage limit will reset at 2026-12-20 10:00:00": "window",
}
# How upstreams in ten languages speak of what they do not take.
LANGUAGES = [
    "Unknown parameter: {}.", "未知参数：{}。", "不明なパラメータ {} です", "알 수 없는 매개변수: {}", "Paramètre inconnu : {}.",
    "Unbekannter Parameter: {}.", "Parámetro desconocido: {}.", "Неизвестный параметр: {}.", "पैरामीटर {} अज्ञात है",
    "معامل غير معروف: {}",
]  # fmt: skip


def escaped(text):
    return "".join(f"\\u{ord(letter):04x}" for letter in text)


# The body that a client sends, and what the upstream quotes of it.
FORMS = {
    "as it is": lambda p: (orjson.dumps({"x": p}), p),
    "in quotes": lambda p: (orjson.dumps({"x": p}), f"'{p}'"),
    "quotes in quotes": lambda p: (orjson.dumps({f"zz' {p} '": 1}), f"'zz' {p} ''"),
    "double quotes in quotes": lambda p: (orjson.dumps({"x": f'zz" {p} "'}), f'"zz" {p} ""'),
    "a quotation that is cut": lambda p: (orjson.dumps({"x": f"zz {p} " + "y" * 2500}), f"'zz {p} {'y' * 900}"),
    "Chinese quotes": lambda p: (orjson.dumps({"x": p}), f"“{p}”"),
    "Japanese quotes in others": lambda p: (orjson.dumps({"x": f"」{p}「"}), f"「」{p}「」"),
    "escapes of JSON": lambda p: (b'{"x": "%b"}' % escaped(p).encode(), p),
    "escapes within JSON in JSON": lambda p: (orjson.dumps({"arguments": f'{{"q": "{escaped(p)}"}}'}), p),
    "arguments of a tool": lambda p: (orjson.dumps({"arguments": orjson.dumps({"q": f"a\n{p}"}).decode()}), f"a\n{p}"),
    "percent-encoded": lambda p: (orjson.dumps({"x": quote(p)}), p),
    "percent-encoded twice": lambda p: (orjson.dumps({"x": quote(quote(p))}), p),
    "a percent sign before it": lambda p: (orjson.dumps({"x": f"%{p}"}), f"%{p}"),
    "a backslash before it": lambda p: (orjson.dumps({"x": f"\\{p}"}), f"\\{p}"),
    "entities of HTML": lambda p: (orjson.dumps({"x": p.replace(" ", "&#32;")}), p),
    "upper case": lambda p: (orjson.dumps({"x": p}), p.upper()),
    "lower case": lambda p: (orjson.dumps({"x": p.upper()}), p),
    "the name of a field": lambda p: (orjson.dumps({p: 1}), p),
    "other blanks": lambda p: (orjson.dumps({"x": p.replace(" ", "\t\n ")}), p),
    "full-width letters": lambda p: (orjson.dumps({"x": "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in p)}), p),
    "no JSON": lambda p: (f"--boundary\r\n\r\n{p}".encode(), p),
}  # fmt: skip
EXPECTED = {400: None, 401: "refused", 402: "credit", 403: None, 404: None, 422: None, 429: "rate"}


def refusal(status, message, sent):
    return from_response(status, {}, orjson.dumps({"error": {"message": message}}), sent=Sent(sent))


def cause(failure):
    return failure.cause if isinstance(failure, KeyRefused) else None


@pytest.mark.parametrize("status", EXPECTED)
@pytest.mark.parametrize("form", FORMS)
def test_words_that_an_upstream_quotes_of_the_request_say_nothing_of_its_key(form, status):
    for phrase in PHRASES:
        sent, quoted = FORMS[form](phrase)
        for language in LANGUAGES:
            failure = refusal(status, language.format(quoted), sent)
            if status == 403 and cause(failure):
                assert not failure.is_certain, "another key may be tried, and none is put to rest"
                continue
            assert cause(failure) == EXPECTED[status], (phrase, language)
            if status == 429:
                assert cooldown_seconds(failure.as_refusal(NOW)) == 2, (phrase, language)


@pytest.mark.parametrize(("phrase", "expected"), PHRASES.items())
def test_the_same_words_count_where_they_are_the_upstreams_own(phrase, expected):
    sent = orjson.dumps({"messages": [{"role": "user", "content": "What is an API key, and how do I spend a week?"}]})
    for language in LANGUAGES:
        assert cause(refusal(403, language.format(phrase), sent)) == expected
    if expected in ("credit", "window"):
        assert cause(refusal(429, phrase, sent)) == expected
        assert cause(refusal(402, phrase, sent)) == expected


def test_words_count_only_beside_statuses_that_may_be_about_a_key_and_codes_beside_any():
    for status in (400, 404, 408, 409, 413, 418, 422):
        assert not [phrase for phrase in PHRASES if cause(refusal(status, phrase, b"{}"))]
        coded = orjson.dumps({"error": {"code": "invalid_api_key", "message": "m"}})
        assert cause(from_response(status, {}, coded)) == "refused"


def test_zais_code_in_a_message_does_not_count_where_the_request_says_it():
    message = "[1113][Insufficient]"
    assert cause(refusal(429, message, b"{}")) == "credit"
    assert cause(refusal(429, message, orjson.dumps({"x": message}))) == "rate"
    assert cause(refusal(400, message, b"{}")) is None


def test_a_request_that_is_too_large_to_be_compared_counts_as_saying_anything():
    said = [refusal(403, "Your account has been suspended", b" " * size) for size in (2**20, 2**20 + 1)]
    assert [(cause(failure), failure.is_certain) for failure in said] == [("refused", True), ("refused", False)]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Request too large for gpt-5 on tokens per min (TPM): Limit 30000, Requested 50000.", None),
        ("Rate limit reached on tokens per min (TPM): Limit 30,000, Requested 50,000.", None),
        ("Rate limit reached on tokens per min: Limit: 30000, Used: 0, Requested: 30001", None),
        ("Request too large: reduce your message size and try again.", None),
        ("Rate limit reached: Limit 30000, Used 25000, Requested 15000. Please try again in 20s.", "rate"),
        ("Rate limit reached for requests", "rate"),
    ],
)
def test_a_429_about_the_size_of_this_one_request_is_not_about_the_key(message, expected):
    failure = from_response(
        429, {}, orjson.dumps({"error": {"message": message, "type": "tokens", "code": "rate_limit_exceeded"}})
    )
    assert (cause(failure), failure.status, failure.code) == (expected, 429, "rate_limit_exceeded")
    assert (failure.headers.get("x-should-retry") == "false") is (expected is None)
