"""The three APIs in one language: what is asked, what the upstream answers, and what a client has been told.

    async def test_a_search_that_fails_is_told_and_the_model_answers(surface):
        surface.upstream.search = Reply([b"{}"], status=403)
        answer = await surface.ask(turn(calls=[SEARCH]), turn("Without."), search=True)
        assert answer.text == "Without."

The fixture `surface` is each API, whole and streamed; `chat`, `responses` and `messages` are one of them, whole and
streamed. Requests go through the vendors' SDKs over real sockets. Of every answer it is checked that each event is one
that the SDK knows and stands where its API has it, and that what the events say is what the last of them sums up.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import orjson
import pytest
from anthropic.types.beta import BetaMessage
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response

from proxy.cases import answers, requests
from proxy.cases.player import Received
from tests.api.messages import asking as of_messages
from tests.api.responses import asking as of_responses
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
# `embeddings` stands for every path that is handed through.
EVERYWHERE = on(*ALL, "embeddings-whole")
ITEMS_OR_BLOCKS = on("responses-whole", "responses-streamed", "messages-whole", "messages-streamed")


def _api(kind: str) -> str:
    return "other" if kind in _HANDED_THROUGH else "chat" if kind == "relay" else kind.partition("-")[0]


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

    async def ask(self, *replies, profile="openai", config=CONFIG, more="", server=(), **words) -> "Answer":
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

    async def ask(self, *, after: "Answer | None" = None, results: Sequence[str] = (), **words) -> "Answer":
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
    if kind in _HANDED_THROUGH:
        fields = {
            "model": ask.get("model", "m"),
            **_HANDED_THROUGH[kind],
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
    api = _api(kind)
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


_HANDED_THROUGH = {"embeddings": {"input": "x"}, "completions": {"prompt": "x"}}
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


@dataclass(frozen=True)
class Citation:
    """A page that is cited: with the words that cite it, or on the Messages API with those of the page."""

    url: str
    title: str
    words: str


@dataclass(frozen=True)
class Text:
    """A text, and the pages that it cites."""

    text: str
    citations: tuple[Citation, ...] = ()


@dataclass(frozen=True)
class Thoughts:
    """What the model has thought."""

    text: str


@dataclass(frozen=True)
class Call:
    """A call of one of the client's tools, with its arguments as text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class ServerCall:
    """A call of one of the server's tools as the client is shown it, with the addresses of the pages that it has found."""

    name: str
    arguments: Any
    failed: bool = False
    pages: tuple[str, ...] = ()


class Answer:
    """What a client has been told.

    Attributes:
        kind: the API.
        request: what it had asked.
        status: the HTTP status.
        headers: of the response.
        raw: the body of the response, as text.
        whole: the answer as its API gives it whole; of a stream what its events build.
        error: the error that it is, or that its stream has ended with: `type`, `code`, `message`; None: it is none.
        folded: the answer in the words of a case.
        parts: what it consists of, in order: `Thoughts`, `Text`, `Call`, `ServerCall`. Chat completions have an order of
            their own, and show calls of the server's to those only who ask for `events`.
    """

    def __init__(self, kind: str, request: requests.Request, received: Received) -> None:
        self.kind = _api(kind)
        self.request, self.status, self.headers = request, received.status, received.headers
        self.raw = received.body.decode()
        self.folded = answers.fold(received.body, kind, streamed=received.is_stream)
        self.whole, self.error = self.folded.whole, self.folded.error
        self.parts: list[Any] = []
        assert (received.failure is None) == (self.error is None), received.failure
        if self.error is None:
            _CHECKS[self.kind](self.raw if received.is_stream else None, self.whole)
            self.parts = _PARTS[self.kind](self.whole)

    @property
    def kinds(self) -> list[str]:
        """What the answer consists of, each by its name in lower case: `text`, `thoughts`, `call`, `servercall`."""
        return [type(part).__name__.lower() for part in self.parts]

    def of(self, kind: type) -> list[Any]:
        """The parts of one kind."""
        return [part for part in self.parts if isinstance(part, kind)]

    @property
    def texts(self) -> list[str]:
        """Its texts. Chat completions have one: in a stream those of all turns, with a blank line between two of them."""
        return [part.text for part in self.of(Text)]

    @property
    def text(self) -> str:
        """The text of the last turn."""
        return self.texts[-1].rpartition("\n\n")[2] if self.texts else ""

    @property
    def thoughts(self) -> str:
        """All thoughts."""
        return "".join(part.text for part in self.of(Thoughts))

    @property
    def citations(self) -> list[Citation]:
        """The pages that are cited, in order."""
        return [one for part in self.of(Text) for one in part.citations]

    @property
    def cited(self) -> list[str]:
        """Their addresses."""
        return [one.url for one in self.citations]

    @property
    def calls(self) -> list[tuple[str, str]]:
        """Names and arguments of the client's calls."""
        return [(part.name, part.arguments) for part in self.of(Call)]

    @property
    def server_calls(self) -> list[ServerCall]:
        """The calls of the server's that are shown."""
        return self.of(ServerCall)

    @property
    def finish(self) -> str | None:
        """Why it ended, in the words of chat completions."""
        return self.folded.finish

    @property
    def tokens(self) -> tuple[int, int]:
        """The tokens read and written, as they are counted for the client."""
        usage = self.whole["usage"]
        if "prompt_tokens" in usage:
            return usage["prompt_tokens"], usage["completion_tokens"]
        return usage["input_tokens"] + usage.get("cache_read_input_tokens", 0), usage["output_tokens"]

    @property
    def searches(self) -> int | None:
        """The searches that are counted for the client."""
        return self.whole["usage"].get("server_tool_use", {}).get("web_search_requests")


