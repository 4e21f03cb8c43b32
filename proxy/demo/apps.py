"""The apps of `toolproxy demo`: the SDKs of OpenAI and Anthropic, or plain HTTP where these are not installed.

Both send the same requests, and give what they receive as the JSON of the API.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

import httpx
import msgspec

from proxy.wire.chat import Json

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from openai import AsyncOpenAI

_SECONDS: Final = 60
_KEY: Final = "unused"


class App(Protocol):
    """An app that asks a model through the proxy."""

    name: str
    """What it is, in a few words."""

    def stream_chat(self, request: Json) -> AsyncIterator[Json]:
        """The chunks of a streamed chat completion."""
        ...

    async def create_chat(self, request: Json) -> Json:
        """A whole chat completion."""
        ...

    def stream_message(self, request: Json) -> AsyncIterator[Json]:
        """The events of a streamed message of the Messages API."""
        ...


@asynccontextmanager
async def app_for(proxy_url: str) -> AsyncIterator[App]:
    """The app for a proxy: real SDKs, or plain HTTP if one of them is missing."""
    try:
        import anthropic  # noqa: PLC0415 - an extra of the package
        import openai  # noqa: PLC0415
    except ImportError:
        async with httpx.AsyncClient(base_url=proxy_url, timeout=_SECONDS, trust_env=False) as client:
            yield PlainHttp(client)
    else:
        async with (
            openai.AsyncOpenAI(base_url=f"{proxy_url}/v1", api_key=_KEY, max_retries=0) as chat,
            anthropic.AsyncAnthropic(base_url=proxy_url, api_key=_KEY, max_retries=0) as messages,
        ):
            yield SdkApp(chat, messages)


class SdkApp:
    """The real SDKs.

    Args:
        chat: the client of OpenAI's SDK.
        messages: the client of Anthropic's.
    """

    name = "real SDKs"

    def __init__(self, chat: "AsyncOpenAI", messages: "AsyncAnthropic") -> None:
        self._chat: Any = chat  # its types name every field of every request
        self._messages: Any = messages

    async def stream_chat(self, request: Json) -> AsyncIterator[Json]:
        """The chunks of a streamed chat completion."""
        async for chunk in await self._chat.chat.completions.create(**request, stream=True):
            yield chunk.model_dump(exclude_none=True)

    async def create_chat(self, request: Json) -> Json:
        """A whole chat completion."""
        completion: Json = (await self._chat.chat.completions.create(**request)).model_dump(exclude_none=True)
        return completion

    async def stream_message(self, request: Json) -> AsyncIterator[Json]:
        """The events of a streamed message of the Messages API."""
        async for event in await self._messages.messages.create(**request, stream=True):
            yield event.model_dump(exclude_none=True)


class PlainHttp:
    """Requests of HTTP alone.

    Args:
        client: sends them; its `base_url` is the proxy's.
    """

    name = "plain HTTP"

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def stream_chat(self, request: Json) -> AsyncIterator[Json]:
        """The chunks of a streamed chat completion."""
        async for event in self._events("/v1/chat/completions", request):
            yield event

    async def create_chat(self, request: Json) -> Json:
        """A whole chat completion."""
        response = await self._client.post("/v1/chat/completions", json=request)
        response.raise_for_status()
        return msgspec.json.decode(response.content, type=dict[str, Any])

    async def stream_message(self, request: Json) -> AsyncIterator[Json]:
        """The events of a streamed message of the Messages API."""
        async for event in self._events("/v1/messages", request):
            yield event

    async def _events(self, path: str, request: Json) -> AsyncIterator[Json]:
        async with self._client.stream("POST", path, json={**request, "stream": True}) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    yield msgspec.json.decode(line.removeprefix("data: "), type=dict[str, Any])
