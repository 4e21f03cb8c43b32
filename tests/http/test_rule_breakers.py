"""What servers have been seen to do on the wire, each row over a real socket: in the loop and handed through."""

import httpx
import openai
import orjson
import pytest

from tests.fakes import DONE, Reply, chunk, completion, event, stream, streamed, whole
from tests.serving import CONFIG, proxy_of

ASK = {"model": "m", "messages": [{"role": "user", "content": "What is new?"}]}
RELAYED = {**ASK, "tool_choice": "none"}
BOTH = [ASK, RELAYED]
DOOR = {"type": "function", "function": {"name": "open_door", "parameters": {"type": "object"}}}
SEARCH = ("call_a", "web_search", {"query": "news"})


async def raw(url, body):
    async with httpx.AsyncClient() as client:
        return await client.post(f"{url}/v1/chat/completions", json=body)


def events_of(text):
    """The chunks of a stream, without its end mark."""
    return [orjson.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]


def delta_calls(*calls, **rest):
    return chunk({"tool_calls": list(calls)}, **rest)


def piece(arguments, **fields):
    return {**fields, "function": {"arguments": arguments}}


def opening(name, arguments, **fields):
    return {**fields, "type": "function", "function": {"name": name, "arguments": arguments}}


def reasons_of(text):
    return [
        (choice["index"], choice["finish_reason"])
        for one in events_of(text)
        for choice in one["choices"]
        if choice["finish_reason"]
    ]


# -- a stream's end --


async def test_each_choice_of_a_stream_that_ends_in_order_gets_the_reason_that_it_lacks(upstream):
    def said(index, delta, reason=None):
        return event({"id": "up", "created": 1, "model": "x", "object": "chat.completion.chunk",
                      "choices": [{"index": index, "delta": delta, "finish_reason": reason}]})  # fmt: skip

    usage = event({"choices": [], "usage": {"completion_tokens": 50}, "object": "chat.completion.chunk"})
    call = {"tool_calls": [{"index": 0, "id": "a", **opening("open_door", "{}")}]}
    upstream.replies = [stream(said(0, {"content": "a"}), said(1, call), said(2, {"content": "b"}, "length"), usage)]
    async with proxy_of(upstream) as url:
        response = await raw(url, {**RELAYED, "stream": True, "n": 3, "max_tokens": 20})
    assert sorted(reasons_of(response.text)) == [(0, "stop"), (1, "tool_calls"), (2, "length")]
    assert response.text.endswith(DONE.decode())
    assert {one["id"] for one in events_of(response.text) if one["choices"]} == {"up"}


@pytest.mark.parametrize("body", BOTH)
async def test_a_stream_without_an_end_mark_but_with_a_reason_is_whole(upstream, body):
    upstream.replies = [stream(chunk({"content": "Hello"}), chunk({}, "stop"), done=False)]
    async with proxy_of(upstream) as url:
        response = await raw(url, {**body, "stream": True})
    assert reasons_of(response.text) == [(0, "stop")]
    assert "error" not in response.text


async def test_an_empty_reason_on_every_chunk_is_none(upstream):
    upstream.replies = [stream(chunk({"content": "Hel"}, ""), chunk({"content": "lo"}, ""))]
    async with proxy_of(upstream) as url:
        for body in BOTH:
            response = await raw(url, {**body, "stream": True})
            assert reasons_of(response.text) == [(0, "stop")]


async def test_a_legacy_function_call_without_a_reason_is_one(upstream):
    pieces = [{"name": "open_door", "arguments": ""}, {"arguments": "{}"}]
    upstream.replies = [stream(*(chunk({"function_call": one}) for one in pieces))]
    async with proxy_of(upstream) as url:
        response = await raw(url, {**RELAYED, "stream": True})
    assert reasons_of(response.text) == [(0, "function_call")]


# -- chunks --


