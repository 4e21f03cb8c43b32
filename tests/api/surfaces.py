"""The three APIs in one language: what is asked, what the upstream answers, and what a client has been told.

    async def test_a_search_that_fails_is_told_and_the_model_answers(surface):
        surface.upstream.search = Reply([b"{}"], status=403)
        answer = await surface.ask(turn(calls=[SEARCH]), turn("Without."), search=True)
        assert answer.text == "Without."

The fixture `surface` is each API, whole and streamed; `chat`, `responses` and `messages` are one of them, whole and
streamed. Requests go through the vendors' SDKs over real sockets. Of every answer it is checked that each event is one
that the SDK knows and stands where its API has it, and that what the events say is what the last of them sums up.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from proxy.cases import requests
from tests.api.answer import HANDED_THROUGH, Answer, api_of
from tests.fakes import FakeUpstream
from tests.player.sdks import Sdks
from tests.serving import CONFIG, proxy_of

SEARCH = ("u1", "web_search", {"query": "news"})
DOOR = ("u2", "open_door", {"id": 1})
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
    "required": ["city", "degrees"],
    "additionalProperties": False,
}


def on(*names: str) -> pytest.MarkDecorator:
    """Lets a test have some of the surfaces only, `chat-streamed` or `messages-whole` for example."""
    return pytest.mark.parametrize("surface", [name.rsplit("-", 1) for name in names], ids=names, indirect=True)


STREAMS = on("chat-streamed", "responses-streamed", "messages-streamed")
# `relay` is a chat completion with no server tool in play.
STREAMS_AND_RELAY = on("chat-streamed", "relay-streamed", "responses-streamed", "messages-streamed")
ALL = [f"{kind}-{mode}" for kind in ("chat", "relay", "responses", "messages") for mode in ("whole", "streamed")]
RELAY_TOO = on(*ALL)
# For long tables of what happens before the first byte: each API and each mode, not each pair of them.
EACH = on("chat-whole", "responses-streamed", "messages-whole")
EACH_AND_RELAY = on("chat-whole", "relay-streamed", "responses-streamed", "messages-whole")
# `embeddings` stands for every path that is handed through.
EVERYWHERE = on("chat-whole", "relay-streamed", "responses-streamed", "messages-whole", "embeddings-whole")
ITEMS_OR_BLOCKS = on("responses-whole", "responses-streamed", "messages-whole", "messages-streamed")


@dataclass(frozen=True)
class Surface:
    """One API, asked for whole answers or for streams."""

    kind: str
    streaming: bool
    upstream: FakeUpstream

    @asynccontextmanager
    async def proxy(self, *replies, profile="openai", config=CONFIG, more="", **app) -> AsyncIterator["Client"]:
        """A client of a proxy whose upstream gives these replies."""
        self.upstream.replies = replies
        config = config.replace("profile: openai", f"profile: {profile}")
        async with proxy_of(self.upstream, config=config, more=more, **app) as url, self.at(url) as client:
            yield client

    @asynccontextmanager
    async def at(self, url) -> AsyncIterator["Client"]:
        """A client of the proxy at that address."""
        async with Sdks() as sdks:
            yield Client(self, url, sdks)

    async def ask(self, *replies, profile="openai", config=CONFIG, more="", server=(), **words) -> Answer:
        """The answer to one request; `server`: tools of the server's own."""
        async with self.proxy(*replies, profile=profile, config=config, more=more, tools=server) as client:
            return await client.ask(**words)

    def history(self, number: int = -1) -> list[Any]:
        """The messages of a request to the upstream, without those of the system."""
        return [message for message in self.upstream.requests[number]["messages"] if message["role"] != "system"]

    def roles(self, number: int = -1) -> list[str]:
        """Who has said those messages."""
        return [message["role"] for message in self.history(number)]

    def results(self, number: int = -1) -> list[str]:
        """What the model was told by its tools."""
        return [message["content"] for message in self.history(number) if message["role"] == "tool"]


