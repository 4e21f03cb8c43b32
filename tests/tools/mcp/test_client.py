"""Against real servers, written with the `mcp` package: in this loop over HTTP, and as processes over stdio."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import pytest
from mcp import MCPError
from mcp_types import Tool as ListedTool
from msgspec.structs import replace

from proxy.loop.call_context import CallContext
from proxy.loop.results import ToolError, ToolTimeout, ToolUnavailable
from proxy.tools.kinds.mcp.client import McpServer, list_once
from proxy.tools.kinds.mcp.entry import McpConfig
from proxy.tools.registry import Registry
from proxy.tools.servers import SharedToolServer, start_tool_servers
from proxy.wire.chat import ToolCall
from tests.fakes import FakeClock, streamed, whole
from tests.free_port import free_port
from tests.mcp_server import OBJECT, TOOLS, Wiki
from tests.serving import proxy_of, serving

SCRIPT = str(Path(__file__).parents[2] / "mcp_server.py")
STDIO = McpConfig(command=(sys.executable, SCRIPT))
LEGACY_STDIO = McpConfig(command=(sys.executable, SCRIPT, "legacy"))


class Turning(FakeClock):
    """Waits for nothing but the next regular look, which comes when it is told to, and notes what was waited for."""

    def __init__(self):
        super().__init__()
        self.waits = asyncio.Queue()
        self.looks = asyncio.Queue()

    async def sleep(self, seconds):
        if seconds == 60:
            return await self.looks.get()
        if seconds > 0.1:
            self.waits.put_nowait(seconds)
        await asyncio.sleep(0)
        return await super().sleep(seconds)


class Patient(Turning):
    """Its waits before another attempt have no end, so that nothing but a call makes one."""

    async def sleep(self, seconds):
        if seconds >= 0.5:
            await asyncio.Event().wait()


@dataclass
class Rig:
    """A server's session, with what it published and what was told of it."""

    server: McpServer
    registry: Registry
    clock: Turning
    events: asyncio.Queue
    told: list

    async def call(self, name, arguments="{}", *, default_timeout=10):
        context = CallContext("me", default_timeout=default_timeout)
        return (await self.registry.execute(ToolCall("id", name, arguments), context)).text

    async def event(self, name):
        """The fields of the next event of that name."""
        async with asyncio.timeout(20):
            while True:
                event, fields = await self.events.get()
                if event == name:
                    return fields


async def names_listed(config):
    return [tool.name for tool in await list_once(config, str)]


@asynccontextmanager
async def session(
    config, *, registry=None, patience=20, configured=lambda tool: tool, clock=None
) -> AsyncIterator[Rig]:
    clock, events, told = clock or Turning(), asyncio.Queue(), []
    registry = registry or Registry([], clock=clock)

    def observe(event, /, **fields):
        told.append((event, fields))
        events.put_nowait((event, fields))

    class Telling:
        """The registry, and an event for each list of tools that is published to it."""

        def put_group(self, group, tools):
            refused = registry.put_group(group, tools)
            observe("published", names=[tool.name for tool in tools])
            return refused

    mcp = McpServer("wiki", config, configured=configured, clock=clock, observe=observe, jitter=lambda: 1.0)
    shared = SharedToolServer(mcp)
    shared.publish_to(Telling())
    async with asyncio.TaskGroup() as tasks:
        try:
            await start_tool_servers([shared], tasks, patience=patience)
            yield Rig(mcp, registry, clock, events, told)
        finally:
            await shared.aclose()


@asynccontextmanager
async def wiki_at(wiki=None, *, port=0, around=None, **options) -> AsyncIterator[str]:
    """A server; `around(app, scope, receive, send)` takes its requests, and may pass them on to the app."""
    app = (wiki or Wiki()).server.streamable_http_app(**options)

    async def outer(scope, receive, send):
        await (partial(around, app) if around and scope["type"] == "http" else app)(scope, receive, send)

    async with serving(outer, port=port) as url:
        yield f"{url}/mcp"


