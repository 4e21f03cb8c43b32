"""A completion of Chat Completions, whole or streamed.

However many upstream calls are made, the client sees one completion: one id, one role, one finish_reason, one usage.
Chunks are relayed as they came; a whole answer is the last turn as it was received.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from proxy.api.reply import Audiences, Events, Reply, Unstreamed
from proxy.config.model import ToolEvents
from proxy.loop.actions import Respond
from proxy.loop.run_events import CallBegan, CallEnded, CallsAnswered, RunEvent, TurnBegan
from proxy.loop.tally import sum_of
from proxy.turn.citations import CITATIONS, Citation, annotations, joined_annotations, without_marks
from proxy.wire import sse
from proxy.wire.chat import Json, ToolCall, text_of
from proxy.wire.errors import ProxyError
from proxy.wire.patterns import ChunkPattern, pattern_of

_OF_ALL_CHUNKS = ("system_fingerprint", "service_tier")  # if the upstream sends them


class CompletionReply(Reply):
    """The reply to a request of Chat Completions with server tools in play.

    Args:
        run_ids: the ids of its runs, one for each choice; the first one is in its own id.
        created: seconds since 1970.
        model: the name of the model, for an upstream that does not send one.
        tool_events: as below.
        include_usage: whether a stream ends with the usage.

    Attributes:
        tool_events: the progress events that the client is shown.
        fields: the fields of all chunks; empty until the first chunk.
        progress: all progress events.
        waiting: the progress events that wait for the next chunk.
    """

    def __init__(
        self, run_ids: Sequence[str], created: int, model: str, tool_events: ToolEvents, *, include_usage: bool
    ) -> None:
        self._id = f"chatcmpl-{run_ids[0]}"
        self._created = created
        self._model = model
        self._include_usage = include_usage
        self.tool_events = tool_events
        self.fields: Json = {}
        self.progress: list[Json] = []
        self.waiting: list[Json] = []
        self.folds: Sequence[ChoiceFold] = [ChoiceFold(self, index) for index in range(len(run_ids))]

    def _head(self, kind: str, seen: Mapping[str, Any]) -> Json:
        """The fields of the completion, or of each of its chunks; `seen` is the part that the upstream has sent."""
        model = seen.get("model") or self._model
        return {"id": self._id, "object": kind, "created": self._created, "model": model}

    def listeners(self) -> Audiences:
        """The audiences of a whole answer, which need the events of its runs and none of their chunks."""
        return [None if self.tool_events == "none" else _Listener(fold) for fold in self.folds]

    def encode(self, events: Events) -> bytes:
        """The bytes of chunks."""
        return b"".join(map(sse.encode, events))

    def opening(self, seen: Mapping[str, Any]) -> Events:
        """The chunks that precede the next one: at first the roles of all choices, then the waiting progress events.

        The stream helper of OpenAI's SDK for Python fails unless the choices begin in the order of their indices.
        """
        chunks: Events = []
        if not self.fields:
            further = {name: value for name in _OF_ALL_CHUNKS if (value := seen.get(name)) is not None}
            self.fields = {**self._head("chat.completion.chunk", seen), **further}
            if self._include_usage:
                self.fields["usage"] = None
            for index in range(len(self.folds)):
                delta = {"role": "assistant", "content": ""}
                choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
                chunks.append({**self.fields, "choices": [choice]})
        while self.waiting:
            chunks.append({**self.fields, "choices": [], "tool_event": self.waiting.pop(0)})
        return chunks

    def end(self, answers: Sequence[Respond]) -> Events:
        """The chunks with the annotations, the finish reasons, and the usage if the client wants it."""
        chunks = self.opening(answers[0].turn.envelope)
        for fold, answer in zip(self.folds, answers, strict=True):
            found = annotations("".join(fold.texts), answer.sources, fold.citations)
            cited = joined_annotations(fold.annotations, found)
            delta = {"annotations": cited} if cited else {}
            choice = {"index": fold.index, "delta": delta, "logprobs": None, "finish_reason": answer.finish_reason}
            chunks.append({**self.fields, "choices": [choice]})
        if self._include_usage:
            usage = sum_of([answer.tally for answer in answers]).as_usage()
            chunks.append({**self.fields, "choices": [], "usage": usage})
        return chunks

    def last(self, answers: Sequence[Respond]) -> bytes:
        """The end mark."""
        del answers
        return sse.DONE

    def whole(self, answers: Sequence[Respond]) -> Json:
        """The last turns as they were received, as one completion."""
        envelope = answers[0].turn.envelope
        whole = {
            **envelope,
            **self._head("chat.completion", envelope),
            "choices": [_choice_of(index, answer) for index, answer in enumerate(answers)],
            "usage": sum_of([answer.tally for answer in answers]).as_usage(),
        }
        return whole if self.tool_events == "none" else {**whole, "tool_events": self.progress}

    def error(self, error: ProxyError) -> bytes:
        """The error in OpenAI's envelope."""
        return sse.encode(error.envelope())


