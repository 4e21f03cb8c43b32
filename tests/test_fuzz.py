"""Whatever a client and an upstream send: never a 500, never a hang, errors in OpenAI's envelope, and no key in any."""

import httpx
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import hostile
from tests.conformance import recordings
from tests.fakes import DONE, Reply, chunk, completion, event
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

SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
OWN = {"type": "function", "function": {"name": "open_door", "description": "Opens.", "parameters": SCHEMA}}
SEARCHING = {"id": "c1", "type": "function", "function": {"name": "web_search", "arguments": '{"query": "x"}'}}
OPENING = {"id": "c2", "type": "function", "function": {"name": "open_door", "arguments": '{"query": "x"}'}}
OPENED = {"id": "c3", "type": "function", "function": {"name": "browser.open", "arguments": '{"id": 0, "cursor": 1}'}}

models = st.sampled_from(["m", "glm", "oss"])
chat_requests = st.fixed_dictionaries(
    {
        "model": models,
        "messages": st.just([
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "image_url", "image_url": {"url": "data:,"}}]},
            {"role": "assistant", "content": None, "tool_calls": [{**OPENING, "id": f"call_{'a' * 32}_0"}]},
            {"role": "tool", "tool_call_id": f"call_{'a' * 32}_0", "content": [{"type": "text", "text": "Open."}]},
            {"role": "user", "content": "And now?"},
        ]),
    },
    optional={
        "stream": st.booleans(),
        "stream_options": st.just({"include_usage": True}),
        "tools": st.just([OWN, {"type": "web_search"}, {"type": "web_search", "web_search": {"enable": True}}]),
        "tool_choice": st.sampled_from([
            "auto", "none", "required",
            {"type": "function", "function": {"name": "open_door"}},
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "open_door"}}]}},
        ]),
        "response_format": st.just({"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}),
        "n": st.sampled_from([1, 2]),
        "max_tool_calls": st.integers(0, 2),
        "web_search_options": st.just({"user_location": {"type": "approximate", "approximate": {"city": "Nanaimo"}}}),
        "parallel_tool_calls": st.booleans(),
        "stop": st.just(["x"]),
        "temperature": st.just(1.5),
        "max_completion_tokens": st.just(5),
    },
)  # fmt: skip
RESPONSES_INPUT = [
    {
        "role": "user",
        "content": [
            {"type": "input_text", "text": "Hi"},
            {"type": "input_image", "image_url": "data:,", "detail": "low"},
        ],
    },
    {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "Hm."}],
        "encrypted_content": "AAAA",
    },
    {"type": "function_call", "call_id": "c", "name": "open_door", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "Open."}]},
    {"type": "custom_tool_call", "call_id": "d", "name": "patch", "input": "x"},
    {"type": "custom_tool_call_output", "call_id": "d", "output": "ok"},
    {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "It is open.", "annotations": []}],
    },
    {"type": "additional_tools", "tools": [{"type": "function", "name": "late", "parameters": SCHEMA}]},
    {
        "role": "user",
        "content": [{"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,SGk="}],
    },
]
responses_requests = st.fixed_dictionaries(
    {"model": models, "input": st.just("Hi") | st.just(RESPONSES_INPUT)},
    optional={
        "stream": st.booleans(),
        "store": st.booleans(),
        "instructions": st.just("Be brief."),
        "previous_response_id": st.just("resp_" + "0" * 32),
        "tools": st.just([
            {"type": "function", "name": "open_door", "parameters": SCHEMA},
            {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "s: x"}},
            {"type": "namespace", "name": "crm", "tools": [{"type": "function", "name": "find", "parameters": SCHEMA}]},
            {"type": "web_search", "filters": {"allowed_domains": ["a.example"]}, "user_location": {"country": "CA"}},
            {"type": "file_search", "vector_store_ids": ["x"]},
        ]),
        "tool_choice": st.sampled_from([
            "auto", "required", {"type": "function", "name": "open_door"}, {"type": "web_search"},
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "open_door"}]},
        ]),
        "text": st.just({"format": {"type": "json_schema", "name": "n", "schema": {**SCHEMA, "$defs": {"a": {"$ref": "#"}}, "allOf": [{"$ref": "#/$defs/a"}]}}}),
        "reasoning": st.just({"effort": "low", "summary": "auto"}),
        "include": st.just(["reasoning.encrypted_content", "web_search_call.action.sources", "message.output_text.logprobs"]),
        "max_output_tokens": st.just(5),
        "max_tool_calls": st.integers(0, 2),
        "metadata": st.just({"a": "b"}),
        "top_logprobs": st.just(2),
    },
)  # fmt: skip
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

LOGPROBS = {
    "content": [{"token": "Hi", "logprob": -0.1, "bytes": [72], "top_logprobs": [{"token": "Hi", "logprob": -0.1}]}]
}
WHOLE = [
    completion("Hello", reasoning_content="Hm.", annotations=[], refusal=None),
    completion("I look.", calls=[("c1", "web_search", {"query": "x"}), ("c2", "open_door", '{"query": "y"}')]),
    completion(calls=[("c3", "browser.open", {"id": 0}), ("c4", "nobody", "[]")], reasoning="Hm."),
    {**completion("Hi"), "choices": [{**completion("Hi")["choices"][0], "logprobs": LOGPROBS}]},
    {"error": {"message": "No.", "type": "t", "code": "1113", "param": None, "details": '{"error": {"message": "no"}}'}},
    {"code": 500, "msg": "no", "success": False},
    {"timestamp": "t", "status": 404, "error": "Not Found", "path": "/v4/x"},
]  # fmt: skip
CHUNKS = [
    orjson.loads(raw.removeprefix(b"data: "))
    for raw in [
        chunk({"role": "assistant", "content": ""}),
        chunk({"reasoning_content": "Hm.", "reasoning": "Hm."}),
        chunk({"content": "Hello"}, logprobs=None),
        chunk({"tool_calls": [{"index": 0, **SEARCHING}]}),
        chunk({"tool_calls": [{"index": 1, **OPENING}, {"index": 2, **OPENED}]}),
        chunk({"tool_calls": [{"index": 1, "function": {"arguments": "}"}}]}),
        chunk({}, "stop"),
        chunk({}, "tool_calls", usage={"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}),
        event({"choices": [{"index": 0, "delta": {"content": "x"}, "logprobs": LOGPROBS, "finish_reason": None}]}),
        event({"error": {"message": "No.", "code": 429}}),
    ]
]  # fmt: skip
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
