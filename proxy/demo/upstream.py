"""The scripted upstream: a model server whose answers come from a script, in the manner of GLM, gpt-oss or OpenAI.

The differences between the manners are taken from recorded traffic:

    glm       reasoning_content; role in every delta; each call whole in one chunk; usage in the finish chunk
    gpt_oss   reasoning; calls in fragments; usage in a chunk of its own when asked for
    openai    the same without reasoning
"""

import asyncio
import re
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from proxy.api.body import expect, parse_chat_request, parse_object
from proxy.demo.script import DEMO, Script, ScriptedTurn, load
from proxy.server.graceful import Server
from proxy.server.listener import address_of, listen
from proxy.wire import sse
from proxy.wire.chat import Json
from proxy.wire.errors import RequestError

_MOST_REMEMBERED = 1000
_PIECE = re.compile(r"\S+\s*|\s+")
_FRAGMENT = 12  # characters of arguments in one chunk
# The results of the search, in Serper's shape, so that the demo runs the real search tool.
_PAGES = (
    {
        "words": {"weather", "nanaimo"},
        "title": "Nanaimo weather: 11 degrees, rain from 2 pm",
        "link": "https://weather.example/nanaimo",
        "snippet": "Today 11 degrees. Dry until early afternoon, then rain, 8 mm by the evening.",
        "date": "2 hours ago",
    },
    {
        "words": {"ferry", "nanaimo", "horseshoe", "bay"},
        "title": "Departures: Nanaimo (Departure Bay) - Horseshoe Bay",
        "link": "https://ferries.example/departures",
        "snippet": "All sailings on schedule. 15:20: 38 % full. 17:40: 91 % full.",
        "date": "10 minutes ago",
    },
)


def search_answer(request: Json) -> Json:
    """The answer to `POST /search`, in Serper's shape."""
    query = str(request.get("q", ""))
    words = {word.strip(".,?!").lower() for word in query.split()}
    found = sorted(_PAGES, key=lambda page: -len(words & set(page["words"])))
    results = [
        {key: value for key, value in page.items() if key != "words"} for page in found if words & set(page["words"])
    ]
    return {"searchParameters": {"q": query, "type": "search"}, "organic": results[: int(request.get("num", 10))]}


