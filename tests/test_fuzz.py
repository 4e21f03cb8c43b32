"""Whatever a client and an upstream send: never a 500, never a hang, errors in OpenAI's envelope, and no key in any."""

import asyncio
import time
from email import message_from_bytes

import httpx
import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bench.stalls import HELD_SECONDS
from tests import hostile
from tests.conformance import recordings
from tests.documents import CHUNKS, WHOLE, chat_requests, responses_requests
from tests.fakes import DONE, Reply, completion, turn
from tests.server.test_protocol import answers, said
from tests.serving import proxy_of
from tests.test_stalls import GENEROUS

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


# For clients that say half of something and then nothing, or nothing more.
IMPATIENT = "server: {header_timeout_seconds: 0.05, body_timeout_seconds: 0.05, idle_timeout_seconds: 0.05}"


@pytest.fixture(params=[""], ids=["patient"])
async def proxy(upstream, logged, request):
    """A client of the proxy, which answers when all is over, and has met no bug of its own."""
    async with (
        proxy_of(upstream, config=CONFIG, more=request.param) as url,
        httpx.AsyncClient(base_url=url, timeout=20) as client,
    ):
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


STREAMED = [(CHAT, {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True}), (RESPONSES, {"model": "m", "input": "Hi", "stream": True})]  # fmt: skip


@lasting
@given(asked=bad_requests, headers=request_headers, answers=st.lists(good_answers, min_size=1, max_size=3))
@example(asked=STREAMED[0], headers={}, answers=[in_the_asked_shape(WHOLE[0])])
@example(asked=STREAMED[1], headers={}, answers=[in_the_asked_shape(WHOLE[0])])
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


MESSAGES = "/v1/messages"
ASKED = {
    CHAT: {"messages": [{"role": "user", "content": "Hi"}]},
    RESPONSES: {"input": "Hi"},
    MESSAGES: {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]},
}
DOOR = {"type": "object", "properties": {"door": {}}}
OWN_TOOLS = {
    CHAT: [{"type": "function", "function": {"name": "open_door", "parameters": DOOR}}],
    RESPONSES: [{"type": "function", "name": "open_door", "parameters": DOOR}],
    MESSAGES: [{"name": "open_door", "input_schema": DOOR}],
}
CALLED = ["web_search", "browser.open", "current_time", "open_door", "find_tools", "call_tool", "nobody_has_this", ""]
# What parsers of calls stumble over, alone and again and again.
FRAGMENTS = [
    "[", "]", "{", "}", '"', "\\", '\\"', ",", ":", "0,", "[],", "{},", '{"a":', '"a":1,', '"x",', "1e400", "9" * 20, "-", "\\ud83d", "\ud83d", "\x00", " ", "\n",
    "é", "\u597d", "\U0001f600", "null", "NaN", "<", "<|", "<|channel|>", "<|start|>assistant", "<|message|>", "<|call|>", "to=functions.web_search", "commentary ",
    "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "web_search", '{"query": "x"}', '{"name": "web_search", "arguments": ', "`", "```\n",
    "~~~", "<think>", "</think>", "<|begin_of_box|>", "assistantanalysis", "【0†", "(", "Action: web_search\nAction Input:",
]  # fmt: skip


