"""Reads a turn: feeds its chunks to the assembler, shows them to the client, and announces the calls of server tools.

A whole answer that a client sees is read as the stream that would have had the text and each call in one chunk each. So
the order and the contents of what a client is shown are the same for an upstream that streams and one that does not.
"""

import asyncio

from msgspec import Struct, field

from proxy.ports import EarlyCalls, Show
from proxy.turn.assembler import Assembler
from proxy.turn.pieces import pieces_of, pieces_of_whole
from proxy.upstreams.answers import Mender
from proxy.upstreams.ending import Ending
from proxy.wire import sse
from proxy.wire.chat import Json, ToolCall
from proxy.wire.patterns import ChunkPattern, pattern_of
from proxy.wire.sse import DONE_DATA


class TurnReader(Struct, eq=False):
    """Assembles a turn, shows the client the parts that it may see, and announces each call as soon as it is complete.

    Attributes:
        ending: waits for the end of the stream once the turn has its finish reason.
        pattern: the pattern of the latest chunk, if that has only a text.
        done: whether `[DONE]` has arrived; everything after it is ignored.
    """

    mender: Mender
    assembler: Assembler
    show: Show
    early: EarlyCalls
    ending: Ending
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

    async def take_whole(self, completion: Json) -> None:
        """Take a whole completion. Raises `UpstreamError`: it has no finish_reason."""
        self.assembler.begin_whole(completion["choices"][0], completion.pop("usage", None))
        for piece in pieces_of_whole(completion):
            await self._show(piece, start_calls=False)
        self.done = True

    async def _feed(self, event: sse.SseEvent) -> None:
        """Take an event that does not fit the pattern of the last chunk."""
        chunk = self.mender.chunk(event)
        if chunk is None:
            return
        if (choices := chunk["choices"]) and choices[0].get("finish_reason"):
            self.ending.begin(beside_call=bool((choices[0].get("delta") or {}).get("tool_calls")))
        for piece in pieces_of(chunk):
            if piece is not chunk:
                await asyncio.sleep(0)  # an event may be long, and other requests wait no longer than for one call
            await self._show(piece, start_calls=True)
        self.pattern = pattern_of(event.data, self.assembler.text_field)

    async def _show(self, piece: Json, *, start_calls: bool) -> None:
        for shown in self.assembler.feed(piece):
            if isinstance(shown, ToolCall):
                await self.early.announce(shown, piece.get("model"), start=start_calls)
            else:
                await self.show(shown)
