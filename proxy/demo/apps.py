"""The apps of `toolproxy demo`: the SDKs of OpenAI and Anthropic, or plain HTTP where these are not installed.

Both send the same requests, and give what they receive as the JSON of the API.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

import httpx
import msgspec

from proxy.wire.chat import Json

CHAT: Final = "/v1/chat/completions"
MESSAGES: Final = "/v1/messages"
_SECONDS: Final = 60
_KEY: Final = "unused"


class App(Protocol):
    """An app that asks a model through the proxy."""

    name: str
    """The app in a few words."""

    def stream(self, path: str, request: Json) -> AsyncIterator[Json]:
        """The chunks or events of a streamed answer."""
        ...

    async def create(self, path: str, request: Json) -> Json:
        """A whole answer."""
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
            yield SdkApp({CHAT: chat.chat.completions.create, MESSAGES: messages.messages.create})


class SdkApp:
    """The real SDKs.

    Args:
        create: the method of an SDK that asks, by the path of the API; its types name every field of every request.
    """

    name = "real SDKs"

    def __init__(self, create: Mapping[str, Any]) -> None:
        self._create = create

    async def stream(self, path: str, request: Json) -> AsyncIterator[Json]:
        """The chunks or events of a streamed answer."""
        async for part in await self._create[path](**request, stream=True):
            yield part.model_dump(exclude_none=True)

    async def create(self, path: str, request: Json) -> Json:
        """A whole answer."""
        answer: Json = (await self._create[path](**request)).model_dump(exclude_none=True)
        return answer


class PlainHttp:
    """Requests of HTTP alone.

    Args:
        client: sends them; its `base_url` is the proxy's.
    """

    name = "plain HTTP"

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def stream(self, path: str, request: Json) -> AsyncIterator[Json]:
        """The chunks or events of a streamed answer."""
        async with self._client.stream("POST", path, json={**request, "stream": True}) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    yield msgspec.json.decode(line.removeprefix("data: "), type=dict[str, Any])

    async def create(self, path: str, request: Json) -> Json:
        """A whole answer."""
        response = await self._client.post(path, json=request)
        response.raise_for_status()
        return msgspec.json.decode(response.content, type=dict[str, Any])
