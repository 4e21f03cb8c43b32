"""What an upstream wants back of a turn with calls, on every surface, whether its clients bring it back or not."""

import orjson
import pytest

from proxy.stores.memory import MemoryStore
from tests.api.messages import asking
from tests.api.messages.asking import DOOR, SEARCH
from tests.api.test_mixed_turns import ask
from tests.api.test_responses import DOOR as FUNCTION
from tests.api.test_responses import ask as respond
from tests.fakes import Reply, chunk, completion, stream, streamed, whole
from tests.serving import proxy_of

SIGNED = {"google": {"thought_signature": "CpQBAdHtim8r+sig/of=="}}
DETAILS = [{"type": "reasoning.text", "text": "Hm, let me look.", "index": 0, "signature": "s", "format": "f"}]
OWN = [("u2", "open_door", {"door": 1})]
MIXED = [("u1", "web_search", {"query": "code"}), *OWN]
CLIENT_FIRST = MIXED[::-1]
THINKING = {"thinking": {"type": "enabled", "budget_tokens": 2000}}


def turn(calls, *, streaming, text="Let me see.", thoughts="Hm.", late=False):
    """A turn whose first call is signed, and whose thoughts have details that come in pieces; `late`: after all."""
    message = completion(text, calls=calls)["choices"][0]["message"]
    signed = [{**call, **({} if at else {"extra_content": SIGNED})} for at, call in enumerate(message["tool_calls"])]
    extra = {"reasoning_content": thoughts, "reasoning_details": DETAILS}
    if not streaming:
        return Reply([orjson.dumps(completion(**{**message, **extra, "tool_calls": signed}))])
    [detail] = DETAILS
    pieces = [{**detail, "text": detail["text"][:4], "signature": None}, {**detail, "text": detail["text"][4:]}]
    details = [chunk({"reasoning_details": [piece]}) for piece in pieces]
    first = [{**call, "index": at} for at, call in enumerate(message["tool_calls"] if late else signed)]
    sign = [chunk({"tool_calls": [{"index": 0, "function": {"arguments": ""}, "extra_content": SIGNED}]}), *details]
    body = [chunk({"reasoning_content": thoughts}), *([] if late else details), chunk({"content": text})]
    body += [chunk({"tool_calls": [call]}) for call in first]
    return stream(*body, *(sign if late else ()), chunk({}, "tool_calls"))


def answer(streaming):
    return (streamed if streaming else whole)("FINAL")


def went_back(request):
    """The signatures of the calls in a request, by function, and the details of the first turn with calls."""
    turns = [message for message in request["messages"] if message.get("tool_calls")]
    calls = [call for message in turns for call in message["tool_calls"]]
    assert len({call["id"] for call in calls}) == len(calls)
    signatures = {call["function"]["name"]: call.get("extra_content") for call in calls}
    return signatures, turns[0].get("reasoning_details") if turns else None


def expected(calls):
    return {name: None if at else SIGNED for at, (_, name, _) in enumerate(calls)}, DETAILS


ways = pytest.mark.parametrize(("streaming", "late"), [(False, False), (True, False), (True, True)])
turns = pytest.mark.parametrize("calls", [OWN, MIXED, CLIENT_FIRST], ids=["own", "mixed", "client first"])


@ways
@turns
async def test_chat_completions_restores_the_fields_that_its_client_has_dropped(upstream, sdk, calls, streaming, late):
    upstream.replies = [turn(calls, streaming=streaming, late=late), answer(streaming)]
    async with proxy_of(upstream) as url, sdk(url) as client:
        question = [{"role": "user", "content": "Open it."}]
        message, _ = await ask(client, question, streaming=streaming)
        kept = [{key: call[key] for key in ("id", "type", "function")} for call in message["tool_calls"]]
        bare = {"role": "assistant", "content": message["content"], "tool_calls": kept}
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "opened"} for call in kept]
        await ask(client, [*question, bare, *results], streaming=streaming)
    assert went_back(upstream.requests[1]) == expected(calls)


@ways
@pytest.mark.parametrize("way", ["id", "items", "nothing stored"])
@turns
async def test_responses_bring_the_fields_back_stored_or_sealed(upstream, calls, way, streaming, late):
    upstream.replies = [turn(calls, streaming=streaming, late=late), *[answer(streaming)] * 2]
    options = {"tools": [FUNCTION], "store": way != "nothing stored"}
    async with proxy_of(upstream) as url:
        first = await respond(url, options, streaming=streaming)
        history = [{"role": "user", "content": "Open it."}, *first["output"]]
        result = [
            {"type": "function_call_output", "call_id": item["call_id"], "output": "opened"}
            for item in first["output"]
            if item["type"] == "function_call"
        ]
        body = {"input": [*history, *result]}
        if way == "id":
            body = {"input": result, "previous_response_id": first["id"]}
        second = await respond(url, options | body, streaming=streaming)
        last = {"role": "user", "content": "And now?"}
        body = {"input": [*body["input"], *second["output"], last]}
        if way == "id":
            body = {"input": [last], "previous_response_id": second["id"]}
        await respond(url, options | body, streaming=streaming)
    for request in upstream.requests[1:]:
        assert went_back(request) == expected(calls)


