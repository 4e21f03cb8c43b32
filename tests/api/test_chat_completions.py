"""Over real sockets, with the real `openai` SDK in front and a scripted upstream behind."""

import asyncio
import re

import httpx
import openai
import orjson
import pytest

from proxy.tools.tool import Tool
from tests.fakes import FakeClock, Reply, chunk, completion, event, stream, streamed, whole
from tests.serving import CONFIG, proxy_of

ASK = {"model": "m", "messages": [{"role": "user", "content": "What is new?"}]}
SEARCH = ("call_a", "web_search", {"query": "news"})


async def raw(url, body, **headers):
    async with httpx.AsyncClient() as client:
        return await client.post(f"{url}/v1/chat/completions", json=body, headers=headers)


def data_of(text):
    return [line.removeprefix("data: ") for line in text.split("\n\n") if line]


# -- one completion, whatever happened on the way --


async def test_a_whole_answer_that_needed_a_search(upstream, sdk):
    upstream.replies = [whole("I'll search.", calls=[SEARCH], reasoning="Hm"), whole("Much is new.")]
    async with proxy_of(upstream) as url, sdk(url) as client:
        reply = await client.chat.completions.with_raw_response.create(**ASK)
    answer = reply.parse()
    assert answer.choices[0].message.content == "Much is new."
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].finish_reason == "stop"
    assert answer.id.startswith("chatcmpl-")
    assert (answer.object, answer.model) == ("chat.completion", "the-upstream-model")
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (20, 22)
    assert answer.usage.server_tool_use == {"turns": 2, "tool_calls": 1, "web_search_requests": 1, "web_search": 1}
    assert {name: reply.headers[name] for name in ("x-tool-turns", "x-tool-calls", "x-tool-stop")} == {
        "x-tool-turns": "2",
        "x-tool-calls": "1",
        "x-tool-stop": "answer",
    }
    assert upstream.searches == [{"q": "news", "num": 5}]


async def test_the_history_holds_the_assistant_message_as_received_and_then_the_results(upstream, sdk):
    second = ("call_b", "web_search", {"query": "weather"})
    upstream.replies = [whole("I'll search.", calls=[SEARCH, second], reasoning="Hm", vendor=[1]), whole("Done")]
    async with proxy_of(upstream) as url, sdk(url) as client:
        await client.chat.completions.create(**ASK)
    _, assistant, one, two = upstream.requests[1]["messages"][1:]
    assert assistant == {
        "role": "assistant",
        "content": "I'll search.",
        "reasoning": "Hm",
        "vendor": [1],
        "tool_calls": [
            {"id": i, "type": "function", "function": {"name": n, "arguments": orjson.dumps(a).decode()}}
            for i, n, a in (SEARCH, second)
        ],
    }
    assert [(message["role"], message["tool_call_id"]) for message in (one, two)] == [
        ("tool", "call_a"),
        ("tool", "call_b"),
    ]
    assert "https://a.example/" in one["content"]


async def test_a_streamed_answer_that_needed_a_search_is_one_completion(upstream, sdk):
    upstream.replies = [streamed("I'll search.", calls=[SEARCH]), streamed("Much is new.")]
    async with proxy_of(upstream) as url, sdk(url) as client:
        options = {"include_usage": True}
        chunks = [one async for one in await client.chat.completions.create(**ASK, stream=True, stream_options=options)]
    assert len({(one.id, one.created, one.model) for one in chunks}) == 1
    deltas = [one.choices[0].delta for one in chunks if one.choices]
    assert [delta.role for delta in deltas].count("assistant") == 1
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == "I'llsearch.\n\nMuchisnew."
    assert not any(delta.tool_calls for delta in deltas)
    assert [one.choices[0].finish_reason for one in chunks if one.choices and one.choices[0].finish_reason] == ["stop"]
    assert [one.usage.total_tokens for one in chunks if one.usage] == [22]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.server_tool_use == {"turns": 2, "tool_calls": 1, "web_search_requests": 1, "web_search": 1}


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
    upstream, sdk, size, first, second, joined
):
    def cut(text, reason, *calls):
        pieces = [chunk({"content": text[at : at + size]}) for at in range(0, len(text), size)]
        return stream(*pieces, *calls, chunk({}, reason))

    call = chunk({"tool_calls": [{**OPENING, "function": {**OPENING["function"], **ARGUMENTS["function"]}}]})
    upstream.replies = [cut(first, "tool_calls", call), cut(second, "stop")]
    async with proxy_of(upstream) as url, sdk(url) as client:
        completion = await client.chat.completions.create(**ASK, stream=True)
        text = "".join([one.choices[0].delta.content or "" async for one in completion if one.choices])
    assert text == joined
    assert upstream.requests[1]["messages"][-2]["content"] == first


async def test_every_chunk_of_a_stream_has_the_upstreams_fingerprint_and_tier(upstream, sdk):
    kept = {"system_fingerprint": "fp_1", "service_tier": "default"}
    upstream.replies = [stream(chunk({"content": "Hi"}, **kept), chunk({}, "stop", **kept))]
    async with proxy_of(upstream) as url, sdk(url) as client:
        chunks = [one async for one in await client.chat.completions.create(stream=True, **ASK)]
    assert {(one.system_fingerprint, one.service_tier) for one in chunks} == {("fp_1", "default")}


@pytest.mark.parametrize("size", [0, 1, 4, 100])  # 0: not streamed
async def test_the_citation_marks_of_gpt_oss_become_annotations(upstream, sdk, size):
    text = "It is new【0†L1-L3】, so they say【1†source】. 【9†L1】Fine."
    pieces = [chunk({"content": text[at : at + size]}) for at in range(0, len(text), size or 100)]
    answer = stream(*pieces, chunk({}, "stop")) if size else whole(text)
    upstream.replies = [(streamed if size else whole)(calls=[("c", "browser.search", {"query": "x"})]), answer]
    async with proxy_of(upstream, config=PROFILE.replace("PROFILE", "gpt_oss")) as url, sdk(url) as client:
        reply = await client.chat.completions.create(**ASK, stream=bool(size))
        if size:
            deltas = [one.choices[0].delta async for one in reply if one.choices]
            shown = "".join(delta.content or "" for delta in deltas)
            cited = [one for delta in deltas for one in getattr(delta, "annotations", None) or ()]
            assert not any("toolproxy_citations" in delta.model_dump() for delta in deltas)
        else:
            shown = reply.choices[0].message.content
            cited = [one.model_dump() for one in reply.choices[0].message.annotations]
    assert shown == "It is new, so they say. Fine."
    assert cited == [
        {
            "type": "url_citation",
            "url_citation": {"start_index": 0, "end_index": 9, "title": "A page", "url": "https://a.example/"},
        }
    ]


