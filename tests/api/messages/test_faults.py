"""Errors of `/v1/messages` in Anthropic's envelope, and what of a request is refused."""

import anthropic
import orjson
import pytest

from proxy.api.messages.errors import envelope, status_of
from proxy.wire.errors import InternalError, Overloaded, ProxyError, Stopping, UpstreamError
from tests.api.messages.asking import ASK, DOOR, FETCH, SEARCH, ask, client, events_in, raw
from tests.fakes import Reply, chunk, stream, whole
from tests.serving import proxy_of

DEEP = {"a": orjson.loads("[" * 300 + "]" * 300)}  # orjson reads it, and does not write it again
CLIENTS = "clients: [{name: app, key: key-of-the-app, models: [m]}]"
USER = {"role": "user", "content": "Hi"}


def asking(*content, role="user"):
    return {"messages": [USER, {"role": "assistant", "content": "Yes?"}, {"role": role, "content": [*content]}]}


def called(*ids):
    uses = [{"type": "tool_use", "id": one, "name": "f", "input": {}} for one in ids]
    return [USER, {"role": "assistant", "content": uses}]


def result(call_id):
    return {"type": "tool_result", "tool_use_id": call_id, "content": "x"}


def first(*blocks):
    """What a person sends first, and can mend."""
    return {"messages": [{"role": "user", "content": [*blocks]}]}


REFUSED = [
    ({"model": None}, "model: "),
    ({"max_tokens": None}, "max_tokens: "),
    ({"max_tokens": 0}, "max_tokens: "),
    ({"max_tool_calls": -1}, "max_tool_calls: "),
    ({"messages": []}, "messages: "),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role: "),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages.0.content.0.tool_use_id: "),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text: "),
    ({"messages": [USER, {"role": "assistant", "content": "Once"}]}, "messages: the last message must be the user's: prefill"),
    (first({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "x"}}), "messages.0.content.0.source: "),
    (first({"type": "text", "text": "x"}, {"type": "image", "source": {"type": "file", "file_id": "f"}}), "messages.0.content.1.source: "),
    (first({"type": "image", "source": {"type": "base64", "media_type": "image/svg+xml", "data": "x"}}), "messages.0.content.0.source.media_type: "),
    ({"messages": [USER, USER, {"role": "user", "content": [{"type": 1}]}]}, "messages.2.content.0.type: "),
    ({"messages": [*called("a"), USER]}, "messages: `tool_use` ids were found without `tool_result` blocks immediately after: a. "),
    ({"messages": [USER, {"role": "assistant", "content": "x"}, {"role": "user", "content": [result("a")]}]}, "messages.2.content.0: there is no call 'a'"),
    ({"messages": [*called("a"), {"role": "user", "content": [result("a"), result("a")]}]}, "messages.2.content.1: there are two results for the call 'a'"),
    ({"tools": [{"name": "f"}]}, "tools.0.input_schema: "),
    ({"tools": [{"name": "no good", "input_schema": {}}]}, "tools.0.name: "),
    ({"tools": [{**SEARCH, "max_uses": 0}]}, "tools.0.max_uses: "),
    ({"tools": [{**SEARCH, "allowed_domains": ["a"], "blocked_domains": ["b"]}]}, "tools.0: "),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools: the tool 'bash_20250124' is not available"),
    ({"tools": [DOOR, {"type": "bash_20250124", "name": "bash"}], "tool_choice": {"type": "tool", "name": "bash"}}, "tool_choice: the tool 'bash_20250124'"),
    ({"tools": [FETCH]}, "tools: the tool 'web_fetch_20250910' is not available"),
    ({"tools": [DOOR], "tool_choice": {"type": "tool", "name": "nobody"}}, "tool_choice.name: 'nobody'"),
    ({"tool_choice": "auto"}, "tool_choice: "),
    ({"tools": [SEARCH, {**SEARCH, "type": "web_search_20260209"}]}, "tools.1: there are two tools named 'web_search'"),
    (asking({"type": 10**30}), "messages.2.content.0.type: 1e+30 is not supported"),
    (asking({"type": None}), "messages.2.content.0.type: null is not supported"),
    ({"model": ""}, "model: must be the name of a model"),
    ({"max_tokens": True}, "max_tokens: must be an integer"),
    ({"max_tokens": 2**40}, "max_tokens: must be an integer"),
    ({"stream": "yes"}, "stream: must be true or false"),
    ({"stop_sequences": "x"}, "stop_sequences: must be a list of strings"),
    ({"stop_sequences": ["x", 1]}, "stop_sequences: must be a list of strings"),
    ({"thinking": True}, "thinking: must be an object"),
    ({"thinking": {}}, "thinking.type: must be a string"),
    ({"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens: must be an integer"),
    ({"temperature": "hot"}, "temperature: must be a number"),
    ({"top_p": True}, "top_p: must be a number"),
    ({"output_config": []}, "output_config: must be an object"),
    ({"output_config": {"effort": 3}}, "output_config.effort: must be one of low"),
    ({"output_config": {"format": {"type": "xml"}}}, "output_config.format: "),
    ({"output_config": {"format": {"type": "json_schema", "schema": 5}}}, "output_config.format.schema: must be an object"),
    ({"output_config": {"format": {"type": "json_schema", "schema": DEEP}}}, "output_config.format.schema: is nested too deep"),
    ({"system": [{"type": "image", "source": {"type": "url", "url": "x"}}]}, "system: "),
]  # fmt: skip


