"""Two-sided conversations on every API: the model calls our tools and the client's own in one turn."""

import asyncio

import httpx
import openai
import orjson
import pydantic
import pytest

from proxy.stores.memory import MemoryStore
from tests.api.answer import Call
from tests.api.surfaces import DOOR, ITEMS_OR_BLOCKS, SEARCH, STREAMS
from tests.fakes import FakeClock, Reply, chunk, completion, stream, streamed, turn, whole
from tests.serving import proxy_of

QUESTION = [{"role": "user", "content": "Look up the code and open the door."}]
OPEN_DOOR = {"type": "function", "function": {"name": "open_door", "parameters": {"type": "object", "properties": {}}}}
MIXED = [SEARCH, DOOR]
BOTH = ["web_search", "open_door", "result of web_search", "result of open_door"]
MINE = {"functions": ["open_door"]}
CLIENTS = "clients: [{name: one, key: key-one}, {name: two, key: key-two}]"


def seen(surface, number=-1):
    """What the upstream was sent: `user`, and for each call and result what was called."""
    names, told = {}, []
    for message in surface.history(number):
        calls = {call["id"]: call["function"]["name"] for call in message.get("tool_calls") or ()}
        names |= calls
        told += [*calls.values()] or [
            f"result of {names[message['tool_call_id']]}" if message["role"] == "tool" else message["role"]
        ]
    return told


@pytest.mark.parametrize(("is_declared", "stored"), [(True, {}), (False, {}), (True, {"store": False})])
async def test_a_mixed_turn_loses_nothing_the_next_time_nor_the_time_after(surface, is_declared, stored):
    replies = turn("Let me.", calls=MIXED), turn("It is open."), turn("You are welcome.")
    async with surface.proxy(*replies) as client:
        first = await client.ask(**MINE, search=is_declared, body=stored if surface.kind == "responses" else {})
        second = await client.ask(after=first, results=["opened"])
        await client.ask(after=second, text="Thanks")
    assert (first.finish, second.text, second.finish) == ("tool_calls", "It is open.", "stop")
    [call] = first.of(Call)
    assert (call.name, call.arguments, call.id != "u2") == ("open_door", '{"id":1}', True)
    if surface.kind == "responses":  # what nobody stores is an item of its own that the client carries
        assert (first.whole["output"][-1]["type"] == "reasoning") is bool(stored)
    assert len(surface.upstream.searches) == 1
    assert seen(surface, 1) == ["user", *BOTH]
    assert seen(surface, 2) == ["user", *BOTH, "assistant", "user"]
    if surface.kind != "messages" or not is_declared:  # there, what is visible is not stored
        assert [call["id"] for call in surface.history()[1]["tool_calls"]] == ["u1", "u2"]
    search, door = surface.results(1)
    assert "https://a.example/" in search
    assert door == "opened"


@ITEMS_OR_BLOCKS
@pytest.mark.parametrize(
    "calls",
    [MIXED, MIXED[::-1], [DOOR, SEARCH, ("u3", "web_search", {"query": "more"}), ("u4", "open_door", {"id": 2})]],
)
async def test_calls_of_a_mixed_turn_are_shown_in_their_order(surface, calls):
    answer = await surface.ask(turn("Let me.", calls=calls), search=True, **MINE)
    assert answer.kinds == ["text", *("call" if name == "open_door" else "servercall" for _, name, _ in calls)]
    shown = [
        part.arguments if isinstance(part.arguments, dict) else orjson.loads(part.arguments)
        for part in answer.parts[1:]
    ]
    assert shown == [arguments for _, _, arguments in calls]


async def test_pages_that_an_earlier_search_has_found_are_cited_when_the_client_comes_back(surface):
    replies = turn("Let me.", calls=MIXED), turn(calls=MIXED), turn("https://a.example/")
    async with surface.proxy(*replies) as client:
        first = await client.ask(**MINE, search=True)
        second = await client.ask(after=first, results=["opened"])
        answer = await client.ask(after=second, results=["opened"])
    assert answer.cited == ["https://a.example/"]


async def test_two_mixed_turns_in_a_row_are_both_put_back(surface):
    again = [("v2", "open_door", {"id": 2}), ("v1", "web_search", {"query": "other"})]
    async with surface.proxy(turn(calls=MIXED), turn(calls=again), turn("Done.")) as client:
        first = await client.ask(**MINE)
        second = await client.ask(after=first, results=["opened"])
        await client.ask(after=second, results=["opened"])
    assert seen(surface) == [
        "user", *BOTH, "open_door", "web_search", "result of open_door", "result of web_search",
    ]  # fmt: skip