async def test_usage_beside_choices_after_the_end_counts_once_and_ends_nothing_twice(upstream, sdk):
    total = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    search = streamed("", calls=[SEARCH])
    upstream.replies = [
        search,
        stream(
            chunk({"content": "Hello"}), chunk({"content": ""}, "stop"), chunk({"content": ""}, "stop", usage=total)
        ),
    ]
    options = {"include_usage": True}
    async with proxy_of(upstream) as url, sdk(url) as client:
        chunks = [one async for one in await client.chat.completions.create(**ASK, stream=True, stream_options=options)]
    assert [choice.finish_reason for one in chunks for choice in one.choices if choice.finish_reason] == ["stop"]
    assert [one.usage.total_tokens for one in chunks if one.usage] == [11 + 3]


@pytest.mark.parametrize("index", [{"index": -1}, {}])
@pytest.mark.parametrize("tools", [[], [DOOR]])
async def test_calls_without_a_good_index_are_told_apart(upstream, sdk, index, tools):
    upstream.replies = [
        stream(
            delta_calls({**index, "id": "a", **opening("open_door", '{"n"')}),
            delta_calls(piece(":1}", **index)),
            delta_calls({**index, "id": "b", **opening("open_door", "{}")}),
            chunk({}, "tool_calls"),
        )
    ]
    body = {**ASK, "tools": tools} if tools else RELAYED
    async with proxy_of(upstream) as url, sdk(url) as client:
        state = [
            call
            async for one in await client.chat.completions.create(**body, stream=True)
            for choice in one.choices
            for call in choice.delta.tool_calls or ()
        ]
    arguments = {}
    for call in state:
        arguments[call.index] = arguments.get(call.index, "") + (call.function.arguments or "")
    assert arguments == {0: '{"n":1}', 1: "{}"}


async def test_a_later_piece_with_an_empty_type_does_not_take_the_type_away(upstream, sdk):
    pieces = (
        delta_calls({"index": 0, "id": "a", "function": {"name": "open_door", "arguments": ""}}),
        delta_calls(piece("{}", index=0, id="", type="")),
        chunk({}, "tool_calls"),
    )
    upstream.replies = [stream(*pieces)]
    async with proxy_of(upstream) as url, sdk(url) as client, client.chat.completions.stream(**RELAYED) as streaming:
        answer = await streaming.get_final_completion()
    (call,) = answer.choices[0].message.tool_calls
    assert (call.id, call.type, call.function.arguments) == ("a", "function", "{}")


@pytest.mark.parametrize("body", BOTH)
async def test_an_azure_stream_begins_with_a_chunk_without_choices_and_model(upstream, sdk, body):
    first = event({"id": "", "object": "", "created": 0, "model": "", "choices": [], "prompt_filter_results": []})
    upstream.replies = [stream(first, chunk({"content": "Hello"}), chunk({}, "stop"))]
    async with proxy_of(upstream) as url, sdk(url) as client:
        chunks = [one async for one in await client.chat.completions.create(**body, stream=True)]
    assert "".join(choice.delta.content or "" for one in chunks for choice in one.choices) == "Hello"
    assert {one.object for one in chunks} == {"chat.completion.chunk"}


# -- failures --


@pytest.mark.parametrize("body", BOTH)
@pytest.mark.parametrize("line", [b'error: {"message": "out of memory", "code": 500}\n\n', b"error: out of memory\n\n"])
async def test_a_bare_line_of_an_error_in_a_stream_is_its_failure(upstream, body, line):
    upstream.replies = [stream(chunk({"content": "Hel"}), line, done=False)]
    async with proxy_of(upstream) as url:
        response = await raw(url, {**body, "stream": True})
    (*_, last) = events_of(response.text)
    assert "out of memory" in last["error"]["message"]
    assert "[DONE]" not in response.text


@pytest.mark.parametrize("body", BOTH)
@pytest.mark.parametrize("streaming", [False, True])
async def test_an_error_inside_of_a_choice_is_a_failure(upstream, body, streaming):
    failed = {"error": {"code": 429, "message": "Rate limited"}, "finish_reason": "error", "index": 0}
    said = {"delta" if streaming else "message": {"role": "assistant", "content": ""}}
    answer = {"id": "x", "choices": [{**failed, **said}]}
    upstream.replies = [stream(event(answer)) if streaming else Reply([orjson.dumps(answer)])]
    async with proxy_of(upstream) as url:
        response = await raw(url, {**body, "stream": streaming})
    assert (response.status_code, response.json()["error"]["message"]) == (429, "Rate limited")


