"""What an upstream wants back of a turn with calls, on every API, whether its clients bring it back or not."""

import orjson
import pytest

from proxy.stores.memory import MemoryStore
from tests.api.surfaces import DOOR, SEARCH, on
from tests.fakes import Reply, chunk, completion, stream, turn

SIGNED = {"google": {"thought_signature": "CpQBAdHtim8r+sig/of=="}}
DETAILS = [{"type": "reasoning.text", "text": "Hm, let me look.", "index": 0, "signature": "s", "format": "f"}]
OWN, MIXED = [DOOR], [SEARCH, DOOR]
OMITTED = {"thinking": {"type": "enabled", "budget_tokens": 2000, "display": "omitted"}}
HOW = [
    ("chat", {}), ("responses", {}), ("responses", {"store": False}), ("responses-id", {}),
    ("messages", {}), ("messages-thinking", {}), ("messages-thinking", OMITTED),
]  # fmt: skip
WAYS = [
    ((kind, mode), body, late)
    for kind, body in HOW
    for mode, late in (("whole", False), ("streamed", False), ("streamed", True))
]


def signed(calls, *, late=False, text="Let me see.", thoughts="Hm."):
    """A turn whose first call is signed, and whose thoughts have details that come in pieces; `late`: after all."""
    message = completion(text, calls=calls)["choices"][0]["message"]
    entries = [{**call, **({} if at else {"extra_content": SIGNED})} for at, call in enumerate(message["tool_calls"])]
    extra = {"reasoning_content": thoughts, "reasoning_details": DETAILS}
    [detail] = DETAILS
    pieces = [{**detail, "text": detail["text"][:4], "signature": None}, {**detail, "text": detail["text"][4:]}]
    details = [chunk({"reasoning_details": [piece]}) for piece in pieces]
    first = [{**call, "index": at} for at, call in enumerate(message["tool_calls"] if late else entries)]
    sign = [chunk({"tool_calls": [{"index": 0, "function": {"arguments": ""}, "extra_content": SIGNED}]}), *details]
    body = [chunk({"reasoning_content": thoughts}), *([] if late else details), chunk({"content": text})]
    body += [chunk({"tool_calls": [call]}) for call in first]
    streamed = stream(*body, *(sign if late else ()), chunk({}, "tool_calls"))
    whole = Reply([orjson.dumps(completion(**{**message, **extra, "tool_calls": entries}))])
    return lambda request: streamed if request.get("stream") else whole


def went_back(request):
    """The signatures of the calls in a request, by function, and the details of the first turn with calls."""
    turns = [message for message in request["messages"] if message.get("tool_calls")]
    calls = [call for message in turns for call in message["tool_calls"]]
    assert len({call["id"] for call in calls}) == len(calls)
    signatures = {call["function"]["name"]: call.get("extra_content") for call in calls}
    return signatures, turns[0].get("reasoning_details") if turns else None


def forget_details(answer):
    """Leave of a message of chat completions what every client knows."""
    [message] = answer.folded.history
    calls = [{key: call[key] for key in ("id", "type", "function")} for call in message["tool_calls"]]
    answer.folded.history = [{"role": "assistant", "content": message["content"], "tool_calls": calls}]


@pytest.mark.parametrize("calls", [OWN, MIXED, MIXED[::-1]], ids=["own", "mixed", "client first"])
@pytest.mark.parametrize(("surface", "body", "late"), WAYS, indirect=["surface"])
async def test_the_fields_come_back_although_the_client_has_dropped_them(surface, body, late, calls):
    body |= {"max_tokens": 4000} if surface.kind.startswith("messages") else {}
    async with surface.proxy(signed(calls, late=late), turn("FINAL")) as client:
        first = await client.ask(functions=["open_door"], body=body)
        if surface.kind == "chat":
            forget_details(first)
        second = await client.ask(after=first, results=["opened"])
        await client.ask(after=second, text="And now?")
    for request in surface.upstream.requests[1:]:
        assert went_back(request) == ({name: None if at else SIGNED for at, (_, name, _) in enumerate(calls)}, DETAILS)
        if surface.kind.startswith("messages"):
            assert [m["reasoning_content"] for m in request["messages"] if m.get("tool_calls")] == ["Hm."]


@on(*(f"{kind}-{mode}" for kind in ("messages", "messages-thinking") for mode in ("whole", "streamed")))
@pytest.mark.parametrize("late", [False, True])
async def test_the_fields_of_visible_searches_come_back(surface, late):
    """Two turns whose upstream uses one id for both calls."""
    searches = [signed([("u1", "web_search", {"query": query})], late=late) for query in ("one", "two")]
    async with surface.proxy(*searches, turn("FINAL")) as client:
        await client.ask(after=await client.ask(search=True, body={"max_tokens": 4000}), text="And now?")
    last = [message for message in surface.history() if message.get("tool_calls")]
    assert [call["extra_content"] for message in last for call in message["tool_calls"]] == [SIGNED, SIGNED]
    assert [message["reasoning_details"] for message in last] == [DETAILS, DETAILS]


@on("messages-thinking-whole")
async def test_a_signature_brings_the_fields_back_where_nothing_is_stored(surface, monkeypatch):
    async def forget(*_):
        """A store that has lost everything."""

    async with surface.proxy(signed(OWN), signed([SEARCH]), turn("FINAL")) as client:
        first = await client.ask(search=True, functions=["open_door"], body={"max_tokens": 4000})
        monkeypatch.setattr(MemoryStore, "get", forget)
        second = await client.ask(after=first, results=["opened"])
        await client.ask(after=second, text="And now?")
        thoughts, *rest = first.whole["content"]
        forged = {**thoughts, "signature": "carried-" + thoughts["signature"][20:]}
        first.folded.history = [{"role": "assistant", "content": [forged, *rest]}]
        await client.ask(after=first, results=["opened"])
    requests = surface.upstream.requests
    assert went_back(requests[1]) == ({"open_door": SIGNED}, DETAILS)
    assert went_back(requests[3]) == ({"open_door": SIGNED, "web_search": SIGNED}, DETAILS)
    assert went_back(requests[4]) == ({"open_door": None}, None)


async def test_without_such_fields_nothing_is_stored_for_what_is_visible(messages, monkeypatch):
    async def refuse(*_):
        raise AssertionError("something was stored")

    monkeypatch.setattr(MemoryStore, "put", refuse)
    answer = await messages.ask(turn("Let me.", calls=[SEARCH]), turn(calls=OWN), search=True, functions=["open_door"])
    assert answer.finish == "tool_calls"
