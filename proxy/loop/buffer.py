"""The beginning of a turn that is held back until it shows whether the turn is the answer.

A turn that was *made* to answer is shown from the moment when it is long enough to be an answer. Of a turn that has to
be JSON only the text waits, for only the answer's may be shown: words beside calls, the client's own ones too, are no
JSON, and SDKs that parse the text would fail.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from proxy.loop.actions import Buffering
from proxy.loop.chat import Json
from proxy.loop.citations import CITATIONS
from proxy.loop.leaks.written import THOUGHTS_END, is_proven, opens_thoughts


class TurnBuffer(Struct):
    """The chunks of one turn that wait.

    Attributes:
        mode: how much of the turn may still have to wait.
        chunks: those that wait.
    """

    mode: Buffering
    chunks: list[Json] = []
    _is_proven: bool | None = None  # whether its text is sure to be an answer; None: it is too short to tell
    _seen: int = 0  # pieces of its text that have been searched
    _tail: str = ""  # the end of thoughts that are not closed yet

    def judge(self, pieces: Sequence[str], tools: Mapping[str, Json]) -> None:
        """Decide whether the turn's text is sure to be an answer, unless that is decided already.

        While the text begins with thoughts that are not closed, only its new pieces are searched for their end.
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
        """The chunks that may be shown now; the others wait.

        Args:
            visible: new ones.
            has_calls: whether the turn has calls, as far as it has come.
            calls_client: whether it calls tools of the client's: these calls are never held back.
        """
        if self.mode is Buffering.ALL:
            return [rest for chunk in visible if (rest := self._hold_text(chunk))]
        self.chunks += visible
        if not (calls_client or (self._is_proven and not has_calls)):
            return []
        self.mode = Buffering.NONE
        released, self.chunks = self.chunks, []
        return released

    def _hold_text(self, chunk: Json) -> Json | None:
        """Let a chunk's text wait, and return the rest of the chunk, if there is any."""
        if not chunk["choices"]:
            return chunk
        choice = chunk["choices"][0]
        delta = choice["delta"]
        if text := {key: delta.pop(key) for key in ("content", "refusal", CITATIONS) if delta.get(key)}:
            text.setdefault("content", "")  # citations stand beside it
            self.chunks.append({**chunk, "choices": [{**choice, "delta": text}]})
            choice.pop("logprobs", None)
        return chunk if any(delta.values()) else None
