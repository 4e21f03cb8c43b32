"""Proxies over real sockets, and the vendors' SDKs in front of them, for `proxy.cases.player`."""

from contextlib import AsyncExitStack
from typing import Any, Self

import anthropic
import httpx
import httpx2
import openai
from anthropic.types import Message, RawMessageStreamEvent
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent

from proxy.cases.case_format import surface_of
from proxy.cases.expectations import Received
from proxy.cases.fake_servers import FakeServers
from proxy.cases.mounts import silence
from proxy.cases.played_tools import PlayedResults, played_tools
from proxy.cases.player import Player
from proxy.cases.settings import CLIENT_KEY, settings_of
from tests.serving import serving, serving_as_shipped

TYPES = {
    "chat": (ChatCompletion, openai.AsyncStream[ChatCompletionChunk]),
    "responses": (Response, openai.AsyncStream[ResponseStreamEvent]),
    "messages": (Message, anthropic.AsyncStream[RawMessageStreamEvent]),
}


class OverSdks:
    """The fake servers on loopback, and a proxy on a socket for each configuration. `start` is a `player.StartProxy`."""

    def __init__(self, servers: FakeServers, results: PlayedResults) -> None:
        self._servers = servers
        self._results = results
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        silence()
        self._url = await self._stack.enter_async_context(serving(self._servers, lifespan="off"))
        self._client = Sdks()
        await self._stack.enter_async_context(self._client)
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._stack.aclose()

    async def start(self, name: str, config: dict[str, Any], began_at: float) -> "_ProxyOverSdks":
        loaded = settings_of(config, self._url, name, is_closed=False)
        tools = [*played_tools(config.get("tools", {}), self._results)]
        address = await self._stack.enter_async_context(serving_as_shipped(loaded, tools=tools))
        return _ProxyOverSdks(address, self._client)


class _ProxyOverSdks:
    def __init__(self, address: str, client: "Sdks") -> None:
        self._address = address
        self._client = client

    async def send(self, request, state) -> Received:
        assert not state, "recorded cases are played without sockets"
        return await self._client.send(self._address, request)


class Sdks:
    """The vendors' SDKs, and the latest response as it came over the socket, whatever they make of it."""

    async def __aenter__(self) -> Self:
        self._stack = AsyncExitStack()
        self._http = await self._stack.enter_async_context(self._library(httpx))
        second = await self._stack.enter_async_context(self._library(httpx2))  # the anthropic SDK wants this one
        self._sdks: dict[str, Any] = {
            "messages": anthropic.AsyncAnthropic(api_key=CLIENT_KEY, max_retries=0, http_client=second),
            "chat": openai.AsyncOpenAI(api_key=CLIENT_KEY, max_retries=0, http_client=self._http),
        }
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._stack.aclose()

    def _library(self, library: Any) -> Any:
        # There is no TLS here, and reading the authorities would take longer than most tests.
        return library.AsyncClient(event_hooks={"response": [self._keep]}, timeout=30, verify=False)

    async def send(self, address: str, request: dict[str, Any]) -> Received:
        """Send a request, and read the answer to its end, with the vendor's SDK where it has one for the path."""
        failure = None
        try:
            await self._send(address + request["path"], request)
        except (openai.APIError, anthropic.APIError, ValueError) as exc:
            failure = repr(exc)
        return Received(self._response.status_code, self._response.headers, bytes(self._body), failure)

    async def _send(self, url: str, request: dict[str, Any]) -> None:
        surface = surface_of(request["path"])
        if request["method"] != "POST" or surface == "other":
            headers = {"authorization": f"Bearer {CLIENT_KEY}", **request["headers"]}
            response = await self._http.request(request["method"], url, headers=headers, json=request.get("body"))
            if response.status_code >= 400:
                raise openai.APIError("refused", response.request, body=None)
            return
        sdk = self._sdks.get(surface, self._sdks["chat"])
        whole, stream = TYPES[surface]
        options = {"headers": {"authorization": f"Bearer {CLIENT_KEY}", **request["headers"]}}
        if not request["body"].get("stream"):
            await sdk.post(url, body=request["body"], cast_to=whole, options=options)
            return
        events = await sdk.post(
            url, body=request["body"], cast_to=whole, options=options, stream=True, stream_cls=stream
        )
        async for _ in events:
            pass

    async def _keep(self, response: Any) -> None:
        self._response, self._body = response, bytearray()
        stream, kept = response.stream, self._body

        class Kept(type(stream)):
            def __init__(self) -> None: ...

            async def __aiter__(self):
                async for part in stream:
                    kept.extend(part)
                    yield part

            async def aclose(self) -> None:
                await stream.aclose()

        response.stream = Kept()


class SdkPlayer:
    """A player with SDKs; what differs is an `AssertionError`."""

    async def __aenter__(self) -> Self:
        self.servers = FakeServers()
        results = PlayedResults()
        self._mount = OverSdks(self.servers, results)
        await self._mount.__aenter__()
        self._player = Player(self._mount.start, self.servers, results)
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._mount.__aexit__(*failure)

    async def play(self, play) -> None:
        if differences := await self._player.play(play):
            raise AssertionError("\n".join(map(str, differences)))
