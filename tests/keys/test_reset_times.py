import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.keys.reset_times import CHINA, reset_of

NOW = 1_772_798_400.0  # 2026-03-06 12:00:00 UTC
HOUR = 3600


def reset(headers=None, body=None, message="", **rest):
    found = reset_of(headers or {}, body or {}, message, **rest)
    return None if found is None else found.seconds_from(NOW)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"x-ratelimit-reset": "90"}, 90),
        ({"x-ratelimit-reset": "1772798460"}, 60),
        ({"x-ratelimit-reset": "1772798460000"}, 60),
        ({"x-ratelimit-reset-requests": "6m0s"}, 360),
        ({"x-ratelimit-reset-tokens": "1h2m3.5s"}, 3723.5),
        ({"x-ratelimit-reset-tokens": "120ms"}, 0.12),
        ({"anthropic-ratelimit-unified-reset": "1772802000"}, HOUR),
        ({"anthropic-ratelimit-requests-reset": "2026-03-06T13:00:00Z"}, HOUR),
        ({"ratelimit-reset": "Fri, 06 Mar 2026 12:00:30 GMT"}, 30),
        (
            {
                "x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "2m0s",
                "x-ratelimit-remaining-tokens": "900", "x-ratelimit-reset-tokens": "9m0s",
            },
            120,
        ),
        ({"x-ratelimit-reset-requests": "2m0s", "x-ratelimit-reset-tokens": "9m0s"}, None),
        ({"x-ratelimit-reset": "1, 1419704"}, None),
        ({"x-ratelimit-limit": "90", "x-reset": "90"}, None),
    ],
)  # fmt: skip
def test_a_reset_in_headers(headers, seconds):
    assert reset(headers) == seconds


@pytest.mark.parametrize(
    ("body", "seconds"),
    [
        ({"resets_in_seconds": 3600}, HOUR),
        ({"resets_at": 1772802000}, HOUR),
        ({"reset_at": "2026-03-06T13:00:00+00:00"}, HOUR),
        ({"reset_time": "2026-03-06 13:00"}, HOUR),
        ({"details": [{"@type": "RetryInfo", "retryDelay": "35.5s"}]}, 35.5),
        ({"metadata": {"headers": {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1772802000000"}}}, HOUR),
        ({"next_flush_time": "soon", "resets_in": True, "reset": None}, None),
        ({"preset_at": 5}, None),
    ],
)
def test_a_reset_in_the_fields_of_a_body(body, seconds):
    assert reset(body=body) == seconds


@pytest.mark.parametrize(
    ("message", "seconds"),
    [
        ("Usage limit reached for 5 hours. Your limit will reset at 2026-03-06 22:19:54", 2 * HOUR + 1194),
        ("已达到 5 小时的使用上限。您的限额将在 2026-03-06 21:00:00 重置。", HOUR),
        ("Your limit will reset at 2026-03-06 13:00:00 UTC", HOUR),
        ("It resets at 2026-03-06T13:00:00.250Z.", HOUR + 0.25),
        ("Please retry in 35.2s.", 35.2),
        ("Try again in 3 hours and 20 minutes", 3 * HOUR + 1200),
        ("Rate limited. Please try again after 60 seconds.", 60),
        ("请在 1 小时 30 分钟后重试", 1.5 * HOUR),
        ("Claude AI usage limit reached|1772802000", HOUR),
        ("Weekly limit exhausted, reset at 2026-03-05 09:00:00", -35 * HOUR),
        ("The model gpt-2026-01-01 00:00 is not known", None),
        ("Usage limit reached for 5 hours.", None),
        ("Try again in a moment.", None),
    ],
)
def test_a_reset_in_words_is_in_the_zone_of_china_where_it_names_none(message, seconds):
    assert reset(message=message, zone=CHINA) == pytest.approx(seconds)


def test_another_providers_time_without_a_zone_is_utc():
    assert reset(message="Your limit resets at 2026-03-06 13:00:00") == HOUR


@given(st.text(alphabet=st.sampled_from("reset again in after 0123456789:-TZ hours ms s d 小时后重试"), max_size=300))
def test_any_text_is_read(text):
    found = reset({"x-ratelimit-reset": text}, {"reset_at": text}, "reset again " + text)
    assert found is None or math.isfinite(found)