# -- what each API says --


def _check_chat(raw: str | None, whole: Any) -> None:
    """The chunks of a stream are of one completion; each choice has its role once and first, and one finish_reason."""
    ChatCompletion.model_validate(whole)
    chunks = [one for one in answers.events(raw.encode()) if one != "[DONE]"] if raw else []
    for one in chunks:
        ChatCompletionChunk.model_validate(one)
    assert len({(one["id"], one["created"], one["model"]) for one in chunks}) <= 1
    choices = [choice for one in chunks for choice in one["choices"]]
    for index in {choice["index"] for choice in choices}:
        mine = [choice for choice in choices if choice["index"] == index]
        assert ["role" in choice["delta"] for choice in mine] == [True, *[False] * (len(mine) - 1)]
        assert [bool(choice["finish_reason"]) for choice in mine] == [*[False] * (len(mine) - 1), True]


def _check_responses(raw: str | None, whole: Any) -> None:
    Response.model_validate(whole)
    if raw:
        assert raw.endswith("data: [DONE]\n\n")
        of_responses.folded(of_responses.events_in(raw))


def _check_messages(raw: str | None, whole: Any) -> None:
    BetaMessage.model_validate(whole)
    assert all(block.get("text", "-") for block in whole["content"]), "a text block is empty"
    for kind, prefix in (("tool_use", "toolu_"), ("server_tool_use", "srvtoolu_"), ("mcp_tool_use", "mcptoolu_")):
        ids = [block["id"] for block in whole["content"] if block["type"] == kind]
        assert len({*ids}) == len(ids)
        assert all(one.startswith(prefix) for one in ids)
    if raw:
        of_messages.folded(of_messages.events_in(raw))


_CHECKS = {
    "chat": _check_chat, "responses": _check_responses, "messages": _check_messages, "other": lambda *_: None,
}  # fmt: skip


def _chat_parts(whole: Any) -> list[Any]:
    message, events = whole["choices"][0]["message"], whole.get("tool_events", ())
    ended = {one["call_id"]: one for one in events if one["type"] in ("tool.completed", "tool.failed")}
    parts: list[Any] = []
    for one in events:
        if one["type"] == "tool.started":
            end = ended[one["call_id"]]
            pages = tuple(page["url"] for page in end.get("results", ()))
            parts.append(ServerCall(one["tool"], _read(one["arguments"]), end["type"] == "tool.failed", pages))
    if thoughts := message.get("reasoning_content") or message.get("reasoning"):
        parts.append(Thoughts(thoughts))
    if message.get("content"):
        cited = [one["url_citation"] for one in message.get("annotations") or ()]
        parts.append(_cited_text(message["content"], cited))
    calls = [(call["id"], call["function"]) for call in message.get("tool_calls") or ()]
    return parts + [Call(call_id, function["name"], function["arguments"]) for call_id, function in calls]


def _cited_text(text: str, cited: Any) -> Text:
    words = [text[one["start_index"] : one["end_index"]] for one in cited]
    return Text(text, tuple(Citation(one["url"], one["title"], said) for one, said in zip(cited, words, strict=True)))


def _responses_parts(whole: Any) -> list[Any]:
    return [part for item in whole["output"] for part in _item_parts(item)]


def _item_parts(item: Any) -> Iterator[Any]:
    failed = item.get("status") == "failed"
    match item:
        case {"type": "message", "content": content}:
            for part in content:
                yield _cited_text(part.get("text", part.get("refusal")), part.get("annotations", ()))
        case {"type": "reasoning", "content": [_, *_] as content}:
            yield Thoughts("".join(part["text"] for part in content))
        case {"type": "function_call"}:
            yield Call(item["call_id"], item["name"], item["arguments"])
        case {"type": "custom_tool_call"}:
            yield Call(item["call_id"], item["name"], item["input"])
        case {"type": "web_search_call", "action": action}:
            pages = tuple(one["url"] for one in action.get("sources") or ())
            yield ServerCall("web_search", {"query": action["query"]}, failed, pages)
        case {"type": "mcp_call"}:
            yield ServerCall(item["name"], _read(item["arguments"]), failed)
        case {"type": "code_interpreter_call"}:
            yield ServerCall("code_interpreter", {"code": item["code"]}, failed)


def _messages_parts(whole: Any) -> list[Any]:
    blocks = whole["content"]
    results = {block["tool_use_id"]: block for block in blocks if "tool_use_id" in block}
    return [part for block in blocks for part in _block_parts(block, results)]


def _block_parts(block: Any, results: Any) -> Iterator[Any]:
    match block["type"]:
        case "text":
            cited = [Citation(one["url"], one["title"], one["cited_text"]) for one in block.get("citations") or ()]
            yield Text(block["text"], tuple(cited))
        case "thinking":
            yield Thoughts(block["thinking"])
        case "tool_use":
            yield Call(block["id"], block["name"], orjson.dumps(block["input"]).decode())
        case "server_tool_use" | "mcp_tool_use":
            result = results[block["id"]]
            content = result["content"]
            failed = bool(result.get("is_error")) or (isinstance(content, dict) and "error_code" in content)
            pages = tuple(one["url"] for one in content if "url" in one) if isinstance(content, list) else ()
            yield ServerCall(block["name"], block["input"], failed, pages)


_PARTS = {"chat": _chat_parts, "responses": _responses_parts, "messages": _messages_parts, "other": lambda _: []}


def _read(arguments: str) -> Any:
    """Arguments as JSON, where they are."""
    try:
        return orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
