"""Two-sided conversations over the real SDK: the model calls our tools and the app's own in one turn."""

import asyncio

import httpx
import openai
import orjson
import pydantic
import pytest

from proxy.stores.memory import MemoryStore
from tests.fakes import FakeClock, Reply, chunk, completion, stream, streamed, whole
from tests.serving import proxy_of

QUESTION = [{"role": "user", "content": "Look up the code and open the door."}]
OPEN_DOOR = {"type": "function", "function": {"name": "open_door", "parameters": {"type": "object", "properties": {}}}}
MIXED = [("u-search", "web_search", {"query": "code"}), ("u-door", "open_door", {"door": 1})]
CLIENTS = """
clients:
  - {name: one, key: key-one}
  - {name: two, key: key-two}
"""


async def ask(client, messages, *, streaming, **options):
    """One request; the assistant message that the app puts into its history, and the finish_reason."""
    completion = await client.chat.completions.create(
        model="m", messages=messages, tools=[OPEN_DOOR], stream=streaming, **options
    )
    if not streaming:
        choice = completion.choices[0]
        return choice.message.model_dump(exclude_none=True), choice.finish_reason
    return await fold(completion)


async def fold(completion):
    message, calls, reason = {"role": "assistant", "content": ""}, {}, None
    async for one in completion:
        choice = one.choices[0]
        message["content"] += choice.delta.content or ""
        reason = choice.finish_reason or reason
        for part in choice.delta.tool_calls or ():
            known = calls.setdefault(part.index, {"type": "function", "function": {"name": "", "arguments": ""}})
            known["id"] = part.id or known["id"]
            known["function"]["name"] += part.function.name or ""
            known["function"]["arguments"] += part.function.arguments or ""
    if calls:
        assert list(calls) == list(range(len(calls)))
        message["tool_calls"] = list(calls.values())
    return message, reason


def result(message, content="opened", at=0):
    return {"role": "tool", "tool_call_id": message["tool_calls"][at]["id"], "content": content}


def seen(request):
    """What the upstream was sent, without the system message."""
    return [
        (message["role"], message.get("tool_call_id") or [call["id"] for call in message.get("tool_calls") or ()])
        for message in request["messages"]
        if message["role"] != "system"
    ]


BOTH = [("assistant", ["u-search", "u-door"]), ("tool", "u-search"), ("tool", "u-door")]


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_mixed_turn_loses_nothing_the_next_time_nor_the_time_after(upstream, sdk, streaming):
    reply = streamed if streaming else whole
    upstream.replies = [reply("Let me.", calls=MIXED), reply("It is open."), reply("You are welcome.")]
    async with proxy_of(upstream) as url, sdk(url) as client:
        first, reason = await ask(client, QUESTION, streaming=streaming)
        assert reason == "tool_calls"
        (call,) = first["tool_calls"]
        assert (call["function"]["name"], call["function"]["arguments"]) == ("open_door", '{"door":1}')
        assert call["id"] != "u-door"
        history = [*QUESTION, first, result(first)]
        second, reason = await ask(client, history, streaming=streaming)
        assert (second["content"].replace(" ", ""), reason) == ("Itisopen.", "stop")
        history += [second, {"role": "user", "content": "Thanks"}]
        await ask(client, history, streaming=streaming)
    assert len(upstream.searches) == 1
    assert seen(upstream.requests[1]) == [("user", []), *BOTH]
    assert seen(upstream.requests[2]) == [("user", []), *BOTH, ("assistant", []), ("user", [])]
    _, assistant, search, door = [m for m in upstream.requests[1]["messages"] if m["role"] != "system"]
    assert assistant["tool_calls"][0]["function"]["name"] == "web_search"
    assert "https://a.example/" in search["content"]
    assert door["content"] == "opened"


@pytest.mark.parametrize("streaming", [False, True])
async def test_pages_that_a_hidden_search_has_found_are_cited_when_the_client_comes_back(upstream, sdk, streaming):
    reply = streamed if streaming else whole
    upstream.replies = [reply("Let me.", calls=MIXED), reply("", calls=MIXED), reply("https://a.example/")]
    async with proxy_of(upstream) as url, sdk(url) as client:
        history = list(QUESTION)
        for _ in range(2):
            message, _ = await ask(client, history, streaming=streaming)
            history += [message, result(message)]
        answer = await client.chat.completions.create(model="m", messages=history, tools=[OPEN_DOOR], stream=streaming)
        deltas = [one.choices[0].delta async for one in answer] if streaming else [answer.choices[0].message]
    (cited,) = [note for delta in deltas for note in getattr(delta, "annotations", None) or ()]
    cited = cited if isinstance(cited, dict) else cited.model_dump()
    assert cited["url_citation"]["url"] == "https://a.example/"