@asynccontextmanager
async def reached_once(port, wiki=None):
    """A session with a server that was there, is gone, and is tried again for a call alone."""
    async with session(McpConfig(url=f"http://127.0.0.1:{port}/mcp"), patience=0, clock=Patient()) as rig:
        rig.server._wanted.set()  # noqa: SLF001 - there is no tool yet to call
        async with wiki_at(wiki, port=port):
            await rig.event("mcp.connected")
        yield rig


@asynccontextmanager
async def reached(way, wiki) -> AsyncIterator[McpConfig]:
    if way.endswith("stdio"):
        yield LEGACY_STDIO if way.startswith("legacy") else STDIO
        return
    async with wiki_at(wiki) as url:
        yield McpConfig(url=url)


WAYS = ["http", "legacy http", "stdio", "legacy stdio"]


@pytest.mark.parametrize("way", WAYS)
async def test_tools_are_listed_called_given_up_and_listed_again_when_they_change(way):
    async with reached(way, Wiki(legacy=way.startswith("legacy"))) as config, session(config) as rig:
        assert list(rig.registry.specs) == [f"wiki_{tool.name}" for tool in TOOLS]  # of several pages
        assert rig.server.state().usable
        assert await rig.call("wiki_echo", '{"text": "hello"}') == "You said:\n\nhello"
        with pytest.raises(ToolTimeout):
            await rig.call("wiki_hang", default_timeout=0.3)
        assert await rig.call("wiki_cancelled") == "It was cancelled."  # the session lives on
        assert await rig.call("wiki_grow") == "grown"
        while "wiki_late" not in rig.registry.specs:
            await rig.event("published")
    assert not rig.server.state().usable


async def test_results_of_every_kind_become_text():
    async with wiki_at() as url, session(McpConfig(url=url)) as rig:
        assert await rig.call("wiki_picture") == (
            "[an image, image/png, 20 bytes: it cannot be shown here]\n\n"
            "[a sound, audio/wav, 20 bytes: it cannot be played here]"
        )
        assert await rig.call("wiki_links") == (
            "The ferry: https://wiki.example/ferry\n\nIt sails at noon.\n\n"
            "[a file, wiki://map, application/pdf, 20 bytes: it cannot be read here]"
        )
        assert await rig.call("wiki_numbers") == '{"sum":7}'  # though its own schema asks for something else
        assert len(await rig.call("wiki_big")) == 4 * 1024 * 1024
        with pytest.raises(ToolError, match="closed on Sundays"):
            await rig.call("wiki_fail")
        with pytest.raises(ToolError, match="index is being built"):
            await rig.call("wiki_break")


@pytest.mark.parametrize("json_response", [True, False])
async def test_a_result_larger_than_any_model_could_use_fails_by_itself(json_response):
    async with wiki_at(json_response=json_response) as url, session(McpConfig(url=url)) as rig:
        with pytest.raises(ToolError):
            await rig.call("wiki_huge")
        assert await rig.call("wiki_echo", '{"text": "still here"}') == "You said:\n\nstill here"


async def test_only_allowed_tools_are_offered_under_the_prefix_that_is_configured():
    async with wiki_at() as url:
        config = McpConfig(url=url, allow=("e*", "fail"), prefix="w-")
        async with session(config) as rig:
            assert list(rig.registry.specs) == ["w-echo", "w-fail", "w-environment"]
        assert await names_listed(config) == ["echo", "fail", "environment"]


async def test_a_tool_that_cannot_be_taken_is_refused_and_told_and_the_others_are_taken():
    remote = {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:1/schema.json"}}}
    steps = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n - 1}"}] * 2} for n in range(1, 26)}
    doubling = {"type": "object", "$ref": "#/$defs/d25", "$defs": {"d0": {}, **steps}}
    tools = [
        ListedTool(name="a.b", input_schema=OBJECT),
        ListedTool(name="a/b", input_schema=OBJECT),
        ListedTool(name="remote", input_schema=remote),
        ListedTool(name="doubling", input_schema=doubling),
        ListedTool(name="large", input_schema={**OBJECT, "description": "x" * 70_000}),
        ListedTool(name="good", input_schema=OBJECT),
    ]
    async with wiki_at(Wiki(tools)) as url, session(McpConfig(url=url)) as rig:
        assert list(rig.registry.specs) == ["wiki_a_b", "wiki_good"]
        refused = [fields["why"] for event, fields in rig.told if event == "mcp.tool_refused"]
    assert refused[0] == "there are two tools named 'wiki_a_b'"
    assert "http://127.0.0.1:1/schema.json" in refused[1]
    assert refused[2].startswith("the parameters of 'wiki_doubling': expands to more than")
    assert refused[3] == "the parameters of 'wiki_large': is longer than 65536 bytes"
    assert len(refused) == 4