@pytest.mark.parametrize("streaming", [False, True])
async def test_an_upstreams_own_annotations_stand_beside_ours(upstream, sdk, streaming):
    theirs = {"type": "url_citation", "url_citation": {"url": "https://up.example/", "start_index": 0, "end_index": 3}}
    parts = [chunk({"content": "See https://a.example/"}), chunk({"annotations": [theirs]}), chunk({}, "stop")]
    answer = stream(*parts) if streaming else whole("See https://a.example/", annotations=[theirs])
    upstream.replies = [(streamed if streaming else whole)(calls=[SEARCH]), answer]
    async with proxy_of(upstream) as url, sdk(url) as client:
        if streaming:
            async with client.chat.completions.stream(**ASK) as events:  # the SDK joins the deltas
                completion = await events.get_final_completion()
        else:
            completion = await client.chat.completions.create(**ASK)
    cited = completion.choices[0].message.model_dump()["annotations"]
    assert [one["url_citation"]["url"] for one in cited] == ["https://up.example/", "https://a.example/"]


async def test_a_mark_alone_in_a_delta_of_json_is_an_annotation_too(upstream, sdk):
    parts = [chunk({"content": part}) for part in ('{"a": "new', "【0†L1】", '"}')]
    upstream.replies = [streamed(calls=[("c", "browser.search", {"query": "x"})]), stream(*parts, chunk({}, "stop"))]
    async with proxy_of(upstream, config=PROFILE.replace("PROFILE", "gpt_oss")) as url, sdk(url) as client:
        reply = await client.chat.completions.create(**ASK, stream=True, response_format={"type": "json_object"})
        deltas = [one.choices[0].delta.model_dump() async for one in reply if one.choices]
    assert not any("toolproxy_citations" in delta for delta in deltas)
    assert [one for delta in deltas for one in delta.get("annotations") or ()]


async def test_without_a_server_tool_in_play_marks_stay(upstream, sdk):
    upstream.replies = [whole("New【0†L1】")]
    async with proxy_of(upstream) as url, sdk(url) as client:
        answer = await client.chat.completions.create(**ASK, tool_choice="none")
    assert answer.choices[0].message.content == "New【0†L1】"


