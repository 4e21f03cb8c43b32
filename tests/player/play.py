"""Plays a case: the proxy as it is shipped, over real sockets, between the world of the case and the vendors' SDKs."""

import asyncio
import io
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import anthropic
import httpx
import httpx2
import openai
import orjson
import structlog
from anthropic.types import Message, RawMessageStreamEvent
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent

from proxy.app.configuration import parse
from proxy.config.model import TelemetryConfig
from proxy.telemetry import log
from tests.player import requests
from tests.player.answers import Answer, fold
from tests.player.case import Play, surface_of
from tests.player.expectations import Outcome, check, check_same_as_recorded, expected
from tests.player.world import World
from tests.serving import serving, serving_as_shipped

DEFAULTS = {
    "upstreams": {"up": {}},
    "models": {"m": {"upstream": "up", "model": "up-m"}},
    "tools": {"web_search": {"type": "serper"}, "current_time": {"type": "clock", "offer": "on_request"}},
    "offer": {"mode": "always"},
}
_TYPES = {
    "chat": (ChatCompletion, openai.AsyncStream[ChatCompletionChunk]),
    "responses": (Response, openai.AsyncStream[ResponseStreamEvent]),
    "messages": (Message, anthropic.AsyncStream[RawMessageStreamEvent]),
}
_OPAQUE = {"id", "created", "created_at", "completed_at", "call_id", "tool_use_id", "encrypted_content", "encrypted_index", "signature"}  # fmt: skip


class Player:
    """The world, and a proxy for each configuration that a case brings; cases of one configuration share theirs."""

    def __init__(self) -> None:
        self.world = World()
        self._names: dict[str, str] = {}  # of proxies, by their configurations
        self._addresses: dict[str, str] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        log.configure(TelemetryConfig(log_level="error"), stream=io.StringIO())
        self._stack.callback(structlog.reset_defaults)
        self._url = await self._stack.enter_async_context(serving(self.world, lifespan="off"))
        self._wire = _Wire()
        self._http = await self._stack.enter_async_context(self._wire.client(httpx))
        second = await self._stack.enter_async_context(self._wire.client(httpx2))
        self._sdks = {
            "messages": anthropic.AsyncAnthropic(api_key="key", max_retries=0, http_client=second),
            "chat": openai.AsyncOpenAI(api_key="key", max_retries=0, http_client=self._http),
        }
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._stack.aclose()

    async def play(self, play: Play) -> None:
        """Raises `AssertionError` with the first thing that does not hold."""
        config = orjson.dumps(play.case.get("config", {}), option=orjson.OPT_SORT_KEYS).decode()
        if '"mcp"' in config:  # its sessions and its failures are the proxy's state
            config += play.name
        proxy = self._names.setdefault(config, f"proxy-{len(self._names)}")
        self.world.start(play.case, proxy)
        address = await self._address(proxy, play.case.get("config", {}))
        if play.mode != "fold":
            await self._conversation(play, address, stream=play.mode == "stream")
            return
        whole = await self._conversation(play, address, stream=False)
        streamed = await self._conversation(play, address, stream=True)
        for one, other in zip(_comparable(streamed), _comparable(whole), strict=True):
            for key in other:
                assert one[key] == other[key], f"{key}: streamed {one[key]}, whole {other[key]}"

    async def _conversation(self, play: Play, address: str, *, stream: bool) -> list[Any]:
        before: requests.Request | None = None
        answer, items = Answer(), []
        for number, exchange in enumerate(play.case["exchanges"], 1):
            await self._between(exchange)
            ask = {**exchange.get("ask", {})}
            ask |= ask.get("on", {}).get(play.surface, {})
            if "request" in exchange:
                request = {"method": "POST", "headers": {}, **exchange["request"]}
                request = request if play.mode == "as_asked" else requests.again(request, stream=stream)
            elif before is None:
                request = requests.first(ask, play.surface, stream=stream)
            elif {"results", "text"} & ask.keys():
                request = requests.later(before, answer, ask, play.surface)
            else:
                request = requests.again(before, stream=stream)
            self.world.begin(exchange)
            try:
                outcome = await self._exchange(address, request, play.surface)
                if "got" in exchange:
                    check_same_as_recorded(exchange["got"], outcome)
                else:
                    check(expected(play.case, exchange, play.surface), outcome)
            except AssertionError as exc:
                exc.add_note(f"in exchange {number}{': ' * ('title' in exchange)}{exchange.get('title', '')}")
                raise
            before, answer = request, outcome.answer
            items.append(answer.items)
        return items

    async def _between(self, exchange: dict[str, Any]) -> None:
        """What happens before an exchange: a while passes, an MCP server loses its sessions."""
        if "forget" in exchange:
            self.world.mcp[exchange["forget"]].forget()
        if "wait" in exchange:
            await asyncio.sleep(exchange["wait"])

    async def _exchange(self, address: str, request: requests.Request, surface: str) -> Outcome:
        streamed = bool((request.get("body") or {}).get("stream"))
        started = time.monotonic()
        failure = None
        try:
            await self._send(address + request["path"], request, streamed=streamed)
        except (openai.APIError, anthropic.APIError, ValueError) as exc:
            failure = repr(exc)
        seconds = time.monotonic() - started
        wire = self._wire
        as_stream = wire.headers["content-type"].startswith("text/event-stream")
        assert as_stream or wire.status >= 400 or not streamed, f"no stream: {wire.headers['content-type']}"
        answer = fold(bytes(wire.body), surface, streamed=as_stream)
        return Outcome(
            surface,
            streamed,
            request,
            wire.status,
            wire.headers,
            bytes(wire.body),
            answer,
            self.world,
            seconds,
            failure,
        )

    async def _send(self, url: str, request: requests.Request, *, streamed: bool) -> None:
        """Send the request and read the answer to its end, with the vendor's SDK where it has one for the path."""
        surface = surface_of(request["path"])
        headers = request["headers"]
        if request["method"] != "POST" or request["path"].rsplit("/", 1)[-1] not in {
            "completions",
            "responses",
            "messages",
        }:
            response = await self._http.request(request["method"], url, headers=headers, json=request.get("body"))
            if response.status_code >= 400:
                raise openai.APIError("refused", response.request, body=None)
            return
        sdk: Any = self._sdks.get(surface, self._sdks["chat"])
        whole, stream = _TYPES[surface]
        options = {"headers": headers}
        if not streamed:
            await sdk.post(url, body=request["body"], cast_to=whole, options=options)
            return
        events = await sdk.post(
            url, body=request["body"], cast_to=whole, options=options, stream=True, stream_cls=stream
        )
        async for _ in events:
            pass

    async def _address(self, proxy: str, config: dict[str, Any]) -> str:
        """The address of a proxy, which is started where it is not running yet."""
        if proxy not in self._addresses:
            settings = orjson.dumps(configuration(config, self._url, proxy)).decode()
            app = serving_as_shipped(parse(settings, {}))
            self._addresses[proxy] = await self._stack.enter_async_context(app)
        return self._addresses[proxy]


