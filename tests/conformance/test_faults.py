"""Recordings of servers that break the rules, each standing for a class: through the real SDK, on both surfaces.

Every one is replayed as it was recorded and in the other form (a whole answer as a stream, a stream as a whole answer),
in one piece and cut at many places, with a server tool in play and handed through.
"""

import random
from dataclasses import dataclass, replace

import httpx
import openai
import orjson
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState

from proxy.tools.tool import Tool
from tests.conformance import recordings
from tests.conformance.test_recordings import cut, tools_of
from tests.fakes import Reply, whole
from tests.serving import proxy_of

pytestmark = pytest.mark.skipif(not recordings.FOLDER.is_dir(), reason="no recordings beside the project")

SEEDS = range(4)
CONFIG = """
upstreams: {{up: {{base_url: "{upstream}/v1", api_key: KEY, profile: openai, retries: 0}}}}
models: {{"*": {{upstream: up, tools: TOOLS}}}}
limits: {{guidance: false}}
"""
NEVER_CALLED = Tool(name="never_called", description="", parameters={"type": "object"}, run=None)
MODES = ["loop", "relay"]
RAW_FORMAT = ("<|", "<arg_key>", "tool_call>", "repo_browser", "commentary")


@dataclass(frozen=True)
class Expected:
    """What a client gets of a recording: its text, its calls and why it ended."""

    name: str
    text: str
    reason: str
    at: int = 0
    calls: tuple[tuple[str, str], ...] = ()
    text_begins: bool = False  # `text` is only the beginning


DRAGONS = "**The Chronicles of Eryndor"
PARIS = "The capital of France is **Paris**."
MEXICO = "The weather in Mexico City is currently sunny with a pleasant temperature of 25°C."
ADD = '{"a": 2, "b": 3}'
ANSWERS = [
    Expected(
        "fault_azure_deepseek-r1__answer_whole_1",
        "\nI'll compute 2 + 3 using the add function:",
        "tool_calls",
        calls=(("add", ADD),),
    ),
    Expected("fault_azure_openllmetry-testing__answer_whole_1", "", "content_filter"),
    Expected("fault_openrouter_deepseek-deepseek-r1__answer_whole_1", PARIS, "stop", text_begins=True),
    Expected("fault_openrouter_x-ai-grok-3__answer_whole_1", DRAGONS, "length", text_begins=True),
    Expected("fault_snowflake_claude-sonnet-4-6__answer_stream_1", "4", "stop"),
    Expected(
        "fault_snowflake_claude-sonnet-4-6__tools_whole_1",
        "",
        "tool_calls",
        calls=(("get_weather", '{"city":"Mexico City"}'),),
    ),
    Expected("fault_snowflake_claude-sonnet-4-6__tools_whole_1", MEXICO, "stop", at=1),
]  # fmt: skip


def load(expected):
    return recordings.load(expected.name)[expected.at]


def reply(exchange, seed=0):
    """The answer as it was (seed 0), byte by byte (seed 1) unless it is long, or cut anywhere."""
    most = 1 if seed == 1 and len(exchange.body) < 5000 else 120
    return Reply(cut(exchange.body, seed, most=most), status=exchange.status, content_type=exchange.content_type)


def as_stream(exchange, seed):
    """A whole answer as its server would have streamed it: its texts in pieces, then its calls, then its end."""
    answer = orjson.loads(exchange.body)
    (choice,) = answer.pop("choices")
    usage = answer.pop("usage", None)
    message = choice.pop("message", {})
    dice = random.Random(seed)
    head = {**answer, "object": "chat.completion.chunk"}
    deltas = [{"role": "assistant", "content": ""}]
    for key in ("reasoning_content", "reasoning", "content"):
        text, at = message.get(key) or "", 0
        while at < len(text):
            size = len(text) if seed == 0 else dice.randint(1, 9)
            deltas.append({key: text[at : at + size]})
            at += size
    deltas += [{"tool_calls": [{"index": 0, **call}]} for call in message.get("tool_calls") or ()]
    chunks = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    if "finish_reason" in choice:
        chunks.append({**head, "choices": [{**choice, "delta": {}}]})
    chunks.append({**head, "choices": [], "usage": usage})
    body = b"".join(b"data: %b\n\n" % orjson.dumps(chunk) for chunk in chunks) + b"data: [DONE]\n\n"
    request = {**exchange.request, "stream": True}
    return replace(exchange, request=request, content_type="text/event-stream", body=body)