@dataclass(frozen=True)
class Client:
    """Asks one proxy."""

    surface: Surface
    url: str
    sdks: Sdks

    async def ask(self, *, after: Answer | None = None, results: Sequence[str] = (), **words) -> Answer:
        """One request and its answer.

        Args:
            after: the answer that it goes on from, which is brought back as it came.
            results: of the client's calls in that answer.
            words: see `request`; after an answer `text`, and `headers` and `body` for what is to be different.
        """
        kind = self.surface.kind
        if after is None:
            sent = request(kind, stream=self.surface.streaming, **words)
        else:
            changed = {name: words.pop(name, {}) for name in ("headers", "body")}
            sent = requests.later(after.request, after.folded, {**words, "results": results}, kind)
            sent |= {name: {**sent[name], **fields} for name, fields in changed.items()}
        return Answer(kind, sent, await self.sdks.send(self.url, sent))

    async def read(self, **words) -> AsyncIterator[str]:
        """The body of the answer to one request, as it comes."""
        sent = request(self.surface.kind, stream=self.surface.streaming, **words)
        async with (
            httpx.AsyncClient(timeout=30) as http,
            http.stream("POST", self.url + sent["path"], json=sent["body"], headers=sent["headers"]) as response,
        ):
            async for piece in response.aiter_text():
                yield piece


def request(
    kind, *, stream=False, search=None, functions=(), tools=(), choice=None, schema=None, thinking=False, most=None,
    key=None, events=None, headers=None, body=None, **ask,
):  # fmt: skip
    """A request in the words of an API.

    Args:
        kind: the API.
        stream: whether a stream is asked for.
        search: whether the hosted search is declared, or its settings.
        functions: the names of the client's own tools.
        tools: further tools in the words of the API.
        choice: `none`, `required`, or the name of the function that has to be called.
        schema: of the JSON that is to be the answer.
        thinking: whether thoughts are asked for, to be brought back by the client alone.
        most: the tokens that may be written.
        key: of the client.
        events: the value of x-tool-events.
        headers: further headers.
        body: further fields in the words of the API.
        ask: as in a case: `text`, `messages`, `model`, `server_tools`.
    """
    ask |= {"search": bool(search), "functions": functions}
    ask["headers"] = {**({"x-tool-events": events} if events else {}), **(headers or {})}
    if key:
        ask["headers"]["authorization"] = f"Bearer {key}"
    if kind in HANDED_THROUGH:
        fields = {
            "model": ask.get("model", "m"),
            **HANDED_THROUGH[kind],
            **({"stream": True} if stream else {}),
            **(body or {}),
        }
        return {"path": f"/v1/{kind}", "method": "POST", "headers": ask["headers"], "body": fields}
    said = requests.first(ask, kind, stream=stream)
    fields = said["body"]
    if isinstance(search, dict):
        fields["tools"][0] |= search
    if tools:
        fields["tools"] = [*fields.get("tools", ()), *tools]
    api = api_of(kind)
    if choice is not None:
        fields["tool_choice"] = _CHOICES[api](choice)
    if schema is not None:
        fields |= _SCHEMAS[api](schema)
    if thinking:
        fields |= _THINKING[api]
    if most is not None:
        fields["max_output_tokens" if api == "responses" else "max_tokens"] = most
    if stream and api == "chat":
        fields["stream_options"] = {"include_usage": True}
    fields |= body or {}
    return said


_CHOICES = {
    "chat": lambda choice: choice if choice in _MODES else {"type": "function", "function": {"name": choice}},
    "responses": lambda choice: choice if choice in _MODES else {"type": "function", "name": choice},
    "messages": lambda choice: {"type": _MODES[choice]} if choice in _MODES else {"type": "tool", "name": choice},
}
_MODES = {"none": "none", "required": "any", "auto": "auto"}
_SCHEMAS = {
    "chat": lambda schema: {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}},
    "responses": lambda schema: {"text": {"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}}},
    "messages": lambda schema: {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
}  # fmt: skip
_THINKING = {
    "chat": {},
    "responses": {"reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"], "store": False},
    "messages": {"thinking": {"type": "adaptive"}},
}
