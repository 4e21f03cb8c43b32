"""Random conversations with a proxy that records them: tools, mixed turns, failures, cuts, retries, fallbacks, searches, MCP."""

import asyncio
import random
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import orjson

from proxy.app.configuration import parse
from proxy.cases import requests
from proxy.cases.answers import Answer, ExpectationFailed, fold
from proxy.cases.mcp_server import McpPlayer
from proxy.cases.turns import pieces, whole, written
from tests.serving import serving, serving_as_shipped

SURFACES = ("chat", "responses", "messages")
CONFIG = """
server: {{keepalive_seconds: 0.05}}
upstreams:
  first: {{base_url: "{world}/first/v1", api_key: Kq8d7Fh2mZ, profile: {profile}, retries: 1, timeouts: {{read: 0.25}}}}
  second: {{base_url: "{world}/second/v1", api_key: Vt9sKq21wB, profile: openai, retries: 0, timeouts: {{read: 0.25}}}}
  gone: {{base_url: "http://127.0.0.1:9/v1", api_key: Rj77ShGqLp, retries: 0}}
models:
  m: {{upstream: first, model: m-at-first, fallbacks: [n]}}
  n: {{upstream: second}}
  away: {{upstream: gone, fallbacks: [n]}}
tools:
  web_search: {{type: serper, api_key: Zx81bNvCe4, base_url: "{world}", aliases: [search], retries: 0, cache_seconds: 60, fallback: spare}}
  spare: {{type: serper, api_key: Qm42xYtUi0, base_url: "{world}/spare", offer: never, retries: 0}}
  weather: {{type: http, description: Weather., url: "{world}/tool/{{city}}", parameters: {{type: object, properties: {{city: {{type: string}}}}, required: [city]}}, timeout: 0.2, eager: false}}
  wiki: {{type: mcp, url: "{world}/mcp"}}
  current_time: {{type: clock}}
limits: {{max_turns: 4, max_tool_calls: 5}}
telemetry: {{log_content: true, log_level: error, metrics: false}}
"""  # fmt: skip
OWN = ["get_order", "get_user"]
WORDS = [
    "It",
    "rains",
    "in",
    "Nanaimo",
    "and",
    "the",
    "ferry",
    "sails",
    "on",
    "time,",
    "says",
    "https://p.example/1",
    "today;",
    "naïve",
    "café",
    "漢字",
    "emoji",
    "🎉",
]
NAMES = ["web_search", "search", "weather", "wiki_seek", "current_time", "never_heard_of"]
ARGUMENTS = {
    "web_search": [{"query": "zebra"}, {"q": "zebra"}, '{"query": "zebra"', "please", {"query": "fail"}, {"query": "slow"}],
    "weather": [{"city": "Nanaimo"}, {"city": 5}, {}, {"city": "fail"}, {"city": "slow"}],
    "current_time": [{}, {"timezone": "Europe/Berlin"}, {"timezone": "Nowhere"}],
}  # fmt: skip


