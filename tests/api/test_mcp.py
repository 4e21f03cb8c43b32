"""`POST /mcp`: the tools as an MCP server, called by the official client over real sockets."""

import asyncio
from contextlib import asynccontextmanager

import orjson
import pytest
from httpx import AsyncClient
from mcp.client import Client
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

from proxy.loop.results import ToolError
from proxy.tools.tool import Tool
from tests.fakes import Reply
from tests.mcp_server import Wiki
from tests.serving import proxy_of, serving
from tests.tools.mcp.test_client import wiki_at

CONFIG = """
server: {{mcp: true}}
upstreams: {{up: {{base_url: '{upstream}/v1', api_key: k1234567}}}}
models: {{m: {{upstream: up}}}}
tools:
  web_search: {{type: serper, api_key: serper-secret, base_url: '{upstream}', price: 0.5}}
  current_time: {{type: clock}}
{more}
"""
CLIENTS = """
clients:
  - {name: app, key: app-key-1, budget: {per: day, tool_calls: 3}}
  - {name: small, key: small-key-1, tools: [current_time, web_search], limits: {max_tool_calls: 2, max_result_bytes: 300}}
"""
BOTH = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a"]}


async def add(arguments):
    return str(arguments["a"] + arguments.get("b", 0))


async def fail(_):
    raise ToolError("It does\u200b not work.")


def tool(name, run, **fields):
    return Tool(**{"name": name, "description": f"Does {name}.", "parameters": {}, "run": run, **fields})


TOOLS = [
    tool("add", add, parameters=NUMBERS, aliases=("plus",)),
    tool("fail", fail, offer="declared"),
    tool("subtract", add, offer="on_request"),
    tool("spare", add, offer="never"),
]


@asynccontextmanager
async def served(upstream, *, more="", config=CONFIG, tools=TOOLS):
    async with proxy_of(upstream, config=config, more=more, tools=tools) as url:
        yield url


@asynccontextmanager
async def client_of(url, *, key=None, mode="auto"):
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with (
        create_mcp_http_client(headers=headers) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http), mode=mode) as client,
    ):
        yield client


def texts(result):
    return [part.text for part in result.content]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_official_client_lists_and_calls_the_tools(upstream, mode):
    async with served(upstream) as url, client_of(url, mode=mode) as client:
        listed = {one.name: one for one in (await client.list_tools()).tools}
        assert list(listed) == ["web_search", "current_time", "add", "fail", "subtract"]
        assert (listed["add"].description, listed["add"].input_schema) == ("Does add.", NUMBERS)
        assert listed["fail"].input_schema == {"type": "object"}
        assert listed["web_search"].annotations.read_only_hint
        result = await client.call_tool("add", {"a": 2, "b": 3})
        assert (texts(result), result.is_error, result.structured_content) == (["5"], False, None)
        result = await client.call_tool("web_search", {"queries": ["x", "y"]})
        assert texts(result)[0].startswith('Results for "x":\n\nA page\nhttps://a.example/')
        page = {
            "title": "A page",
            "url": "https://a.example/",
            "snippet": "Something found.",
            "date": None,
            "query": "x",
        }
        assert result.structured_content == {"results": [page]}
        result = await client.call_tool("fail", {})
        assert (texts(result), result.is_error) == (["It does not work."], True)
        result = await client.call_tool("add", {"a": "x"})
        assert result.is_error
        assert "do not fit the tool's schema" in texts(result)[0]
        for name in ("nope", "spare", "plus"):
            with pytest.raises(MCPError, match=f"Unknown tool: {name}"):
                await client.call_tool(name, {})


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_list_has_pages_of_500_tools_and_a_cursor_that_is_not_its_own_is_an_error(upstream, mode):
    many = [tool(f"t{number}", add, offer="never" if number % 3 == 0 else "always") for number in range(2000)]
    async with served(upstream, tools=many) as url, client_of(url, mode=mode) as client:
        pages, cursor = [], None
        while cursor is not None or not pages:
            page = await client.list_tools(cursor=cursor)
            pages.append([one.name for one in page.tools])
            cursor = page.next_cursor
        assert [len(page) for page in pages] == [500, 500, 335]
        listed = [name for page in pages for name in page]
        assert listed == ["web_search", "current_time", *(one.name for one in many if one.offer == "always")]
        for foreign in ("", "abc", "500", "tools-", "tools-2002", "tools--1", "tools-\u0665", "tools-9999999999"):
            with pytest.raises(MCPError, match="cursor"):
                await client.list_tools(cursor=foreign)


@pytest.mark.parametrize("number", ["NaN", "1e400", "-Infinity"])
async def test_a_number_that_json_cannot_have_is_a_fault_of_the_arguments(upstream, number):
    asked = []

    async def remember(arguments):
        asked.append(arguments)
        return "called"

    params = f'{{"name": "add", "arguments": {{"a": 1, "b": {number}}}}}'
    body = f'{{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {params}}}'
    async with served(upstream, tools=[tool("add", remember, parameters=NUMBERS)]) as url, AsyncClient() as http:
        answer = (await http.post(f"{url}/mcp", content=body, headers=BOTH)).json()
    assert answer["error"]["code"] == INVALID_PARAMS
    assert "a number" in answer["error"]["message"]
    assert asked == []