def repeated(most):
    """Fragments, some of them again and again, up to a size."""
    rows = st.tuples(st.sampled_from(FRAGMENTS), st.sampled_from([1, 1, 1, 2, 40, 1000, 100_000, most]))
    whole = st.lists(rows, max_size=8).map(
        lambda found: "".join([what * (times // len(what) or 1) for what, times in found])
    )
    return (whole | st.text()).map(lambda text: text[:most])


def nested(depth, brackets):
    return brackets[0] * depth + brackets[1] * depth


deep = st.builds(nested, st.sampled_from([1, 150, 250, 260, 900, 980, 1000, 1030, 5_000, 100_000]), st.sampled_from([("[", "]"), ('{"a":', "1}")]))  # fmt: skip
objects = st.one_of(
    st.builds('{{"{}": {}}}'.format, st.sampled_from(["query", "door", "name", "x"]), deep),
    deep.map('{{"name": "web_search", "arguments": {}}}'.format),
    hostile.json_values.map(lambda value: hostile.written(value).decode("utf-8", "replace")),
)
arguments = objects | repeated(2**20)
calls = st.lists(st.tuples(st.sampled_from(["c1", "c2", ""]), st.sampled_from(CALLED) | repeated(200_000), arguments), max_size=4)  # fmt: skip
leaked = st.builds(
    str.format,
    st.sampled_from(
        [
            "{0}",
            "<tool_call>{0}</tool_call>",
            "<tool_call>web_search{0}</tool_call>",
            "<tool_call>web_search<arg_key>query</arg_key><arg_value>{0}</arg_value></tool_call>",
            '<tool_call>{{"name": "web_search", "arguments": {0}}}</tool_call>',
            "<|channel|>commentary to=functions.web_search<|message|>{0}<|call|>",
            "web_search<|channel|>commentary {0}",
        ]
    ),
    objects,
)
texts = leaked | repeated(2**21)


async def longest_turn(stop):
    """The most processor time of the event loop's thread between two of its turns."""
    longest, before = 0.0, time.thread_time()
    while not stop.is_set():
        await asyncio.sleep(0)
        now = time.thread_time()
        longest, before = max(longest, now - before), now
    return longest


@pytest.mark.parametrize("proxy", ["offer: {search_above: 1}"], indirect=True, ids=["many"])
@lasting
@given(st.sampled_from([*ASKED]), st.booleans(), calls, texts, texts | st.just(""), st.integers(1, 60))
async def test_nothing_that_a_model_writes_makes_a_500_or_holds_the_loop(
    proxy, upstream, path, stream, called, text, thoughts, pieces
):
    size = max(1, max(len(text), len(thoughts), *(len(given) for *_, given in called), 0) // pieces)
    said = turn(hostile.writable(text), calls=[(i, hostile.writable(n), hostile.writable(a)) for i, n, a in called],
                thoughts=hostile.writable(thoughts), size=size)  # fmt: skip
    upstream.restart([said, in_the_asked_shape(completion("The end."))])
    body = {"model": "m", **ASKED[path], "tools": OWN_TOOLS[path], "stream": stream}
    stop = asyncio.Event()
    watching = asyncio.ensure_future(longest_turn(stop))
    response = await proxy.post(path, json=body)
    stop.set()
    assert response.status_code in (200, 502), response.text
    assert "internal_error" not in response.text
    assert await watching < GENEROUS * HELD_SECONDS


METHODS = st.sampled_from(["GET", "POST", "POST", "POST", "DELETE", "TRACE", "", "P\x00ST"])
TARGETS = st.sampled_from([CHAT, RESPONSES, "/v1/models", "/v1/models/x%2f", "/v1/embeddings", "/readyz", "/metrics", "/debug", "/debug/requests/x",
                           "/v1/responses/resp_x/input_items?limit=%ff", "//v1/models", "/v1/../metrics", "http://x/healthz", "*", "/%00", "/\xff", "?"])  # fmt: skip
LINES = st.sampled_from([
    "host: x", "host: a/health?x=", "content-length: 5", "content-length: 5, 5", "content-length: -1", "transfer-encoding: chunked",
    "transfer-encoding: gzip", "connection: close", "connection: host", "upgrade: websocket", "expect: 100-continue", "authorization: Bearer",
    "authorization: \xff\x00", "x-request-id: a b", f"x-request-id: {'x' * 129}", "x-server-tools: \xff", "x-tool-events: 1",
    "traceparent: 00-x", "accept: application/json", "content-type: multipart/form-data; boundary=x", " folded", "no colon", ": no name", "a: b",
])  # fmt: skip
BODIES = st.sampled_from(
    [
        b"",
        b"hello",
        b"5\r\nhello\r\n0\r\n\r\n",
        b"-1\r\n",
        b'{"model":"m","messages":[{"role":"user","content":"x"}]}',
        b"--x--",
    ]
)


@pytest.mark.parametrize("proxy", [IMPATIENT], indirect=True, ids=["impatient"])
@settings(lasting, max_examples=settings.default.max_examples // 4)  # each waits for what does not come
@given(METHODS, TARGETS, st.lists(LINES, max_size=5), BODIES | st.binary(max_size=20), st.integers(0, 1_000))
async def test_no_bytes_whatever_get_a_500(proxy, upstream, method, target, lines, body, place):
    upstream.restart([in_the_asked_shape(completion("Hi"))])
    head = "".join(f"{line}\r\n" for line in (f"{method} {target} HTTP/1.1", "host: x", *lines)).encode("latin-1")
    raw = head + b"\r\n" + body
    cut = place % (len(raw) + 1)
    for status, headers, answer in answers(await said(str(proxy.base_url).rstrip("/"), raw[:cut], raw[cut:])):
        assert status != 500
        assert SECRET.encode() not in answer
        assert status == 100 or "x-request-id" in headers
        if status >= 400:
            check_error(orjson.loads(answer)["error"])


PART_HEADS = st.sampled_from([
    'Content-Disposition: form-data; name="model"', 'content-disposition:form-data; filename="f"; name="model"', 'Content-Disposition: form-data; name="file"',
    "Content-Disposition: form-data; name=model", 'Content-Disposition: form-data; name="mod\\el"', "Content-Type: text/plain", "X: y",
    'Content-Disposition: form-data; name="a\r\nContent-Disposition: form-data; name="model"', "Content-Disposition: form-data; name*=utf-8''model",
    'Content-Disposition: form-data; name="model"; name="file"', "", " folded",
])  # fmt: skip


GOOD_PARTS = st.sampled_from([(['Content-Disposition: form-data; name="model"'], "m"), (['Content-Disposition: form-data; name="file"'], "x")])  # fmt: skip
ODD_PARTS = st.tuples(st.lists(PART_HEADS, max_size=2), st.sampled_from(["m", "glm", "other", "m\r\n--b", ""]))
# Of forms of odd parts alone, one in thirty would reach an upstream.
FORMS = st.lists(GOOD_PARTS, max_size=2) | st.lists(GOOD_PARTS | ODD_PARTS, max_size=4)


@lasting
@given(FORMS)
async def test_no_form_brings_another_model_to_an_upstream_than_the_one_that_was_checked(proxy, upstream, parts):
    upstream.restart([Reply([b"{}"])])
    form = "".join("--b\r\n" + "\r\n".join(heads) + f"\r\n\r\n{value}\r\n" for heads, value in parts) + "--b--\r\n"
    kind = {"content-type": "multipart/form-data; boundary=b"}
    response = await proxy.post("/v1/audio/transcriptions", content=form, headers=kind)
    check(response)
    for body in upstream.bodies:
        message = message_from_bytes(b"content-type: multipart/form-data; boundary=b\r\n\r\n" + body)
        named = [
            part for part in message.get_payload() if part.get_param("name", header="content-disposition") == "model"
        ]
        assert [part.get_payload() for part in named] in (["m"], ["glm"])
