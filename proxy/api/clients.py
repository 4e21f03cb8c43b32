"""What showing a chunk and finishing mean to a client that streams and to one that does not.

Whatever happens upstream, the client sees one completion: one id, one role, one finish_reason, one sum of usage.
"""

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from msgspec import Struct

from proxy.api.replies import EventStream, Headers
from proxy.loop import sse
from proxy.loop.actions import Respond, Stop, Tally, sum_of
from proxy.loop.chat import Json, text_of
from proxy.loop.citations import CITATIONS, Citation, annotations, without_marks
from proxy.ports import Show


class Identity(Struct, frozen=True):
    """What is the same in every part of one completion; `model` stands in where the upstream does not name its own."""

    id: str
    created: int
    model: str


@dataclass(slots=True)
class StreamingClient:
    """A client with `stream: true`, with one choice or several."""

    stream: EventStream
    identity: Identity
    include_usage: bool
    _head: Json = field(default_factory=dict)
    _texts: dict[int, list[str]] = field(default_factory=dict)
    _citations: dict[int, list[Citation]] = field(default_factory=dict)
    _events: list[Json] = field(default_factory=list)

    def show(self, index: int) -> Show:
        """Shows upstream chunks, with what may be seen of them, as chunks of this completion's choice `index`."""

        def show(chunk: Json) -> Awaitable[None]:
            opening = self._opening(index, chunk) if self._events or index not in self._texts else b""
            for choice in chunk["choices"]:
                choice["index"] = index
                delta = choice["delta"]
                if isinstance(text := delta.get("content"), str):
                    if cited := delta.pop(CITATIONS, None):
                        self._note_citations(index, cited)
                    self._texts[index].append(text)
            chunk.update(self._head)
            return self.stream.write(opening + sse.encode(chunk) if opening else sse.encode(chunk))

        return show

    def _note_citations(self, index: int, cited: Sequence[Citation]) -> None:
        """Citations in the text that is shown next, for the end of the stream."""
        shown = sum(map(len, self._texts[index]))
        self._citations.setdefault(index, []).extend((shown + at, url) for at, url in cited)

    async def tell(self, event: Json) -> None:
        """One progress event, as a chunk without choices.

        The first waits for something to show: until then a failure can still have its proper status.
        """
        self._events.append(event)
        if self._texts or event["type"] != "turn.started":
            await self.stream.write(self._opening(0, {}))

    async def finish(self, answers: Sequence[Respond]) -> None:
        """The finish reasons, the usage if it was asked for, and the end mark."""
        events: list[bytes] = []
        for index, answer in enumerate(answers):
            events.append(self._opening(index, answer.turn.envelope))
            cited = annotations("".join(self._texts[index]), answer.sources, self._citations.get(index, ()))
            delta: Json = {"annotations": cited} if cited else {}
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": answer.finish_reason}
            events.append(sse.encode({**self._head, "choices": [choice]}))
        if self.include_usage:
            events.append(sse.encode({**self._head, "choices": [], "usage": _tally(answers).as_usage()}))
        await self.stream.write(b"".join((*events, sse.DONE)))
        await self.stream.close()

    def _opening(self, index: int, seen: Mapping[str, Any]) -> bytes:
        """The chunk with a choice's role, once, before anything else of it; then the events that wait."""
        role = b"" if index in self._texts else self._role(index, seen)
        told = [sse.encode({**self._head, "choices": [], "tool_event": event}) for event in self._events]
        self._events.clear()
        return b"".join((role, *told))

    def _role(self, index: int, seen: Mapping[str, Any]) -> bytes:
        self._texts[index] = []
        if not self._head:
            self._head = {
                "id": self.identity.id,
                "object": "chat.completion.chunk",
                "created": self.identity.created,
                "model": seen.get("model") or self.identity.model,
            }
            if self.include_usage:
                self._head["usage"] = None
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return sse.encode({**self._head, "choices": [choice]})


def whole_completion(answers: Sequence[Respond], identity: Identity, *, events: Sequence[Json] | None = None) -> Json:
    """The answer of a client that does not stream: the last turns as they came, under this completion's identity.

    Args:
        answers: of one loop for each choice that the client wants.
        identity: of the completion.
        events: the progress of the run, for clients that asked for it.
    """
    envelope = answers[0].turn.envelope
    completion = {**envelope}
    completion["id"] = identity.id
    completion["object"] = "chat.completion"
    completion["created"] = identity.created
    completion["model"] = envelope.get("model") or identity.model
    completion["choices"] = [_choice(index, answer) for index, answer in enumerate(answers)]
    completion["usage"] = _tally(answers).as_usage()
    if events is not None:
        completion["tool_events"] = list(events)
    return completion


def _choice(index: int, answer: Respond) -> Json:
    message = answer.message
    said = text_of(message)
    text, citations = without_marks(said, answer.cite)
    if text != said:
        message = {**message, "content": text}
    if cited := annotations(text, answer.sources, citations):
        message = {**message, "annotations": cited}
    final = {"index": index, "message": message, "finish_reason": answer.finish_reason}
    return {"logprobs": None, **answer.turn.choice, **final}


def _tally(answers: Sequence[Respond]) -> Tally:
    """What all loops have used together."""
    return answers[0].tally if len(answers) == 1 else sum_of([answer.tally for answer in answers])


def tool_headers(answers: Sequence[Respond]) -> Headers:
    """What happened on the way to the answer, for those who look."""
    tally = _tally(answers)
    return _tool_headers(tally.turns, tally.total_tool_calls, answers[0].stop)


@lru_cache(256)  # mostly a few turns and calls, and an answer
def _tool_headers(turns: int, calls: int, stop: Stop) -> Headers:
    return (
        (b"x-tool-turns", str(turns).encode()),
        (b"x-tool-calls", str(calls).encode()),
        (b"x-tool-stop", stop.encode()),
    )
