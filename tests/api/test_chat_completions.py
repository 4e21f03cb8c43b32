"""Chat completions: several choices, progress events, what upstreams want or send, and bodies that pass as they are."""

import asyncio

import httpx
import orjson
import pytest

from proxy.tools.tool import Tool
from tests.api.answer import ServerCall
from tests.api.surfaces import EACH, SEARCH, on
from tests.fakes import Reply, chunk, completion, event, stream, streamed, turn, whole
from tests.serving import CONFIG, proxy_of

ASK = {"model": "m", "messages": [{"role": "user", "content": "What is new?"}]}


async def raw(url, body, **headers):
    async with httpx.AsyncClient() as client:
        return await client.post(f"{url}/v1/chat/completions", json=body, headers=headers)


# -- one completion, whatever happened on the way --


async def test_the_sdk_sees_one_completion(upstream, sdk):
    upstream.replies = [turn("I'll search.", calls=[SEARCH]), turn("Much is new.")] * 2
    async with proxy_of(upstream) as url, sdk(url) as client:
        answer = await client.chat.completions.create(**ASK)
        async with client.chat.completions.stream(**ASK, stream_options={"include_usage": True}) as events:
            of_stream = await events.get_final_completion()
    assert answer.id.startswith("chatcmpl-")
    assert (answer.object, answer.model) == ("chat.completion", "the-upstream-model")
    for one, text in ((answer, "Much is new."), (of_stream, "I'll search.\n\nMuch is new.")):
        [choice] = one.choices
        assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (text, None, "stop")
        assert (one.usage.prompt_tokens, one.usage.total_tokens) == (20, 22)


@on("chat-streamed")
@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize(
    ("first", "second", "joined"),
    [
        ("One.", "Two.", "One.\n\nTwo."),
        ("One.\n\n\n", "\n\n\nTwo.\n", "One.\n\nTwo.\n"),
        ("One.\n \n\n", " \n\n  Two.", "One.\n \n  Two."),
    ],
)
async def test_between_the_texts_of_two_turns_is_one_blank_line_however_they_are_cut(
    surface, size, first, second, joined
):
    answer = await surface.ask(turn(first, calls=[SEARCH], size=size), turn(second, size=size))
    assert answer.texts == [joined]
    assert surface.history()[-2]["content"] == first


async def test_every_chunk_of_a_stream_has_the_upstreams_fingerprint_and_tier(upstream, sdk):
    kept = {"system_fingerprint": "fp_1", "service_tier": "default"}
    upstream.replies = [stream(chunk({"content": "Hi"}, **kept), chunk({}, "stop", **kept))]
    async with proxy_of(upstream) as url, sdk(url) as client:
        chunks = [one async for one in await client.chat.completions.create(stream=True, **ASK)]
    assert {(one.system_fingerprint, one.service_tier) for one in chunks} == {("fp_1", "default")}


