"""What a client has been told, read from the answer of any API into the same parts, and checked on the way."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson
from anthropic.types.beta import BetaMessage
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response

from proxy.cases import answers, requests
from proxy.cases.expectations import Received
from tests.api.messages import asking as of_messages
from tests.api.responses import asking as of_responses

HANDED_THROUGH = {"embeddings": {"input": "x"}, "completions": {"prompt": "x"}}


def api_of(kind: str) -> str:
    """The API of a kind of surface: `chat`, `responses`, `messages`, or `other` for what is handed through."""
    return "other" if kind in HANDED_THROUGH else "chat" if kind == "relay" else kind.partition("-")[0]


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
        self.kind = api_of(kind)
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
            end = ended.get(one["call_id"], {"type": "tool.failed"})  # none if its turn was cut off
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