def configuration(config: dict[str, Any], world: str, proxy: str) -> dict[str, Any]:
    """The proxy's configuration: only data is the case's, every address and command is the player's."""
    settings = {**DEFAULTS, **config}
    settings["upstreams"] = {
        name: {
            "retries": 0,
            "breaker": {"failures": 1_000_000},
            **upstream,
            "base_url": f"{world}/{name}/v1",
            "api_key": "played-upstream",
        }
        for name, upstream in settings["upstreams"].items()
    }
    settings["tools"] = {name: _tool(name, tool, world, proxy) for name, tool in settings["tools"].items()}
    return settings


def _tool(name: str, tool: dict[str, Any], world: str, proxy: str) -> dict[str, Any]:
    match tool["type"]:
        case "serper":
            return {"cache_seconds": 0, **tool, "api_key": "played-search", "base_url": world}
        case "http":
            return {**tool, "url": f"{world}/tool/{name}/{tool.get('url', '')}"}
        case "mcp":
            server = {key: value for key, value in tool.items() if key not in {"lists", "ends"}}
            if "ends" in tool:
                script = str(Path(__file__).with_name("mcp_server.py"))
                return {**server, "command": [sys.executable, script, str(tool["ends"])]}
            return {**server, "url": f"{world}/mcp/{proxy}/{name}"}
    return tool


def _comparable(value: Any) -> Any:
    """Items or blocks without what differs between two answers: ids and times; of opaque text, whether it is there."""
    if isinstance(value, list):
        return [_comparable(one) for one in value]
    if isinstance(value, dict):
        return {key: bool(one) if key in _OPAQUE else _comparable(one) for key, one in value.items()}
    return value


class _Wire:
    """The latest response as it came over the socket, whatever the SDK makes of it."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Any = {}
        self.body = bytearray()

    def client(self, library: Any) -> Any:
        """An HTTP client of httpx, or of httpx2, which the anthropic SDK wants."""
        return library.AsyncClient(event_hooks={"response": [self._keep]}, timeout=30)

    async def _keep(self, response: Any) -> None:
        self.status, self.headers, self.body = response.status_code, response.headers, bytearray()
        stream, kept = response.stream, self.body

        class Kept(type(stream)):
            def __init__(self) -> None: ...

            async def __aiter__(self):
                async for part in stream:
                    kept.extend(part)
                    yield part

            async def aclose(self) -> None:
                await stream.aclose()

        response.stream = Kept()
