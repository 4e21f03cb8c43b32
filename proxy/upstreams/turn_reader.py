"""Reads a turn: feeds its chunks to the assembler, shows them to the client, and announces the calls of server tools.

A whole answer is read as the stream that would have had the text and each call in one chunk each. So the order
and the contents of what a client is shown are the same for an upstream that streams and one that does not.
"""

import asyncio
from collections.abc import Sequence

from msgspec import Struct, field

from proxy.ports import EarlyCalls, Show
from proxy.turn.assembler import Assembler
from proxy.turn.pieces import pieces_of, pieces_of_whole
from proxy.upstreams.answers import parse_chunk
from proxy.upstreams.ending import Ending
from proxy.upstreams.names import ToolNames
from proxy.upstreams.profile import Profile
from proxy.upstreams.split_characters import SplitCharacters
from proxy.wire import sse
from proxy.wire.chat import Json
from proxy.wire.errors import UpstreamError
from proxy.wire.patterns import ChunkPattern, pattern_of
from proxy.wire.sse import DONE_DATA


class TurnReader(Struct, eq=False):
    """Assembles a turn, shows the client the parts that it may see, and announces each call as soon as it is complete.

    Attributes:
        ending: waits for the end of the stream once the turn has its finish reason.
        pattern: the pattern of the latest chunk, if that has only a text.
        done: whether `[DONE]` has arrived; everything after it is ignored.
    """

    profile: Profile
    names: ToolNames | None
    assembler: Assembler
    show: Show
    early: EarlyCalls
    ending: Ending
    decoder: sse.Decoder = field(default_factory=sse.Decoder)
    characters: SplitCharacters = field(default_factory=SplitCharacters)
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

    async def take_whole(self, completion: Json) -> None:
        """Take a whole completion. Raises `UpstreamError`: it has no finish_reason."""
        choice = completion["choices"][0]
        if not choice.get("finish_reason"):
            raise UpstreamError("The upstream's answer has no finish_reason.")
        self.assembler.begin_whole(choice)
        for piece in pieces_of_whole(completion):
            await self._show_parts(piece, start_calls=False)
        self.done = True

    async def _feed(self, event: sse.Event) -> None:
        """Take an event that does not fit the pattern of the last chunk."""
        chunk, _ = parse_chunk(event, self.profile, self.names, self.characters.loads)
        if chunk is None:
            return
        if (choices := chunk["choices"]) and choices[0].get("finish_reason"):
            self.ending.begin(beside_call=bool((choices[0].get("delta") or {}).get("tool_calls")))
        await self._show_parts(chunk, start_calls=True)
        self.pattern = pattern_of(event.data, self.assembler.text_field)

    async def _show_parts(self, chunk: Json, *, start_calls: bool) -> None:
        assembler = self.assembler
        for part in pieces_of(chunk):
            if part is not chunk:
                await asyncio.sleep(0)  # an event may be long, and other requests wait no longer than for one call
            shown, ready = assembler.feed(part), assembler.calls.take_ready()
            # The client is told of a call after the text of its chunk, and before anything that follows the call.
            shown, client_calls = _split(shown) if ready else (shown, [])
            for visible in shown:
                await self.show(visible)
            for call in ready:
                await self.early.announce(call, chunk.get("model"), start=start_calls)
            for visible in client_calls:
                await self.show(visible)


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