async def test_on_the_wire_a_stream_has_no_trace_of_the_search_and_ends_with_done(upstream):
    upstream.replies = [streamed("", calls=[SEARCH]), streamed("Done.")]
    async with proxy_of(upstream) as url:
        response = await raw(url, {**ASK, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert not re.search("web_search|call_a|tool_calls|usage", response.text)
    received = data_of(response.text)
    assert received[-1] == "[DONE]"
    assert sum('"finish_reason":"' in one for one in received) == 1


async def test_tokens_are_shown_while_the_upstream_is_still_writing(upstream, sdk):
    gate = asyncio.Event()
    upstream.replies = [streamed("", calls=[SEARCH]), stream(chunk({"content": "early"}), gate, chunk({}, "stop"))]
    async with proxy_of(upstream) as url, sdk(url) as client:
        async for one in await client.chat.completions.create(**ASK, stream=True):
            if one.choices[0].delta.content == "early":
                gate.set()  # the upstream goes on only now
            last = one
    assert last.choices[0].finish_reason == "stop"


async def test_the_clients_own_tool_calls_reach_it(upstream, sdk):
    own = [{"type": "function", "function": {"name": "open_door", "parameters": {}}}]
    upstream.replies = [whole(calls=[("c1", "open_door", {"n": 1})]), streamed(calls=[("c1", "open_door", {"n": 1})])]
    async with proxy_of(upstream) as url, sdk(url) as client:
        answer = await client.chat.completions.create(**ASK, tools=own)
        chunks = [one async for one in await client.chat.completions.create(**ASK, tools=own, stream=True)]
    call = answer.choices[0].message.tool_calls[0]
    assert (answer.choices[0].finish_reason, call.function.name, call.function.arguments) == (
        "tool_calls",
        "open_door",
        '{"n":1}',
    )
    fragments = [part for one in chunks for part in one.choices[0].delta.tool_calls or ()]
    assert "".join(part.function.arguments for part in fragments) == '{"n":1}'
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    assert upstream.searches == []


async def test_several_searches_of_one_turn_run_at_the_same_time(upstream, sdk):
    both = asyncio.Event()

    def search(_):
        if len(upstream.searches) == 2:
            both.set()
        return Reply([both, b"{}"])  # no search is answered before the other has been asked

    upstream.search = search
    upstream.replies = [whole(calls=[SEARCH, ("b", "web_search", {"query": "other"})]), whole("Done")]
    async with proxy_of(upstream) as url, sdk(url) as client:
        assert (await client.chat.completions.create(**ASK)).choices[0].message.content == "Done"


def fragments(*calls):
    """A streamed call each, whole in one chunk, as GLM sends them."""
    entries = [
        {"index": at, "id": i, "type": "function", "function": {"name": n, "arguments": a}}
        for at, (i, n, a) in enumerate(calls)
    ]
    return [chunk({"tool_calls": [entry]}) for entry in entries]


FIRST, SECOND = fragments(("a", "web_search", '{"query":"one"}'), ("b", "web_search", '{"query":"two"}'))


async def test_a_search_starts_while_the_model_is_still_writing_the_next_call(upstream, sdk):
    searching = asyncio.Event()

    def search(_):
        searching.set()
        return Reply([b"{}"])

    upstream.search = search
    upstream.replies = [stream(FIRST, searching, SECOND, chunk({}, "tool_calls")), streamed("Done.")]
    async with proxy_of(upstream) as url, sdk(url) as client, asyncio.timeout(10):
        chunks = [one async for one in await client.chat.completions.create(**ASK, stream=True)]
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert [one["q"] for one in upstream.searches] == ["one", "two"]
    assert [m["tool_call_id"] for m in upstream.requests[1]["messages"] if m["role"] == "tool"] == ["a", "b"]


async def test_a_tool_that_is_not_eager_waits_for_the_end_of_its_turn(upstream, sdk):
    upstream.replies = [stream(FIRST, None)]
    config = CONFIG.replace("aliases:", "eager: false, aliases:")
    async with proxy_of(upstream, config=config) as url, sdk(url) as client:
        with pytest.raises(openai.APIError):
            await client.chat.completions.create(**ASK, stream=True)
    assert upstream.searches == []


TWO_CLIENTS = """
clients: [{{name: one, key: key-of-one}}, {{name: two, key: key-of-two}}]
upstreams: {{up: {{base_url: {upstream}/v1, api_key: upstream-secret, retries: 0}}}}
models: {{m: {{upstream: up}}}}
tools: {{web_search: {{type: serper, api_key: serper-secret, base_url: {upstream}, cache_seconds: 60}}}}
"""
TWO_KEYS = """
upstreams: {{up: {{base_url: {upstream}/v1, api_key: from_client, retries: 0}}}}
models: {{m: {{upstream: up}}}}
tools: {{web_search: {{type: serper, api_key: serper-secret, base_url: {upstream}, cache_seconds: 60}}}}
"""


@pytest.mark.parametrize("config", [TWO_CLIENTS, TWO_KEYS])
async def test_what_was_found_for_one_client_is_found_anew_for_another(upstream, sdk, config):
    upstream.replies = [whole("I'll search.", calls=[SEARCH]), whole("Done")] * 4
    searches = []
    async with proxy_of(upstream, config=config) as url:
        for key in ("key-of-one", "key-of-one", "key-of-two", "key-of-one"):
            async with sdk(url, api_key=key) as client:
                await client.chat.completions.create(**ASK)
            searches.append(len(upstream.searches))
    assert searches == [1, 1, 2, 2]


async def test_without_parallel_tool_calls_searches_run_one_at_a_time(upstream, sdk):
    open_searches, most = 0, 0

    async def search(arguments):
        nonlocal open_searches, most
        open_searches += 1
        most = max(most, open_searches)
        await asyncio.sleep(0)
        open_searches -= 1
        return "found"

    described = {"name": "look_up", "description": "", "parameters": {"type": "object"}}
    upstream.replies = [whole(calls=[(str(n), "look_up", {"n": n}) for n in range(3)]), whole("Done.")]
    async with proxy_of(upstream, tools=[Tool(**described, run=search)]) as url, sdk(url) as client:
        await client.chat.completions.create(**ASK, extra_body={"parallel_tool_calls": False})
    assert most == 1
    assert upstream.requests[0]["parallel_tool_calls"] is False


@pytest.mark.parametrize("end", [None, chunk({}, "length")])
async def test_a_search_that_started_early_ends_when_its_turn_fails_or_is_cut_off(upstream, end):
    searching = asyncio.Event()

    def search(_):
        searching.set()
        return Reply([asyncio.Event()])  # never answers

    upstream.search = search
    upstream.replies = [stream(FIRST, searching, end, done=end is not None)]
    async with proxy_of(upstream) as url, asyncio.timeout(10):
        await raw(url, {**ASK, "stream": True})
        await upstream.left.wait()
    assert len(upstream.requests) == 1


async def test_what_started_in_a_turn_that_is_asked_for_again_is_run_anew(upstream, sdk):
    searching = asyncio.Event()

    def search(_):
        searching.set()
        return Reply([asyncio.Event()] if len(upstream.searches) == 1 else [b"{}"])

    upstream.search = search
    good = stream(FIRST, chunk({}, "tool_calls"))
    upstream.replies = [stream(FIRST, searching, None), good, streamed("Done.")]
    config = CONFIG.replace("retries: 0", "retries: 1")
    async with proxy_of(upstream, config=config, clock=FakeClock()) as url, sdk(url) as client, asyncio.timeout(10):
        completion = await client.chat.completions.create(**ASK, stream=True)
        assert "".join([one.choices[0].delta.content or "" async for one in completion]) == "Done."
    assert len(upstream.searches) == 2


def two_minds(upstream, *, streaming):
    """A model that searches first, and answers differently each time."""
    reply = streamed if streaming else whole

    def model(request):
        if request["messages"][-1]["role"] != "tool":
            number = len(upstream.requests)
            return reply("", calls=[(f"c{number}", "web_search", {"query": f"q{number}"})])
        return reply(f"Answer{request['messages'][-1]['tool_call_id']}")

    upstream.replies = [model]


async def test_several_choices_are_as_many_loops_merged_into_one_answer(upstream, sdk):
    two_minds(upstream, streaming=False)
    async with proxy_of(upstream) as url, sdk(url) as client:
        answer = await client.chat.completions.create(**ASK, n=2)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert sorted(choice.message.content for choice in answer.choices) == ["Answerc1", "Answerc2"]
    assert answer.usage.server_tool_use == {"turns": 4, "tool_calls": 2, "web_search_requests": 2, "web_search": 2}
    assert answer.usage.total_tokens == 44
    assert not any("n" in request for request in upstream.requests)


async def test_several_choices_are_streamed_side_by_side_in_one_completion(upstream, sdk):
    two_minds(upstream, streaming=True)
    async with proxy_of(upstream) as url, sdk(url) as client:
        options = {"stream_options": {"include_usage": True}}
        chunks = [one async for one in await client.chat.completions.create(**ASK, n=2, stream=True, **options)]
    assert len({(one.id, one.created, one.model) for one in chunks}) == 1
    texts, roles, reasons = {}, [], []
    for choice in (choice for one in chunks for choice in one.choices):
        texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
        roles += [choice.index] if choice.delta.role else []
        reasons += [(choice.index, choice.finish_reason)] if choice.finish_reason else []
    assert sorted(texts.values()) == ["Answerc1", "Answerc2"]
    assert (sorted(roles), reasons) == ([0, 1], [(0, "stop"), (1, "stop")])
    assert [one.usage.total_tokens for one in chunks if one.usage] == [44]


async def test_choices_begin_in_order_whichever_is_answered_first(upstream, sdk):
    second_answered = asyncio.Event()

    def model(_):
        if len(upstream.requests) == 1:
            return Reply([second_answered, *streamed("slow").body], content_type="text/event-stream")
        second_answered.set()
        return streamed("quick")

    upstream.replies = [model]
    async with proxy_of(upstream) as url, sdk(url) as client, client.chat.completions.stream(**ASK, n=2) as stream:
        answer = await stream.get_final_completion()
    assert sorted(choice.message.content for choice in answer.choices) == ["quick", "slow"]


async def test_when_one_of_several_choices_fails_the_request_fails_and_nothing_goes_on(upstream, sdk):
    failing = Reply([b'{"error":{"message":"bad"}}'], status=400)
    upstream.replies = [Reply([asyncio.Event()]), failing]
    async with proxy_of(upstream) as url, sdk(url) as client, asyncio.timeout(10):
        with pytest.raises(openai.BadRequestError, match="bad"):
            await client.chat.completions.create(**ASK, n=2)
        await upstream.left.wait()


# -- limits --


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_model_that_never_stops_searching_is_made_to_answer(upstream, sdk, streaming):
    def model(request):
        number = len(upstream.requests)
        if "tools" not in request:
            return streamed("Enough.") if streaming else whole("Enough.")
        calls = [(f"c{number}", "web_search", {"query": f"attempt {number}"})]
        return streamed("More.", calls=calls) if streaming else whole("More.", calls=calls)

    upstream.replies = [model]
    async with proxy_of(upstream, more="limits: {max_turns: 3}") as url, sdk(url) as client:
        if streaming:
            chunks = [one async for one in await client.chat.completions.create(**ASK, stream=True)]
            text = "".join(one.choices[0].delta.content or "" for one in chunks)
            assert text == "More.\n\nMore.\n\nEnough."
        else:
            reply = await client.chat.completions.with_raw_response.create(**ASK)
            assert reply.parse().choices[0].message.content == "Enough."
            assert reply.headers["x-tool-stop"] == "max_turns"
    assert len(upstream.requests) == 4
    assert len(upstream.searches) == 2


async def test_a_client_lowers_its_budget_but_never_raises_it(upstream, sdk):
    calls = [(f"c{n}", "web_search", {"query": str(n)}) for n in range(5)]
    upstream.replies = [whole(calls=calls), whole("Done"), whole(calls=calls), whole("Done")]
    async with proxy_of(upstream, more="limits: {max_tool_calls: 3}") as url, sdk(url) as client:
        await client.chat.completions.create(**ASK, extra_body={"max_tool_calls": 1})
        assert len(upstream.searches) == 1
        await client.chat.completions.create(**ASK, extra_body={"max_tool_calls": 100})
        assert len(upstream.searches) == 4
    assert not any("max_tool_calls" in request for request in upstream.requests)


async def test_after_the_deadline_the_model_answers_from_what_it_has(upstream, sdk):
    never = asyncio.Event()
    upstream.search = Reply([never])
    upstream.replies = [whole(calls=[SEARCH]), whole("From memory.")]
    async with proxy_of(upstream, more="limits: {deadline: 0.2}") as url, sdk(url) as client:
        reply = await client.chat.completions.with_raw_response.create(**ASK)
    assert reply.parse().choices[0].message.content == "From memory."
    assert reply.headers["x-tool-stop"] == "deadline"
    assert "time for this request is used up" in upstream.requests[1]["messages"][-1]["content"]


async def test_a_model_that_never_answers_in_words_is_a_clear_error(upstream, sdk):
    upstream.replies = [whole(calls=[SEARCH]), whole("")]
    async with proxy_of(upstream) as url, sdk(url) as client:
        with pytest.raises(openai.InternalServerError) as failure:
            await client.chat.completions.create(**ASK)
    assert (failure.value.status_code, failure.value.code) == (502, "no_final_answer")
    assert failure.value.response.headers["x-should-retry"] == "false"  # else SDKs repeat all of the attempts


async def test_the_request_as_a_whole_is_bounded(upstream, sdk):
    upstream.replies = [Reply([asyncio.Event()])]
    async with proxy_of(upstream, more="limits: {max_duration: 0.1}") as url, sdk(url) as client:
        for body in (ASK, {**ASK, "tool_choice": "none"}, {**ASK, "stream": True}):
            with pytest.raises(openai.InternalServerError) as failure:
                await client.chat.completions.create(**body)
            assert (failure.value.status_code, failure.value.code) == (504, "max_duration_exceeded")


def never_stops(upstream, *, streaming, answers=lambda request: "tools" not in request, garbage=None):
    """A model that goes on searching until `answers(request)`; without tools it may write garbage instead."""

    def model(request):
        number = len(upstream.requests)
        if answers(request):
            return streamed("Enough.") if streaming else whole("Enough.")
        if garbage and "tools" not in request:
            return streamed(garbage) if streaming else whole(garbage)
        calls = [(f"c{number}", "web_search", {"query": f"attempt {number}"})]
        return streamed("", calls=calls) if streaming else whole(None, calls=calls)

    upstream.replies = [model]


def retold(request):
    return "The tools are no longer available" in str(request["messages"][-1]["content"])


GARBAGE = '{"cursor":2,"id":2}'
NAMED_CALL = '{"name": "web_search", "arguments": {"query": "news"}}'
PROFILE = CONFIG.replace("profile: openai", "profile: PROFILE")


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("profile", "scene", "rung"),
    [
        ("glm", {}, "withdraw"),
        ("glm", {"answers": retold}, "retell"),
        ("gpt_oss", {"answers": retold, "garbage": GARBAGE}, "retell"),
        ("openai", {"answers": retold, "garbage": GARBAGE}, "retell"),
        ("openai", {"answers": retold, "garbage": "<tool_call>web_search<arg_key>query</arg_key>"}, "retell"),
        ("openai", {"answers": retold, "garbage": "  "}, "retell"),
        ("openai", {"answers": retold, "garbage": f"I will call it.\n```json\n{NAMED_CALL}\n```"}, "retell"),
        ("openai", {"answers": retold, "garbage": "<think>I should search.</think>"}, "retell"),
    ],
)
async def test_whatever_a_model_does_at_the_limit_the_client_gets_a_real_answer(
    upstream, sdk, streaming, profile, scene, rung, logged
):
    never_stops(upstream, streaming=streaming, **scene)
    config = PROFILE.replace("PROFILE", profile)
    async with proxy_of(upstream, config=config, more="limits: {max_turns: 3}") as url, sdk(url) as client:
        if streaming:
            chunks = [one async for one in await client.chat.completions.create(**ASK, stream=True)]
            assert "".join(one.choices[0].delta.content or "" for one in chunks) == "Enough."
        else:
            assert (await client.chat.completions.create(**ASK)).choices[0].message.content == "Enough."
    assert len(upstream.requests) <= 5
    (done,) = [line for line in logged() if line["event"] == "request.completed"]
    assert (done["rung"], done["stop"]) == (rung, "max_turns")


FIRST_AND_SPARE = """
upstreams:
  up: {{base_url: "{upstream}/v1", api_key: key-one, profile: FIRST, retries: 0}}
  other: {{base_url: "{upstream}/other", api_key: key-two, profile: SPARE, retries: 0}}
models:
  m: {{upstream: up, model: first, fallbacks: [spare]}}
  spare: {{upstream: other}}
tools:
  web_search: {{type: serper, api_key: serper-secret, base_url: {upstream}}}
limits: {{max_turns: 2}}
{more}
"""


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("failing", [2, 3])  # the request that fails: the first or the second that forces the answer
@pytest.mark.parametrize(("first", "spare", "step"), [("gpt_oss", "glm", "withdraw"), ("glm", "gpt_oss", "notice")])
async def test_after_a_fallback_the_answer_is_forced_by_the_means_of_the_upstream_that_gives_it(
    upstream, sdk, streaming, failing, first, spare, step, logged
):
    write = streamed if streaming else whole
    asked = []

    def model(request):
        asked.append(request)
        if len(asked) == failing:
            return Reply([b"{}"], status=503)
        if request["model"] == "spare" and len(asked) > 3:  # the second attempt, by either upstream
            return write("Enough.")
        return write(calls=[(f"c{len(asked)}", "web_search", {"query": f"q{len(asked)}"})])

    upstream.replies = [model]
    config = FIRST_AND_SPARE.replace("FIRST", first).replace("SPARE", spare)
    async with proxy_of(upstream, config=config) as url, sdk(url) as client:
        answer = await client.chat.completions.create(**ASK, stream=streaming)
        if streaming:
            text = "".join([one.choices[0].delta.content or "" async for one in answer if one.choices])
        else:
            text = answer.choices[0].message.content
    assert text == "Enough."
    assert [one["model"] for one in asked[failing - 1 :]] == ["first", *["spare"] * (4 - failing)]
    (done,) = [line for line in logged() if line["event"] == "request.completed"]
    assert done["rung"] == step
    assert ("tools" in asked[-1]) is (spare == "gpt_oss")


@pytest.mark.parametrize("blank", ["", "\n", None])
async def test_a_model_that_goes_blank_after_a_result_is_asked_again(upstream, sdk, blank, logged):
    upstream.replies = [whole(calls=[SEARCH]), whole(blank, reasoning_content="I know it now."), whole("Here it is.")]
    async with proxy_of(upstream) as url, sdk(url) as client:
        reply = await client.chat.completions.with_raw_response.create(**ASK)
    assert (reply.parse().choices[0].message.content, reply.headers["x-tool-stop"]) == ("Here it is.", "answer")
    assert [line["rung"] for line in logged() if line["event"] == "request.completed"] == ["notice"]


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_model_that_is_blank_in_its_first_turn_is_asked_once_more(upstream, sdk, streaming):
    write = streamed if streaming else whole
    upstream.replies = [write(""), write(calls=[SEARCH]), write("Fine.")]
    async with proxy_of(upstream) as url, sdk(url) as client:
        answer = await client.chat.completions.create(**ASK, stream=streaming)
        if streaming:
            text = "".join([one.choices[0].delta.content or "" async for one in answer if one.choices])
        else:
            text = answer.choices[0].message.content
    assert (text, len(upstream.requests)) == ("Fine.", 3)
    assert upstream.requests[1] == upstream.requests[0]


LEAKS = [
    "<tool_call>web_search<arg_key>query</arg_key><arg_value>news</arg_value></tool_call>",
    '<|channel|>commentary to=functions.web_search<|message|>{"query":"news"}<|call|>',
    'web_search<|channel|>commentary json<|message|>{"query":"news"}',
    'web_search<|channel|>commentary {"query":"news"}',
    '{"query":"news"}',
    NAMED_CALL,
]


async def text_of_answer(completion):
    """The text of an answer, streamed or whole."""
    if isinstance(completion, openai.AsyncStream):
        return "".join([one.choices[0].delta.content or "" async for one in completion])
    return completion.choices[0].message.content


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("leak", LEAKS)
async def test_a_call_that_leaked_into_the_text_is_run_and_never_shown(upstream, sdk, leak, streaming):
    if streaming:
        pieces = [chunk({"content": leak[at : at + 3]}) for at in range(0, len(leak), 3)]
        upstream.replies = [stream(*pieces, chunk({}, "stop")), streamed("Done.")]
    else:
        upstream.replies = [whole(leak), whole("Done.")]
    async with proxy_of(upstream) as url, sdk(url) as client:
        completion = await client.chat.completions.create(**ASK, stream=streaming)
        text = await text_of_answer(completion)
    assert text == "Done."
    assert upstream.searches == [{"q": "news", "num": 5}]
    assistant, result = upstream.requests[1]["messages"][-2:]
    assert result["tool_call_id"] == assistant["tool_calls"][0]["id"]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("leak", ['{"query":"news"}', NAMED_CALL])
async def test_a_call_in_json_is_run_where_the_client_forbids_json(upstream, sdk, leak, streaming):
    write = streamed if streaming else whole
    upstream.replies = [write(leak), write("Done.")]
    messages = [{"role": "system", "content": "Never show raw JSON to the user."}, *ASK["messages"]]
    async with proxy_of(upstream) as url, sdk(url) as client:
        completion = await client.chat.completions.create(**{**ASK, "messages": messages}, stream=streaming)
        text = await text_of_answer(completion)
    assert text == "Done."
    assert upstream.searches == [{"q": "news", "num": 5}]


EVENTS = [
    ("turn.started", 1, None),
    ("tool.started", 1, "web_search"),
    ("tool.completed", 1, "web_search"),
    ("turn.started", 2, None),
]


EVENT_FIELDS = {"type", "turn", "tool", "call_id", "arguments", "seconds", "error"}


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_client_that_asks_for_it_is_told_what_is_going_on(upstream, sdk, streaming):
    reply = streamed if streaming else whole
    upstream.replies = [reply("", calls=[SEARCH]), reply("Done.")]
    asking = {"extra_headers": {"x-tool-events": "true"}}
    async with proxy_of(upstream) as url, sdk(url) as client:
        completion = await client.chat.completions.create(**ASK, stream=streaming, **asking)
        if streaming:
            chunks = [one async for one in completion]
            assert chunks[0].choices[0].delta.role == "assistant"
            assert all(one.choices == [] for one in chunks if hasattr(one, "tool_event"))
            events = [one.tool_event for one in chunks if hasattr(one, "tool_event")]
            assert {one.model for one in chunks} == {"the-upstream-model"}
        else:
            events = completion.tool_events
            assert completion.model == "the-upstream-model"
    assert all(event.keys() <= EVENT_FIELDS for event in events)
    assert [(event["type"], event["turn"], event.get("tool")) for event in events] == EVENTS
    assert (events[1]["call_id"], events[1]["arguments"]) == ("call_a", '{"query":"news"}')
    assert events[2]["seconds"] >= 0


async def test_a_tool_that_fails_is_told_so_too(upstream, sdk):
    upstream.search = Reply([b"{}"], status=403)
    upstream.replies = [whole(calls=[SEARCH]), whole("Done.")]
    async with proxy_of(upstream) as url, sdk(url) as client:
        completion = await client.chat.completions.create(**ASK, extra_headers={"x-tool-events": "true"})
    (failed,) = [event for event in completion.tool_events if event["type"] == "tool.failed"]
    assert "key was refused" in failed["error"]


async def test_a_failure_before_anything_else_has_its_status_although_events_were_asked_for(upstream):
    upstream.replies = [Reply([b'{"error":{"message":"bad"}}'], status=400)]
    async with proxy_of(upstream) as url:
        response = await raw(url, {**ASK, "stream": True}, **{"x-tool-events": "true"})
    assert (response.status_code, response.json()["error"]["message"]) == (400, "bad")


@pytest.mark.parametrize("streaming", [False, True])
async def test_without_asking_there_is_no_sign_of_it(upstream, streaming):
    upstream.replies = [
        (streamed if streaming else whole)("", calls=[SEARCH]),
        (streamed if streaming else whole)("Done."),
    ]
    async with proxy_of(upstream) as url:
        response = await raw(url, {**ASK, "stream": streaming})
    assert "Done." in response.text
    assert "tool_event" not in response.text
    assert "turn.started" not in response.text


@pytest.mark.parametrize("streaming", [False, True])
async def test_what_a_search_returned_is_cited_where_the_answer_names_it(upstream, sdk, streaming):
    text = "\U0001f326\ufe0f Regen: https://a.example/ und https://made-up.example/."
    last = (
        stream(chunk({"content": text[:9]}), chunk({"content": text[9:]}), chunk({}, "stop"))
        if streaming
        else whole(text)
    )
    upstream.replies = [streamed("Moment.", calls=[SEARCH]) if streaming else whole("Moment.", calls=[SEARCH]), last]
    async with proxy_of(upstream) as url, sdk(url) as client:
        completion = await client.chat.completions.create(**ASK, stream=streaming)
        if streaming:
            chunks = [one async for one in completion]
            content = "".join(one.choices[0].delta.content or "" for one in chunks)
            cited = [one["url_citation"] for one in chunks[-1].choices[0].delta.annotations]
            assert not any(hasattr(one.choices[0].delta, "annotations") for one in chunks[:-1])
        else:
            content = completion.choices[0].message.content
            cited = [one.url_citation.model_dump() for one in completion.choices[0].message.annotations]
    (span,) = cited
    assert content[span["start_index"] : span["end_index"]] == span["url"] == "https://a.example/"
    assert span["title"] == "A page"


async def test_a_stream_of_json_holds_nothing_but_the_final_json(upstream, sdk):
    upstream.replies = [streamed("I'll search.", calls=[SEARCH]), streamed('{"a":1}')]
    form = {"response_format": {"type": "json_object"}}
    async with proxy_of(upstream) as url, sdk(url) as client:
        completion = await client.chat.completions.create(**ASK, **form, stream=True)
        text = "".join([one.choices[0].delta.content or "" async for one in completion])
    assert text == '{"a":1}'


@pytest.mark.parametrize("streaming", [False, True])
async def test_thoughts_of_a_forced_turn_that_is_no_answer_are_not_shown_where_json_is_asked_for(
    upstream, sdk, streaming
):
    def turn(thoughts, text):
        if not streaming:
            return whole(text, reasoning_content=thoughts)
        return stream(chunk({"reasoning_content": thoughts}), chunk({"content": text}), chunk({}, "stop"))

    search = streamed(calls=[SEARCH]) if streaming else whole(calls=[SEARCH])
    upstream.replies = [search, turn("I look again.", ""), turn("I have it.", '{"a":1}')]
    form = {"response_format": {"type": "json_object"}}
    async with proxy_of(upstream, more="limits: {{max_tool_calls: 1}}".format()) as url, sdk(url) as client:
        completion = await client.chat.completions.create(**ASK, **form, stream=streaming)
        deltas = [one.choices[0].delta async for one in completion] if streaming else [completion.choices[0].message]
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "I have it."
    assert "".join(delta.content or "" for delta in deltas) == '{"a":1}'
    assert len(upstream.requests) == 3


# -- tools that fail --


@pytest.mark.parametrize(
    ("search", "told"),
    [
        (Reply([b'{"message":"Unauthorized.","statusCode":403}'], status=403), "its key was refused"),
        (Reply([b'{"message":"Not enough credits"}'], status=400), "credit is used up"),
        (Reply([b"{}"], status=429), "busy"),
        (Reply([b"<html>"]), "does not work"),
        (Reply([b'{"organic":', None]), "could not be reached"),
    ],
)
async def test_a_search_that_fails_is_told_to_the_model_and_the_conversation_goes_on(upstream, sdk, search, told):
    upstream.search = search
    upstream.replies = [whole(calls=[SEARCH]), whole("Without searching: ...")]
    async with proxy_of(upstream) as url, sdk(url) as client:
        answer = await client.chat.completions.create(**ASK)
    assert answer.choices[0].message.content == "Without searching: ..."
    assert told in orjson.loads(upstream.requests[1]["messages"][-1]["content"])["error"]
    assert "serper-secret" not in str(upstream.requests)


@pytest.mark.parametrize("arguments", ["{broken", "[]", "{}", '{"query": 7}'])
async def test_arguments_that_do_not_fit_are_never_run(upstream, sdk, arguments):
    upstream.replies = [whole(calls=[("c", "web_search", arguments)]), whole("Done")]
    async with proxy_of(upstream) as url, sdk(url) as client:
        await client.chat.completions.create(**ASK)
    assert "arguments" in orjson.loads(upstream.requests[1]["messages"][-1]["content"])["error"]
    assert upstream.searches == []


# -- silence --


async def test_a_silent_stream_is_kept_alive_with_comments_and_an_early_failure_has_its_status(upstream):
    gate = asyncio.Event()
    upstream.replies = [stream(gate, chunk({"content": "late"}), chunk({}, "stop"))]
    async with proxy_of(upstream, more="server: {keepalive_seconds: 0.02}") as url, httpx.AsyncClient() as client:
        body = {**ASK, "stream": True}
        async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
            received = b""
            async for data in response.aiter_bytes():
                received += data
                if received.startswith(b": keep-alive\n\n: keep-alive\n\n"):
                    gate.set()
    assert b"late" in received
    assert received.endswith(b"data: [DONE]\n\n")


# -- what goes wrong at the upstream --


@pytest.mark.parametrize("body", [ASK, {**ASK, "tool_choice": "none"}])
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("reply", "status", "code", "message"),
    [
        (Reply([b"<html>Bad gateway</html>"], status=502, content_type="text/html"), 502, "upstream_error", "HTTP 502"),
        (Reply([b"<html>Welcome</html>"], content_type="text/html"), 502, "upstream_error", "not JSON"),
        (
            Reply([b'{"error":{"code":"1211","message":"no such model"}}'], status=404),
            404,
            "model_not_found",
            "no such model",
        ),
        (
            Reply([b'{"error":{"code":"1113","message":"no balance"}}'], status=429),
            502,
            "upstream_quota_exceeded",
            "refuses the key or the account of this proxy",
        ),
        (Reply([b'{"code":500,"msg":"broken","success":false}']), 502, "upstream_error", "broken"),
        (Reply([b'{"choices', None]), 502, "upstream_error", "broke off"),
    ],
)
async def test_an_upstream_failure_before_the_first_byte_has_its_line_of_the_error_table(
    upstream, body, streaming, reply, status, code, message
):
    upstream.replies = [reply]
    async with proxy_of(upstream) as url:
        response = await raw(url, {**body, "stream": streaming})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (status, code)
    assert message in error["message"]
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("body", [ASK, {**ASK, "tool_choice": "none"}])
@pytest.mark.parametrize(
    "reply",
    [
        stream(chunk({"content": "Hel"}), done=False),
        stream(chunk({"content": "Hel"}), None),
        stream(chunk({"content": "Hel"}), b'event: error\ndata: {"error":{"message":"gone"}}\n\n', done=False),
        stream(chunk({"content": "Hel"}), b"data: {not json\n\n"),
        stream(chunk({"content": "Hel"}), b'data: {"error":{"code":400,"message":"x"},"choices":[{}]}\n\n'),
    ],
)
async def test_a_stream_that_ends_wrongly_ends_with_an_error_event(upstream, body, reply):
    upstream.replies = [reply]
    async with proxy_of(upstream) as url:
        response = await raw(url, {**body, "stream": True})
    received = data_of(response.text)
    assert response.status_code == 200
    assert "Hel" in response.text
    assert "message" in orjson.loads(received[-1])["error"]
    assert "[DONE]" not in response.text
    assert '"finish_reason":"stop"' not in response.text


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