def _choice_of(index: int, answer: Respond) -> Json:
    """A choice of a whole completion."""
    # OpenAI's schema requires these, and typed clients check; some upstreams leave them out.
    message = {"refusal": None, **answer.message, "role": answer.message.get("role") or "assistant"}
    written = text_of(message)
    text, citations = without_marks("" if written.isspace() else written, answer.cite)
    if text != written:
        message = {**message, "content": text}
    if cited := annotations(text, answer.sources, citations):
        message = {**message, "annotations": joined_annotations(message.get("annotations"), cited)}
    final = {"index": index, "message": message, "finish_reason": answer.finish_reason}
    return {"logprobs": None, **answer.turn.choice, **final}


class ChoiceFold:
    """Makes the chunks of one choice of a streamed completion from those of the upstream.

    When the same object is shown again, only its delta is new (`ports.Show`). The bytes around the text are then those
    of the event before.

    Attributes:
        texts: the text so far.
        citations: the citations in that text.
        annotations: the upstream's own, which are shown at the end: SDKs cannot join two lists of a stream.
    """

    has_enough = False

    def __init__(self, reply: CompletionReply, index: int) -> None:
        self._reply = reply
        self.index = index
        self.texts: list[str] = []
        self.citations: list[Citation] = []
        self.annotations: list[Json] = []
        self._latest: Json | None = None  # the latest chunk
        self._field = ""  # the one key of its delta when it was shown again; empty: it has been shown once
        self._pattern: ChunkPattern | None = None  # the bytes around that key's text; None: the text was empty

    def grow(self, chunk: Json) -> bytes | None:
        """Add a chunk that is shown again with another text; its encoded event. None: the chunk has to be taken."""
        if self._latest is not chunk:
            self._latest, self._field, self._pattern = chunk, "", None
            return None
        delta = chunk["choices"][0]["delta"]
        if len(delta) != 1 or self._reply.waiting:
            return None
        [(field, text)] = delta.items()
        if not isinstance(text, str):
            return None
        if self._field != field:
            self._field, self._pattern = field, pattern_of(sse.encode(chunk), field)
        if self._pattern is None:
            return None
        if field == "content":
            self.texts.append(text)
        return self._pattern.with_text(text)

    def take(self, chunk: Json) -> Events:
        """Make a chunk of the upstream a chunk of this choice."""
        for choice in chunk["choices"]:
            choice["index"] = self.index
            delta = choice["delta"]
            if isinstance(annotated := delta.get("annotations"), list):
                self.annotations += annotated
                del delta["annotations"]
            if isinstance(text := delta.get("content"), str):
                if cited := delta.pop(CITATIONS, None):
                    shown = sum(map(len, self.texts))
                    self.citations += [(shown + at, url) for at, url in cited]
                self.texts.append(text)
        reply = self._reply
        opening = reply.opening(chunk) if reply.waiting or not reply.fields else []
        chunk.update(reply.fields)
        return [*opening, chunk]

    def take_event(self, event: RunEvent) -> Events:
        """The chunk of an event, without choices.

        The beginning of a turn is held back until something else is shown: until then, a failure can have its proper
        status.
        """
        reply = self._reply
        if reply.tool_events == "none" or (shown := progress_event(event, reply.tool_events)) is None:
            return []
        reply.progress.append(shown)
        reply.waiting.append(shown)
        if not reply.fields and isinstance(event, TurnBegan):
            return []
        return reply.opening({"model": event.model if isinstance(event, CallBegan) else None})


class _Listener(Unstreamed):
    """The audience of a run of a whole completion, which notes its progress events."""

    async def show(self, chunk: Json) -> None:
        """Show nothing: the answer of a run has all that is shown."""


def progress_event(event: RunEvent, tool_events: ToolEvents) -> Json | None:
    """A progress event as a client is shown it that asks for some; None: it is not shown."""
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
