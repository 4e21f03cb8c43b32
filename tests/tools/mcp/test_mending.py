"""Servers of every protocol date, borne with: real sessions with servers whose messages are written by hand."""

import tracemalloc

import orjson
import pytest

from proxy.loop.results import ToolError
from proxy.tools.kinds.mcp.entry import McpConfig
from proxy.tools.kinds.mcp.mending import well_formed
from proxy.tools.kinds.mcp.values import MOST_VALUES, Values
from tests.serving import serving
from tests.tools.mcp.test_client import session

DISCOVERED = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
SEEK = {"name": "seek", "inputSchema": {"type": "object"}}
FOUND = {"content": [{"type": "text", "text": "found"}]}
COMPLETE = {"resultType": "complete", "ttlMs": 1000, "cacheScope": "private"}


def written(results, *, events=False):
    """A server that answers each method with a result, or with a function of the parameters."""

    async def app(scope, receive, send):
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        asked = orjson.loads(body or b"{}")
        result = results.get(asked.get("method"))
        result = result(asked.get("params")) if callable(result) else result
        answer = {"error": {"code": -32601, "message": "?"}} if result is None else {"result": result}
        raw = orjson.dumps({"jsonrpc": "2.0", "id": asked.get("id"), **answer})
        kind, raw = (b"text/event-stream", b"data: " + raw + b"\n\n") if events else (b"application/json", raw)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        await send({"type": "http.response.body", "body": raw})

    return serving(app, lifespan="off")


def answers(*, discovered=DISCOVERED, tools=(SEEK,), found=FOUND, lists=COMPLETE):
    return {"server/discover": {**lists, **discovered}, "tools/list": {**lists, "tools": [*tools]}, "tools/call": found}


@pytest.mark.parametrize("events", [False, True])
@pytest.mark.parametrize(
    "lists",
    [
        COMPLETE,
        {},
        {"resultType": "complete"},
        {"ttlMs": 5, "cacheScope": "public"},
        {"resultType": None, "ttlMs": None, "cacheScope": None, "nextCursor": None},
        {"ttlMs": -1, "cacheScope": "session"},
        {"ttlMs": "soon"},
    ],
)
async def test_what_a_server_leaves_out_of_a_list_costs_it_no_tool(lists, events):
    async with written(answers(lists=lists), events=events) as url, session(McpConfig(url=url)) as rig:
        assert list(rig.registry.specs) == ["wiki_seek"]
        assert await rig.call("wiki_seek") == "found"


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ({"resultType": "complete", **FOUND}, "found"),
        ({**FOUND, "isError": None, "structuredContent": None, "_meta": None}, "found"),
        ({"structuredContent": {"sum": 7}}, '{"sum":7}'),
        ({"structuredContent": [7]}, "[7]"),
        (
            {"content": [{"type": "hologram"}, *FOUND["content"]]},
            "[a part of the type 'hologram': it cannot be read here]\n\nfound",
        ),
        ({"content": ["found"]}, "[a part without a type: it cannot be read here]"),
        ({"content": []}, "(nothing)"),
    ],
)
async def test_a_result_is_read_whatever_its_server_leaves_out(found, text):
    async with written(answers(found=found)) as url, session(McpConfig(url=url)) as rig:
        assert await rig.call("wiki_seek") == text


def asking(**requests):
    return {"resultType": "input_required", "inputRequests": requests}


FORM = {
    "method": "elicitation/create",
    "params": {
        "message": "Which city?",
        "requestedSchema": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
VISIT = {
    "method": "elicitation/create",
    "params": {"mode": "url", "message": "Log in", "url": "https://login.example/", "elicitationId": "1"},
}
SAMPLE = {
    "method": "sampling/createMessage",
    "params": {"messages": [{"role": "user", "content": {"type": "text", "text": "?"}}], "maxTokens": 5},
}


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (asking(a=FORM), [r'It asks the user: "Which city\?"', r"\(fields: city\)", "Ask the user"]),
        (asking(a=VISIT), ["Log in", "https://login.example/"]),
        (asking(a=SAMPLE, b={"method": "roots/list"}), ["a language model", "directories"]),
        ({"resultType": "input_required", "requestState": "later"}, ["has not finished"]),
        ({"resultType": "task", "task": {}}, ["no result"]),
    ],
)
async def test_a_question_instead_of_a_result_is_told_to_the_model_as_what_it_is(found, told):
    async with written(answers(found=found)) as url, session(McpConfig(url=url)) as rig:
        for words in told:
            with pytest.raises(ToolError, match=words):
                await rig.call("wiki_seek")