def as_whole(exchange):
    """A stream as its server would have answered a request without `stream`; without a reason where it had none."""
    chunks = exchange.chunks
    reasons = [choice.get("finish_reason") for chunk in chunks for choice in chunk["choices"]]
    reason = next((reason for reason in reversed(reasons) if reason), None)
    choice = {"index": 0, "message": exchange.message, "finish_reason": reason}
    answer = {"id": "x", "created": 1, "model": "m", "choices": [choice], "usage": exchange.usage}
    request = {key: value for key, value in exchange.request.items() if not key.startswith("stream")}
    return replace(exchange, request=request, content_type="application/json", body=orjson.dumps(answer))


def in_form(exchange, *, streaming, seed):
    """The exchange streamed or whole, whatever it was when it was recorded."""
    if bool(exchange.request.get("stream")) == streaming:
        return exchange
    return as_stream(exchange, seed) if streaming else as_whole(exchange)


def config_for(mode, *, key="k"):
    return CONFIG.replace("KEY", key).replace("TOOLS", "null" if mode == "loop" else "[]")


def proxy_for(upstream, mode="loop", *, tools=(NEVER_CALLED,)):
    return proxy_of(upstream, config=config_for(mode), tools=tools)


def free_choice(request):
    """The request without a demand that would rule the server's tools out."""
    return {key: value for key, value in request.items() if key not in ("tool_choice", "model", "stop")}


async def ask_chat(client, request):
    """A request through the SDK, whole or streamed; a stream is put together as the SDK does it, and looked at."""
    named = {"model": "m", "messages": request["messages"], "stream": bool(request.get("stream"))}
    rest = {key: value for key, value in request.items() if key not in named}
    answer = await client.chat.completions.create(**named, extra_body=rest)
    if not named["stream"]:
        (choice,) = answer.choices
        return choice, answer.usage
    state, reasons = ChatCompletionStreamState(), []
    async for chunk in answer:
        state.handle_chunk(chunk)
        reasons += [choice.finish_reason for choice in chunk.choices if choice.finish_reason]
    (choice,) = state.current_completion_snapshot.choices
    assert reasons == [choice.finish_reason]
    return choice, state.current_completion_snapshot.usage