@pytest.mark.parametrize("body", [ASK, {**ASK, "tool_choice": "none"}])
@pytest.mark.parametrize(
    "broken",
    [
        Reply([b"{}"], status=503),
        Reply([b"<html>"], content_type="text/html"),
        stream(),
        stream(b'data: {"error":{"message":"gone"}}\n\n', done=False),
        stream(None),
        stream(event({"choices": [{"index": 0, "delta": {}, "finish_reason": "network_error"}]})),
    ],
)
async def test_before_the_first_visible_byte_a_broken_stream_is_tried_again(upstream, sdk, body, broken):
    upstream.replies = [broken, streamed("Fine.")]
    config = CONFIG.replace("profile: openai, retries: 0", "profile: glm, retries: 1")
    async with proxy_of(upstream, config=config, clock=FakeClock()) as url, sdk(url) as client:
        completion = await client.chat.completions.create(**body, stream=True)
        text = "".join([one.choices[0].delta.content or "" async for one in completion if one.choices])
    assert (text, len(upstream.requests)) == ("Fine.", 2)


OPENING = {"index": 0, "id": "c", "type": "function", "function": {"name": "web_search", "arguments": ""}}
ARGUMENTS = {"index": 0, "function": {"arguments": '{"query":"news"}'}}


@pytest.mark.parametrize(
    "cut",
    [
        stream(
            chunk({"tool_calls": [OPENING]}),
            chunk({"tool_calls": [{**ARGUMENTS, "function": {"arguments": '{"qu'}}]}),
            None,
        ),
        stream(
            chunk({"tool_calls": [OPENING]}), chunk({"tool_calls": [{**ARGUMENTS, "function": {"arguments": '{"q'}}]})
        ),
        stream(chunk({"tool_calls": [OPENING]}), chunk({"tool_calls": [ARGUMENTS]}), done=False),
        stream(chunk({"tool_calls": [OPENING]}), chunk({"tool_calls": [ARGUMENTS]}, "length")),
    ],
)
async def test_nothing_is_run_from_a_turn_that_was_cut_off(upstream, cut):
    upstream.replies = [cut]
    async with proxy_of(upstream) as url:
        response = await raw(url, {**ASK, "stream": True})
    assert upstream.searches == []
    assert len(upstream.requests) == 1
    assert response.status_code == 502 or '"finish_reason":"length"' in response.text