async def test_tools_that_are_themselves_of_an_mcp_server_have_their_offered_names(upstream):
    async with (
        wiki_at(Wiki()) as wiki,
        served(upstream, more=f"  wiki: {{type: mcp, url: '{wiki}', allow: [echo]}}") as url,
        client_of(url) as client,
    ):
        assert "wiki_echo" in [one.name for one in (await client.list_tools()).tools]
        assert texts(await client.call_tool("wiki_echo", {"text": "hello"})) == ["You said:\n\nhello"]


async def test_a_client_lists_and_calls_what_it_may_use_within_its_limits_and_budget(upstream):
    async with served(upstream, more=CLIENTS) as url, AsyncClient(base_url=url) as http:
        assert (await http.post("/mcp", json={})).status_code == 401
        async with client_of(url, key="small-key-1") as client:
            assert [one.name for one in (await client.list_tools()).tools] == ["web_search", "current_time"]
            with pytest.raises(MCPError, match="Unknown tool: fail"):
                await client.call_tool("fail", {})
            result = await client.call_tool("web_search", {"queries": ["x", "y", "z"]})
            assert len(texts(result)[0]) < 400
            assert texts(result)[1].startswith('(Not searched: "z".')
        async with client_of(url, key="app-key-1") as client:
            await client.call_tool("add", {"a": 1})
            result = await client.call_tool("web_search", {"queries": ["x", "y", "z"]})
            assert "Not searched" in texts(result)[1]
            # The official client lists the tools after its first call, to read the result, which may have used the budget up.
            assert len((await client.list_tools()).tools) == 5
            with pytest.raises(MCPError):
                await client.call_tool("add", {"a": 1})
        headers = {"authorization": "Bearer app-key-1"}
        for body in (b'{"method": "tools\\/call", "params": {"name": "add"}}', b"[]", b"{"):
            answer = await http.post("/mcp", content=body, headers=BOTH | headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "budget_exceeded")
        metrics = (await http.get("/metrics")).text
    assert 'toolproxy_client_tool_calls_total{client="app",model="none"} 3.0' in metrics
    assert 'toolproxy_cost_total{client="app",model="none"} 1.0' in metrics
    assert 'toolproxy_requests_total{client="app",model="none",route="/mcp",status="200"}' in metrics


async def test_the_log_and_debug_have_each_call(upstream, logged):
    async with served(upstream) as url, AsyncClient(base_url=url) as http:
        call = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "add", "arguments": {"a": 1}}}
        answer = await http.post("/mcp", json=call, headers=BOTH)
        request_id = answer.headers["x-request-id"]
        record = (await http.get(f"/debug/requests/{request_id}", params={"format": "json"})).json()
    assert [(step["tool"], step["outcome"], step["call_id"]) for step in record["steps"]] == [
        ("add", "completed", "mcp_7")
    ]
    lines = {line["event"]: line for line in logged() if line.get("request_id") == request_id}
    assert lines["tool.completed"]["mcp"] == "tools/call"
    assert lines["request.completed"]["tool_calls"] == 1


async def test_a_client_that_takes_no_stream_gets_json_and_nothing_but_post_is_served(upstream):
    listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    async with served(upstream) as url, AsyncClient(base_url=url) as http:
        answer = await http.post("/mcp", json=listing, headers={"accept": "application/json"})
        assert answer.headers["content-type"] == "application/json"
        assert [one["name"] for one in answer.json()["result"]["tools"]] == [
            "web_search",
            "current_time",
            "add",
            "fail",
            "subtract",
        ]
        for method in ("GET", "DELETE", "PUT"):
            answer = await http.request(method, "/mcp")
            assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
        notified = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert (await http.post("/mcp", json=notified, headers=BOTH)).status_code == 202


async def test_it_is_there_only_where_the_configuration_says_so(upstream):
    async with (
        served(upstream, config=CONFIG.replace("server: {{mcp: true}}", "")) as url,
        AsyncClient(base_url=url) as http,
    ):
        assert (await http.post("/mcp", json={})).status_code == 404


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b'{"jsonrpc":"2.0","id":1}', 400),
        (b"[" + b"1," * 500_001 + b"1]", 400),
        (b'"' + b"x" * 2**21 + b'"', 413),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":' + b'{"a":' * 3000 + b"1" + b"}" * 3000 + b"}", 400),
    ],
)
async def test_a_body_that_is_no_message_is_refused(upstream, body, status):
    async with served(upstream) as url, AsyncClient(base_url=url) as http:
        assert (await http.post("/mcp", content=body, headers=BOTH)).status_code == status


