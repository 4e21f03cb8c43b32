"""The fixture `toolproxy_mock`, as an app's tests use it: over real sockets, with the real SDK and without."""

import re
from pathlib import Path

import httpx
import openai
import pytest

from proxy.wire.errors import ConfigurationError

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
SEARCH = {"type": "function", "function": {"name": "web_search", "parameters": {"type": "object", "required": ["q"], "properties": {"q": {"type": "string"}}}}}  # fmt: skip


@pytest.fixture
def sdk(toolproxy_mock):
    return openai.OpenAI(base_url=toolproxy_mock.url, api_key="test-key", max_retries=0)


def ask(sdk, text="Hi", **more):
    return sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": text}], **more)


@pytest.mark.parametrize(
    ("script", "answer"),
    [
        (["It rains."], "It rains."),
        ([{"text": "It snows."}], "It snows."),
        ([{"conversations": [{"turns": [{"text": "As a mapping."}]}]}], "As a mapping."),
        (["conversations: [{turns: [{text: As YAML.}]}]"], "As YAML."),
        ([], "Hello! Nothing had to be looked up for this answer."),
    ],
)
def test_an_app_is_answered_as_the_test_says_and_the_test_sees_its_requests(toolproxy_mock, sdk, script, answer):
    if script:
        toolproxy_mock.script(*script)
    assert ask(sdk).choices[0].message.content == answer
    (request,) = toolproxy_mock.requests
    assert request["messages"] == request["body"]["messages"] == [{"role": "user", "content": "Hi"}]
    assert (request["path"], request["status"]) == ("/v1/chat/completions", 200)
    assert request["headers"]["authorization"] == "Bearer test-key"
    with pytest.raises(KeyError):
        request["nothing"]


@pytest.mark.parametrize("as_path", [Path, str])
def test_a_script_may_be_a_file(toolproxy_mock, sdk, tmp_path, as_path):
    path = tmp_path / "script.yaml"
    path.write_text("conversations: [{turns: [{text: Of a file.}]}]")
    toolproxy_mock.script(as_path(path))
    assert ask(sdk).choices[0].message.content == "Of a file."


def test_a_faulty_script_is_refused_and_the_next_test_begins_anew(toolproxy_mock):
    with pytest.raises(ConfigurationError, match=r"conversations\[0\].turns\[0\].txt: unknown key"):
        toolproxy_mock.script({"txt": "x"})
    assert toolproxy_mock.requests == []


def test_failures_come_in_order_and_the_turn_after_them(toolproxy_mock, sdk):
    toolproxy_mock.script({"status": 429, "headers": {"retry-after": "7"}}, {"status": 500, "body": "no"}, "Fine.")
    for _ in range(2):  # after the answer it begins anew
        with pytest.raises(openai.RateLimitError) as limited:
            ask(sdk)
        assert limited.value.response.headers["retry-after"] == "7"
        with pytest.raises(openai.InternalServerError):
            ask(sdk)
        assert ask(sdk).choices[0].message.content == "Fine."
    assert [request["status"] for request in toolproxy_mock.requests] == [429, 500, 200] * 2


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_cut_off_never_ends(toolproxy_mock, sdk, stream):
    toolproxy_mock.script({"text": "It rains and rains.", "cut": True})
    with pytest.raises((openai.APIConnectionError, httpx.RemoteProtocolError)):
        list(ask(sdk, stream=True)) if stream else ask(sdk)


def test_failures_by_a_rate_follow_from_the_seed(toolproxy_mock):
    def statuses(seed):
        toolproxy_mock.script("Fine.", error_rate=0.5, errors=[429, 503], seed=seed)
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
        with httpx.Client() as client:
            return [client.post(f"{toolproxy_mock.url}/chat/completions", json=body).status_code for _ in range(40)]

    first = statuses(1)
    assert set(first) == {200, 429, 503}
    assert 10 <= first.count(200) <= 30
    assert statuses(1) == first
    assert statuses(2) != first


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ({}, ["web_search"]),
        ({"tool_choice": "none"}, []),
        ({"tool_choice": "required"}, ["web_search"]),
        ({"tool_choice": {"type": "function", "function": {"name": "web_search"}}}, ["web_search"]),
        ({"tools": None}, []),
        ({"tools": [{"type": "function", "function": {"name": "other"}}]}, []),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_only_tools_that_are_offered_and_permitted_are_called(toolproxy_mock, sdk, more, names, stream):
    calls = [{"name": "web_search", "arguments": '{"q": '}, {"name": "never_offered"}]
    toolproxy_mock.script({"text": "Let me look.", "calls": calls}, "No tools.")
    asked = {"tools": [SEARCH], **more}
    asked = {key: value for key, value in asked.items() if value is not None}
    if stream:
        with sdk.chat.completions.stream(model="m", messages=[{"role": "user", "content": "Hi"}], **asked) as events:
            message = events.get_final_completion().choices[0].message
    else:
        message = ask(sdk, **asked).choices[0].message
    found = message.tool_calls or []
    assert [call.function.name for call in found] == names
    assert [call.function.arguments for call in found] == ['{"q": '] * len(names)
    assert message.content == ("Let me look." if names else "No tools.")


def test_a_tool_that_is_demanded_is_called_though_the_script_has_no_call(toolproxy_mock, sdk):
    toolproxy_mock.script("I would rather talk.")
    message = ask(sdk, tools=[SEARCH], tool_choice="required").choices[0].message
    assert [(call.function.name, call.function.arguments) for call in message.tool_calls] == [
        ("web_search", '{"q":"text"}')
    ]


def test_ids_follow_from_the_seed_and_the_request(toolproxy_mock, sdk):
    def ids(text, seed):
        toolproxy_mock.script({"calls": [{"name": "web_search"}]}, seed=seed)
        answer = ask(sdk, text, tools=[SEARCH])
        return answer.id, answer.choices[0].message.tool_calls[0].id

    first = ids("Hi", 0)
    assert ids("Hi", 0) == first
    assert len({*first, *ids("Ho", 0), *ids("Hi", 1)}) == 6


def test_the_examples_of_the_page_on_testing_pass(toolproxy_mock):
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names = {}
    exec(example, names)  # noqa: S102 - a page of ours
    tests = [value for name, value in names.items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        toolproxy_mock.reset()
        test(toolproxy_mock)