async def test_two_mixed_turns_in_a_row_are_both_put_back(upstream, sdk):
    again = [("v-door", "open_door", {"door": 2}), ("v-search", "web_search", {"query": "other"})]
    upstream.replies = [whole(calls=MIXED), whole(calls=again), whole("Done.")]
    async with proxy_of(upstream) as url, sdk(url) as client:
        first, _ = await ask(client, QUESTION, streaming=False)
        history = [*QUESTION, first, result(first)]
        second, _ = await ask(client, history, streaming=False)
        history += [second, result(second)]
        await ask(client, history, streaming=False)
    assert seen(upstream.requests[2]) == [
        ("user", []),
        *BOTH,
        ("assistant", ["v-door", "v-search"]),
        ("tool", "v-door"),
        ("tool", "v-search"),
    ]


async def test_searches_before_a_call_of_the_apps_are_remembered_too(upstream, sdk):
    search, door = MIXED
    upstream.replies = [whole("Looking.", calls=[search]), whole(calls=[door]), whole("Done.")]
    async with proxy_of(upstream) as url, sdk(url) as client:
        first, _ = await ask(client, QUESTION, streaming=False)
        await ask(client, [*QUESTION, first, result(first)], streaming=False)
    assert seen(upstream.requests[2]) == [
        ("user", []),
        ("assistant", ["u-search"]),
        ("tool", "u-search"),
        ("assistant", ["u-door"]),
        ("tool", "u-door"),
    ]


async def test_the_hidden_part_is_put_back_where_no_tool_is_in_play_as_well(upstream, sdk):
    upstream.replies = [whole(calls=MIXED), whole("Done.")]
    async with proxy_of(upstream) as url, sdk(url) as client:
        first, _ = await ask(client, QUESTION, streaming=False)
        await ask(client, [*QUESTION, first, result(first)], streaming=False, tool_choice="none")
    assert seen(upstream.requests[1]) == [("user", []), *BOTH]


async def test_after_it_has_expired_the_conversation_still_works_without_it(upstream, sdk):
    clock = FakeClock()
    upstream.replies = [whole(calls=MIXED), whole("Done.")]
    async with proxy_of(upstream, more="state: {ttl: 60}", clock=clock) as url, sdk(url) as client:
        first, _ = await ask(client, QUESTION, streaming=False)
        clock.now += 61
        answer, _ = await ask(client, [*QUESTION, first, result(first)], streaming=False)
    assert answer["content"] == "Done."
    identity = first["tool_calls"][0]["id"]
    assert seen(upstream.requests[1]) == [("user", []), ("assistant", [identity]), ("tool", identity)]


async def test_nothing_of_one_client_comes_back_to_another(upstream, sdk):
    upstream.replies = [whole(calls=MIXED), whole("Done.")]
    async with proxy_of(upstream, more=CLIENTS) as url:
        async with sdk(url, api_key="key-one") as client:
            first, _ = await ask(client, QUESTION, streaming=False)
            await ask(client, [*QUESTION, first, result(first)], streaming=False)
        async with sdk(url, api_key="key-two") as client:
            await ask(client, [*QUESTION, first, result(first)], streaming=False)
    _, of_owner, of_other = map(str, upstream.requests)
    assert "https://a.example/" in of_owner
    assert "https://a.example/" not in of_other


async def test_two_conversations_whose_upstream_ids_are_the_same_do_not_mix(upstream, sdk):
    upstream.replies = [whole(calls=MIXED), whole(calls=[("u-door", "open_door", {"door": 9})]), whole("Done.")]
    async with proxy_of(upstream) as url, sdk(url) as client:
        first, _ = await ask(client, QUESTION, streaming=False)
        other, _ = await ask(client, QUESTION, streaming=False)
        assert first["tool_calls"][0]["id"] != other["tool_calls"][0]["id"]
        await ask(client, [*QUESTION, other, result(other)], streaming=False)
    assert seen(upstream.requests[2]) == [("user", []), ("assistant", ["u-door"]), ("tool", "u-door")]


async def test_an_app_that_is_started_anew_goes_on_where_it_was(upstream, sdk):
    upstream.replies = [whole(calls=MIXED), whole("Done.")]
    async with proxy_of(upstream) as url:
        async with sdk(url) as client:
            first, _ = await ask(client, QUESTION, streaming=False)
        async with sdk(url) as client:
            await ask(client, [*QUESTION, first, result(first)], streaming=False)
    assert seen(upstream.requests[1]) == [("user", []), *BOTH]


