"""What a client may not use it can neither find, see named nor call, whichever way it goes: random permissions."""

import random
import re
import sys
import types
from contextlib import asynccontextmanager

import orjson
import pytest
from httpx import AsyncClient
from mcp_types import Tool as McpTool

from proxy.loop.results import ToolOutput
from proxy.tools.tool import Tool
from tests.fakes import whole
from tests.mcp_server import OBJECT, Wiki, text
from tests.serving import proxy_of
from tests.tools.mcp.test_client import wiki_at

NAMES = ["web_search", *(f"file_{word}" for word in ("weather", "route", "hotel")), "spare"]
SERVERS = {group: [f"{group}_{word}" for word in ("open", "close", "merge")] for group in ("forge", "shop")}
EVERY = [*NAMES, *SERVERS["forge"], *SERVERS["shop"]]
MODES = ["always", "declared", "on_request", "never"]
CLIENTS = 6
NAME = re.compile(rf"\b(?:{'|'.join(EVERY)})\b")
CONFIG = """
server: {{mcp: true}}
upstreams: {{up: {{base_url: '{upstream}/v1', api_key: k1234567}}}}
limits: {{max_tool_calls: 99, max_turns: 5, guidance: false}}
{more}
"""


def json(value):
    return orjson.dumps(value).decode()


class Server(Wiki):
    """An MCP server whose tools note that they ran."""

    def __init__(self, group, ran):
        words = [name.removeprefix(f"{group}_") for name in SERVERS[group]]
        super().__init__(
            [McpTool(name=word, description=f"Does {word} and everything.", input_schema=OBJECT) for word in words]
        )
        self.group, self.ran = group, ran

    async def call(self, _, params):
        self.ran.append(f"{self.group}_{params.name}")
        return text("found")


class World:
    """A proxy with tools of random modes, and clients with random permissions, which are known here as plain sets."""

    def __init__(self, seed):
        draw = random.Random(seed)
        self.modes = {name: draw.choices(MODES, [5, 2, 2, 2])[0] for name in [*NAMES, *SERVERS]}
        self.model_tools = draw.choice([None, draw.sample([*NAMES, "forge"], 4)])
        choices = [*NAMES, "forge", "shop", *SERVERS["shop"]]
        self.clients = {f"c{n}": draw.choice([None, draw.sample(choices, draw.randint(0, 6))]) for n in range(CLIENTS)}
        self.above = draw.choice([1, 2, 4])
        self.ran = []
        self.searched = 0

    def mode_of(self, name):
        return self.modes.get(name) or self.modes[name.split("_")[0]]

    def permitted(self, client):
        """The tools that a client may use by itself, and those that it may use with the model."""
        own = {name for name in EVERY if _is_among(name, self.clients[client])}
        return own, {name for name in own if _is_among(name, self.model_tools)}

    def tool(self, name):
        async def run(_):
            self.ran.append(name)
            return ToolOutput("found", {f"https://{name}.example/": name})

        return Tool(name=name, description=f"Does {name} and everything.", parameters=OBJECT, run=run)

    @asynccontextmanager
    async def served(self, upstream, monkeypatch):
        module = types.SimpleNamespace(**{name: self.tool(name) for name in NAMES})
        monkeypatch.setitem(sys.modules, "doors_of_the_test", module)
        python = {"type": "python"}
        tools = {name: {**python, "function": f"doors_of_the_test:{name}", "offer": self.modes[name]} for name in NAMES}
        clients = [
            {"name": name, "key": f"key-of-{name}", **({} if allowed is None else {"tools": allowed})}
            for name, allowed in self.clients.items()
        ]
        async with wiki_at(Server("forge", self.ran)) as forge, wiki_at(Server("shop", self.ran)) as shop:
            for name, url in (("forge", forge), ("shop", shop)):
                tools[name] = {"type": "mcp", "url": url, "offer": self.modes[name]}
            more = (
                f"offer: {{search_above: {self.above}}}\nmodels: {{m: {{upstream: up, tools: {json(self.model_tools)}}}}}\n"
                f"tools: {json(tools)}\nclients: {json(clients)}\n"
            )
            async with proxy_of(upstream, config=CONFIG, more=more) as url, AsyncClient(base_url=url) as http:
                yield http