@pytest.mark.parametrize("legacy", [False, True])
async def test_a_tool_that_is_malformed_costs_a_line_in_the_log_and_none_of_the_others(legacy):
    async def with_a_number_for_a_description(app, scope, receive, send):
        async def miswritten(message):
            await send({**message, "body": message.get("body", b"").replace(b'"?"', b"123")})

        await app(scope, receive, miswritten)

    tools = [
        ListedTool(name="bad", description="?", input_schema=OBJECT),
        ListedTool(name="not_allowed", description="?", input_schema=OBJECT),
        ListedTool(name="grow", input_schema=OBJECT),
    ]
    async with (
        wiki_at(Wiki(tools, legacy=legacy), around=with_a_number_for_a_description) as url,
        session(McpConfig(url=url, allow=("bad", "grow"))) as rig,
    ):
        assert await names_listed(McpConfig(url=url, allow=("bad", "grow"))) == ["grow"]
        assert await rig.call("wiki_grow") == "grown"
        assert list(rig.registry.specs) == ["wiki_grow"]
    refused = [fields for event, fields in rig.told if event == "mcp.tool_refused"]
    assert refused == [{"server": "wiki", "why": "bad: it is malformed: description: Input should be a valid string"}]


async def test_more_tools_than_a_request_can_hold_are_refused():
    tools = [ListedTool(name=f"t{number}", input_schema=OBJECT) for number in range(130)]
    async with wiki_at(Wiki(tools, page=50)) as url, session(McpConfig(url=url)) as rig:
        assert len(rig.registry.specs) == 128
        assert await rig.event("mcp.tool_refused") == {"server": "wiki", "why": "t128: there are more than 128 tools"}


async def test_pages_that_never_end_are_not_followed_for_ever():
    class Endless(Wiki):
        async def list_tools(self, context, params):
            page = await super().list_tools(context, None)
            return page.model_copy(update={"next_cursor": "again"})

    async with wiki_at(Endless(TOOLS[:1])) as url, session(McpConfig(url=url)) as rig:
        assert list(rig.registry.specs) == ["wiki_echo"]


async def test_only_what_may_run_twice_is_tried_again():
    async with wiki_at() as url, session(McpConfig(url=url), configured=lambda tool: replace(tool, retries=3)) as rig:
        tools = {name: entry.tool for name, entry in rig.registry._entries.items()}  # noqa: SLF001
    assert (tools["wiki_echo"].retries, tools["wiki_grow"].retries, tools["wiki_fail"].retries) == (3, 3, 0)


async def test_headers_go_to_the_server_and_its_secrets_are_told_to_nobody():
    async with wiki_at() as url, session(McpConfig(url=url, headers={"x-wiki-key": "canary"})) as rig:
        assert await rig.call("wiki_header") == "canary"
        assert "canary" not in str(rig.told) + str(rig.server.state())


async def test_a_process_sees_what_is_configured_and_none_of_our_keys(monkeypatch):
    monkeypatch.setenv("ZAI_API_KEY", "canary")
    config = McpConfig(command=STDIO.command, env={"WIKI_TOKEN": "t"})
    async with session(config) as rig:
        names = (await rig.call("wiki_environment")).split()
    assert "WIKI_TOKEN" in names
    assert "PATH" in names
    assert "ZAI_API_KEY" not in names


