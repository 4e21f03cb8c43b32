"""`tool_search` with `execution: client`, which Codex sends to every provider: a function of the client's."""

import pytest

from proxy.loop.prompts import FOUND_NO_TOOLS, FOUND_TOOLS
from proxy.wire.chat import name_of
from tests.api.responses.asking import DOOR, events_in, raw
from tests.api.surfaces import on
from tests.fakes import turn

PARAMETERS = {"type": "object", "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}}}
TOOL = {"type": "tool_search", "execution": "client", "description": "Finds tools.", "parameters": PARAMETERS}
MAPS = {"type": "namespace", "name": "maps", "description": "Maps.", "tools": [{**DOOR, "name": "route"}]}
LAMP = {**DOOR, "name": "lamp"}
USER = {"role": "user", "content": "Light it."}
SEARCH = ("u1", "tool_search", {"query": "light", "limit": 2})


def found(call, *tools):
    return {"type": "tool_search_output", "call_id": call["call_id"], "execution": "client", "tools": list(tools)}


def offered(request):
    return [name_of(tool) for tool in request["tools"]]


@pytest.mark.parametrize("by_id", [False, True])
async def test_what_the_client_finds_is_offered_from_there_on_at_the_end(responses, by_id):
    def after(answer, history, new):
        said = {"input": [*history, new]}
        return {"input": [new], "previous_response_id": answer.whole["id"]} if by_id else said

    tools = {"tools": [TOOL, DOOR]}
    async with responses.proxy(turn(calls=[SEARCH]), turn(calls=[("u2", "maps__route", {})]), turn("Fine.")) as client:
        first = await client.ask(**tools, body={"input": [USER]})
        [call] = first.whole["output"]
        assert (call["type"], call["execution"], call["status"]) == ("tool_search_call", "client", "completed")
        assert call["arguments"] == {"query": "light", "limit": 2}
        output = found(call, MAPS, LAMP)
        second = await client.ask(**tools, body=after(first, [USER, call], output))
        [route] = second.whole["output"]
        assert (route["type"], route["name"], route["namespace"]) == ("function_call", "route", "maps")
        result = {"type": "function_call_output", "call_id": route["call_id"], "output": "left"}
        await client.ask(**tools, body=after(second, [USER, call, output, route], result))
        items = await raw(client.url, None, method="GET", path=f"/{second.whole['id']}/input_items?order=asc")
    requests = responses.upstream.requests
    assert offered(requests[0])[:2] == ["tool_search", "open_door"]
    described = {"name": "tool_search", "description": "Finds tools.", "parameters": PARAMETERS}
    assert requests[0]["tools"][0]["function"] == described
    for number, request in enumerate(requests[1:], 1):
        assert offered(request) == ["tool_search", "open_door", "web_search", "maps__route", "lamp"]
        assert responses.results(number)[0] == FOUND_TOOLS.format(names="maps__route, lamp")
    assert "tool_search_output" in [item["type"] for item in items.json()["data"]]


@on("responses-streamed")
async def test_a_search_for_tools_is_streamed_as_one_item_without_deltas(surface):
    answer = await surface.ask(turn(calls=[SEARCH]), tools=[TOOL])
    events = [event for event in events_in(answer.raw) if "item" in event or "delta" in event]
    assert [event["type"] for event in events] == ["response.output_item.added", "response.output_item.done"]
    assert [event["item"]["arguments"] for event in events] == [{}, SEARCH[2]]


@on("responses-whole")
@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ({"type": "tool_search"}, {"type": "function", "function": {"name": "tool_search"}}),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "tool_search"}]}, "required"),
    ],
)
async def test_it_may_be_demanded(surface, choice, sent):
    async with surface.proxy(turn(calls=[SEARCH]), profile="gpt_oss") as client:
        answer = await raw(client.url, {"model": "m", "input": [USER], "tools": [TOOL, DOOR], "tool_choice": choice})
        without = await client.ask(tools=[DOOR], body={"tool_choice": {"type": "tool_search"}})
    assert [item["type"] for item in answer.json()["output"]] == ["tool_search_call"]
    assert without.status == 400
    [request] = surface.upstream.requests
    assert request.get("tool_choice") in (sent, None)
    assert "tool_search" in offered(request)


@on("responses-whole")
async def test_a_search_that_found_nothing_or_was_written_badly_goes_on(surface):
    tools = {"tools": [{"type": "tool_search", "execution": "client"}]}
    async with surface.proxy(turn(calls=[("u1", "tool_search", "[1]")]), turn("Fine.")) as client:
        [call] = (await client.ask(**tools, body={"input": [USER]})).whole["output"]
        await client.ask(**tools, body={"input": [USER, call, found(call)]})
    assert call["arguments"] == {}
    assert surface.results() == [FOUND_NO_TOOLS]


@on("responses-whole")
@pytest.mark.parametrize("execution", [{}, {"execution": "server"}])
async def test_a_search_that_the_server_would_run_is_not_available(surface, execution):
    answer = await surface.ask(tools=[{"type": "tool_search", **execution}])
    assert (answer.status, "tool_search" in answer.error["message"]) == (400, True)


@on("responses-whole")
@pytest.mark.parametrize(
    "item",
    [
        {"type": "tool_search_call", "call_id": "c", "arguments": "{}"},
        {"type": "tool_search_call", "arguments": {}},
        {"type": "tool_search_output", "call_id": "c", "tools": [{"type": "function"}]},
        {"type": "tool_search_output", "call_id": "c", "tools": []},
    ],
)
async def test_items_of_a_search_that_are_not_well_formed_are_refused(surface, item):
    assert (await surface.ask(tools=[TOOL], body={"input": [USER, item]})).status == 400
