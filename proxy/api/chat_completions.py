"""`POST /v1/chat/completions`: the tool loop, or a plain relay of bytes when no server tool is in play.

However many upstream calls are made, the client sees one completion: one id, one role, one finish_reason, one usage.
"""

from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from secrets import token_hex
from typing import Any

from msgspec import Struct
from starlette.types import Receive, Scope, Send

from proxy.api.body import parse_chat_request, read_body
from proxy.api.event_stream import EventStream
from proxy.api.request import ResolvedRequest
from proxy.api.surface import Surface, note_use, tool_headers
from proxy.config.model import ToolEvents
from proxy.kit.beside import MOST_AT_ONCE, beside
from proxy.loop.actions import Respond
from proxy.loop.shown import CallBegan, CallEnded, CallsAnswered, RunEvent, TurnBegan
from proxy.loop.tally import Tally, sum_of
from proxy.turn.citations import CITATIONS, Citation, annotations, joined_annotations, without_marks
from proxy.wire import rawjson, sse
from proxy.wire.chat import Json, ToolCall, text_of
from proxy.wire.patterns import ChunkPattern, pattern_of
from proxy.wire.relayed import Headers, RelayClient

_OF_ALL_CHUNKS = ("system_fingerprint", "service_tier")  # if the upstream sends them


class ChatCompletions(Surface):
    """The endpoint, as an ASGI callable."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        body = await read_body(scope, receive, self.server, self.ports.clock)
        if len(body) <= MOST_AT_ONCE:  # without a coroutine, which would be 1 % of a small request
            chat = parse_chat_request(body)
        else:
            chat = await beside(len(body), partial(parse_chat_request, body))
        request = await self.resolver.resolve(scope, chat, body=body)
        if not request.offer.answers_calls:
            if request.chat.get("stream"):
                await self.send_stream(request, partial(_relay_stream, request), scope, receive, send)
            else:
                await self.send_whole(request, partial(_relay, request), scope, receive, send)
            return
        run_ids = [token_hex(16) for _ in range(request.chat.get("n") or 1)]
        created = int(self.ports.clock.time())
        completion = Completion(
            f"chatcmpl-{run_ids[0]}", run_ids, created, request.model.name, tool_events=request.tool_events
        )
        if request.chat.get("stream"):
            await self.send_stream(request, partial(self._stream, request, completion), scope, receive, send)
        else:
            await self.send_whole(request, partial(self._whole, request, completion), scope, receive, send)

    async def _whole(self, request: ResolvedRequest, completion: "Completion") -> tuple[bytes, Headers]:
        events: list[Json] = []
        audience = None if request.tool_events == "none" else _Listener(events, request.tool_events)
        answers = await self.run(request, completion.run_ids, [audience] * len(completion.run_ids))
        whole = whole_completion(answers, completion, events)
        return rawjson.dumps_answer(whole), tool_headers(answers)

    async def _stream(self, request: ResolvedRequest, completion: "Completion", stream: EventStream) -> None:
        options = request.chat.get("stream_options") or {}
        writer = CompletionStream(stream, completion, include_usage=bool(options.get("include_usage")))
        audiences = [_ChoiceWriter(writer, index) for index in range(len(completion.run_ids))]
        await writer.finish(await self.run(request, completion.run_ids, audiences))


async def _relay(request: ResolvedRequest) -> tuple[bytes, Headers]:
    return await request.model.upstream.relay(*_for_upstream(request), _note_usage), ()


async def _relay_stream(request: ResolvedRequest, stream: EventStream) -> None:
    client = RelayClient(stream.write, stream.finish, _note_usage, stream.note_ids)
    await request.model.upstream.relay_stream(*_for_upstream(request), client)


def _note_usage(usage: Json | None) -> None:
    note_use(Tally(usage=usage))


def _for_upstream(request: ResolvedRequest) -> tuple[bytes, Json]:
    """The request as the client sent it, without the proxy's own field, which an upstream may refuse."""
    if "max_tool_calls" not in request.chat:
        return request.body or rawjson.dumps(request.chat), request.chat
    chat = {key: value for key, value in request.chat.items() if key != "max_tool_calls"}
    return rawjson.dumps(chat), chat