@ways
@pytest.mark.parametrize("options", [{}, THINKING, {"thinking": {**THINKING["thinking"], "display": "omitted"}}])
@turns
async def test_messages_bring_the_fields_back(upstream, calls, options, streaming, late):
    upstream.replies = [turn(calls, streaming=streaming, late=late), *[answer(streaming)] * 2]
    options = {**options, "tools": [DOOR], "max_tokens": 4000}
    async with proxy_of(upstream) as url:
        first = await asking.ask(url, streaming=streaming, **options)
        result = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": "opened"}
            for block in first["content"]
            if block["type"] == "tool_use"
        ]
        history = asking.follow_up(first, *result)
        second = await asking.ask(url, streaming=streaming, messages=history, **options)
        history += [{"role": "assistant", "content": second["content"]}, {"role": "user", "content": "And now?"}]
        await asking.ask(url, streaming=streaming, messages=history, **options)
    for request in upstream.requests[1:]:
        assert went_back(request) == expected(calls)
        assert [m["reasoning_content"] for m in request["messages"] if m.get("tool_calls")] == ["Hm."]


@ways
@pytest.mark.parametrize("options", [{}, THINKING])
async def test_messages_bring_back_the_fields_of_visible_searches(upstream, options, streaming, late):
    """Two turns whose upstream uses one id for both calls."""
    searches = [[("u1", "web_search", {"query": query})] for query in ("one", "two")]
    upstream.replies = [turn(calls, streaming=streaming, late=late) for calls in searches]
    upstream.replies += [answer(streaming)] * 2
    options = {**options, "tools": [SEARCH], "max_tokens": 4000}
    async with proxy_of(upstream) as url:
        first = await asking.ask(url, streaming=streaming, **options)
        said = {"type": "text", "text": "And now?"}
        await asking.ask(url, streaming=streaming, messages=asking.follow_up(first, said), **options)
    last = [message for message in upstream.requests[-1]["messages"] if message.get("tool_calls")]
    assert [call["extra_content"] for message in last for call in message["tool_calls"]] == [SIGNED, SIGNED]
    assert [message["reasoning_details"] for message in last] == [DETAILS, DETAILS]


async def test_a_signature_brings_the_fields_back_where_nothing_is_stored(upstream, monkeypatch):
    async def forget(*_):
        """A store that has lost everything."""

    upstream.replies = [turn(OWN, streaming=False), turn([MIXED[0]], streaming=False), answer(streaming=False)]
    options = {**THINKING, "tools": [DOOR, SEARCH], "max_tokens": 4000}
    async with proxy_of(upstream) as url:
        first = await asking.ask(url, streaming=False, **options)
        use = first["content"][-1]
        monkeypatch.setattr(MemoryStore, "get", forget)
        result = {"type": "tool_result", "tool_use_id": use["id"], "content": "opened"}
        second = await asking.ask(url, streaming=False, messages=asking.follow_up(first, result), **options)
        history = asking.follow_up(first, result)
        history += [{"role": "assistant", "content": second["content"]}, {"role": "user", "content": "And now?"}]
        await asking.ask(url, streaming=False, messages=history, **options)
        forged = {**first["content"][0], "signature": "carried-" + first["content"][0]["signature"][20:]}
        await asking.ask(url, streaming=False, **options, messages=asking.follow_up(
            {"content": [forged, *first["content"][1:]]}, result))  # fmt: skip
    assert went_back(upstream.requests[1]) == ({"open_door": SIGNED}, DETAILS)
    assert went_back(upstream.requests[3]) == ({"open_door": SIGNED, "web_search": SIGNED}, DETAILS)
    assert went_back(upstream.requests[4]) == ({"open_door": None}, None)


async def test_without_such_fields_nothing_is_stored_for_what_is_visible(upstream, monkeypatch):
    async def refuse(*_):
        raise AssertionError("something was stored")

    monkeypatch.setattr(MemoryStore, "put", refuse)
    upstream.replies = [whole("Let me.", calls=[MIXED[0]]), whole("", calls=OWN)]
    async with proxy_of(upstream) as url:
        message = await asking.ask(url, streaming=False, tools=[DOOR, SEARCH])
    assert message["stop_reason"] == "tool_use"
