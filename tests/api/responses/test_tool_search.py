"""`tool_search` with `execution: client`, which Codex sends to every provider: a function of the client's."""

import pytest

from proxy.loop.prompts import FOUND_NO_TOOLS, FOUND_TOOLS
from proxy.wire.chat import name_of
from tests.api.responses.asking import ask, events_in, raw
from tests.fakes import streamed, whole
from tests.serving import CONFIG, proxy_of

PARAMETERS = {"type": "object", "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}}}
TOOL = {"type": "tool_search", "execution": "client", "description": "Finds tools.", "parameters": PARAMETERS}
DOOR = {"type": "function", "name": "open_door", "parameters": {"type": "object", "properties": {}}, "strict": False}
MAPS = {"type": "namespace", "name": "maps", "description": "Maps.", "tools": [{**DOOR, "name": "route"}]}
LAMP = {**DOOR, "name": "lamp"}
USER = {"role": "user", "content": "Light it."}


def found(call, *tools):
    return {"type": "tool_search_output", "call_id": call["call_id"], "execution": "client", "tools": list(tools)}


def offered(request):
    return [name_of(tool) for tool in request["tools"]]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("by_id", [False, True])
async def test_what_the_client_finds_is_offered_from_there_on_at_the_end(upstream, streaming, by_id):
    reply = streamed if streaming else whole
    search = reply(calls=[("u1", "tool_search", {"query": "light", "limit": 2})])
    upstream.replies = [search, reply(calls=[("u2", "maps__route", {})]), reply("Fine.")]
    options = {"tools": [TOOL, DOOR]}
    async with proxy_of(upstream) as url:
        first = await ask(url, {**options, "input": [USER]}, streaming=streaming)
        [call] = first["output"]
        assert (call["type"], call["execution"], call["status"]) == ("tool_search_call", "client", "completed")
        assert call["arguments"] == {"query": "light", "limit": 2}
        history, body = [USER, call, found(call, MAPS, LAMP)], {}
        body = {"input": history}
        if by_id:
            body = {"input": history[-1:], "previous_response_id": first["id"]}
        second = await ask(url, options | body, streaming=streaming)
        [route] = second["output"]
        assert (route["type"], route["name"], route["namespace"]) == ("function_call", "route", "maps")
        result = {"type": "function_call_output", "call_id": route["call_id"], "output": "left"}
        body = {"input": [*history, route, result]}
        if by_id:
            body = {"input": [result], "previous_response_id": second["id"]}
        await ask(url, options | body, streaming=streaming)
        items = await raw(url, None, method="GET", path=f"/{second['id']}/input_items?order=asc")
    assert offered(upstream.requests[0])[:2] == ["tool_search", "open_door"]
    assert upstream.requests[0]["tools"][0]["function"] == {
        "name": "tool_search",
        "description": "Finds tools.",
        "parameters": PARAMETERS,
    }
    for request in upstream.requests[1:]:
        assert offered(request) == ["tool_search", "open_door", "web_search", "maps__route", "lamp"]
        result = next(message for message in request["messages"] if message["role"] == "tool")
        assert result["content"] == FOUND_TOOLS.format(names="maps__route, lamp")
    assert "tool_search_output" in [item["type"] for item in items.json()["data"]]


async def test_a_search_for_tools_is_streamed_as_one_item_without_deltas(upstream):
    upstream.replies = [streamed(calls=[("u1", "tool_search", {"query": "light"})])]
    async with proxy_of(upstream) as url:
        response = await raw(url, {"model": "m", "input": "Hi", "tools": [TOOL], "stream": True})
    events = [event for event in events_in(response.text) if "item" in event or "delta" in event]
    assert [event["type"] for event in events] == ["response.output_item.added", "response.output_item.done"]
    assert [event["item"]["arguments"] for event in events] == [{}, {"query": "light"}]


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ({"type": "tool_search"}, {"type": "function", "function": {"name": "tool_search"}}),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "tool_search"}]}, "required"),
    ],
)
async def test_it_may_be_demanded(upstream, choice, sent):
    upstream.replies = [whole(calls=[("u1", "tool_search", {"query": "light"})])]
    config = CONFIG.replace("profile: openai", "profile: gpt_oss")
    async with proxy_of(upstream, config=config) as url:
        answer = await raw(url, {"model": "m", "input": [USER], "tools": [TOOL, DOOR], "tool_choice": choice})
        assert [item["type"] for item in answer.json()["output"]] == ["tool_search_call"]
        without = await raw(
            url, {"model": "m", "input": [USER], "tools": [DOOR], "tool_choice": {"type": "tool_search"}}
        )
        assert without.status_code == 400
    [request] = upstream.requests
    assert request.get("tool_choice") in (sent, None)
    assert "tool_search" in offered(request)


async def test_a_search_that_found_nothing_or_was_written_badly_goes_on(upstream):
    upstream.replies = [whole(calls=[("u1", "tool_search", "[1]")]), whole("Fine.")]
    options = {"tools": [{"type": "tool_search", "execution": "client"}]}
    async with proxy_of(upstream) as url:
        first = await ask(url, {**options, "input": [USER]}, streaming=False)
        [call] = first["output"]
        await ask(url, {**options, "input": [USER, call, found(call)]}, streaming=False)
    assert call["arguments"] == {}
    assert upstream.requests[1]["messages"][-1]["content"] == FOUND_NO_TOOLS


@pytest.mark.parametrize("execution", [{}, {"execution": "server"}])
async def test_a_search_that_the_server_would_run_is_not_available(upstream, execution):
    async with proxy_of(upstream) as url:
        response = await raw(url, {"model": "m", "input": "Hi", "tools": [{"type": "tool_search", **execution}]})
    assert response.status_code == 400
    assert "tool_search" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "item",
    [
        {"type": "tool_search_call", "call_id": "c", "arguments": "{}"},
        {"type": "tool_search_call", "arguments": {}},
        {"type": "tool_search_output", "call_id": "c", "tools": [{"type": "function"}]},
        {"type": "tool_search_output", "call_id": "c", "tools": []},
    ],
)
async def test_items_of_a_search_that_are_not_well_formed_are_refused(upstream, item):
    async with proxy_of(upstream) as url:
        response = await raw(url, {"model": "m", "input": [USER, item], "tools": [TOOL]})
    assert response.status_code == 400