async def test_on_the_wire_a_stream_has_no_trace_of_the_search_and_ends_with_done(upstream):
    upstream.replies = [turn("", calls=[SEARCH]), turn("Done.")]
    async with proxy_of(upstream) as url:
        response = await raw(url, {**ASK, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert not any(word in response.text for word in ("web_search", '"u1"', "tool_calls", "usage"))
    *chunks, done = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert (done, sum('"finish_reason":"' in one for one in chunks)) == ("[DONE]", 1)


TWO_CLIENTS = """
clients: [{{name: one, key: key-of-one}}, {{name: two, key: key-of-two}}]
upstreams: {{up: {{base_url: {upstream}/v1, api_key: upstream-secret, retries: 0}}}}
models: {{m: {{upstream: up}}}}
tools: {{web_search: {{type: serper, api_key: serper-secret, base_url: {upstream}, cache_seconds: 60}}}}
"""
TWO_KEYS = TWO_CLIENTS.replace("upstream-secret", "from_client").partition("\n")[2].partition("\n")[2]


@on("chat-whole")
@pytest.mark.parametrize("config", [TWO_CLIENTS, TWO_KEYS])
async def test_what_was_found_for_one_client_is_found_anew_for_another(surface, config):
    searches = []
    async with surface.proxy(*[turn("I'll search.", calls=[SEARCH]), turn("Done")] * 4, config=config) as client:
        for key in ("key-of-one", "key-of-one", "key-of-two", "key-of-one"):
            await client.ask(key=key)
            searches.append(len(surface.upstream.searches))
    assert searches == [1, 1, 2, 2]


async def test_without_parallel_tool_calls_searches_run_one_at_a_time(chat):
    open_searches, most = 0, 0

    async def search(arguments):
        nonlocal open_searches, most
        open_searches += 1
        most = max(most, open_searches)
        await asyncio.sleep(0)
        open_searches -= 1
        return "found"

    tool = Tool(name="look_up", description="", parameters={"type": "object"}, run=search)
    calls = [(str(n), "look_up", {"n": n}) for n in range(3)]
    await chat.ask(turn(calls=calls), turn("Done."), server=[tool], body={"parallel_tool_calls": False})
    assert most == 1
    assert chat.upstream.requests[0]["parallel_tool_calls"] is False


# -- several choices --


def two_minds(upstream):
    """A model that searches first, and answers differently each time."""

    def model(request):
        if request["messages"][-1]["role"] == "tool":
            return turn(f"Answer{request['messages'][-1]['tool_call_id']}")(request)
        number = len(upstream.requests)
        return turn(calls=[(f"c{number}", "web_search", {"query": f"q{number}"})])(request)

    return model


async def test_several_choices_are_as_many_loops_side_by_side_in_one_completion(chat):
    answer = await chat.ask(two_minds(chat.upstream), body={"n": 2})
    choices = answer.whole["choices"]
    assert [(choice["index"], choice["finish_reason"]) for choice in choices] == [(0, "stop"), (1, "stop")]
    texts = {choice["message"]["content"] for choice in choices}
    assert (len(texts), all(text.startswith("Answerc") for text in texts)) == (2, True)
    used = {"turns": 4, "tool_calls": 2, "web_search_requests": 2, "web_search": 2}
    assert (answer.whole["usage"]["server_tool_use"], answer.whole["usage"]["total_tokens"]) == (used, 44)
    assert not any("n" in request for request in chat.upstream.requests)


@on("chat-streamed")
async def test_choices_begin_in_order_whichever_is_answered_first(surface):
    second_answered = asyncio.Event()

    def model(_):
        if len(surface.upstream.requests) == 1:
            return Reply([second_answered, *streamed("slow").body], content_type="text/event-stream")
        second_answered.set()
        return streamed("quick")

    answer = await surface.ask(model, body={"n": 2})
    assert sorted(choice["message"]["content"] for choice in answer.whole["choices"]) == ["quick", "slow"]


@on("chat-whole")
async def test_when_one_of_several_choices_fails_the_request_fails_and_nothing_goes_on(surface):
    failing = Reply([b'{"error":{"message":"bad"}}'], status=400)
    async with surface.proxy(Reply([asyncio.Event()]), failing) as client, asyncio.timeout(10):
        answer = await client.ask(body={"n": 2})
        await surface.upstream.left.wait()
    assert (answer.status, answer.error["message"]) == (400, "bad")


# -- progress events --


async def test_a_client_that_asks_for_it_is_told_what_is_going_on(chat):
    answer = await chat.ask(turn("", calls=[SEARCH]), turn("Done."), events="true")
    events = answer.whole["tool_events"]
    assert all(event.keys() <= {"type", "turn", "tool", "call_id", "arguments", "seconds", "error"} for event in events)
    assert [(event["type"], event["turn"], event.get("tool")) for event in events] == [
        ("turn.started", 1, None),
        ("tool.started", 1, "web_search"),
        ("tool.completed", 1, "web_search"),
        ("turn.started", 2, None),
    ]
    assert (events[1]["call_id"], events[1]["arguments"]) == ("u1", '{"query":"news"}')
    assert events[2]["seconds"] >= 0
    assert answer.whole["model"] == "the-upstream-model"


async def test_a_tool_that_fails_is_told_so_too(chat):
    chat.upstream.search = Reply([b"{}"], status=403)
    answer = await chat.ask(turn(calls=[SEARCH]), turn("Done."), events="true")
    [failed] = [event for event in answer.whole["tool_events"] if event["type"] == "tool.failed"]
    assert "key was refused" in failed["error"]


@on("chat-whole", "chat-streamed", "responses-streamed", "messages-whole")
@pytest.mark.parametrize(
    ("offer", "client", "header", "told"),
    [
        ("none", None, None, None),
        ("none", None, "true", "calls"),
        ("none", None, "results", "results"),
        ("calls", None, None, "calls"),
        ("results", None, None, "results"),
        ("results", None, "true", "calls"),
        ("results", None, "false", None),
        ("results", "none", None, None),
        ("none", "results", None, "results"),
    ],
)
async def test_an_operator_may_choose_the_progress_events_of_clients_that_do_not_ask(
    surface, offer, client, header, told
):
    own = f", tool_events: {client}" if client else ""
    more = f"offer: {{tool_events: {offer}}}\nclients: [{{name: a, key: the-key-of-a{own}}}]"
    answer = await surface.ask(turn(calls=[SEARCH]), turn("Hi"), more=more, key="the-key-of-a", events=header)
    if answer.kind == "chat":
        pages = ("https://a.example/",) if told == "results" else ()
        assert answer.server_calls == [ServerCall("web_search", {"query": "news"}, pages=pages)] * (told is not None)
    else:
        assert [one.name for one in answer.server_calls] == ["web_search"] * (told is not None)


# -- upstreams --


TWO = """
upstreams:
  up: {{base_url: "{upstream}/v1", api_key: key-one, profile: openai}}
  other: {{base_url: "{upstream}/other", api_key: key-two, profile: glm, retries: 0}}
models:
  m: {{upstream: up, fallbacks: [spare], vision_model: seer}}
  n: {{upstream: up, vision_model: up-vision}}
  spare: {{upstream: other, model: spare-model}}
  seer: {{upstream: other, model: seeing-model}}
tools:
  current_time: {{type: clock}}
{more}
"""


async def test_when_an_upstream_has_no_balance_the_next_model_answers_with_its_own_key(surface):
    broke = Reply([b'{"error":{"code":"1113","message":"no balance"}}'], status=429)
    answer = await surface.ask(broke, turn("From the other."), config=TWO)
    assert (answer.text, answer.finish) == ("From the other.", "stop")
    assert [request["model"] for request in surface.upstream.requests] == ["m", "spare-model"]
    heads = surface.upstream.heads
    assert [head["headers"][b"authorization"] for head in heads] == [b"Bearer key-one", b"Bearer key-two"]
    assert heads[1]["path"] == "/other/chat/completions"


NEXT = {"role": "user", "text": "And now?"}
PICTURE = {**NEXT, "picture": "data"}


@EACH
@pytest.mark.parametrize(
    ("model", "said", "asked", "key"),
    [
        ("m", [PICTURE], "seeing-model", b"Bearer key-two"),
        ("n", [PICTURE], "up-vision", b"Bearer key-one"),
        ("m", [PICTURE, {"role": "assistant", "text": "A cat."}, NEXT], "m", b"Bearer key-one"),
        ("spare", [PICTURE], "spare-model", b"Bearer key-two"),
    ],
)
async def test_a_question_with_an_image_goes_to_the_model_that_sees(surface, model, said, asked, key):
    await surface.ask(turn("A cat."), config=TWO, model=model, messages=said)
    [request], [head] = surface.upstream.requests, surface.upstream.heads
    assert (request["model"], head["headers"][b"authorization"]) == (asked, key)
    assert [tool["function"]["name"] for tool in request["tools"]] == ["current_time"]


NATIVE = {
    "type": "web_search",
    "web_search": {"enable": True, "search_engine": "search_pro_jina", "search_result": True},
}
FOUND = [{"title": "T", "link": "https://t.example/", "refer": "ref_1"}]


async def test_glm_is_told_to_call_a_tool_by_the_name_under_which_it_is_offered(chat):
    name = "x" * 65
    tool = {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    answer = await chat.ask(turn(calls=[("c", "x" * 64, {})]), profile="glm", tools=[tool], choice=name)
    assert f"Call the tool {'x' * 64} now" in str(chat.upstream.requests[0]["messages"])
    assert name not in str(chat.upstream.requests[0])
    assert answer.calls == [(name, "{}")]


async def test_glms_native_search_goes_through_beside_our_tools_and_its_results_stay(chat):
    def reply(request):
        if request.get("stream"):
            return stream(event({"choices": [], "web_search": FOUND}), chunk({"content": "Hi"}), chunk({}, "stop"))
        return Reply([orjson.dumps({**completion("Hi"), "web_search": FOUND})])

    answer = await chat.ask(reply, profile="glm", tools=[NATIVE])
    assert chat.upstream.requests[0]["tools"][0] == NATIVE
    assert (answer.whole["web_search"], answer.raw.count('"web_search":[')) == (FOUND, 1)


@pytest.mark.parametrize("functions", [[], ["door"]])
async def test_glms_native_search_does_not_go_to_a_fallback_that_is_no_glm(chat, functions):
    config = CONFIG.replace(
        "profile: openai, retries: 0}}",
        "profile: glm, retries: 0}}\n  other: {{base_url: {upstream}/v1, api_key: other-secret, retries: 0}}",
    ).replace("m: {{upstream: up}}", "m: {{upstream: up, fallbacks: [second]}}\n  second: {{upstream: other}}")
    replies = Reply([b"{}"], status=503), turn("Hi")
    await chat.ask(*replies, config=config, functions=functions, tools=[NATIVE], server_tools="web_search")
    first, second = chat.upstream.requests
    assert NATIVE in first["tools"]
    own = [tool["function"]["name"] for tool in second["tools"]]
    assert [name for name in own if name != "web_search"] == functions


@on("chat-whole", "chat-streamed", "responses-whole", "responses-streamed")
@pytest.mark.parametrize("choice", [None, "door.open"])
async def test_a_tool_name_that_the_upstream_refuses_is_mapped_and_mapped_back(surface, choice):
    answer = await surface.ask(turn(calls=[("c", "door_open", {})]), functions=["door.open"], choice=choice)
    assert answer.calls == [("door.open", "{}")]
    [request] = surface.upstream.requests
    assert {tool["function"]["name"] for tool in request["tools"]} - {"web_search"} == {"door_open"}
    assert not choice or request["tool_choice"]["function"]["name"] == "door_open"


@on("chat-whole")
async def test_a_search_without_a_key_is_done_by_its_fallback(surface):
    config = """
upstreams: {{up: {{base_url: "{upstream}/v1", api_key: k}}}}
models: {{m: {{upstream: up}}}}
tools:
  web_search: {{type: serper, api_key: "${{NOT_SET}}", base_url: "{upstream}", fallback: zai}}
  zai: {{type: zai_search, api_key: z, base_url: "{upstream}", offer: never}}
{more}
"""
    found = Reply([orjson.dumps({"search_result": [{"title": "Z", "link": "https://z.example/"}]})])
    answer = await surface.ask(turn(calls=[SEARCH]), found, turn("Done"), config=config)
    assert answer.text == "Done"
    assert [tool["function"]["name"] for tool in surface.upstream.requests[0]["tools"]] == ["web_search"]
    assert surface.upstream.heads[1]["path"] == "/web_search"
    assert "https://z.example/" in surface.results()[0]


@pytest.mark.parametrize("extra", [{}, {"tool_choice": "none"}])
async def test_json_that_only_some_parsers_take_breaks_nothing(upstream, extra):
    half = b'data: {"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"a\\ud83d"}}],"score":NaN,"big":1e400}\n\n'
    upstream.replies = [stream(half, b"data:\n\n", chunk({"content": "b"}), chunk({}, "stop"))]
    async with proxy_of(upstream) as url:
        response = await raw(url, {**ASK, **extra, "stream": True})
    assert response.text.endswith("data: [DONE]\n\n")
    assert (half in response.content) is bool(extra)
    assert "error" not in response.text


async def test_a_count_that_is_none_is_not_taken_for_one(upstream, logged):
    answer = orjson.dumps({**completion("Hi"), "usage": {"prompt_tokens": "deep", "completion_tokens": 3}})
    upstream.replies = [Reply([answer.replace(b'"deep"', b"[" * 1000 + b"]" * 1000)])]
    async with proxy_of(upstream) as url:
        assert (await raw(url, {**ASK, "tool_choice": "none"})).status_code == 200
    (done,) = [line for line in logged() if line["event"] == "request.completed"]
    assert (done["completion_tokens"], "prompt_tokens" in done) == (3, False)


# -- pass-through --


async def test_without_a_server_tool_in_play_both_bodies_pass_byte_for_byte(upstream):
    answer = b'{ "id":"x","object":"chat.completion", "choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"hi"}}], "big":123456789012345678901234567890 }'
    upstream.replies = [Reply([answer])]
    body = (
        b'{"model": "m",  "messages":[{"role":"user","content":"x"}],"tool_choice":"none","seed":123456789012345678901}'
    )
    async with proxy_of(upstream) as url, httpx.AsyncClient() as client:
        response = await client.post(f"{url}/chat/completions", content=body)
        aliased = await client.post(f"{url}/v1/chat/completions", content=body.replace(b'"m"', b'"alias"'))
    assert upstream.bodies == [body, body.replace(b'"m"', b'"the/real-name"')]
    assert response.content == aliased.content == answer


async def test_a_streamed_answer_passes_byte_for_byte_but_for_what_an_sdk_would_choke_on(upstream):
    odd = b'data:{"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"hi"}}]}\r\n\r\n'
    end = (
        b'data: {"object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"finish_reason":"of its own"}]}\n\n'
    )
    upstream.replies = [stream(odd, end)]
    async with proxy_of(upstream) as url:
        response = await raw(url, {**ASK, "tool_choice": "none", "stream": True})
    assert response.content == odd + end.replace(b'"of its own"', b'"stop"') + b"data: [DONE]\n\n"


async def test_nothing_in_a_request_changes_where_it_goes_or_with_which_key(upstream):
    upstream.replies = [whole("Hi")]
    evil = "http://evil.example"
    smuggled = {"api_base": evil, "api_key": "x", "base_url": evil, "extra_headers": {"a": "b"}}
    headers = {"authorization": "Bearer client-key", "cookie": "a=b", "x-host": "evil"}
    async with proxy_of(upstream) as url:
        assert (await raw(url, {**ASK, **smuggled}, **headers)).status_code == 200
    sent = upstream.heads[0]["headers"]
    assert sent[b"authorization"] == b"Bearer upstream-secret"
    assert b"cookie" not in sent
    assert b"client-key" not in str(upstream.heads).encode()


async def test_the_apps_own_key_goes_on_where_the_configuration_says_so(upstream, sdk):
    config = """
upstreams: {{up: {{base_url: "{upstream}/v1", api_key: from_client}}}}
models: {{"*": {{upstream: up}}}}
{more}
"""
    upstream.replies = [whole("Hi")]
    async with proxy_of(upstream, config=config) as url:
        async with sdk(url, api_key="my-own-zai-key") as client:
            await client.chat.completions.create(**{**ASK, "model": "anything"})
        assert upstream.heads[0]["headers"][b"authorization"] == b"Bearer my-own-zai-key"
        assert upstream.requests[0]["model"] == "anything"
        assert (await raw(url, ASK)).status_code == 401