async def test_a_search_that_fails_beside_the_apps_call_is_told_when_the_app_returns(upstream, sdk):
    upstream.search = Reply([b"{}"], status=403)
    upstream.replies = [whole(calls=MIXED), whole("Done.")]
    async with proxy_of(upstream) as url, sdk(url) as client:
        first, _ = await ask(client, QUESTION, streaming=False)
        await ask(client, [*QUESTION, first, result(first)], streaming=False)
    assert "key was refused" in str(upstream.requests[1]["messages"])


async def test_a_mixed_turn_of_one_choice_is_put_back_although_another_choice_has_failed(upstream, sdk, monkeypatch):
    kept = asyncio.Event()

    async def put(store, *entry):
        await put_for_real(store, *entry)
        kept.set()

    put_for_real = MemoryStore.put
    monkeypatch.setattr(MemoryStore, "put", put)
    failing = stream(chunk({"content": "Well"}), kept, None, done=False)
    upstream.replies = [streamed("", calls=MIXED), failing, streamed("Done.")]
    calls = []

    async def read(chunks):
        async for one in chunks:
            calls.extend(call for choice in one.choices for call in choice.delta.tool_calls or () if call.id)

    async with proxy_of(upstream) as url, sdk(url) as client:
        asked = {"model": "m", "messages": QUESTION, "tools": [OPEN_DOOR]}
        with pytest.raises(openai.APIError):
            await read(await client.chat.completions.create(**asked, n=2, stream=True))
        (call,) = calls
        function = {"name": "open_door", "arguments": '{"door":1}'}
        first = {"role": "assistant", "tool_calls": [{"id": call.id, "type": "function", "function": function}]}
        await ask(client, [*QUESTION, first, result(first)], streaming=True)
    assert seen(upstream.requests[2]) == [("user", []), *BOTH]


async def test_a_mixed_turn_that_breaks_off_leaves_nothing_and_runs_nothing(upstream, sdk):
    reply = streamed("", calls=MIXED)
    upstream.replies = [Reply([*reply.body[:5], None], content_type="text/event-stream")]
    async with proxy_of(upstream) as url, sdk(url) as client:
        with pytest.raises(openai.APIError):
            await ask(client, QUESTION, streaming=True)
    assert upstream.searches == []


async def test_the_clients_calls_of_a_whole_answer_are_numbered_without_gaps(upstream):
    calls = [("u-0", "open_door", {"n": 1}), ("u-1", "web_search", {"query": "x"}), ("u-2", "open_door", {"n": 2})]
    answer = completion("", calls=calls)
    for index, call in enumerate(answer["choices"][0]["message"]["tool_calls"]):
        call["index"] = index  # as Z.AI does
    upstream.replies = [Reply([orjson.dumps(answer)])]
    async with proxy_of(upstream) as url, httpx.AsyncClient() as client:
        body = {"model": "m", "messages": QUESTION, "tools": [OPEN_DOOR]}
        got = (await client.post(f"{url}/v1/chat/completions", json=body)).json()
    calls = got["choices"][0]["message"]["tool_calls"]
    assert [(call["index"], call["function"]["arguments"]) for call in calls] == [(0, '{"n":1}'), (1, '{"n":2}')]


class Code(pydantic.BaseModel):
    code: str


class OpenDoor(pydantic.BaseModel):
    door: int


@pytest.mark.parametrize("calls", [MIXED, MIXED[1:]])
async def test_a_turn_with_words_and_calls_can_be_parsed_by_the_sdk_where_json_is_demanded(upstream, sdk, calls):
    door = {**openai.pydantic_function_tool(OpenDoor, name="open_door")}
    asked = {"model": "m", "messages": QUESTION, "tools": [door], "response_format": Code}
    upstream.replies = [whole("I open it.", calls=calls), streamed("I open it.", calls=calls), whole('{"code": "7"}')]
    async with proxy_of(upstream) as url, sdk(url) as client:
        message = (await client.chat.completions.parse(**asked)).choices[0].message
        async with client.chat.completions.stream(**asked) as stream:
            streamed_message = (await stream.get_final_completion()).choices[0].message
        for parsed in (message, streamed_message):
            assert (parsed.content or None, parsed.tool_calls[0].function.parsed_arguments) == (None, OpenDoor(door=1))
        history = [*QUESTION, message.model_dump(exclude_none=True, exclude={"parsed"})]
        history.append({"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "open"})
        answer = await client.chat.completions.parse(**{**asked, "messages": history})
    assert answer.choices[0].message.parsed == Code(code="7")
    [spoken] = [one for one in upstream.requests[-1]["messages"] if one["role"] == "assistant"]
    assert spoken["content"] == "I open it."  # the model reads what it has written