class RandomWorld:
    """Upstreams, search, HTTP and MCP tools that do anything that they might do."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.mcp = McpPlayer()

    async def __call__(self, scope, receive, send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        path = scope["path"]
        if path.startswith("/mcp"):
            status, headers, answer = self.mcp.over_http(scope, body, self._mcp)
            await reply(send, status, answer, headers)
        elif path.endswith("/search"):
            await self._search(send, orjson.loads(body)["q"])
        elif path.startswith("/tool"):
            await self._tool(send, path.rsplit("/", 1)[-1])
        else:
            await self._answer(send, orjson.loads(body))

    def _mcp(self, name, arguments):
        return {"content": [{"type": "text", "text": f"{name} {arguments}"}], "isError": self.dice.random() < 0.2}

    async def _search(self, send, query) -> None:
        if "fail" in query:
            await reply(send, 500, b"{}")
            return
        await asyncio.sleep(0.02 if "slow" in query else 0)
        pages = [{"title": f"Page {n}", "link": f"https://p.example/{n}", "snippet": f"About {query}."} for n in (1, 2)]
        await reply(send, 200, orjson.dumps({"organic": pages}))

    async def _tool(self, send, city) -> None:
        await asyncio.sleep(5 if city == "slow" else 0)
        await reply(send, 404 if city == "fail" else 200, b"It rains.", [(b"content-type", b"text/plain")])

    async def _answer(self, send, request) -> None:
        dice, streamed = self.dice, bool(request.get("stream"))
        fate = dice.random()
        if fate < 0.05:
            await reply(send, dice.choice([500, 503]), b'{"error": {"message": "busy"}}', [(b"content-type", b"application/json"), (b"retry-after", b"0")])  # fmt: skip
            return
        if fate < 0.09:
            await reply(send, dice.choice([400, 401, 404, 429, 422]), b'{"error": {"message": "no", "code": "no"}}')
            return
        if fate < 0.11:
            await reply(send, 200, b"<html>not JSON</html>")
            return
        turn = self._turn(request)
        if not streamed:
            await asyncio.sleep(0.6 if fate > 0.98 else 0)
            await reply(send, 200, orjson.dumps(whole(turn, request["model"])))
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        data = b"".join(written(piece, request["model"]) for piece in pieces(turn))
        at, stops = 0, len(data) if fate < 0.93 else dice.randrange(len(data))
        while at < stops:
            size = dice.choice([1, 7, 40, 200, 1000]) if dice.random() < 0.4 else 300
            await send({"type": "http.response.body", "body": data[at : min(at + size, stops)], "more_body": True})
            at += size
            if dice.random() < 0.1:
                await asyncio.sleep(dice.random() * 0.01)
        if stops < len(data):
            await asyncio.sleep(0.6 if dice.random() < 0.3 else 0)  # silent for too long, or cut off
            return
        await send({"type": "http.response.body", "body": b""})

    def _turn(self, request) -> dict[str, Any]:
        dice = self.dice
        turn: dict[str, Any] = {
            "usage": {"prompt_tokens": dice.randrange(99), "completion_tokens": 5, "total_tokens": 9}
        }
        if dice.random() < 0.4:
            turn["reasoning"] = " ".join(dice.choices(WORDS, k=dice.randrange(1, 9)))
        if dice.random() < 0.8:
            turn["text"] = " ".join(dice.choices(WORDS, k=dice.randrange(12)))
        if dice.random() < 0.08:
            turn["text"] = "<tool_call>web_search<arg_key>query</arg_key><arg_value>leak</arg_value></tool_call>"
        offered = [tool["function"]["name"] for tool in request.get("tools") or () if tool.get("type") == "function"]
        said = sum(message["role"] == "assistant" for message in request["messages"])
        if offered and dice.random() < (0.7 if said < 4 else 0.3):
            names = [dice.choice([*NAMES, *offered, *(one for one in offered if one in OWN)]) for _ in range(dice.randint(1, 3))]  # fmt: skip
            turn["calls"] = [self._call(name) for name in names]
        if dice.random() < 0.06:
            turn["finish_reason"] = dice.choice(["length", "content_filter", "odd"])
        return turn

    def _call(self, name) -> dict[str, Any]:
        dice = self.dice
        arguments = dice.choice(ARGUMENTS.get("web_search" if name == "search" else name, [{"id": 1}, {"id": 2}]))
        call: dict[str, Any] = {"name": name, "arguments": arguments}
        if dice.random() < 0.9:
            call["id"] = f"call_{dice.randrange(3)}"
        if dice.random() < 0.5:
            call["characters"] = dice.choice([1, 4, 9])
        return call


async def reply(send, status, body, headers=((b"content-type", b"application/json"),)) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body})


def opening(dice, surface, *, stream) -> dict[str, Any]:
    """The first request of a conversation."""
    ask: dict[str, Any] = {"text": "How is it in Nanaimo?", "model": dice.choice(["m", "m", "m", "n", "away"])}
    if dice.random() < 0.6:
        ask["functions"] = OWN
    ask["search"] = True if dice.random() < 0.4 else None
    headers = {"x-tool-events": "true"} if dice.random() < 0.3 else {}
    if dice.random() < 0.15:
        headers["x-server-tools"] = dice.choice(["none", "all", "web_search,nothing"])
    ask["headers"] = headers
    body: dict[str, Any] = {}
    if surface == "chat" and dice.random() < 0.15:
        body["n"] = 2
    if surface == "chat" and stream and dice.random() < 0.5:
        body["stream_options"] = {"include_usage": True}
    if surface == "responses" and dice.random() < 0.5:
        body |= {"include": ["reasoning.encrypted_content", "web_search_call.action.sources"]}
    ask["body"] = body
    kind = dice.choice(["messages", "messages-thinking"]) if surface == "messages" else dice.choice(["responses", "responses-id"]) if surface == "responses" else "chat"  # fmt: skip
    return {"ask": ask, "kind": kind}


async def record(folder: Path, surface: str, count: int, *, seed: int) -> list[str]:
    """Have so many conversations with a proxy, and write the case of each request to the folder."""
    dice = random.Random(f"{surface} {seed}")
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(serving(RandomWorld(dice), lifespan="off"))
        config = CONFIG.format(world=world, profile=dice.choice(["openai", "glm", "gpt_oss"]))
        url = await stack.enter_async_context(serving_as_shipped(parse(config, {})))
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=30))
        names = []
        for number in range(count):
            names += await converse(client, url, dice, surface, f"{surface}-{seed}-{number}", folder)
    return names


async def converse(client, url, dice, surface, name, folder) -> list[str]:
    stream = dice.random() < 0.6
    told = opening(dice, surface, stream=stream)
    request = requests.first(told["ask"], told["kind"], stream=stream)
    names = []
    for step in range(dice.randint(1, 3)):
        request_id = f"{name}-{step}"
        answer = await ask(client, url, dice, request, request_id, told["kind"])
        case = await client.get(f"{url}/debug/requests/{request_id}/case")
        assert case.status_code == 200, case.text
        (folder / f"{request_id}.json").write_bytes(case.content)
        names.append(request_id)
        if answer is None or answer.error or answer.finish is None:
            break
        more = {"results": [f"result {n}" for n in range(len(answer.calls))]} if answer.calls else {"text": "And then?"}
        if told["kind"] == "responses-id" and answer.response_id is None:
            break
        request = requests.later(request, answer, more, told["kind"])
    return names


async def ask(client, url, dice, request, request_id, kind) -> Answer | None:
    headers = {**request["headers"], "x-request-id": request_id}
    body = bytearray()
    leaves = dice.random() < 0.05
    async with client.stream("POST", url + request["path"], json=request["body"], headers=headers) as response:
        async for part in response.aiter_raw():
            body += part
            if leaves:
                return None
    try:
        return fold(bytes(body), kind, streamed=response.headers["content-type"].startswith("text/event-stream"))
    except (ExpectationFailed, KeyError):
        return None
