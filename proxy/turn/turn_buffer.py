"""The chunks of one turn that are held back until the turn proves to be the answer."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from proxy.turn.citations import CITATIONS
from proxy.turn.leaks.written import THOUGHTS_END, is_proven, opens_thoughts
from proxy.turn.request import Buffering
from proxy.wire.chat import Json


class TurnBuffer(Struct):
    """The chunks of one turn that are held back until it shows whether the turn is the answer.

    A turn that was *made* to answer is shown as soon as it is long enough to be an answer. Where the answer has to be
    JSON, the text of every turn waits, because only the answer's text may be shown: words beside calls, even beside the
    client's own, are not JSON, and SDKs that parse the text would fail. Of a turn that was made to answer in JSON, the
    thoughts wait too: only its end shows whether it is the answer.

    Attributes:
        mode: how much of the turn may still have to be held back.
        chunks: the chunks that are held back.
    """

    mode: Buffering
    chunks: list[Json] = []
    _is_proven: bool | None = None  # whether the text is sure to be an answer; None: it is too short to tell
    _seen: int = 0  # how many pieces of the text have been searched
    _tail: str = ""  # the end of thoughts that are not closed yet

    def judge(self, pieces: Sequence[str], tools: Mapping[str, Json]) -> None:
        """Decide whether the turn's text is sure to be an answer, unless that has been decided already.

        While the text is in thoughts that are not closed, only new pieces are searched for the end of the thoughts.
        """
        if self._is_proven is not None or self.mode is not Buffering.START:
            return
        tail = self._tail + "".join(pieces[self._seen :])
        self._seen = len(pieces)
        if self._tail and THOUGHTS_END not in tail:
            self._tail = tail[-len(THOUGHTS_END) :]
            return
        text = "".join(pieces)
        self._tail = text[-len(THOUGHTS_END) :] if opens_thoughts(text) else ""
        self._is_proven = is_proven(text, tools)

    def release(self, visible: list[Json], *, has_calls: bool, calls_client: bool) -> list[Json]:
        """The chunks that may be shown now, after the `visible` ones have come; all other chunks are held back.

        `calls_client` tells whether the turn has calls of the client's tools, which are never held back.
        """
        if self.mode is not Buffering.TEXT:
            self.chunks += visible
            if not (calls_client or (self._is_proven and not has_calls)):
                return []
            visible, self.chunks = self.chunks, []
            self.mode = Buffering.TEXT if self.mode is Buffering.ALL else Buffering.NONE
        if self.mode is Buffering.NONE:
            return visible
        return [rest for chunk in visible if (rest := self._hold_text(chunk))]

    def _hold_text(self, chunk: Json) -> Json | None:
        """Hold back a chunk's text, and return the rest of the chunk; None: there is no rest."""
        if not chunk["choices"]:
            return chunk
        choice = chunk["choices"][0]
        delta = choice["delta"]
        if text := {key: delta.pop(key) for key in ("content", "refusal", CITATIONS) if delta.get(key)}:
            text.setdefault("content", "")  # citations stand beside it
            self.chunks.append({**chunk, "choices": [{**choice, "delta": text}]})
            choice.pop("logprobs", None)
        return chunk if any(delta.values()) else None