async def test_in_a_loop_a_role_alone_is_nothing_visible_yet(upstream, sdk):
    upstream.replies = [stream(chunk({"role": "assistant", "content": ""}), done=False), streamed("Fine.")]
    config = CONFIG.replace("retries: 0", "retries: 1")
    async with proxy_of(upstream, config=config, clock=FakeClock()) as url, sdk(url) as client:
        completion = await client.chat.completions.create(**ASK, stream=True)
        assert "".join([one.choices[0].delta.content or "" async for one in completion]) == "Fine."


@pytest.mark.parametrize("streaming", [False, True])
async def test_when_an_upstream_has_no_balance_the_next_model_answers_with_its_own_key(upstream, sdk, streaming):
    broke = Reply([b'{"error":{"code":"1113","message":"no balance"}}'], status=429)
    upstream.replies = [broke, streamed("From the other.") if streaming else whole("From the other.")]
    async with proxy_of(upstream, config=TWO) as url, sdk(url) as client:
        completion = await client.chat.completions.create(**ASK, stream=streaming)
        if streaming:
            assert [one async for one in completion][-1].choices[0].finish_reason == "stop"
        else:
            assert completion.choices[0].message.content == "From the other."
    assert [request["model"] for request in upstream.requests] == ["m", "spare-model"]
    assert [head["headers"][b"authorization"] for head in upstream.heads] == [b"Bearer key-one", b"Bearer key-two"]
    assert upstream.heads[1]["path"] == "/other/chat/completions"


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@pytest.mark.parametrize(
    ("model", "messages", "asked", "key"),
    [
        ("m", [{"role": "user", "content": [IMAGE]}], "seeing-model", b"Bearer key-two"),
        ("n", [{"role": "user", "content": [IMAGE]}], "up-vision", b"Bearer key-one"),
        ("m", [{"role": "user", "content": [IMAGE]}, {"role": "user", "content": "and now?"}], "m", b"Bearer key-one"),
        ("spare", [{"role": "user", "content": [IMAGE]}], "spare-model", b"Bearer key-two"),
    ],
)
async def test_a_question_with_an_image_goes_to_the_model_that_sees(upstream, sdk, model, messages, asked, key):
    upstream.replies = [whole("A cat.")]
    async with proxy_of(upstream, config=TWO) as url, sdk(url) as client:
        await client.chat.completions.create(model=model, messages=messages)
    assert upstream.requests[0]["model"] == asked
    assert upstream.heads[0]["headers"][b"authorization"] == key
    assert [tool["function"]["name"] for tool in upstream.requests[0]["tools"]] == ["current_time"]