def check(choice, expected):
    text = choice.message.content or ""
    assert text.startswith(expected.text) if expected.text_begins else text == expected.text
    assert choice.finish_reason == expected.reason
    calls = [(call.type, call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]
    assert calls == [("function", *call) for call in expected.calls]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("expected", ANSWERS, ids=lambda expected: f"{expected.name}-{expected.at}")
async def test_a_whole_answer_is_one_whatever_its_server_says_of_its_end(
    upstream, sdk, expected, mode, streaming, seed
):
    exchange = in_form(load(expected), streaming=streaming, seed=seed)
    upstream.replies = [reply(exchange, seed)]
    async with proxy_for(upstream, mode) as url, sdk(url) as client:
        choice, _ = await ask_chat(client, free_choice(exchange.request))
    check(choice, expected)
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("expected", ANSWERS, ids=lambda expected: f"{expected.name}-{expected.at}")
async def test_a_whole_answer_is_one_as_a_response_too(upstream, sdk, expected, streaming, seed):
    exchange = in_form(load(expected), streaming=streaming, seed=seed)
    upstream.replies = [reply(exchange, seed)]
    async with proxy_for(upstream) as url, sdk(url) as client:
        response = await ask_responses(client, exchange.request, streaming=streaming)
    text = response.output_text
    assert text.startswith(expected.text.strip("\n")) if expected.text_begins else text == expected.text.strip("\n")
    calls = tuple((item.name, item.arguments) for item in response.output if item.type == "function_call")
    assert calls == expected.calls
    incomplete = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(expected.reason)
    assert response.status == ("incomplete" if incomplete else "completed")
    assert (response.incomplete_details and response.incomplete_details.reason) == incomplete


async def ask_responses(client, request, *, streaming):
    """The question and the tools of a recorded chat request, as a request for a response."""
    functions = [tool["function"] for tool in request.get("tools") or ()]
    tools = [{"type": "function", "strict": False, **function} for function in functions]
    question = next(message["content"] for message in request["messages"] if message["role"] == "user")
    asked = {"model": "m", "input": question, "tools": tools}
    if most := request.get("max_tokens"):
        asked["max_output_tokens"] = most
    if not streaming:
        return await client.responses.create(**asked)
    last = None
    async for event in await client.responses.create(**asked, stream=True):
        last = event
    return last.response


@pytest.mark.parametrize("ended", [b"", b"data: [DONE]\n\n"])
@pytest.mark.parametrize("mode", MODES)
async def test_a_stream_of_nothing_or_that_just_ends_is_a_failure(upstream, sdk, mode, ended):
    exchange = load(ANSWERS[4])
    events = exchange.body.removesuffix(b"data: [DONE]\n\n")
    if ended:
        events = b"data: " + events.split(b"data: ")[-1]  # a count of tokens, and no word
    upstream.replies = [reply(replace(exchange, body=events + ended))]
    async with proxy_for(upstream, mode) as url, sdk(url) as client:
        with pytest.raises(openai.APIError, match="finish_reason"):
            await ask_chat(client, exchange.request)


# -- calls that leaked --

GPT_OSS = "fault_openrouter_openai-gpt-oss-120b-exacto__leak_whole_1"
GLM_V = "fault_zai-coding_glm-4_5v__leak_whole_1"


@pytest.mark.parametrize("seed", [*SEEDS, *range(100, 104)])
@pytest.mark.parametrize("streaming", [False, True])
async def test_gpt_osss_call_of_no_tool_in_its_thoughts_gets_an_error_and_the_model_is_asked_again(
    upstream, sdk, streaming, seed
):
    first, second = (in_form(one, streaming=streaming, seed=seed) for one in recordings.load(GPT_OSS))
    upstream.replies = [reply(first, seed), reply(second, seed)]
    async with proxy_for(upstream) as url, sdk(url) as client:
        choice, _ = await ask_chat(client, free_choice(first.request))
    assert choice.message.content == "Hello! How can I assist you today?"
    assert choice.finish_reason == "stop"
    assistant, result = upstream.requests[1]["messages"][1:]
    (call,) = assistant["tool_calls"]
    assert orjson.loads(call["function"]["arguments"]) == {"path": "", "line_start": 1, "line_end": 200}
    assert (result["role"], result["tool_call_id"]) == ("tool", call["id"])
    assert "no tool named 'repo_browser.open_file'" in result["content"]
    assert_no_raw_format(choice.message.model_dump_json(), streaming)


@pytest.mark.parametrize("seed", [*SEEDS, *range(100, 104)])
@pytest.mark.parametrize("streaming", [False, True])
async def test_gpt_osss_call_in_its_thoughts_is_no_part_of_a_response(upstream, sdk, streaming, seed):
    first, second = (in_form(one, streaming=streaming, seed=seed) for one in recordings.load(GPT_OSS))
    upstream.replies = [reply(first, seed), reply(second, seed)]
    async with proxy_for(upstream) as url, sdk(url) as client:
        response = await ask_responses(client, first.request, streaming=streaming)
    assert response.output_text == "Hello! How can I assist you today?"
    assert response.status == "completed"
    assert not [item for item in response.output if item.type == "function_call"]
    assert_no_raw_format(orjson.dumps([item.model_dump() for item in response.output]).decode(), streaming)


def assert_no_raw_format(shown, streaming):
    """Of a call whose first mark was lost, a stream may have shown the words before the next mark."""
    assert not [mark for mark in RAW_FORMAT if mark in shown and not (streaming and mark == "commentary")]


@pytest.mark.parametrize("seed", [*SEEDS, *range(100, 104)])
@pytest.mark.parametrize("streaming", [False, True])
async def test_glms_call_without_its_opening_tag_is_the_clients(upstream, sdk, streaming, seed):
    (exchange,) = (in_form(one, streaming=streaming, seed=seed) for one in recordings.load(GLM_V))
    upstream.replies = [reply(exchange, seed)]
    async with proxy_for(upstream) as url, sdk(url) as client:
        choice, _ = await ask_chat(client, free_choice(exchange.request))
        response = await ask_responses(client, exchange.request, streaming=streaming)
    joke = "Why don't cats play poker in the jungle? Too many cheetahs!"
    for shown in (choice.message.content, response.output_text):
        assert shown.strip().startswith(joke)
        # A stream may have shown the name, which stands before the first mark that was not lost.
        assert ("get_weather" if streaming else "").startswith(shown.strip().removeprefix(joke).strip())
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert (call.function.name, orjson.loads(call.function.arguments)) == ("get_weather", {"location": "New York City"})
    (item,) = (item for item in response.output if item.type == "function_call")
    assert (item.name, item.arguments) == (call.function.name, call.function.arguments)


async def test_glms_call_without_its_opening_tag_is_run_where_it_is_the_servers(upstream, sdk):
    (exchange,) = recordings.load(GLM_V)
    ran = []

    async def run(arguments):
        ran.append(arguments)
        return "Sunny"

    (tool,) = exchange.request["tools"]
    final = {"choices": [{"message": {"role": "assistant", "content": "Sunny."}, "finish_reason": "stop"}]}
    upstream.replies = [reply(exchange), Reply([orjson.dumps(final)])]
    tools = [Tool(**{**tool["function"], "run": run})]
    async with proxy_for(upstream, tools=tools) as url, sdk(url) as client:
        choice, _ = await ask_chat(client, free_choice(exchange.request))
    assert (choice.message.content, ran) == ("Sunny.", [{"location": "New York City"}])


# -- what providers add --

VERCEL = "fault_vercel_openai-gpt-5__tools_stream_1"
GROK = "fault_openrouter_x-ai-grok-4_1-fast__tools_stream_1"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", [VERCEL, GROK])
async def test_a_stream_of_two_turns_can_be_put_together_by_the_sdk(upstream, sdk, name, seed):
    first, second = recordings.load(name)
    upstream.replies = [reply(first, seed), reply(second, seed)]
    async with proxy_for(upstream, tools=tools_of(first, second)) as url, sdk(url) as client:
        choice, usage = await ask_chat(client, free_choice(first.request))
    assert choice.message.content == second.message["content"]
    assert usage.total_tokens == first.usage["total_tokens"] + second.usage["total_tokens"]
    _check_metadata(choice.message.model_extra, first, second)
    _check_details(choice.message.model_extra, first, second)


def _check_metadata(extra, first, second):
    """Only what the last turn says beside its answer is shown."""
    (hidden, shown) = (
        [choice["delta"].get("provider_metadata") for chunk in one.chunks for choice in chunk["choices"]]
        for one in (first, second)
    )
    last = next((metadata for metadata in reversed(shown) if metadata), None)
    assert extra.get("provider_metadata") == last
    assert last is None or any(hidden)


def _check_details(extra, first, second):
    """No entry of `reasoning_details` is made of pieces of two turns."""
    seen = {}
    for turn, exchange in enumerate((first, second)):
        for chunk in exchange.chunks:
            for choice in chunk["choices"]:
                for detail in choice["delta"].get("reasoning_details") or ():
                    key = (turn, detail["index"])
                    seen[key] = seen.get(key, "") + _said(detail)
    assert [_said(detail) for detail in extra.get("reasoning_details") or ()] == list(seen.values())


def _said(detail):
    return "".join(detail.get(key) or "" for key in ("text", "summary", "data"))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", [VERCEL, GROK])
async def test_a_stream_of_two_turns_is_a_response_too(upstream, sdk, name, seed):
    first, second = recordings.load(name)
    upstream.replies = [reply(first, seed), reply(second, seed)]
    async with proxy_for(upstream, tools=tools_of(first, second)) as url, sdk(url) as client:
        response = await ask_responses(client, {**first.request, "tools": []}, streaming=True)
    assert (response.status, response.output_text) == ("completed", second.message["content"])
    assert len(upstream.requests) == 2


MISTRAL = "fault_mistral_mistral-small-latest__answer_stream_1"
PRODUCT = "The user is asking for the product of 12 multiplied by 12."


@pytest.mark.parametrize("seed", SEEDS)
async def test_content_in_parts_is_text_and_thoughts_in_the_loop(upstream, sdk, seed):
    (exchange,) = recordings.load(MISTRAL)
    upstream.replies = [reply(exchange, seed)]
    async with proxy_for(upstream) as url, sdk(url) as client:
        choice, _ = await ask_chat(client, exchange.request)
        response = await ask_responses(client, exchange.request, streaming=True)
    assert (choice.message.content, choice.finish_reason) == ("144", "stop")
    assert choice.message.model_extra["reasoning_content"].startswith(PRODUCT)
    assert choice.message.model_extra["reasoning_content"].endswith("So, the answer is 144.")
    assert (response.output_text, response.status) == ("144", "completed")
    (thoughts, _) = response.output
    assert thoughts.content[0].text == choice.message.model_extra["reasoning_content"]


async def test_content_in_parts_is_text_and_thoughts_in_a_whole_answer(upstream, sdk):
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "12 * 12"}]},
        {"type": "text", "text": "1"},
        {"type": "text", "text": "44"},
    ]
    message = {"role": "assistant", "content": parts}
    answer = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    upstream.replies = [Reply([orjson.dumps(answer)])]
    request = {"messages": [{"role": "user", "content": "x"}]}
    async with proxy_for(upstream) as url, sdk(url) as client:
        choice, _ = await ask_chat(client, request)
        response = await ask_responses(client, request, streaming=False)
    assert (choice.message.content, choice.message.model_extra["reasoning_content"]) == ("144", "12 * 12")
    assert response.output_text == "144"
    assert response.output[0].content[0].text == "12 * 12"


