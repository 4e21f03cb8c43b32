"""Scripted fakes: an upstream that answers what it is told to, a clock that stands still."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from proxy.cases import turns

SEARCH_ANSWER = {"organic": [{"title": "A page", "link": "https://a.example/", "snippet": "Something found."}]}


class FakeClock:
    """Moves when it is told to."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Reply:
    """One HTTP response; an item of `body` may be bytes, an event to wait for, or None: break the connection off."""

    body: Sequence[bytes | asyncio.Event | None]
    status: int = 200
    content_type: str = "application/json"
    headers: Sequence[tuple[bytes, bytes]] = ()


def completion(
    content: str | None = None, *, calls: Sequence[tuple[str, str, Any]] = (), usage: int = 10, **message: Any
) -> dict[str, Any]:
    """A whole answer; a call is (id, name, arguments)."""
    full: dict[str, Any] = {"role": "assistant", "content": content, **message}
    if calls:
        full["tool_calls"] = [_call(*call) for call in calls]
    choice = {"index": 0, "message": full, "finish_reason": "tool_calls" if calls else "stop"}
    return {
        "id": "up-1",
        "object": "chat.completion",
        "created": 5,
        "model": "the-upstream-model",
        "choices": [choice],
        "usage": {"prompt_tokens": usage, "completion_tokens": 1, "total_tokens": usage + 1},
    }


def _call(identity: str, name: str, arguments: Any) -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": text}}


def whole(*args: Any, **kwargs: Any) -> Reply:
    return Reply([orjson.dumps(completion(*args, **kwargs))])


def event(payload: Any) -> bytes:
    return b"data: " + orjson.dumps(payload) + b"\n\n"


def chunk(delta: dict[str, Any] | None = None, finish_reason: str | None = None, **rest: Any) -> bytes:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish_reason}
    return event({
        "id": "up-1",
        "object": "chat.completion.chunk",
        "created": 5,
        "model": "the-upstream-model",
        "choices": [choice],
        **rest,
    })  # fmt: skip


def call_chunk(*calls: tuple[str, str, Any], at: int = 0, finish_reason: str | None = None, **delta: Any) -> bytes:
    """A chunk with whole calls, the first of them at that index, and what else its delta says."""
    entries = [{"index": index, **_call(*call)} for index, call in enumerate(calls, at)]
    return chunk({**delta, "tool_calls": entries}, finish_reason)


def arguments_chunk(text: str, *, at: int = 0, finish_reason: str | None = None) -> bytes:
    """A chunk with a further piece of a call's arguments."""
    return chunk({"tool_calls": [{"index": at, "function": {"arguments": text}}]}, finish_reason)


DONE = b"data: [DONE]\n\n"


def stream(*events: bytes | asyncio.Event | None, done: bool = True) -> Reply:
    return Reply([*events, *([DONE] if done else [])], content_type="text/event-stream")


def streamed(text: str = "", *, calls: Sequence[tuple[str, str, Any]] = (), usage: int = 10) -> Reply:
    """A streamed answer in OpenAI's manner."""
    events = [chunk({"role": "assistant", "content": ""})]
    events += [chunk({"content": word}) for word in text.split(" ") if word]
    for at, call in enumerate(calls):
        whole_call = {**_call(*call), "index": at}
        arguments = whole_call["function"]["arguments"]
        opening = {**whole_call, "function": {**whole_call["function"], "arguments": ""}}
        events += [chunk({"tool_calls": [opening]})]
        events += [chunk({"tool_calls": [{"index": at, "function": {"arguments": arguments}}]})]
    events += [chunk({}, "tool_calls" if calls else "stop")]
    total = {"prompt_tokens": usage, "completion_tokens": 1, "total_tokens": usage + 1}
    events += [event({"id": "up-1", "model": "the-upstream-model", "choices": [], "usage": total})]
    return stream(*events)