@pytest.mark.parametrize("body", BOTH)
@pytest.mark.parametrize("answer", [{"id": "x"}, {"choices": []}, {"choices": [{"index": 0, "finish_reason": "stop"}]}])
async def test_json_that_is_no_completion_is_no_answer(upstream, body, answer):
    upstream.replies = [Reply([orjson.dumps(answer)])]
    async with proxy_of(upstream) as url:
        response = await raw(url, body)
    assert (response.status_code, response.json()["error"]["code"]) == (502, "upstream_error")


@pytest.mark.parametrize("body", BOTH)
async def test_a_detail_with_http_200_is_a_failure(upstream, body):
    upstream.replies = [Reply([b'{"detail": "Model is loading"}'])]
    async with proxy_of(upstream) as url:
        response = await raw(url, body)
    assert (response.status_code, response.json()["error"]["code"]) == (502, "upstream_error")
    assert "Model is loading" in response.json()["error"]["message"]


# -- what has to come back --


async def test_what_a_provider_adds_to_a_call_comes_back_to_it(upstream, sdk):
    signature = {"google": {"thought_signature": "sealed"}}
    upstream.replies = [whole(calls=[SEARCH]), whole("Done")]
    upstream.replies[0] = Reply([orjson.dumps(_with_extra(completion(calls=[SEARCH]), signature))])
    async with proxy_of(upstream) as url, sdk(url) as client:
        await client.chat.completions.create(**ASK)
    assert upstream.requests[1]["messages"][-2]["tool_calls"][0]["extra_content"] == signature


def _with_extra(answer, extra):
    answer["choices"][0]["message"]["tool_calls"][0]["extra_content"] = extra
    return answer


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_clients_call_carries_what_a_provider_adds_to_it_there_and_back(upstream, sdk, streaming):
    extra = {"extra_content": {"google": {"thought_signature": "sealed"}}}
    call = {"index": 0, "id": "functions.open_door:0", **opening("open_door", "{}"), **extra}
    if streaming:
        first = stream(delta_calls(call), chunk({}, "tool_calls"))
    else:
        first = Reply([orjson.dumps(_with_call(completion(), call))])
    upstream.replies = [first, whole("Done")]
    body = {**ASK, "tools": [DOOR]}
    async with proxy_of(upstream) as url, sdk(url) as client:
        if streaming:
            async with client.chat.completions.stream(**body) as asked:
                answer = await asked.get_final_completion()
        else:
            answer = await client.chat.completions.create(**body)
        (theirs,) = answer.choices[0].message.tool_calls
        assert theirs.id.startswith("call_")
        back = [*ASK["messages"], answer.choices[0].message.to_dict()]
        back.append({"role": "tool", "tool_call_id": theirs.id, "content": "open"})
        await client.chat.completions.create(**{**body, "messages": back})
    (sent,) = upstream.requests[1]["messages"][-2]["tool_calls"]
    assert (sent["id"], sent["extra_content"]) == ("functions.open_door:0", extra["extra_content"])
    assert upstream.requests[1]["messages"][-1]["tool_call_id"] == "functions.open_door:0"


def _with_call(answer, call):
    answer["choices"][0]["message"]["tool_calls"] = [call]
    answer["choices"][0]["finish_reason"] = "tool_calls"
    return answer


# -- numbers --