NATIVE = {
    "type": "web_search",
    "web_search": {"enable": True, "search_engine": "search_pro_jina", "search_result": True},
}
FOUND = [{"title": "T", "link": "https://t.example/", "refer": "ref_1"}]


@pytest.mark.parametrize("stream", [False, True])
async def test_glm_is_told_to_call_a_tool_by_the_name_under_which_it_is_offered(upstream, stream):
    tool = {"type": "function", "function": {"name": "x" * 65, "parameters": {"type": "object"}}}
    make = streamed if stream else whole
    upstream.replies = [make(calls=[("c", "x" * 64, {})])]
    async with proxy_of(upstream, config=CONFIG.replace("profile: openai", "profile: glm")) as url:
        answer = await raw(url, {**ASK, "stream": stream, "tools": [tool], "tool_choice": tool})
    assert f"Call the tool {'x' * 64} now" in str(upstream.requests[0]["messages"])
    assert "x" * 65 not in str(upstream.requests[0])
    assert "x" * 65 in answer.text


@pytest.mark.parametrize("streaming", [False, True])
async def test_glms_native_search_goes_through_beside_our_tools_and_its_results_stay(upstream, sdk, streaming):
    if streaming:
        upstream.replies = [
            stream(event({"choices": [], "web_search": FOUND}), chunk({"content": "Hi"}), chunk({}, "stop"))
        ]
    else:
        upstream.replies = [Reply([orjson.dumps({**completion("Hi"), "web_search": FOUND})])]
    config = CONFIG.replace("profile: openai", "profile: glm")
    async with proxy_of(upstream, config=config) as url, sdk(url) as client:
        answer = await client.chat.completions.create(**ASK, tools=[NATIVE], stream=streaming)
        seen = [one async for one in answer] if streaming else [answer]
    assert upstream.requests[0]["tools"][0] == NATIVE
    assert [one.web_search for one in seen if hasattr(one, "web_search")] == [FOUND]