async def test_a_server_that_is_down_at_start_is_tried_again_after_longer_and_longer_waits():
    port = free_port()
    async with session(McpConfig(url=f"http://127.0.0.1:{port}/mcp")) as rig:
        assert rig.registry.specs == {}
        state = rig.server.state()
        assert (state.usable, state.why_not) == (False, "cannot be reached")
        assert [await rig.clock.waits.get() for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
        async with wiki_at(port=port):
            await rig.event("mcp.connected")
            assert rig.server.state().usable
            assert await rig.call("wiki_echo", '{"text": "at last"}') == "You said:\n\nat last"


@pytest.mark.parametrize("legacy", [False, True])
async def test_a_server_that_was_killed_takes_its_tools_with_it_and_brings_them_back(legacy):
    port = free_port()
    async with session(McpConfig(url=f"http://127.0.0.1:{port}/mcp")) as rig:
        async with wiki_at(Wiki(legacy=legacy), port=port):
            await rig.event("mcp.connected")
        rig.clock.looks.put_nowait(None)  # a newer server's end is seen at once, an older one's at the next look
        while rig.registry.specs:
            await rig.event("mcp.lost")
        assert rig.server.state().why_not == "cannot be reached"
        async with wiki_at(Wiki(legacy=legacy), port=port):
            await rig.event("mcp.connected")
            assert "wiki_echo" in rig.registry.specs


@pytest.mark.parametrize("legacy", [False, True])
async def test_a_server_that_was_killed_and_started_again_costs_the_next_call_a_new_session(legacy):
    port = free_port()
    async with reached_once(port, Wiki(legacy=legacy)) as rig:
        for _ in range(3):
            async with wiki_at(Wiki(legacy=legacy), port=port):
                assert await rig.call("wiki_echo", '{"text": "back"}') == "You said:\n\nback"


async def test_calls_that_find_at_the_same_time_that_the_session_is_forgotten_share_the_next_one():
    sessions = []

    async def counting(app, scope, receive, send):
        if dict(scope["headers"]).get(b"mcp-session-id") is None and scope["method"] == "POST":
            sessions.append(1)
        await app(scope, receive, send)

    port = free_port()
    async with reached_once(port, Wiki(legacy=True)) as rig, wiki_at(Wiki(legacy=True), port=port, around=counting):
        calls = [rig.call("wiki_echo", f'{{"text": "{number}"}}') for number in range(10)]
        assert await asyncio.gather(*calls) == [f"You said:\n\n{number}" for number in range(10)]
    assert len(sessions) == 2, "the question for the version, and one handshake"


@pytest.mark.parametrize("body", [b"Not Found", b'{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"who?"}}'])
async def test_a_session_is_forgotten_by_the_status_404_whatever_the_server_says_beside_it(body):
    seen, forgotten = [], set()

    async def forgetting(app, scope, receive, send):
        session_id = dict(scope["headers"]).get(b"mcp-session-id")
        seen.append(session_id)
        await (answering(404, body) if session_id in forgotten else app)(scope, receive, send)

    async with wiki_at(Wiki(legacy=True), around=forgetting) as url, session(McpConfig(url=url)) as rig:
        for _ in range(2):
            assert await rig.call("wiki_echo", '{"text": "back"}') == "You said:\n\nback"
            forgotten.add(seen[-1])
    assert sum(event == "mcp.connected" for event, _ in rig.told) == 2


async def test_a_call_ends_the_wait_before_the_next_attempt_and_a_dead_server_fails_it_at_once():
    port = free_port()
    async with reached_once(port) as rig:
        await rig.event("mcp.lost")
        async with asyncio.timeout(10):
            with pytest.raises(ToolUnavailable, match="cannot be reached now"):
                await rig.call("wiki_echo", '{"text": "?"}')
            async with wiki_at(port=port):
                assert await rig.call("wiki_echo", '{"text": "back"}') == "You said:\n\nback"


@pytest.mark.parametrize(
    ("code", "message", "raised"),
    [
        (-32600, "Session not found", ToolUnavailable),
        (-32001, "Session not found", ToolUnavailable),
        (-32000, "Bad Request: No valid session ID provided", ToolUnavailable),
        (-32600, "Invalid session ID", ToolUnavailable),
        (-32050, "Session not found", ToolError),
        (-32001, "The page was not found in this session", ToolError),
    ],
)
async def test_a_server_that_does_not_know_the_session_has_carried_nothing_out(code, message, raised):
    class Forgetful(Wiki):
        async def do_echo(self, _, __):
            raise MCPError(code, message)

    async with wiki_at(Forgetful()) as url, session(McpConfig(url=url)) as rig:
        with pytest.raises(ToolError) as caught:
            await rig.call("wiki_echo", '{"text": "?"}')
    assert type(caught.value) is raised


async def test_an_error_of_the_servers_own_with_the_code_of_a_closed_connection_keeps_its_words():
    class Failing(Wiki):
        async def do_echo(self, _, __):
            raise MCPError(-32000, "The index is being rebuilt.")

    async with wiki_at(Failing()) as url, session(McpConfig(url=url)) as rig:
        with pytest.raises(ToolError, match="The index is being rebuilt"):
            await rig.call("wiki_echo", '{"text": "?"}')


async def test_a_process_that_says_too_much_or_dies_in_a_call_is_started_again():
    async with session(LEGACY_STDIO) as rig:
        for name in ("wiki_huge", "wiki_die"):
            await rig.event("mcp.connected")
            with pytest.raises(ToolUnavailable, match="whether the call was carried out is not known"):
                await rig.call(name)
            await rig.event("mcp.lost")
        assert await rig.call("wiki_echo", '{"text": "back"}') == "You said:\n\nback"


async def test_a_call_that_waits_for_a_session_fails_when_its_server_is_no_longer_served():
    async with session(LEGACY_STDIO, clock=Patient()) as rig:
        waiting = asyncio.ensure_future(rig.call("wiki_die"))
        await rig.event("mcp.lost")
        with pytest.raises(ToolUnavailable):
            await waiting
        waiting = asyncio.ensure_future(rig.call("wiki_echo", '{"text": "?"}'))
        await asyncio.sleep(0)
    with pytest.raises(ToolUnavailable, match="cannot be reached now"):
        await waiting


async def test_a_command_that_cannot_be_started_is_said_to_be_one():
    async with session(McpConfig(command=("/nowhere/canary",))) as rig:
        assert rig.server.state().why_not == "its command cannot be started"
    with pytest.raises(ToolUnavailable, match="cannot be started"):
        await names_listed(McpConfig(command=("/nowhere/canary",)))


DEAF = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
time.sleep(3600)
"""


async def test_a_process_that_will_not_end_is_killed(tmp_path):
    path = tmp_path / "pid"
    config = McpConfig(command=(sys.executable, "-c", DEAF, str(path)))
    async with session(config, patience=0) as rig:
        assert rig.server.state().why_not == "not connected yet"
        while not path.exists() or not path.read_text():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.01)
    with pytest.raises(ProcessLookupError):
        os.kill(int(path.read_text()), 0)


def answering(status, body=b"{}", *, headers=()):
    async def app(_, __, send):
        named = [(b"content-type", b"application/json"), *headers]
        await send({"type": "http.response.start", "status": status, "headers": named})
        await send({"type": "http.response.body", "body": body})

    return app


@pytest.mark.parametrize(
    ("app", "why"),
    [
        (answering(401), "answered HTTP 401"),
        (answering(500), "answered HTTP 500"),
        (answering(307, headers=[(b"location", b"http://127.0.0.2/canary")]), "refused the session (error -32600)"),
        (answering(200, b"<canary>"), "did not answer as an MCP server does"),
        (answering(200, headers=[(b"content-encoding", b"gzip")]), "did not answer as an MCP server does"),
        (answering(202), "refused the session (error -32600)"),
    ],
)
async def test_a_server_that_is_none_is_told_of_in_words_of_ours(app, why):
    async with serving(app, lifespan="off") as url, session(McpConfig(url=f"{url}/mcp")) as rig:
        assert rig.server.state().why_not == why
        assert "canary" not in str(rig.told)


async def test_a_server_that_does_not_take_leave_holds_nothing_up():
    async def without_goodbye(app, scope, receive, send):
        if scope["method"] == "DELETE":
            await asyncio.Event().wait()
        await app(scope, receive, send)

    async with wiki_at(Wiki(legacy=True), around=without_goodbye) as url:
        async with asyncio.timeout(10):
            async with session(McpConfig(url=url)) as rig:
                assert rig.server.state().usable
    assert not rig.server.state().usable


# Through the proxy.


async def test_a_conversation_uses_a_servers_tools(upstream, sdk):
    upstream.replies = [streamed(calls=[("c1", "wiki_echo", {"text": "noon"})]), streamed("It sails at noon.")]
    async with (
        wiki_at() as url,
        proxy_of(upstream, more=f"  wiki: {{type: mcp, url: '{url}', allow: [echo]}}") as proxy,
        sdk(proxy) as client,
    ):
        stream = await client.chat.completions.create(
            model="m", stream=True, messages=[{"role": "user", "content": "When does it sail?"}]
        )
        words = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    assert "".join(words) == "Itsailsatnoon."
    offered = {tool["function"]["name"]: tool["function"] for tool in upstream.requests[0]["tools"]}
    assert offered["wiki_echo"]["description"] == "Says it again."
    assert set(offered) == {"web_search", "wiki_echo"}
    assert "You said:\n\nnoon" in upstream.requests[1]["messages"][-1]["content"]


async def test_a_secret_of_the_configuration_that_a_server_repeats_is_masked(upstream, sdk):
    calls = [("c1", "wiki_header", {}), ("c2", "files_environment", {})]
    upstream.replies = [whole(calls=calls), whole("Done.")]
    async with wiki_at() as url:
        env = "{WIKI_TOKEN: HOME, PAGER: PATH}"  # the server lists the names of its variables
        entries = f"""
  wiki: {{type: mcp, url: '{url}', headers: {{x-wiki-key: canary}}, allow: [header]}}
  files: {{type: mcp, command: [{sys.executable}, {SCRIPT}], env: {env}, allow: [environment]}}
"""
        async with proxy_of(upstream, more=entries) as proxy, sdk(proxy) as client:
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}])
    header, environment = (message["content"] for message in upstream.requests[1]["messages"][-2:])
    assert "[secret]" in header
    assert "canary" not in header
    assert " PATH " in environment
    assert "HOME" not in environment


async def test_an_entrys_name_chooses_all_its_tools_and_a_tools_name_that_one(upstream, sdk):
    upstream.replies = [whole("Hello.")]
    entries = (
        "clients:\n  - {name: a, key: client-key, tools: [wiki_fail, wiki_echo]}\n  - {name: b, key: b, tools: [wiki]}"
    )
    async with (
        wiki_at() as url,
        proxy_of(upstream, more=f"  wiki: {{type: mcp, url: '{url}', allow: [echo, fail]}}\n{entries}") as proxy,
    ):
        for key, header, names in [
            ("client-key", "all", {"wiki_echo", "wiki_fail"}),
            ("client-key", "wiki", {"wiki_echo", "wiki_fail"}),
            ("client-key", "wiki_echo", {"wiki_echo"}),
            ("b", "all", {"wiki_echo", "wiki_fail"}),
        ]:
            async with sdk(proxy, api_key=key, default_headers={"x-server-tools": header}) as client:
                await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}])
            assert {tool["function"]["name"] for tool in upstream.requests[-1]["tools"]} == names


async def test_a_server_that_is_down_costs_its_own_tools_only_and_readyz_says_so(upstream, sdk, logged):
    upstream.replies = [whole("Hello.")]
    more = f"  wiki: {{type: mcp, url: 'http://127.0.0.1:{free_port()}/mcp', headers: {{x-key: canary}}}}"
    async with proxy_of(upstream, more=more) as proxy, sdk(proxy) as client:
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}])
        async with httpx.AsyncClient() as http:
            ready = await http.get(f"{proxy}/readyz")
    assert ready.status_code == 200
    assert ready.json()["tools"] == [
        {"name": "web_search", "usable": True},
        {"name": "wiki", "usable": False, "why_not": "cannot be reached"},
    ]
    assert [tool["function"]["name"] for tool in upstream.requests[0]["tools"]] == ["web_search"]
    assert "canary" not in str(logged())
    assert {line["why"] for line in logged() if line["event"] == "mcp.lost"} == {"cannot be reached"}