async def test_thoughts_in_parts_before_a_call_are_told_too(upstream):
    def part(text):
        return {"type": "thinking", "thinking": [{"type": "text", "text": text}]}

    upstream.replies = [
        whole([part("I look."), {"type": "text", "text": "Looking."}], calls=[("u1", "web_search", {"query": "x"})]),
        whole([part("I know."), {"type": "text", "text": "Known."}]),
    ]
    async with proxy_of(upstream) as url, httpx.AsyncClient() as client:
        response = (await client.post(f"{url}/v1/responses", json={"model": "m", "input": "x"})).json()
    told = [(item["type"], item["content"][0]["text"]) for item in response["output"]]
    assert told == [("reasoning", "I look."), ("message", "Looking."), ("reasoning", "I know."), ("message", "Known.")]


async def test_fastapis_errors_keep_their_status_and_their_words(upstream, sdk):
    (exchange,) = recordings.load("fault_mistral_mistral-small-latest__refused_whole_1")
    upstream.replies = [reply(exchange)]
    async with proxy_of(upstream, config=config_for("relay", key="from_client"), tools=[]) as url, sdk(url) as client:
        for ask in (ask_chat(client, exchange.request), ask_responses(client, exchange.request, streaming=False)):
            with pytest.raises(openai.AuthenticationError, match="Invalid API Key"):
                await ask


def test_every_recorded_fault_is_replayed_here():
    replayed = {expected.name for expected in ANSWERS} | {GPT_OSS, GLM_V, VERCEL, GROK, MISTRAL}
    assert replayed | {"fault_mistral_mistral-small-latest__refused_whole_1"} == set(recordings.names("fault_*"))