@dataclass(slots=True)
class Mock:
    """The scripted upstream and its search, with the latest requests to both."""

    script: Script = DEMO
    requests: deque[Json] = field(default_factory=lambda: deque(maxlen=_MOST_REMEMBERED))
    searches: deque[Json] = field(default_factory=lambda: deque(maxlen=_MOST_REMEMBERED))
    search_seconds: float = 0.0
    answer_search: Callable[[Json], Json] = search_answer
    most_searches_at_once: int = 0
    _open_searches: int = 0
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def app(self) -> Starlette:
        """An ASGI application that answers at any path that ends in /chat/completions, and at /search."""
        return Starlette(
            routes=[
                Route("/search", self._search, methods=["POST"]),
                Route("/{base:path}/chat/completions", self._complete, methods=["POST"]),
                Route("/chat/completions", self._complete, methods=["POST"]),
            ],
            exception_handlers={RequestError: _refuse},
        )

    async def _search(self, request: Request) -> Response:
        asked = parse_object(await request.body())
        expect(isinstance(asked.get("num", 0), int), "num", "must be an integer")
        self.searches.append(asked)
        self._open_searches += 1
        self.most_searches_at_once = max(self.most_searches_at_once, self._open_searches)
        await asyncio.sleep(self.search_seconds)
        self._open_searches -= 1
        return _json(self.answer_search(asked))

    async def _complete(self, request: Request) -> Response:
        asked = parse_chat_request(await request.body())
        self.requests.append(asked)
        answer = _Answer(asked, self.script.turn(asked), _manner(str(asked.get("model"))), next(self._numbers))
        if asked.get("stream"):
            return StreamingResponse(self._paced(answer), media_type="text/event-stream")
        return _json(answer.whole())

    async def _paced(self, answer: "_Answer") -> AsyncIterator[bytes]:
        for chunk in answer.chunks():
            yield sse.encode(chunk)
            if self.script.pace:
                await asyncio.sleep(self.script.pace)
        yield sse.DONE


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer in the shapes of the API."""

    request: Json
    turn: ScriptedTurn
    manner: str
    number: int

    def whole(self) -> Json:
        message: Json = {"role": "assistant", "content": self.turn.text or None}
        if self._thinks:
            message[self._reasoning_field] = self.turn.reasoning
        if self.turn.calls:
            message["tool_calls"] = [self._call(at) for at in range(len(self.turn.calls))]
        choice = {"index": 0, "message": message, "finish_reason": self._finish_reason}
        return {**self._head("chat.completion"), "choices": [choice], "usage": self._usage()}

    def chunks(self) -> Iterator[Json]:
        if self.manner != "glm":
            yield self._chunk({"role": "assistant", "content": ""})
        for key, text in (
            (self._reasoning_field, self.turn.reasoning if self._thinks else ""),
            ("content", self.turn.text),
        ):
            for piece in _PIECE.findall(text):
                yield self._chunk({key: piece})
        for at in range(len(self.turn.calls)):
            yield from self._call_chunks(at)
        finish = self._chunk({"content": ""} if self.manner == "glm" else {}, self._finish_reason)
        if self.manner == "glm":
            yield {**finish, "usage": self._usage()}
            return
        yield finish
        if (self.request.get("stream_options") or {}).get("include_usage"):
            yield {**self._head("chat.completion.chunk"), "choices": [], "usage": self._usage()}

    @property
    def _thinks(self) -> bool:
        return bool(self.turn.reasoning) and self.manner != "openai"

    @property
    def _reasoning_field(self) -> str:
        return "reasoning_content" if self.manner == "glm" else "reasoning"

    @property
    def _finish_reason(self) -> str:
        return "tool_calls" if self.turn.calls else "stop"

    def _call_chunks(self, at: int) -> Iterator[Json]:
        call = self._call(at)
        if self.manner == "glm":
            yield self._chunk({"tool_calls": [call]})
            return
        arguments = call["function"]["arguments"]
        opening = {**call, "function": {**call["function"], "arguments": ""}}
        yield self._chunk({"tool_calls": [opening]})
        for start in range(0, len(arguments), _FRAGMENT):
            fragment = {"index": at, "function": {"arguments": arguments[start : start + _FRAGMENT]}}
            yield self._chunk({"tool_calls": [fragment]})

    def _call(self, at: int) -> Json:
        call = self.turn.calls[at]
        function = {"name": call.name, "arguments": orjson.dumps(call.arguments).decode()}
        return {"id": f"call_{self.number}_{at}", "index": at, "type": "function", "function": function}

    def _chunk(self, delta: Json, finish_reason: str | None = None) -> Json:
        choice: Json = {"index": 0, "delta": delta}
        if self.manner == "glm":
            choice["delta"] = delta if "tool_calls" in delta else {"role": "assistant", **delta}
        if finish_reason or self.manner != "glm":
            choice["finish_reason"] = finish_reason
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def _head(self, kind: str) -> Json:
        return {"id": f"mock-{self.number}", "created": 0, "object": kind, "model": self.request.get("model")}

    def _usage(self) -> Json:
        prompt = len(str(self.request.get("messages")).split())
        completion = len(f"{self.turn.reasoning} {self.turn.text} {self.turn.calls or ''}".split())
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _manner(model: str) -> str:
    if "glm" in model:
        return "glm"
    return "gpt_oss" if "gpt-oss" in model else "openai"


async def _refuse(_: Request, error: Exception) -> Response:
    """The response to a malformed request."""
    if not isinstance(error, RequestError):
        raise error
    return Response(orjson.dumps(error.envelope()), error.status, media_type="application/json")


def _json(payload: Any) -> Response:
    return Response(orjson.dumps(payload), media_type="application/json")


def main(*, port: int, script: Path | None) -> None:
    """Serve on loopback until a signal. Raises `ConfigurationError`."""
    mock = Mock(load(script) if script else DEMO)
    listener = listen("127.0.0.1", port)
    config = uvicorn.Config(mock.app(), log_config=None, log_level="warning", access_log=False, lifespan="off")

    def ready() -> None:
        sys.stdout.write(f"mock upstream is serving at {address_of(listener)}/v1, search at /search\n")
        sys.stdout.flush()

    Server(config, ready=ready).run([listener])