@pytest.mark.parametrize(
    ("tools", "kept"),
    [([NATIVE], []), ([NATIVE, {"type": "function", "function": {"name": "door"}}], ["door"])],
)
async def test_glms_native_search_does_not_go_to_a_fallback_that_is_no_glm(upstream, tools, kept):
    config = CONFIG.replace(
        "profile: openai, retries: 0}}",
        "profile: glm, retries: 0}}\n  other: {{base_url: {upstream}/v1, api_key: other-secret, retries: 0}}",
    ).replace("m: {{upstream: up}}", "m: {{upstream: up, fallbacks: [second]}}\n  second: {{upstream: other}}")
    upstream.replies = [Reply([b"{}"], status=503), whole("Hi")]
    headers = {"x-server-tools": "web_search"}
    async with proxy_of(upstream, config=config) as url, httpx.AsyncClient() as client:
        body = {**ASK, "tools": tools}
        assert (await client.post(f"{url}/v1/chat/completions", json=body, headers=headers)).status_code == 200
    first, second = upstream.requests
    assert NATIVE in first["tools"]
    own = [tool["function"]["name"] for tool in second["tools"]]
    assert [name for name in own if name != "web_search"] == kept


async def test_a_tool_name_that_the_upstream_refuses_is_mapped_and_mapped_back(upstream, sdk):
    own = [{"type": "function", "function": {"name": "door.open", "parameters": {}}}]
    upstream.replies = [whole(calls=[("c", "door_open", {})]), streamed(calls=[("c", "door_open", {})]), whole("Hi")]
    async with proxy_of(upstream) as url, sdk(url) as client:
        answer = await client.chat.completions.create(**ASK, tools=own)
        chunks = [one async for one in await client.chat.completions.create(**ASK, tools=own, stream=True)]
        forced = {"type": "function", "function": {"name": "door.open"}}
        await client.chat.completions.create(**ASK, tools=own, tool_choice=forced)
    assert answer.choices[0].message.tool_calls[0].function.name == "door.open"
    assert [part.function.name for one in chunks for part in one.choices[0].delta.tool_calls or () if part.id] == [
        "door.open"
    ]
    assert {tool["function"]["name"] for request in upstream.requests for tool in request["tools"]} == {
        "door_open",
        "web_search",
    }
    assert upstream.requests[2]["tool_choice"]["function"]["name"] == "door_open"


