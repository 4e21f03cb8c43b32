"""Relays a stream: with its original bytes, wherever an OpenAI SDK can read them.

The reader also records the parts of the stream that show, at the end, whether the stream is complete.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any

from msgspec import Struct, field

from proxy.config.model import PriceConfig
from proxy.loop.actions import CallUpstream
from proxy.turn.assembler import NO_REASON, Assembler
from proxy.turn.call_arguments import ScanBudget
from proxy.upstreams.answers import COMPLETION, Mender, differs
from proxy.upstreams.ending import Ending
from proxy.upstreams.names import clean_calls
from proxy.upstreams.prices import with_cost
from proxy.upstreams.relayed_calls import RelayedCalls
from proxy.wire import sse
from proxy.wire.chat import Json, inferred_reason
from proxy.wire.errors import UpstreamError
from proxy.wire.patterns import ChunkPattern, only_text_field, pattern_of
from proxy.wire.relayed import Write
from proxy.wire.sse import DONE_DATA
from proxy.wire.usage import other_usage

_HEAD = ("id", "object", "created", "model")  # the fields that are the same in every chunk of a stream


@dataclass(slots=True)  # a Struct takes longer to count each chunk
class RelayReader:
    """Relays a stream, and records whether it is complete.

    Attributes:
        ending: waits for the end of the stream once all choices have their finish reasons.
        finished: the indices of the choices that have a finish reason.
        choices: index -> the state of the choice so far.
        budget: the budget for looking at the arguments of all calls.
        head: the latest chunk with a delta.
        price: the price of the model; None: no cost is added to the usage.
        shows_usage: whether a chunk that holds only the usage is passed on; False if the proxy has asked for it and the
            client has not.
        written: the number of deltas so far. In recordings, GLM writes one token in each, except for calls.
        last: the end of the stream, `[DONE]` included, which is not written yet.
        pattern: the pattern of the latest chunk, if that has only a text.
    """

    mender: Mender
    write: Write
    ending: Ending
    price: PriceConfig | None = None
    shows_usage: bool = True
    decoder: sse.Decoder = dataclass_field(default_factory=sse.Decoder)
    done: bool = False
    last: bytes = sse.DONE
    usage: Json | None = None
    written: int = 0
    finished: set[int] = dataclass_field(default_factory=set)
    choices: dict[int, "_StreamedChoice"] = dataclass_field(default_factory=dict)
    budget: ScanBudget = dataclass_field(default_factory=ScanBudget)
    head: Json = dataclass_field(default_factory=dict)
    pattern: ChunkPattern | None = None

    async def take(self, data: bytes) -> bool:
        """Take the bytes of one read, or empty bytes as the end of the body; whether the stream is done."""
        good: list[bytes] = []
        try:
            for event in self.decoder.feed(data) if data else self.decoder.close():
                if event.data[:6] == DONE_DATA:
                    self.last = self._missing_end() + event.raw
                    self.done = True
                    break
                if self.pattern is not None and self.pattern.text_in(event) is not None:
                    self.written += 1
                    good.append(event.raw)
                else:
                    good.append(self._mended(event))
        finally:  # the events before a bad one are written before the error is reported
            if good:
                await self.write(b"".join(good))
        return self.done

    def _mended(self, event: sse.SseEvent) -> bytes:
        """The event for the client: its original bytes, unless an OpenAI SDK cannot read them."""
        calling = [index for index, choice in self.choices.items() if choice.calls]
        chunk = self.mender.chunk(event, calling)
        if chunk is None or not self._counted(chunk):
            return b""
        for choice in chunk["choices"]:
            index = choice.get("index") or 0
            if choice.get("finish_reason"):
                self.finished.add(index)
                _begin_ending(self.ending, self.finished, self.mender.request, choice)
            if delta := choice.get("delta"):
                self.head = chunk
                self.written += 1
                if index not in self.choices:
                    self.choices[index] = _StreamedChoice(RelayedCalls(self.mender.request, self.budget))
                self.choices[index].take(delta)
        if differs(chunk, event.data):
            self.pattern = None
            return sse.encode(chunk)
        self.pattern = pattern_of(event.data, only_text_field(chunk))
        return event.raw

    def _counted(self, chunk: Json) -> bool:
        """Note the usage of a chunk; whether the client wants the chunk."""
        if usage := chunk.get("usage"):
            self.usage = chunk["usage"] = with_cost(usage, self.price)
            return self.shows_usage or bool(chunk["choices"])
        if usage := other_usage(chunk):
            self.usage = with_cost(usage, self.price)
        return True

    def _missing_end(self) -> bytes:
        """The events that are missing before `[DONE]`: finish reasons for complete choices without one.

        Raises:
            UpstreamError: no choice is complete.
        """
        events: list[bytes] = []
        usage = self.usage if len(self.choices) == 1 else None
        for index, choice in self.choices.items():
            if (
                index in self.finished
                or (reason := inferred_reason(choice.message, self.mender.request, usage)) is None
            ):
                continue
            self.finished.add(index)
            head = {name: self.head[name] for name in _HEAD if name in self.head}
            events.append(sse.encode({**head, "choices": [{"index": index, "delta": {}, "finish_reason": reason}]}))
        self.require_finished()
        return b"".join(events)

    def require_finished(self) -> None:
        """Raise `UpstreamError` if no choice has a finish reason, because the stream was cut off."""
        if not self.finished:
            raise UpstreamError(NO_REASON)


class CompletionReader(Struct, eq=False):
    """Reads a stream that was sent in place of a whole completion.

    Attributes:
        done: whether `[DONE]` has arrived; everything after it is ignored.
    """

    mender: Mender
    ending: Ending
    done: bool = False
    _decoder: sse.Decoder = field(default_factory=sse.Decoder)
    _finished: set[int] = set()
    _choices: dict[int, Assembler] = {}
    _usage: Json | None = None

    async def take(self, data: bytes) -> bool:
        """Take the bytes of one read, or empty bytes as the end of the body; whether the stream is done."""
        for event in self._decoder.feed(data) if data else self._decoder.close():
            if event.data[:6] == DONE_DATA:
                self.done = True
                break
            chunk = self.mender.chunk(event)
            if chunk is not None:
                self._usage = chunk.pop("usage", None) or other_usage(chunk) or self._usage
                for choice in chunk["choices"]:
                    index = choice.pop("index", None) or 0
                    if choice.get("finish_reason"):
                        self._finished.add(index)
                        _begin_ending(self.ending, self._finished, self.mender.request, choice)
                    if index not in self._choices:
                        self._choices[index] = Assembler(CallUpstream(self.mender.request, number=1))
                    self._choices[index].feed({**chunk, "choices": [choice]})
        return self.done

    def completion(self) -> Json:
        """The whole completion. Raises `UpstreamError`: the stream has broken off."""
        envelope: Mapping[str, Any] = {}
        choices: list[Json] = []
        for index, assembler in sorted(self._choices.items()):
            assembler.close(done=self.done)
            turn = assembler.finish()
            envelope = envelope or turn.envelope
            final = {"index": index, "message": turn.message, "finish_reason": turn.finish_reason}
            choices.append({**turn.choice, **final})
        if not choices:
            raise UpstreamError(NO_REASON)
        completion = {**envelope, "object": COMPLETION, "choices": choices, "usage": self._usage}
        clean_calls(completion, self.mender.request)
        return completion


def _begin_ending(ending: Ending, finished: Collection[int], request: Json, choice: Json) -> None:
    """Begin the end of a stream if all choices of the request are `finished`, of which `choice` is the latest."""
    count = request.get("n")
    if len(finished) >= (count if isinstance(count, int) else 1):
        ending.begin(beside_call=bool((choice.get("delta") or {}).get("tool_calls")))


class _StreamedChoice(Struct, eq=False):
    """The parts of a relayed choice that show whether it is complete: its calls, and whether it has a text."""

    calls: RelayedCalls
    has_text: bool = False
    function: Json | None = None

    def take(self, delta: Json) -> None:
        """Add a delta, and mend its calls."""
        if delta.get("content") or delta.get("refusal"):
            self.has_text = True
        self.function = self.function or delta.get("function_call")
        if entries := delta.get("tool_calls"):
            self.calls.mend(entries)

    @property
    def message(self) -> Json:
        """The parts of the message that show whether it is complete."""
        return {"refusal": self.has_text, "tool_calls": self.calls.entries, "function_call": self.function}
