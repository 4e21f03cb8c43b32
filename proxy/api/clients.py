"""What showing a chunk and finishing mean to a client that streams and to one that does not.

Whatever happens upstream, the client sees one completion: one id, one role, one finish_reason, one sum of usage.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from proxy.api.replies import EventStream, Headers
from proxy.core import sse
from proxy.core.actions import Respond
from proxy.core.chat import Json, text_of
from proxy.core.citations import annotations


@dataclass(frozen=True, slots=True)
class Identity:
    """What is the same in every part of one completion; `model` stands in where the upstream does not name its own."""

    id: str
    created: int
    model: str


@dataclass(slots=True)
class StreamingClient:
    """A client with `stream: true`."""

    stream: EventStream
    identity: Identity
    include_usage: bool
    _begun: bool = False
    _text: list[str] = field(default_factory=list)
    _events: list[Json] = field(default_factory=list)
    _head: Json = field(default_factory=dict)

    async def show(self, chunk: Json) -> None:
        """One upstream chunk, with what may be seen of it, as a chunk of this completion."""
        for choice in chunk["choices"]:
            if isinstance(text := choice["delta"].get("content"), str):
                self._text.append(text)
        await self.stream.write(self._opening(chunk) + sse.encode({**chunk, **self._head}))

    async def tell(self, event: Json) -> None:
        """One progress event, as a chunk without choices.

        The first waits for something to show: until then a failure can still have its proper status.
        """
        self._events.append(event)
        if self._begun or event["type"] != "turn.started":
            await self.stream.write(self._opening({}))

    async def finish(self, answer: Respond) -> None:
        """The finish_reason, the usage if it was asked for, and the end mark."""
        cited = annotations("".join(self._text), answer.sources)
        delta: Json = {"annotations": cited} if cited else {}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": answer.finish_reason}
        events = [self._opening(answer.turn.envelope), sse.encode({**self._head, "choices": [choice]})]
        if self.include_usage:
            events.append(sse.encode({**self._head, "choices": [], "usage": answer.tally.as_usage()}))
        await self.stream.write(b"".join((*events, sse.DONE)))
        await self.stream.close()

    def _opening(self, seen: Json) -> bytes:
        """The chunk with the role, once, before anything else; then the events that wait."""
        role = b"" if self._begun else self._role(seen)
        told = [sse.encode({**self._head, "choices": [], "tool_event": event}) for event in self._events]
        self._events.clear()
        return b"".join((role, *told))

    def _role(self, seen: Json) -> bytes:
        self._begun = True
        self._head = {
            "id": self.identity.id,
            "object": "chat.completion.chunk",
            "created": self.identity.created,
            "model": seen.get("model") or self.identity.model,
        }
        if self.include_usage:
            self._head["usage"] = None
        delta = {"role": "assistant", "content": ""}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        return sse.encode({**self._head, "choices": [choice]})


def whole_completion(answer: Respond, identity: Identity, *, events: Sequence[Json] | None = None) -> Json:
    """The answer of a client that does not stream: the last turn as it came, under this completion's identity.

    `events`: the progress of the run, for clients that asked for it.
    """
    cited = annotations(text_of(answer.message), answer.sources)
    message = {**answer.message, "annotations": cited} if cited else answer.message
    choice = {
        "logprobs": None,
        **answer.turn.choice,
        "index": 0,
        "message": message,
        "finish_reason": answer.finish_reason,
    }
    return {
        **answer.turn.envelope,
        "id": identity.id,
        "object": "chat.completion",
        "created": identity.created,
        "model": answer.turn.envelope.get("model") or identity.model,
        "choices": [choice],
        "usage": answer.tally.as_usage(),
        **({} if events is None else {"tool_events": list(events)}),
    }


def tool_headers(answer: Respond) -> Headers:
    """What happened on the way to the answer, for those who look."""
    return (
        (b"x-tool-turns", str(answer.tally.turns).encode()),
        (b"x-tool-calls", str(answer.tally.total_tool_calls).encode()),
        (b"x-tool-stop", answer.stop.encode()),
    )
