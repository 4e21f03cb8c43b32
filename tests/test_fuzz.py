"""Whatever a client and an upstream send: never a 500, never a hang, errors in OpenAI's envelope, and no key in any."""

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import hostile
from tests.conformance import recordings
from tests.documents import CHUNKS, WHOLE, chat_requests, responses_requests
from tests.fakes import DONE, Reply, completion
from tests.serving import proxy_of

SECRET = "canary-of-the-upstream"
CONFIG = """
upstreams:
  openai: {{base_url: {upstream}/v1, api_key: SECRET, profile: openai, retries: 0, breaker: {{failures: 1000000}}}}
  glm: {{base_url: {upstream}/v1, api_key: SECRET, profile: glm, retries: 0, breaker: {{failures: 1000000}}}}
  oss: {{base_url: {upstream}/v1, api_key: SECRET, profile: gpt_oss, retries: 0, breaker: {{failures: 1000000}}}}
models:
  m: {{upstream: openai}}
  glm: {{upstream: glm, vision_model: glm-v}}
  oss: {{upstream: oss}}
tools:
  web_search: {{type: serper, api_key: SECRET, base_url: {upstream}, aliases: [browser.search]}}
  fetch_page: {{type: web_fetch, aliases: [browser.open, browser.find]}}
  current_time: {{type: clock}}
{more}
""".replace("SECRET", SECRET)

# The proxy is the same for all examples, as it is for all requests.
lasting = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])

request_headers = st.fixed_dictionaries(
    {},
    optional={
        "x-server-tools": st.sampled_from(["none", "all", "web_search", "web_search,fetch_page", ",", "x" * 300]),
        "x-tool-events": st.sampled_from(["true", "false", "TRUE"]),
    },
)
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
good_requests = st.tuples(st.just(CHAT), chat_requests) | st.tuples(st.just(RESPONSES), responses_requests)
bad_requests = st.one_of(
    st.tuples(st.just(CHAT), hostile.mutated(chat_requests)),
    st.tuples(st.just(RESPONSES), hostile.mutated(responses_requests)),
    st.tuples(st.sampled_from([CHAT, RESPONSES]), hostile.json_values),
)

RECORDED = [
    one.body
    for name in recordings.names("*streaming*", "*tool*", "*error*")
    for one in recordings._exchanges(name)  # noqa: SLF001 - ours
]
STATUSES = [200] * 8 + [301, 400, 401, 404, 429, 500, 503]
TYPES = ["application/json", "text/event-stream", "text/html", ""]


def in_the_asked_shape(answer):
    """A whole answer, or the same as a stream of one chunk where that is asked for."""

    def reply(request):
        if not isinstance(request, dict) or request.get("stream") is not True:
            return Reply([hostile.written(answer)])
        return Reply([b"data: " + hostile.written(_streamed(answer)) + b"\n\n", DONE], content_type="text/event-stream")

    return reply


def _streamed(answer):
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list):
        return answer
    return {**answer, "choices": [_with_delta(choice) if isinstance(choice, dict) else choice for choice in choices]}


def _with_delta(choice):
    message = choice.get("message")
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if isinstance(calls, list):
        numbered = [{"index": at, **call} if isinstance(call, dict) else call for at, call in enumerate(calls)]
        message = {**message, "tool_calls": numbered}
    return {**{key: value for key, value in choice.items() if key != "message"}, "delta": message}


def damaged(body, at, what):
    at %= len(body) + 1
    return body[:at] + what + body[at + len(what) :]


good_answers = st.sampled_from(WHOLE).map(in_the_asked_shape)
bad_answers = hostile.mutated(st.sampled_from(WHOLE)).map(in_the_asked_shape)
bad_events = st.lists(
    hostile.mutated(st.sampled_from(CHUNKS)).map(lambda chunk: b"data: " + hostile.written(chunk) + b"\n\n"), max_size=6
)
bad_bodies = st.one_of(
    st.builds(lambda events, end: b"".join(events) + end, bad_events, st.sampled_from([DONE, b"", b"event: error\ndata: {}\n\n"])),
    st.builds(damaged, st.sampled_from(RECORDED or [DONE]), st.integers(0, 10**6), st.binary(max_size=20)),
    hostile.mutated(st.sampled_from(WHOLE)).map(hostile.written),
    st.binary(max_size=60),
)  # fmt: skip
bad_replies = bad_answers | st.builds(
    Reply, hostile.cut(bad_bodies), status=st.sampled_from(STATUSES), content_type=st.sampled_from(TYPES)
)


@pytest.fixture
async def proxy(upstream, logged):
    """A client of the proxy, which answers when all is over, and has met no bug of its own."""
    async with proxy_of(upstream, config=CONFIG) as url, httpx.AsyncClient(base_url=url, timeout=5) as client:
        yield client
        assert (await client.get("/readyz")).json()["status"] == "ready"
    assert [line for line in logged() if line["event"].endswith((".crashed", "observer.failed"))] == []


def check(response):
    """What holds for every answer."""
    assert SECRET not in response.text + str(response.headers)
    assert response.headers["x-request-id"]
    assert response.status_code != 500, response.text
    if response.status_code >= 400:
        check_error(response.json()["error"])
    elif response.headers["content-type"].startswith("text/event-stream"):
        assert '"internal_error"' not in response.text
        assert ("data: [DONE]" in response.text) != (
            'data: {"error":' in response.text
        ) or '"response.failed"' in response.text
    else:
        assert isinstance(response.json(), dict)


def check_error(error):
    assert error.keys() == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert isinstance(error["type"], str)
    assert isinstance(error["param"], str | None)
    assert isinstance(error["code"], str | None)


@lasting
@given(bad_requests, request_headers, st.lists(good_answers, min_size=1, max_size=3))
async def test_no_request_gets_a_500(proxy, upstream, asked, headers, answers):
    path, body = asked
    upstream.restart(answers)
    check(await proxy.post(path, content=hostile.written(body), headers=headers))


@lasting
@given(good_requests, request_headers, st.lists(bad_replies, min_size=1, max_size=3), bad_replies)
async def test_no_upstream_makes_a_500(proxy, upstream, asked, headers, answers, found):
    path, body = asked
    upstream.restart([*answers, in_the_asked_shape(completion("The end."))], search=found)
    check(await proxy.post(path, content=hostile.written(body), headers=headers))
