"""Reads the stream of a turn: feeds chunks to the assembler, shows them to the client, and starts calls early."""

import asyncio
from collections.abc import Sequence

from msgspec import Struct, field

from proxy.loop import rawjson, sse
from proxy.loop.assembler import Assembler
from proxy.loop.chat import Json
from proxy.loop.patterns import ChunkPattern, pattern_of
from proxy.loop.sse import DONE_DATA
from proxy.ports import EarlyCalls, Show
from proxy.upstreams.answers import parse_chunk
from proxy.upstreams.names import ToolNames
from proxy.upstreams.profile import Profile


class TurnReader(Struct, eq=False):
    """Assembles a turn, shows the client the parts that it may see, and starts each call as soon as it is complete.

    Attributes:
        pattern: the pattern of the latest chunk, if that has only a text.
        done: whether `[DONE]` has arrived; everything after it is ignored.
    """

    profile: Profile
    names: ToolNames | None
    assembler: Assembler
    show: Show
    early: EarlyCalls
    decoder: sse.Decoder = field(default_factory=sse.Decoder)
    pattern: ChunkPattern | None = None
    done: bool = False

    async def take(self, data: bytes) -> bool:
        """Take the bytes of one read, or empty bytes as the end of the body; whether the stream is done."""
        for event in self.decoder.feed(data) if data else self.decoder.close():
            if event.data[:6] == DONE_DATA:
                self.done = True
                break
            text = None if self.pattern is None else self.pattern.text_in(event)
            if text is None:
                await self._feed(event)
                continue
            for visible in self.assembler.feed_text(text):
                await self.show(visible)
        return self.done

    async def _feed(self, event: sse.Event) -> None:
        """Take an event that does not fit the pattern of the last chunk."""
        assembler = self.assembler
        chunk, _ = parse_chunk(event, self.profile, self.names, rawjson.loads)
        for part in _call_by_call(chunk):
            shown, ready = assembler.feed(part), assembler.calls.take_ready()
            # The client is told of a call after the text of its chunk, and before anything that follows the call.
            shown, client_calls = _split(shown) if ready else (shown, [])
            for visible in shown:
                await self.show(visible)
            for call in ready:
                self.early.start(call, chunk.get("model"))
            if ready:
                await asyncio.sleep(0)  # the calls announce themselves in their first step
            for visible in client_calls:
                await self.show(visible)
        self.pattern = pattern_of(event.data, assembler.text_field)


def _call_by_call(chunk: Json) -> list[Json]:
    """A chunk with several calls as chunks with one call each, so that the client is told of the calls in order."""
    choices: Sequence[Json] = chunk["choices"]
    calls = (choices[0].get("delta") or {}).get("tool_calls") if len(choices) == 1 else None
    if not calls or len(calls) == 1:
        return [chunk]
    first, *rest = calls
    choices[0]["delta"]["tool_calls"] = [first]
    only_calls = [{**choices[0], "delta": {"tool_calls": [call]}} for call in rest]
    return [chunk, *({**chunk, "choices": [choice]} for choice in only_calls)]


def _split(shown: Sequence[Json]) -> tuple[list[Json], list[Json]]:
    """Split chunks of at most one choice into chunks without tool calls and chunks with only tool calls."""
    texts: list[Json] = []
    calls: list[Json] = []
    for chunk in shown:
        if not (chunk["choices"] and (fragments := chunk["choices"][0]["delta"].pop("tool_calls", None))):
            texts.append(chunk)
            continue
        choice = chunk["choices"][0]
        calls.append({**chunk, "choices": [{**choice, "delta": {"tool_calls": fragments}}]})
        if any(choice["delta"].values()):
            texts.append(chunk)
    return texts, calls