@pytest.mark.parametrize(("body", "message"), REFUSED)
async def test_a_fault_begins_with_its_place(upstream, body, message):
    async with proxy_of(upstream) as url:
        response = await raw(url, {**ASK, **body})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_request")
    assert error["message"].startswith(message)
    assert not upstream.requests


async def test_an_error_has_anthropics_envelope_and_the_requests_id(upstream):
    async with proxy_of(upstream, more=CLIENTS) as url:
        refused = await raw(url, ASK)
        unknown = await raw(url, {**ASK, "model": "other"}, **{"x-api-key": "key-of-the-app"})
        bad = await raw(url, ASK, path="/v1/messages/batches", **{"x-api-key": "key-of-the-app"})
        elsewhere = await raw(url, ASK, path="/v1/chat/completions")
    assert (refused.status_code, refused.headers["x-should-retry"]) == (401, "false")
    assert "x-api-key" not in refused.text.lower()  # Claude Code 2.1 would show `Please run /login` in place of it
    assert refused.json()["error"]["type"] == "authentication_error"
    assert refused.json()["request_id"] == refused.headers["request-id"] == refused.headers["x-request-id"]
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    assert unknown.json()["error"]["message"].startswith("model: The model 'other'")
    assert (bad.status_code, bad.json()["error"]["type"]) == (404, "not_found_error")
    assert set(elsewhere.json()) == {"error"}
    assert "request-id" not in elsewhere.headers


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (ProxyError("x", status=402), 402, "billing_error"),
        (ProxyError("x", status=403), 403, "permission_error"),
        (ProxyError("x", status=405), 405, "invalid_request_error"),
        (ProxyError("x", status=413), 413, "request_too_large"),
        (ProxyError("x", status=422), 422, "invalid_request_error"),
        (ProxyError("x", status=429), 429, "rate_limit_error"),
        (Overloaded("x"), 529, "overloaded_error"),
        (Stopping(), 529, "overloaded_error"),
        (InternalError("r"), 500, "api_error"),
        (UpstreamError("x"), 502, "api_error"),
        (UpstreamError("x", status=503), 503, "api_error"),
        (UpstreamError("x", status=504), 504, "timeout_error"),
    ],
)
def test_the_status_decides_the_type(error, status, kind):
    assert (status_of(error), envelope(error, "r")["error"]["type"]) == (status, kind)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("This model's maximum context length is 8192 tokens.", "prompt is too long: This model's maximum context"),
        ("Prompt is too long: 9 tokens > 8 maximum", "Prompt is too long: 9 tokens > 8 maximum"),
    ],
)
async def test_a_conversation_that_is_too_long_is_named_as_clients_know_it(upstream, said, message):
    refusal = {"error": {"message": said, "code": "context_length_exceeded"}}
    upstream.replies = [Reply([orjson.dumps(refusal)], status=400)] * 2
    async with proxy_of(upstream) as url:
        whole, streamed = [await raw(url, {**ASK, "stream": stream}) for stream in (False, True)]
    for response in (whole, streamed):
        assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")
        assert response.json()["error"]["message"].startswith(message)


