"""Servers of every protocol date, borne with: real sessions with servers whose messages are written by hand."""

import asyncio
import tracemalloc

import httpx2
import orjson
import pytest

from proxy.loop.results import ToolError
from proxy.tools.kinds.mcp.entry import McpConfig
from proxy.tools.kinds.mcp.repair import MOST_VALUES, ListReading, fault_of
from proxy.tools.kinds.mcp.transport import _Bounded
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
        (asking(a=FORM), [r'asks something first.*: "Which city\?"', "Ask the user"]),
        (asking(a=VISIT, b=FORM), [r'"Log in Which city\?"']),
        (asking(a=SAMPLE, b={"method": "roots/list"}), ["asks something first"]),
        ({"resultType": "input_required", "requestState": "later"}, ["asks something first"]),
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
        return fault_of(tool, version)

    monkeypatch.setattr("proxy.tools.kinds.mcp.repair.fault_of", counting)
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


@pytest.mark.parametrize("fields", [{"inputSchema": {"type": "object", "default": 2**70}}, {"description": "\ud800"}])
def test_a_tool_that_no_request_could_hold_is_malformed(fields):
    assert "it cannot be written as JSON" in fault_of({**SEEK, **fields}, "2026-07-28")


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
    tools = [{**SEEK, "name": f"t{n}", "x": [0] * 700} for n in range(200)]
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


async def test_of_a_list_with_too_many_values_the_tools_with_the_most_are_left_out_by_name():
    large = {**SEEK, "name": "large", "inputSchema": {"type": "object", "$comment": "4 MB", "x": [{"a": 0}] * 400_000}}
    no_name = {"inputSchema": large["inputSchema"]}
    async with written(answers(tools=[large, SEEK, no_name])) as url, session(McpConfig(url=url)) as rig:
        assert list(rig.registry.specs) == ["wiki_seek"]
        assert await rig.call("wiki_seek") == "found"
        refused = [fields["why"] for event, fields in rig.told if event == "mcp.tool_refused"]
    assert ["large: it is malformed" in refused[0], "(without a name)" in refused[1]] == [True, True]


@pytest.mark.parametrize("cut", [1, 7, 100_000])
@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
async def test_each_event_of_a_stream_is_passed_on_whole_and_counted_by_itself(end, cut):
    class Body(httpx2.AsyncByteStream):
        async def __aiter__(self):
            for at in range(0, len(sent), cut):
                yield sent[at : at + cut]

    event = b"data: " + orjson.dumps([0] * (MOST_VALUES // 2 if cut > 7 else 20)) + end
    sent = event * 5
    bounded = _Bounded(Body(), 10**6, ListReading(), is_stream=True)
    assert [part async for part in bounded if part] == [event] * 5


async def test_a_list_that_has_not_changed_is_not_checked_again(monkeypatch):
    checked = []

    def counting(tool, version):
        checked.append(tool["name"])
        return fault_of(tool, version)

    monkeypatch.setattr("proxy.tools.kinds.mcp.repair.fault_of", counting)
    tools, asked = [[SEEK], [{**SEEK, "name": "hide"}]], asyncio.Queue()

    def page(params):
        at = int((params or {}).get("cursor") or 0)
        asked.put_nowait(at)
        return {**COMPLETE, "tools": tools[at], **({"nextCursor": str(at + 1)} if at + 1 < len(tools) else {})}

    async def look(rig):
        while not asked.empty():
            asked.get_nowait()
        checked.clear()
        rig.clock.looks.put_nowait(None)
        async with asyncio.timeout(20):
            for _ in tools:
                await asked.get()
        return await rig.call("wiki_seek")

    async with written({**answers(), "tools/list": page}) as url, session(McpConfig(url=url)) as rig:
        await look(rig)
        assert await look(rig) == "found"
        assert checked == []
        assert list(rig.registry.specs) == ["wiki_seek", "wiki_hide"]
        tools[1] = [{**SEEK, "name": "hide", "description": "Now it hides."}]
        rig.clock.looks.put_nowait(None)
        assert (await rig.event("tool.changed"))["tool"] == "hide"
        del tools[1]
        rig.clock.looks.put_nowait(None)
        assert (await rig.event("published"))["names"] == ["wiki_seek", "wiki_hide"]
        assert (await rig.event("published"))["names"] == ["wiki_seek"]