def _is_among(name, allowed):
    return allowed is None or name in allowed or name.split("_")[0] in {*allowed} & {*SERVERS}


def told(upstream):
    return [m["content"] for m in upstream.requests[-1]["messages"] if m["role"] == "tool"]


def key(client):
    return {"authorization": f"Bearer key-of-{client}", "accept": "application/json"}


@pytest.mark.parametrize("seed", [0, 2, 5])
async def test_what_a_client_may_not_use_it_can_neither_find_see_named_nor_call(upstream, monkeypatch, seed):
    world = World(seed)
    async with world.served(upstream, monkeypatch) as http:
        for client in world.clients:
            own, with_model = world.permitted(client)
            modes = {name: world.mode_of(name) for name in EVERY}
            await check_chat(
                world, upstream, http, client, {name for name in with_model if modes[name] == "always"}, {}
            )
            selected = {name for name in with_model if modes[name] != "never"}
            await check_chat(world, upstream, http, client, selected, {"x-server-tools": "all"})
            listed = {name for name in own if modes[name] != "never"}
            await check_mcp(world, http, client, listed)
            await check_search(world, http, client, may="web_search" in listed)
    assert world.searched


async def check_chat(world, upstream, http, client, in_play, headers):
    """A model looks for everything, and calls every tool by either name."""
    searches = [
        (f"f{n}", "find_tools", {"query": query}) for n, query in enumerate(("everything", "forge", "zzz", "spare"))
    ]
    calls = [(f"c{n}", "call_tool", {"name": name}) for n, name in enumerate([*EVERY, "forge_opne"])]
    named = [(f"n{n}", name, {"x": 1}) for n, name in enumerate(EVERY)]
    upstream.restart([whole(calls=searches), whole(calls=calls), whole(calls=named), whole("Done")])
    world.ran.clear()
    asked = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    answer = await http.post("/v1/chat/completions", json=asked, headers={**key(client), **headers})
    assert answer.status_code == 200
    described = [tool["function"] for tool in upstream.requests[0].get("tools", ())]
    is_searched = "find_tools" in [tool["name"] for tool in described]
    assert is_searched == (len(in_play) > world.above and not in_play <= described_at_most(world, in_play))
    world.searched += is_searched
    if not in_play:
        return
    seen = NAME.findall(orjson.dumps(described).decode())
    for content in told(upstream):
        seen += NAME.findall(re.sub(r"no tool named '[^']*'", "", content))
    assert {*seen} <= in_play, client
    if is_searched:
        assert sorted(world.ran) == sorted([*in_play] * 2)
    else:
        assert {*world.ran} == in_play


def described_at_most(world, in_play):
    first = [name for name in NAMES if name in in_play][: world.above]
    return {*first}


async def check_mcp(world, http, client, own):
    async def message(method, **params):
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return (await http.post("/mcp", json=body, headers=key(client))).json()

    listed = await message("tools/list")
    assert {tool["name"] for tool in listed["result"]["tools"]} == own
    world.ran.clear()
    for name in EVERY:
        answer = await message("tools/call", name=name, arguments={})
        assert ("result" in answer) == (name in own)
        assert {*NAME.findall(orjson.dumps(answer).decode().replace(name, ""))} <= own
    assert {*world.ran} == own


async def check_search(world, http, client, *, may):
    world.ran.clear()
    answer = await http.post("/v1/search", json={"query": "x"}, headers=key(client))
    assert answer.status_code == (200 if may else 404)
    assert world.ran == ["web_search"] * may