NUMBERS = '{"big": 123456789012345678901234567890, "negative": -9223372036854775809, "tiny": 1e-400}'


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("profile", ["openai", "glm"])
async def test_numbers_that_nobody_here_reads_are_floats_where_64_bits_do_not_hold_them(upstream, profile, streaming):
    content = {"delta" if streaming else "message": {"content": "Done"}}
    answer = orjson.dumps({"id": "x", "choices": [{"index": 0, "finish_reason": "stop", **content}]})
    answer = answer[:-1] + f', "vendor": {NUMBERS}}}'.encode()
    last = stream(b"data: " + answer + b"\n\n") if streaming else Reply([answer])
    upstream.replies = [streamed(calls=[SEARCH]) if streaming else whole(calls=[SEARCH]), last]
    body = orjson.dumps({**ASK, "stream": streaming})[:-1] + f', "vendor": {NUMBERS}}}'.encode()
    config = CONFIG.replace("profile: openai", f"profile: {profile}")
    async with proxy_of(upstream, config=config) as url, httpx.AsyncClient() as client:
        response = await client.post(f"{url}/v1/chat/completions", content=body)
    assert [sent["vendor"] for sent in upstream.requests] == [orjson.loads(NUMBERS)] * 2
    assert orjson.dumps(orjson.loads(NUMBERS)) in response.content


async def test_arguments_that_may_mean_two_things_are_not_run(upstream, sdk):
    upstream.replies = [whole(calls=[("a", "web_search", '{"query": NaN}')]), whole("Done")]
    async with proxy_of(upstream) as url, sdk(url) as client:
        await client.chat.completions.create(**ASK)
    assert upstream.searches == []
    assert "not valid JSON" in upstream.requests[1]["messages"][-1]["content"]


async def test_an_sdk_raises_its_own_error_for_what_is_no_completion(upstream, sdk):
    upstream.replies = [Reply([b'{"id": "x"}'])]
    async with proxy_of(upstream) as url, sdk(url) as client:
        with pytest.raises(openai.InternalServerError):
            await client.chat.completions.create(**RELAYED)


PLACES = [
    '{"model":"m","messages":[{"role":"user","content":"x"}],"%(field)s":%(number)s}',
    '{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"x","n":%(number)s}],"n":%(number)s}]}',
    ('{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":'
    '{"name":"f","parameters":{"type":"object","properties":{"n":{"type":"integer","maximum":%(number)s}}}}}]}'),
    '{"model":"m","messages":[{"role":"user","content":"x"}],"metadata":{"n":%(number)s},"stream_options":{"n":%(number)s}}',
    '{"model":"m","input":"x","%(field)s":%(number)s}',
    '{"model":"m","input":[{"role":"user","content":[{"type":"input_text","text":"x","n":%(number)s}],"n":%(number)s}]}',
    '{"model":"m","input":"x","metadata":{"n":%(number)s}}',
    ('{"model":"m","input":"x","tools":[{"type":"function","name":"f","strict":false,"parameters":{"type":"object",'
    '"properties":{"n":{"type":"integer","maximum":%(number)s}}}}]}'),
]  # fmt: skip
FIELDS = [
    "temperature",
    "top_p",
    "max_tokens",
    "max_output_tokens",
    "n",
    "seed",
    "user",
    "tool_choice",
    "stream",
    "vendor",
]


@pytest.mark.parametrize("number", ["123456789012345678901234567890", "1e-400", "1e400"])
@pytest.mark.parametrize("profile", ["openai", "glm"])
async def test_a_number_that_no_float_holds_breaks_nothing_wherever_it_stands(upstream, profile, number):
    usage = f'{{"prompt_tokens":{number},"completion_tokens":1,"total_tokens":{number},"details":{{"n":{number}}}}}'
    answer = orjson.dumps(completion("Done", calls=[("a", "web_search", {"query": "x"})]))
    answer = answer.replace(orjson.dumps(completion()["usage"]), usage.encode())
    upstream.replies = [Reply([answer])]
    config = CONFIG.replace("profile: openai", f"profile: {profile}")
    more = "telemetry: {log_content: true, log_level: debug}"
    async with proxy_of(upstream, config=config, more=more) as url, httpx.AsyncClient() as client:
        for place in PLACES:
            for field in FIELDS if "%(field)s" in place else FIELDS[:1]:
                path = "chat/completions" if "messages" in place else "responses"
                body = place % {"field": field, "number": number}
                response = await client.post(f"{url}/v1/{path}", content=body)
                assert response.status_code in (200, 400, 502), (body, response.text)