async def test_searches_before_a_call_of_the_clients_are_remembered_too(surface):
    async with surface.proxy(turn("Looking.", calls=[SEARCH]), turn(calls=[DOOR]), turn("Done.")) as client:
        await client.ask(after=await client.ask(**MINE), results=["opened"])
    assert seen(surface) == ["user", "web_search", "result of web_search", "open_door", "result of open_door"]


async def test_the_hidden_part_is_put_back_where_no_tool_is_in_play_as_well(surface):
    async with surface.proxy(turn(calls=MIXED), turn("Done.")) as client:
        first = await client.ask(**MINE)
        none = {"type": "none"} if first.kind == "messages" else "none"
        await client.ask(after=first, results=["opened"], body={"tool_choice": none})
    assert seen(surface) == ["user", *BOTH]


async def test_after_it_has_expired_the_conversation_still_works_without_it(surface):
    clock = FakeClock()
    async with surface.proxy(turn(calls=MIXED), turn("Done."), more="state: {ttl: 60}", clock=clock) as client:
        first = await client.ask(**MINE)
        clock.now += 61
        answer = await client.ask(after=first, results=["opened"])
    assert answer.text == "Done."
    assert seen(surface) == ["user", "open_door", "result of open_door"]


async def test_nothing_of_one_client_comes_back_to_another(surface):
    async with surface.proxy(turn(calls=MIXED), turn("Done."), more=CLIENTS) as client:
        first = await client.ask(**MINE, key="key-one")
        for key in ("key-one", "key-two"):
            await client.ask(after=first, results=["opened"], headers={"authorization": f"Bearer {key}"})
    _, of_owner, of_other = map(str, surface.upstream.requests)
    assert "https://a.example/" in of_owner
    assert "https://a.example/" not in of_other


async def test_two_conversations_whose_upstream_ids_are_the_same_do_not_mix(surface):
    async with surface.proxy(turn(calls=MIXED), turn(calls=[DOOR]), turn("Done.")) as client:
        first, other = await client.ask(**MINE), await client.ask(**MINE)
        await client.ask(after=other, results=["opened"])
    assert first.of(Call)[0].id != other.of(Call)[0].id
    assert seen(surface) == ["user", "open_door", "result of open_door"]


async def test_a_search_that_fails_beside_the_clients_call_is_told_when_the_client_returns(surface):
    surface.upstream.search = Reply([b"{}"], status=403)
    async with surface.proxy(turn(calls=MIXED), turn("Done.")) as client:
        await client.ask(after=await client.ask(**MINE), results=["opened"])
    assert "key was refused" in surface.results()[0]


@STREAMS
async def test_a_mixed_turn_that_breaks_off_leaves_nothing_and_runs_nothing(surface):
    reply = streamed("", calls=MIXED)
    answer = await surface.ask(Reply([*reply.body[:5], None], content_type="text/event-stream"), **MINE)
    assert answer.error
    assert surface.upstream.searches == []


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

    asked = {"model": "m", "messages": QUESTION, "tools": [OPEN_DOOR]}
    async with proxy_of(upstream) as url, sdk(url) as client:
        with pytest.raises(openai.APIError):
            await read(await client.chat.completions.create(**asked, n=2, stream=True))
        (call,) = calls
        function = {"name": "open_door", "arguments": '{"id":1}'}
        first = {"role": "assistant", "tool_calls": [{"id": call.id, "type": "function", "function": function}]}
        opened = {"role": "tool", "tool_call_id": call.id, "content": "opened"}
        await read(
            await client.chat.completions.create(**{**asked, "messages": [*QUESTION, first, opened]}, stream=True)
        )
    assert [message.get("tool_call_id") for message in upstream.requests[2]["messages"][-2:]] == ["u1", "u2"]


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
    id: int


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
            assert (parsed.content or None, parsed.tool_calls[0].function.parsed_arguments) == (None, OpenDoor(id=1))
        history = [*QUESTION, message.model_dump(exclude_none=True, exclude={"parsed"})]
        history.append({"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "open"})
        answer = await client.chat.completions.parse(**{**asked, "messages": history})
    assert answer.choices[0].message.parsed == Code(code="7")
    [spoken] = [one for one in upstream.requests[-1]["messages"] if one["role"] == "assistant"]
    assert spoken["content"] == "I open it."  # the model reads what it has written
