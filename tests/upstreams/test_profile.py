import pytest

from proxy.core.errors import UpstreamError
from proxy.upstreams.glm import GLM
from proxy.upstreams.gpt_oss import GPT_OSS
from proxy.upstreams.profile import OPENAI, mend, prepare

USER = {"role": "user", "content": "Hi"}


def test_a_request_that_fits_is_not_even_copied():
    body = {"messages": [USER], "tool_choice": "auto", "max_tokens": 5}
    for profile in (GLM, GPT_OSS, OPENAI):
        assert prepare(body, profile) is body


def test_glm_gets_what_it_takes():
    body = {
        "messages": [{"role": "developer", "content": "Be brief."}, USER],
        "max_completion_tokens": 5,
        "tool_choice": "required",
        "unknown": 1,
    }
    assert prepare(body, GLM) == {
        "messages": [{"role": "system", "content": "Be brief."}, USER],
        "max_tokens": 5,
        "unknown": 1,
    }
    assert body["tool_choice"] == "required"


def test_a_limit_that_stands_under_both_names_keeps_the_upstreams_own():
    body = {"messages": [USER], "max_completion_tokens": 5, "max_tokens": 7}
    assert prepare(body, GLM) == {"messages": [USER], "max_tokens": 7}


def test_glm_is_told_to_use_no_tool_by_not_being_told_of_any():
    body = {"messages": [USER], "tool_choice": "none", "tools": [{}], "parallel_tool_calls": True}
    assert prepare(body, GLM) == {"messages": [USER]}


def test_a_choice_that_is_an_object_is_no_auto():
    body = {"messages": [USER], "tool_choice": {"type": "function", "function": {"name": "auto"}}}
    assert prepare(body, GLM) == {"messages": [USER]}
    assert prepare(body, OPENAI) is body


@pytest.mark.parametrize(
    ("reason", "mended"),
    [
        ("sensitive", "content_filter"),
        ("model_context_window_exceeded", "length"),
        ("eos", "stop"),
        ("stop", "stop"),
        (None, None),
        ("", None),
    ],
)
def test_finish_reasons_are_openais(reason, mended):
    answer = {"choices": [{"finish_reason": reason}], "object": "chat.completion"}
    assert mend(answer, GLM, kind="chat.completion") is (reason != mended)
    assert answer["choices"][0]["finish_reason"] == mended


def test_a_finish_reason_that_is_a_failure_is_one():
    with pytest.raises(UpstreamError, match="network_error"):
        mend({"choices": [{"finish_reason": "network_error"}]}, GLM, kind="chat.completion")


def test_what_an_sdk_needs_is_filled_in():
    answer = {"choices": None}
    assert mend(answer, GLM, kind="chat.completion.chunk")
    assert answer == {"choices": [], "object": "chat.completion.chunk"}