class Completion(Struct, frozen=True):
    """The properties that all parts of one completion share.

    Attributes:
        id: the completion's id, as the client sees it.
        run_ids: the ids of its runs, one for each choice.
        created: seconds since 1970.
        model: the name of the model, for an upstream that does not send one.
        tool_events: the progress events that the client is shown.
    """

    id: str
    run_ids: list[str]
    created: int
    model: str
    tool_events: ToolEvents = "none"


class _LatestChunk(Struct):
    """The latest chunk of a choice. When the same object is shown again, only its delta is new (`ports.Show`).

    Attributes:
        chunk: the object.
        field: the one key of its delta when it was shown again, such as `content`; empty: it has been shown once.
        pattern: the bytes around that key's text in the event that was written then; None: the text was empty.
    """

    chunk: Json
    field: str = ""
    pattern: ChunkPattern | None = None


class CompletionStream(Struct):
    """Writes a completion of one choice or several to a client with `stream: true`.

    Attributes:
        stream: the stream to the client.
        completion: the properties that all chunks share.
        include_usage: whether the client wants the usage.
    """

    stream: EventStream
    completion: Completion
    include_usage: bool
    _head: Json = {}  # the fields that all chunks share; empty until the first chunk
    _texts: list[list[str]] = []  # what is written so far, by choice; empty until the first chunk
    _citations: dict[int, list[Citation]] = {}  # in that text
    _annotations: dict[int, list[Json]] = {}  # the upstream's own; SDKs cannot join two lists of a stream
    _events: list[Json] = []  # progress events that wait for the next chunk
    _latest: dict[int, "_LatestChunk"] = {}

    def show(self, index: int, chunk: Json) -> Awaitable[None]:
        """Write the visible part of an upstream chunk as a chunk of choice `index`."""
        latest = self._latest.get(index)
        if latest is None or latest.chunk is not chunk:
            latest = self._latest[index] = _LatestChunk(chunk)
        elif not self._events and len(delta := chunk["choices"][0]["delta"]) == 1:
            [(field, text)] = delta.items()
            is_text = isinstance(text, str)
            if is_text and latest.field != field:
                latest.field, latest.pattern = field, pattern_of(sse.encode(chunk), field)
            if is_text and latest.pattern is not None:
                if field == "content":
                    self._texts[index].append(text)
                return self.stream.write(latest.pattern.with_text(text))
        opening = self._opening(chunk) if self._events or not self._head else b""
        for choice in chunk["choices"]:
            choice["index"] = index
            delta = choice["delta"]
            if isinstance(annotated := delta.get("annotations"), list):
                self._annotations[index] = [*self._annotations.get(index, ()), *annotated]
                del delta["annotations"]
            if isinstance(text := delta.get("content"), str):
                if cited := delta.pop(CITATIONS, None):
                    shown = sum(map(len, self._texts[index]))
                    self._citations.setdefault(index, []).extend((shown + at, url) for at, url in cited)
                self._texts[index].append(text)
        chunk.update(self._head)
        return self.stream.write(opening + sse.encode(chunk))

    async def hear(self, event: RunEvent) -> bool:
        """Write an event as a chunk without choices; returns whether it is written at once.

        The beginning of a turn is held back until something else is shown: until then, a failure can have its proper
        status.
        """
        shown = progress_event(event, self.completion.tool_events)
        if shown is None:
            return False
        self._events.append(shown)
        if not self._head and isinstance(event, TurnBegan):
            return False
        await self.stream.write(self._opening({"model": event.model if isinstance(event, CallBegan) else None}))
        return True

    async def finish(self, answers: Sequence[Respond]) -> None:
        """Write the annotations, the finish reasons, the usage if the client wants it, and the end mark."""
        chunks = [self._opening(answers[0].turn.envelope)]
        for index, answer in enumerate(answers):
            cited = annotations("".join(self._texts[index]), answer.sources, self._citations.get(index, ()))
            if theirs := self._annotations.get(index):
                cited = joined_annotations(theirs, cited)
            delta = {"annotations": cited} if cited else {}
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": answer.finish_reason}
            chunks.append(sse.encode({**self._head, "choices": [choice]}))
        if self.include_usage:
            usage = sum_of([answer.tally for answer in answers]).as_usage()
            chunks.append(sse.encode({**self._head, "choices": [], "usage": usage}))
        chunks.append(sse.DONE)
        await self.stream.finish(b"".join(chunks))

    def _opening(self, seen: Mapping[str, Any]) -> bytes:
        """The chunks that precede the next one: at first the roles of all choices, then the waiting progress events.

        The stream helper of OpenAI's SDK for Python fails unless the choices begin in the order of their indices.
        """
        chunks: list[bytes] = []
        if not self._head:
            self._head = {
                "id": self.completion.id,
                "object": "chat.completion.chunk",
                "created": self.completion.created,
                "model": seen.get("model") or self.completion.model,
                **{name: value for name in _OF_ALL_CHUNKS if (value := seen.get(name)) is not None},
            }
            if self.include_usage:
                self._head["usage"] = None
            for index in range(len(self.completion.run_ids)):
                self._texts.append([])
                delta = {"role": "assistant", "content": ""}
                choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
                chunks.append(sse.encode({**self._head, "choices": [choice]}))
        while self._events:
            chunks.append(sse.encode({**self._head, "choices": [], "tool_event": self._events.pop(0)}))
        return b"".join(chunks)


