"""Relays a stream: with its original bytes, wherever an OpenAI SDK can read them.

The reader also records the parts of the stream that show, at the end, whether the stream is complete.
"""

from dataclasses import dataclass, field

import orjson

from proxy.config import PriceConfig
from proxy.loop import rawjson, sse
from proxy.loop.assembler import NO_REASON
from proxy.loop.call_assembler import inferred_index, is_index
from proxy.loop.chat import Json
from proxy.loop.errors import UpstreamError
from proxy.loop.finish_reason import inferred_reason
from proxy.loop.patterns import ChunkPattern, only_text_field, pattern_of
from proxy.loop.sse import DONE_DATA
from proxy.ports import Write
from proxy.upstreams.answers import parse_chunk
from proxy.upstreams.names import ToolNames
from proxy.upstreams.prices import with_cost
from proxy.upstreams.profile import Profile

_HEAD = ("id", "object", "created", "model")  # the fields that are the same in every chunk of a stream


@dataclass(slots=True)
class RelayReader:
    """Relays a stream, and records whether it is complete.

    Attributes:
        finished: the indices of the choices that have a finish reason.
        choices: index -> the state of the choice so far.
        head: the latest chunk with a delta.
        price: the price of the model; None: no cost is added to the usage.
        shows_usage: whether a chunk that holds only the usage is passed on; False if the proxy has asked for it and the
            client has not.
        written: the number of deltas so far. In recordings, GLM writes one token in each, except for calls.
        ending: the end of the stream, `[DONE]` included, which is not written yet.
        pattern: the pattern of the latest chunk, if that has only a text.
    """

    profile: Profile
    names: ToolNames | None
    request: Json
    write: Write
    price: PriceConfig | None = None
    shows_usage: bool = True
    decoder: sse.Decoder = field(default_factory=sse.Decoder)
    done: bool = False
    ending: bytes = b""
    usage: Json | None = None
    written: int = 0
    finished: set[int] = field(default_factory=set)
    choices: dict[int, "_StreamedChoice"] = field(default_factory=dict)
    head: Json = field(default_factory=dict)
    pattern: ChunkPattern | None = None

    async def take(self, data: bytes) -> bool:
        """Take the bytes of one read, or empty bytes as the end of the body; whether the stream is done."""
        good: list[bytes] = []
        try:
            for event in self.decoder.feed(data) if data else self.decoder.close():
                if event.data[:6] == DONE_DATA:
                    self.ending = self._missing_end() + event.raw
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

    def _mended(self, event: sse.Event) -> bytes:
        """The event for the client: its original bytes, unless an OpenAI SDK cannot read them."""
        calling = [index for index, choice in self.choices.items() if choice.ids]
        chunk, changed = parse_chunk(event, self.profile, self.names, orjson.loads, calling)
        usage = chunk.get("usage")
        is_priced = self.price is not None and usage
        if changed or is_priced or _lacks_index(chunk):  # it is serialized again, with its numbers untouched
            chunk, _ = parse_chunk(event, self.profile, self.names, rawjson.loads, calling)
            changed = True
        if usage:
            self.usage = chunk["usage"] = with_cost(usage, self.price)
            if not (self.shows_usage or chunk["choices"]):
                return b""
        for choice in chunk["choices"]:
            index = choice.get("index") or 0
            if choice.get("finish_reason"):
                self.finished.add(index)
            if delta := choice.get("delta"):
                self.head = chunk
                self.written += 1
                so_far = self.choices.get(index) or self.choices.setdefault(index, _StreamedChoice())
                so_far.take(delta)
        if changed:
            self.pattern = None
            return sse.encode(chunk)
        self.pattern = pattern_of(event.data, only_text_field(chunk))
        return event.raw

    def _missing_end(self) -> bytes:
        """The events that are missing before `[DONE]`: finish reasons for complete choices without one.

        Raises:
            UpstreamError: no choice is complete.
        """
        events: list[bytes] = []
        usage = self.usage if len(self.choices) == 1 else None
        for index, choice in self.choices.items():
            if index in self.finished or (reason := inferred_reason(choice.message, self.request, usage)) is None:
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


@dataclass(slots=True)
class _StreamedChoice:
    """The parts of a relayed choice that show whether it is complete."""

    has_text: bool = False
    function: Json | None = None
    ids: dict[int, str] = field(default_factory=dict)
    arguments: dict[int, list[str]] = field(default_factory=dict)

    def take(self, delta: Json) -> None:
        """Add a delta, and give its calls any missing indices."""
        if delta.get("content") or delta.get("refusal"):
            self.has_text = True
        self.function = self.function or delta.get("function_call")
        for call in delta.get("tool_calls") or ():
            if not is_index(call.get("index")):
                call["index"] = inferred_index(call, self.ids)
            index = call["index"]
            self.ids[index] = call.get("id") or self.ids.get(index, "")
            function = call.get("function") or {}
            self.arguments.setdefault(index, []).append(function.get("arguments") or "")

    @property
    def message(self) -> Json:
        """The parts of the message that show whether it is complete."""
        calls = [{"function": {"arguments": "".join(pieces)}} for pieces in self.arguments.values()]
        return {"refusal": self.has_text, "tool_calls": calls, "function_call": self.function}


def _lacks_index(chunk: Json) -> bool:
    """Whether a chunk has a tool call without an index."""
    for choice in chunk["choices"]:
        delta = choice.get("delta")
        if delta and (calls := delta.get("tool_calls")) and not all(is_index(call.get("index")) for call in calls):
            return True
    return False