async def test_a_thread_is_refused_so_that_the_sdk_sends_the_whole_history(upstream):
    async with proxy_of(upstream) as url:
        thread = await raw(url, {**ASK, "thread": {"type": "create"}})
        compaction = await raw(url, {**ASK, "compaction": {}})
    assert thread.json()["error"]["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    assert compaction.json()["error"]["details"] == {"error_code": "compaction_unavailable"}


async def test_fields_that_nobody_knows_are_ignored(upstream):
    upstream.replies = [whole("Hi")]
    extra = {"metadata": {"user_id": "secret-device"}, "context_management": {}, "speed": "fast", "tomorrow": [1]}
    async with proxy_of(upstream) as url:
        await ask(url, streaming=False, **extra)
    assert set(upstream.requests[0]) == {"model", "messages", "max_tokens", "tools"}


async def test_tools_that_are_not_available_are_left_out_and_named(upstream):
    upstream.replies = [whole("Hi")]
    tools = [DOOR, {"type": "memory_20250818", "name": "memory"}, FETCH]
    async with proxy_of(upstream) as url:
        response = await raw(url, {**ASK, "tools": tools, "mcp_servers": [{"type": "url", "url": "http://x"}]})
    assert response.headers["x-tools-ignored"] == "memory_20250818,mcp_servers,web_fetch_20250910"


async def test_a_later_fault_is_an_error_event_and_the_end(upstream):
    upstream.replies = [stream(chunk({"content": "So "}), None)]
    async with proxy_of(upstream) as url, client(url) as sdk:
        response = await raw(url, {**ASK, "stream": True})
        with pytest.raises(anthropic.APIStatusError) as caught:
            async with sdk.messages.stream(**ASK) as events:
                await events.get_final_message()
    events = events_in(response.text)
    assert [event["type"] for event in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "error",
    ]
    assert events[-1]["error"]["type"] == caught.value.type == "api_error"
    assert events[-1]["error"]["code"] == "upstream_error"


@pytest.mark.parametrize("headers", [{"x-api-key": "key-of-the-app"}, {"authorization": "Bearer key-of-the-app"}])
@pytest.mark.parametrize("beside", [{}, {"x-api-key": "other"}, {"authorization": "Bearer other"}])
async def test_one_known_key_suffices_on_every_path(upstream, headers, beside):
    upstream.replies = [whole("Hi")]
    body = {"model": "m", "messages": [USER]}
    async with proxy_of(upstream, more=CLIENTS) as url:
        for _ in range(2):
            assert (await raw(url, ASK, **{**beside, **headers})).status_code == 200
            assert (await raw(url, body, path="/v1/chat/completions", **{**beside, **headers})).status_code == 200


async def test_an_error_names_the_id_of_a_call_as_the_client_has_it(upstream):
    upstream.replies = [whole(calls=[("u1", "open_door", {})])]
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=False, tools=[DOOR])
        [call] = message["content"]
        history = [USER, {"role": "assistant", "content": message["content"]}]
        missing = await raw(url, {**ASK, "messages": [*history, USER]})
        once = {"role": "user", "content": [result(call["id"])]}
        again = await raw(url, {**ASK, "messages": [*history, {"role": "user", "content": once["content"] * 2}]})
    assert call["id"].startswith("toolu_")
    for answer in (missing, again):
        assert call["id"] in answer.json()["error"]["message"]


async def test_a_head_that_the_server_itself_refuses_has_the_errors_of_this_api(upstream):
    async with proxy_of(upstream) as url:
        answer = await raw(url, ASK, **{f"x-{at}": "a" for at in range(200)})
        other = await raw(url, ASK, path="/v1/chat/completions", **{f"x-{at}": "a" for at in range(200)})
    assert (answer.status_code, other.status_code) == (431, 431)
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert answer.json()["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]
    assert "request_id" not in other.json()