async def test_a_search_without_a_key_is_done_by_its_fallback(upstream, sdk):
    config = """
upstreams: {{up: {{base_url: "{upstream}/v1", api_key: k}}}}
models: {{m: {{upstream: up}}}}
tools:
  web_search: {{type: serper, api_key: "${{NOT_SET}}", base_url: "{upstream}", fallback: zai}}
  zai: {{type: zai_search, api_key: z, base_url: "{upstream}", offer: never}}
{more}
"""
    found = Reply([orjson.dumps({"search_result": [{"title": "Z", "link": "https://z.example/"}]})])
    upstream.replies = [whole(calls=[SEARCH]), found, whole("Done")]
    async with proxy_of(upstream, config=config) as url, sdk(url) as client:
        assert (await client.chat.completions.create(**ASK)).choices[0].message.content == "Done"
    assert [tool["function"]["name"] for tool in upstream.requests[0]["tools"]] == ["web_search"]
    assert upstream.heads[1]["path"] == "/web_search"
    assert "https://z.example/" in upstream.requests[2]["messages"][-1]["content"]


async def test_an_upstream_that_is_down_is_a_502_and_the_next_request_works(upstream, sdk):
    more = "server: {keepalive_seconds: 5}"
    config = """
upstreams:
  up: {{base_url: "{upstream}/v1", api_key: k}}
  down: {{base_url: "http://127.0.0.1:9/v1", api_key: k, retries: 0}}
models: {{m: {{upstream: up}}, down: {{upstream: down}}}}
{more}
"""
    upstream.replies = [whole("Here.")]
    async with proxy_of(upstream, config=config, more=more) as url, sdk(url) as client:
        with pytest.raises(openai.InternalServerError) as failure:
            await client.chat.completions.create(**{**ASK, "model": "down"})
        assert (failure.value.status_code, failure.value.code) == (502, "upstream_error")
        assert "127.0.0.1" not in failure.value.message
        assert (await client.chat.completions.create(**ASK)).choices[0].message.content == "Here."


async def test_what_was_used_is_in_the_log_also_where_there_is_no_answer(upstream, sdk, logged):
    upstream.replies = [whole(calls=[SEARCH]), Reply([b"{}"], status=500)]
    async with proxy_of(upstream) as url, sdk(url) as client:
        with pytest.raises(openai.InternalServerError):
            await client.chat.completions.create(**ASK)
    (done,) = [line for line in logged() if line["event"] == "request.completed"]
    assert (done["turns"], done["tool_calls"], done["prompt_tokens"], done["error"]) == (1, 1, 10, "upstream_error")


async def test_a_failure_in_a_later_turn_of_a_stream_is_an_error_event(upstream, sdk):
    upstream.replies = [streamed("I'll search.", calls=[SEARCH]), Reply([b"{}"], status=500)]
    async with proxy_of(upstream) as url, sdk(url) as client:
        with pytest.raises(openai.APIError, match="HTTP 500"):
            async for _ in await client.chat.completions.create(**ASK, stream=True):
                pass


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
    end = event_with_reason("a reason of its own")
    upstream.replies = [stream(odd, end)]
    async with proxy_of(upstream) as url:
        response = await raw(url, {**ASK, "tool_choice": "none", "stream": True})
    mended = end.replace(b'"a reason of its own"', b'"stop"')
    assert response.content == odd + mended + b"data: [DONE]\n\n"


def event_with_reason(reason):
    return (
        b'data: {"object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"finish_reason":"'
        + reason.encode()
        + b'"}]}\n\n'
    )


async def test_nothing_in_a_request_changes_where_it_goes_or_with_which_key(upstream):
    upstream.replies = [whole("Hi")]
    smuggled = {
        "api_base": "http://evil.example",
        "api_key": "x",
        "base_url": "http://evil.example",
        "extra_headers": {"a": "b"},
    }
    async with proxy_of(upstream) as url:
        response = await raw(
            url, {**ASK, **smuggled}, authorization="Bearer client-key", cookie="a=b", **{"x-host": "evil"}
        )
    assert response.status_code == 200
    headers = upstream.heads[0]["headers"]
    assert headers[b"authorization"] == b"Bearer upstream-secret"
    assert b"cookie" not in headers
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


# -- the client leaves --


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("extra", [{}, {"tool_choice": "none"}])
async def test_a_client_that_leaves_ends_its_upstream_call(upstream, streaming, extra):
    first = [chunk({"content": "Hel"})] if streaming else []
    reply = stream(*first, asyncio.Event())
    reply.content_type = "text/event-stream" if streaming else "application/json"
    upstream.replies = [reply]
    async with proxy_of(upstream) as url, httpx.AsyncClient() as client:
        body = {**ASK, **extra, "stream": streaming}
        asking = asyncio.ensure_future(client.post(f"{url}/v1/chat/completions", json=body))
        await upstream.asked.wait()
        asking.cancel()
        async with asyncio.timeout(5):
            await upstream.left.wait()
    assert len(upstream.requests) == 1


async def test_a_client_that_leaves_during_a_search_ends_the_search(upstream):
    searching = asyncio.Event()

    def search(_):
        searching.set()
        return Reply([asyncio.Event()])

    upstream.search = search
    upstream.replies = [whole(calls=[SEARCH]), whole("Nobody hears this")]
    async with proxy_of(upstream) as url, httpx.AsyncClient() as client:
        asking = asyncio.ensure_future(client.post(f"{url}/v1/chat/completions", json=ASK))
        await searching.wait()
        asking.cancel()
        async with asyncio.timeout(5):
            await upstream.left.wait()
    assert len(upstream.requests) == 1


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
@pytest.mark.parametrize("streaming", [False, True])
async def test_an_operator_may_choose_the_progress_events_of_clients_that_do_not_ask(
    upstream, offer, client, header, told, streaming
):
    search = [("c1", "web_search", {"query": "one"})]
    upstream.replies = [streamed(calls=search), streamed("Hi")] if streaming else [whole(calls=search), whole("Hi")]
    own = f", tool_events: {client}" if client else ""
    more = f"offer: {{tool_events: {offer}}}\nclients: [{{name: a, key: the-key-of-a{own}}}]"
    headers = {"authorization": "Bearer the-key-of-a", **({"x-tool-events": header} if header else {})}
    async with proxy_of(upstream, more=more) as url, httpx.AsyncClient(headers=headers) as http:
        answer = await http.post(f"{url}/v1/chat/completions", json={**ASK, "stream": streaming})
    if streaming:
        chunks = [orjson.loads(line[6:]) for line in answer.text.split("\n\n") if line.startswith("data: {")]
        events = [chunk["tool_event"] for chunk in chunks if "tool_event" in chunk]
    else:
        events = answer.json().get("tool_events", [])
    completed = [event for event in events if event["type"] == "tool.completed"]
    assert len(completed) == (told is not None)
    assert ["results" in event for event in completed] == [told == "results"] * len(completed)
    if told == "results":
        assert completed[0]["results"] == [{"title": "A page", "url": "https://a.example/"}]