def turn(
    text: str | Sequence[str] | None = None,
    *,
    calls: Sequence[tuple[str, str, Any]] = (),
    thoughts: str = "",
    finish: str | None = None,
    usage: int | dict[str, Any] | None = 10,
    size: int = 7,
    in_fragments: bool = True,
    **message: Any,
) -> Callable[[dict[str, Any]], Reply]:
    """A turn of the model, written as it is asked for: whole, or streamed in pieces of `size` characters.

    A text that is a list is in its pieces already; a call is (id, name, arguments), with its arguments in pieces too if
    it comes in fragments. What else the message has comes behind the text.
    """
    counted = (
        {"prompt_tokens": usage, "completion_tokens": 1, "total_tokens": usage + 1} if isinstance(usage, int) else usage
    )
    words: dict[str, Any] = {"usage": counted, "characters": size, "message": message}
    pieces = {"characters": size} if in_fragments else {}
    words["calls"] = [{"id": i, "name": n, "arguments": a, **pieces} for i, n, a in calls]
    words |= {} if text is None else {"text": text}
    words |= {"reasoning": thoughts} if thoughts else {}
    words |= {"finish_reason": finish} if finish else {}

    def reply(request: dict[str, Any]) -> Reply:
        if request.get("stream"):
            parts = [turns.written(piece, "the-upstream-model") for piece in turns.pieces(words)]
            return Reply(parts, content_type="text/event-stream")
        return Reply([orjson.dumps(turns.whole(words, "the-upstream-model"))])

    return reply


@dataclass
class FakeUpstream:
    """An ASGI application: gives its replies in order, the last one again and again, and remembers what it was asked.

    Requests to /search are answered by `search`.
    """

    replies: Sequence[Reply | Callable[[dict[str, Any]], Reply]] = ()
    search: Reply | Callable[[dict[str, Any]], Reply] = field(
        default_factory=lambda: Reply([orjson.dumps(SEARCH_ANSWER)])
    )
    requests: list[dict[str, Any]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    heads: list[dict[str, Any]] = field(default_factory=list)
    searches: list[dict[str, Any]] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)  # set when somebody left in the middle of a reply
    asked: asyncio.Event = field(default_factory=asyncio.Event)

    def restart(self, replies, *, search=None) -> None:
        """Forget what was asked, and answer with these."""
        self.replies, self.search = replies, search or self.search
        for remembered in (self.requests, self.bodies, self.heads, self.searches):
            remembered.clear()

    async def __call__(self, scope, receive, send) -> None:
        body = b"".join([part async for part in _read(receive)])
        self.heads.append({"path": scope["path"], "query": scope["query_string"], "method": scope["method"],
                           "headers": dict(scope["headers"])})  # fmt: skip
        if scope["path"] == "/search":
            self.searches.append(orjson.loads(body))
            reply = self.search(self.searches[-1]) if callable(self.search) else self.search
        else:
            self.bodies.append(body)
            self.requests.append(_parsed(body))
            reply = self.replies[min(len(self.requests), len(self.replies)) - 1]
            reply = reply(self.requests[-1]) if callable(reply) else reply
        self.asked.set()
        await self._give(reply, receive, send)

    async def _give(self, reply: Reply, receive, send) -> None:
        headers = [(b"content-type", reply.content_type.encode()), *reply.headers]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        watching = asyncio.ensure_future(_gone(receive))
        try:
            for item in reply.body:
                if item is None:
                    return  # incomplete: the server closes the connection
                if isinstance(item, asyncio.Event):
                    waiting = asyncio.ensure_future(item.wait())
                    await asyncio.wait({waiting, watching}, return_when=asyncio.FIRST_COMPLETED)
                    waiting.cancel()
                    if watching.done():
                        self.left.set()
                        return
                else:
                    await send({"type": "http.response.body", "body": item, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            watching.cancel()


async def _read(receive) -> AsyncIterator[bytes]:
    more = True
    while more:
        message = await receive()
        more = message.get("more_body", False)
        yield message.get("body", b"")


async def _gone(receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