async def test_of_a_list_of_ten_thousand_tools_no_more_are_looked_at_than_can_be_offered(monkeypatch):
    looked = []

    def counting(tool, version):
        looked.append(tool)
        return well_formed(tool, version)

    monkeypatch.setattr("proxy.tools.kinds.mcp.mending.well_formed", counting)
    tools = [{"name": f"t{number}", "inputSchema": {"type": "object"}} for number in range(10_000)]
    async with written(answers(tools=tools)) as url, session(McpConfig(url=url, allow=("t1*",))) as rig:
        assert len(rig.registry.specs) == 128
        refused = [fields["why"] for event, fields in rig.told if event == "mcp.tool_refused"]
    assert refused == ["t1017: there are more than 128 tools"]
    assert len(looked) % 129 == 0


async def test_a_huge_definition_costs_its_server_that_tool_alone():
    huge = {**SEEK, "name": "huge", "inputSchema": {"type": "object", "$comment": "x" * 300_000}}
    async with written(answers(tools=[huge, SEEK])) as url, session(McpConfig(url=url)) as rig:
        assert list(rig.registry.specs) == ["wiki_seek"]
        assert "huge: it is malformed: its definition is larger" in str(rig.told)


async def test_pages_without_end_are_cut_and_the_server_is_connected_with_what_fits():
    pages = []

    def page(params):
        pages.append(params)
        tool = {**SEEK, "name": f"t{len(pages)}", "inputSchema": {"type": "object", "$comment": "x" * 200_000}}
        return {**COMPLETE, "tools": [tool], "nextCursor": str(len(pages))}

    tracemalloc.start()
    try:
        async with written({**answers(), "tools/list": page}) as url, session(McpConfig(url=url)) as rig:
            assert rig.server.state().usable
            refused = [fields["why"] for event, fields in rig.told if event == "mcp.tool_refused"]
        assert tracemalloc.get_traced_memory()[1] < 100_000_000
    finally:
        tracemalloc.stop()
    assert refused[0] == "the list has no end; what is after page 50 is left out"


async def test_a_list_that_cannot_be_read_for_its_size_refuses_the_server_by_name_and_once():
    tools = [{**SEEK, "x": [0] * MOST_VALUES}]
    async with written(answers(tools=tools)) as url, session(McpConfig(url=url)) as rig:
        assert f"more than {MOST_VALUES} values" in rig.server.state().why_not
        assert (await rig.event("mcp.lost"))["wait"] == 600


@pytest.mark.parametrize("events", [False, True])
async def test_a_message_of_too_many_values_is_refused_before_it_is_parsed(events):
    found = {"content": [], "structuredContent": {"a": [{"b": 1}] * MOST_VALUES}}
    async with written(answers(found=found), events=events) as url, session(McpConfig(url=url)) as rig:
        with pytest.raises(ToolError, match="larger than any that can be read"):
            await rig.call("wiki_seek")
        assert rig.server.state().usable


def permitted(message, *, cut=1000, **options):
    values = Values(**options)
    return all(values.permit(message[at : at + cut]) for at in range(0, len(message), cut))


@pytest.mark.parametrize("cut", [7, 1000])
def test_values_are_counted_outside_of_strings_however_a_message_is_cut(cut):
    text = ',{["\\' * (MOST_VALUES // 2)
    assert permitted(orjson.dumps({"text": text}), cut=cut)
    assert permitted(orjson.dumps([0] * (MOST_VALUES - 5)), cut=cut)
    assert not permitted(orjson.dumps([0] * (MOST_VALUES + 5)), cut=cut)
    assert not permitted(orjson.dumps([text, *[{}] * MOST_VALUES]), cut=cut)


def test_each_message_of_a_stream_of_events_is_counted_by_itself():
    event = b"data: " + orjson.dumps([0] * (MOST_VALUES // 2)) + b"\r\n\r\n"
    assert permitted(event * 5, is_stream=True)
    assert not permitted(event.strip() + orjson.dumps([0] * MOST_VALUES), is_stream=True)