class _ChoiceWriter:
    """The audience of the run of one choice of a streamed completion."""

    wants_answers = False

    def __init__(self, writer: CompletionStream, index: int) -> None:
        self.show = partial(writer.show, index)
        self.hear = writer.hear


class _Listener:
    """The audience of the runs of a whole completion, which collects their progress events."""

    wants_answers = False

    def __init__(self, events: list[Json], tool_events: ToolEvents) -> None:
        self._events = events
        self._tool_events = tool_events

    async def show(self, chunk: Json) -> None:
        """Show nothing: the answer of a run has all that is shown."""

    async def hear(self, event: RunEvent) -> bool:
        """Add the progress event of a run's event to the list, if the client is shown it."""
        if (shown := progress_event(event, self._tool_events)) is not None:
            self._events.append(shown)
        return False


def progress_event(event: RunEvent, tool_events: ToolEvents) -> Json | None:
    """A progress event as a client is shown it; None: it is not shown."""
    if tool_events == "none":
        return None
    match event:
        case TurnBegan(number):
            return {"type": "turn.started", "turn": number}
        case CallBegan(turn, call):
            return {"type": "tool.started", **_of_call(turn, call)}
        case CallEnded(turn, call, result, seconds):
            kind = "tool.failed" if result.failed else "tool.completed"
            shown = {"type": kind, **_of_call(turn, call), "seconds": seconds}
            if result.failed:
                shown["error"] = result.for_app
            if result.sources and tool_events == "results":
                shown["results"] = [{"title": title, "url": url} for url, title in result.sources.items()]
            return shown
        case CallsAnswered():
            return None


def _of_call(turn: int, call: ToolCall) -> Json:
    return {"turn": turn, "tool": call.name, "call_id": call.id, "arguments": call.arguments}


def whole_completion(answers: Sequence[Respond], completion: Completion, events: list[Json]) -> Json:
    """The answer for a client that does not stream: the last turns as they were received, as one completion."""
    envelope = answers[0].turn.envelope
    choices = []
    for index, answer in enumerate(answers):
        message = {"refusal": None, **answer.message}  # OpenAI's schema requires it, and typed clients check
        written_text = text_of(message)
        text, citations = without_marks("" if written_text.isspace() else written_text, answer.cite)
        if text != written_text:
            message = {**message, "content": text}
        if cited := annotations(text, answer.sources, citations):
            message = {**message, "annotations": joined_annotations(message.get("annotations"), cited)}
        final = {"index": index, "message": message, "finish_reason": answer.finish_reason}
        choices.append({"logprobs": None, **answer.turn.choice, **final})
    whole = {
        **envelope,
        "id": completion.id,
        "object": "chat.completion",
        "created": completion.created,
        "model": envelope.get("model") or completion.model,
        "choices": choices,
        "usage": sum_of([answer.tally for answer in answers]).as_usage(),
    }
    return whole if completion.tool_events == "none" else {**whole, "tool_events": events}
