"""What stands around the proxy while a case is played: its upstreams, its search, its HTTP and MCP tools.

All are one ASGI application, which the case's exchange tells what to answer, and which remembers what it was asked.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from tests.player import turns
from tests.player.mcp_server import McpPlayer
from tests.player.strict import refusals


@dataclass
class Asked:
    """A request to an upstream."""

    upstream: str
    body: bytes
    request: dict[str, Any]


@dataclass
class World:
    """The servers of a case. Between two exchanges `begin` gives them their next answers and empties their journals."""

    asked: list[Asked] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    searches: list[str] = field(default_factory=list)
    received: list[Any] = field(default_factory=list)
    mcp: dict[str, McpPlayer] = field(default_factory=dict)
    _servers: dict[str, dict[str, McpPlayer]] = field(default_factory=dict)
    _strict: list[str] = field(default_factory=list)
    _given: list[dict[str, Any]] = field(default_factory=list)
    _answers: dict[str, list[Any]] = field(default_factory=dict)
    _results: list[dict[str, Any]] = field(default_factory=list)

    def start(self, case: dict[str, Any], proxy: str) -> None:
        """A new case, played by the proxy of that name: nothing has been given yet that would have to come back."""
        self._strict, self._given = case.get("strict", []), []
        servers = {
            name: McpPlayer(tool.get("lists"))
            for name, tool in case.get("config", {}).get("tools", {}).items()
            if tool["type"] == "mcp"
        }
        self.mcp = self._servers.setdefault(proxy, servers)

    def begin(self, exchange: dict[str, Any]) -> None:
        answers = exchange.get("upstream", [{"text": "FINAL answer."}])
        self._answers = (
            {name: list(given) for name, given in answers.items()} if isinstance(answers, dict) else {"up": [*answers]}
        )
        self._results = list(exchange.get("tools", ()))
        self._given += [turn for given in self._answers.values() for turn in _turns(given) if turn.get("calls")]
        for journal in (self.asked, self.refused, self.searches, self.received):
            journal.clear()
        for player in self.mcp.values():
            player.sessions_opened = 0

    async def __call__(self, scope, receive, send) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        kind, _, rest = scope["path"].strip("/").partition("/")
        if kind == "search":
            await _reply(send, 200, orjson.dumps(self._search(orjson.loads(body)["q"])))
        elif kind == "tool":
            name = rest.split("/")[0]
            self.received.append(orjson.loads(body) if body else {})
            await self._result(send, name, {"received": self.received[-1]})
        elif kind == "mcp":
            proxy, name = rest.split("/")
            player = self._servers[proxy][name]
            status, headers, answer = player.over_http(scope, body, self._mcp_result)
            await _reply(send, status, answer, headers)
        else:
            await self._upstream(send, kind, body)

    def _search(self, query: str) -> dict[str, Any]:
        self.searches.append(query)
        found = next((result for result in self._results if result["name"] == "web_search"), None)
        if found is not None:
            self._results.remove(found)
            return found["body"]
        pages = [
            {"title": f"Page {n}", "link": f"https://p.example/{n}", "snippet": f"FACT-{n}: {query}"} for n in (1, 2)
        ]
        return {"organic": pages}

    async def _result(self, send, name: str, otherwise: Any) -> None:
        found = next((result for result in self._results if result["name"] == name), {"body": otherwise})
        if "text" in found:
            text = found["text"] * found.get("times", 1)
            await _reply(send, found.get("status", 200), text.encode(), [(b"content-type", b"text/plain")])
        else:
            await _reply(send, found.get("status", 200), orjson.dumps(found.get("body")))

    def _mcp_result(self, name: str, arguments: Any) -> dict[str, Any]:
        self.received.append(arguments)
        return {"content": [{"type": "text", "text": f"{name} received {orjson.dumps(arguments).decode()}"}]}

    async def _upstream(self, send, name: str, body: bytes) -> None:
        request = orjson.loads(body)
        self.asked.append(Asked(name, body, request))
        faults = [*refusals(request, strict=self._strict, given=self._given)]
        self.refused += faults
        if faults:
            refusal = {"error": {"message": faults[0], "type": "invalid_request_error", "param": None, "code": None}}
            await _reply(send, 400, orjson.dumps(refusal))
            return
        await give(send, self._next(name, len(body)), request)

    def _next(self, name: str, size: int) -> dict[str, Any]:
        answers = self._answers.get(name, [])
        for answer in answers:
            if size > answer.get("refuse_over", size):
                return answer
        scripted = [answer for answer in answers if "refuse_over" not in answer]
        if not scripted:
            return {"status": 500, "body": {"error": {"message": f"The case has no answer of {name}."}}}
        if len(scripted) > 1:
            answers.remove(scripted[0])
        return scripted[0]


async def give(send, answer: dict[str, Any], request: dict[str, Any]) -> None:
    """Send an upstream's answer: a turn in short, or status, headers and pieces as they were recorded."""
    streamed = request.get("stream") is True
    if "by_stream" in answer:
        answer = answer["by_stream"]["stream" if streamed else "whole"]
    model = str(request.get("model"))
    if {"body", "raw", "pieces"} & answer.keys():
        parts, kind = answer.get("pieces", ()), "text/event-stream" if "pieces" in answer else "application/json"
        if "pieces" not in answer:
            parts = [orjson.dumps(answer["body"]).decode() if "body" in answer else answer["raw"]]
    elif answer.get("form", "stream" if streamed else "whole") == "stream":
        parts, kind = turns.pieces(answer), "text/event-stream"
    else:
        parts, kind = [orjson.dumps(turns.whole(answer, model)).decode()], "application/json"
    headers = {"content-type": kind, **answer.get("headers", {})}
    await asyncio.sleep(answer.get("delay", 0))
    lines = [(key.encode(), value.encode()) for key, value in headers.items() if value is not None]
    await send({"type": "http.response.start", "status": answer.get("status", 200), "headers": lines})
    for part in parts:
        if isinstance(part, int | float):
            await asyncio.sleep(part)
        else:
            await send({"type": "http.response.body", "body": turns.written(part, model), "more_body": True})
            await asyncio.sleep(answer.get("pace", 0))
    if not answer.get("cut"):
        await send({"type": "http.response.body", "body": b""})


def _turns(answers: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for answer in answers:
        yield from (answer["by_stream"]["whole"],) if "by_stream" in answer else (answer,)


async def _reply(send, status: int, body: bytes, headers=((b"content-type", b"application/json"),)) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body})