@pytest.mark.parametrize(
    "arguments",
    ['{"a":123456789012345678901234567890}', '{"a":1,"x":"\\ud800"}', '{"a":' + "[" * 300 + "]" * 300 + "}"],
)
async def test_arguments_that_json_cannot_have_are_refused(upstream, arguments):
    call = f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"add","arguments":{arguments}}}}}'
    async with served(upstream) as url, AsyncClient(base_url=url) as http:
        answer = await http.post("/mcp", content=call, headers={**BOTH, "accept": "application/json"})
    assert answer.json()["error"]["code"] in (-32602, -32700)


@pytest.mark.parametrize("version", [None, "2026-07-28"])
async def test_a_call_ends_when_its_client_leaves(upstream, version):
    hanging, left = asyncio.Event(), asyncio.Event()

    async def hang(_):
        hanging.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    names = {"mcp-protocol-version": version, "mcp-method": "tools/call", "mcp-name": "hang"} if version else {}
    meta = {"io.modelcontextprotocol/protocolVersion": version, "io.modelcontextprotocol/clientCapabilities": {}}
    params = {"name": "hang", "arguments": {}, **({"_meta": meta} if version else {})}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    async with served(upstream, tools=[tool("hang", hang)]) as url, AsyncClient(base_url=url) as http:
        leaving = asyncio.ensure_future(http.post("/mcp", json=call, headers={**BOTH, **names}))
        async with asyncio.timeout(5):
            await hanging.wait()
            leaving.cancel()
            await left.wait()


@pytest.mark.parametrize(
    ("accept", "kind"), [(BOTH["accept"], "text/event-stream"), ("application/json", "application/json")]
)
async def test_an_answer_that_takes_long_becomes_a_stream_that_is_kept_alive(upstream, accept, kind):
    async def slow(_):
        await asyncio.sleep(0.03)  # begins after the wait for the heartbeat, which is shorter
        return "done"

    config = CONFIG.replace("{{mcp: true}}", "{{mcp: true, keepalive_seconds: 0.01}}")
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "slow", "arguments": {}}}
    async with served(upstream, config=config, tools=[tool("slow", slow)]) as url, AsyncClient(base_url=url) as http:
        answer = await http.post("/mcp", json=call, headers={**BOTH, "accept": accept})
    assert answer.headers["content-type"].startswith(kind)
    assert answer.text.startswith(":" if "stream" in kind else "{")
    message = orjson.loads(answer.text.partition("event: message\ndata: ")[2] or answer.text)
    assert message["result"]["content"][0]["text"] == "done"


async def test_with_keys_that_only_the_upstream_knows_it_answers_on_this_machine_only(upstream):
    config = CONFIG.replace("api_key: k1234567", "api_key: from_client")
    async with served(upstream, config=config) as url, AsyncClient(base_url=url) as http:
        async with client_of(url, key="any-key") as client:
            assert await client.list_tools()
        answer = await http.post("/mcp", json={}, headers={"via": "1.1 somewhere", "authorization": "Bearer any-key"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "not_allowed")


async def test_results_of_a_search_have_no_more_than_their_bytes(upstream):
    rows = [{"title": f"P{n}", "link": f"https://{n}.example/", "snippet": "\u200bwords " * 20} for n in range(10)]
    upstream.search = lambda _: Reply([orjson.dumps({"organic": rows})])
    more = "limits: {max_result_bytes: 1000}"
    async with served(upstream, more=more) as url, client_of(url) as client:
        result = await client.call_tool("web_search", {"query": "x", "num_results": 10})
    assert "[cut: " in texts(result)[0]
    assert 2 < len(result.structured_content["results"]) < 8
    assert "\u200b" not in orjson.dumps(result.structured_content).decode()


async def test_a_tool_with_a_users_credential_is_listed_for_who_sends_it_and_says_what_is_missing(upstream):
    sent = []

    async def api(scope, receive, send):
        sent.append(dict(scope["headers"])[b"authorization"].decode())
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"a note"})

    headers = '{Authorization: "Bearer ${request.headers.X-Notes-Token}"}'
    async with (
        serving(api, lifespan="off") as api_url,
        served(
            upstream, more=f"  notes: {{type: http, description: Notes., url: '{api_url}', headers: {headers}}}"
        ) as url,
        AsyncClient(base_url=url, headers={**BOTH, "accept": "application/json"}) as http,
    ):
        listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "notes", "arguments": {}}}
        for given in ({}, {"x-notes-token": "anne-s3cret"}):
            listed = (await http.post("/mcp", json=listing, headers=given)).json()["result"]["tools"]
            assert ("notes" in [one["name"] for one in listed]) is bool(given)
            result = (await http.post("/mcp", json=call, headers=given)).json()["result"]
            assert result["isError"] is not bool(given)
            assert ("x-notes-token" in result["content"][0]["text"]) is not bool(given)
    assert sent == ["Bearer anne-s3cret"]
