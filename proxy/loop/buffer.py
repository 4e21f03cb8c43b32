"""The beginning of a turn that is held back until it shows whether the turn is the answer.

A turn that was *made* to answer is shown from the moment when it is long enough to be an answer. Of a turn that has to
be JSON only the text waits, for only the last turn's may be shown.
"""

from msgspec import Struct

from proxy.loop.actions import Buffering
from proxy.loop.chat import Json
from proxy.loop.citations import CITATIONS

# A forced turn with this much text is taken for an answer and shown. "I'll search for ..." before one more tool call is
# shorter; at a model's usual pace the wait is a second or two.
PROOF_CHARACTERS = 160


class TurnBuffer(Struct):
    """The chunks of one turn that wait.

    Attributes:
        mode: how much of the turn waits.
        chunks: those that wait.
    """

    mode: Buffering
    chunks: list[Json] = []

    @property
    def is_on(self) -> bool:
        """Whether anything of the turn may have to wait."""
        return self.mode is not Buffering.NONE

    def release(self, visible: list[Json], *, characters: int, has_calls: bool, has_client_calls: bool) -> list[Json]:
        """The chunks that may be shown now; the others wait.

        Args:
            visible: new ones.
            characters: how long the turn's text is so far.
            has_calls: whether the turn makes calls.
            has_client_calls: whether it makes calls of the client's: these are never held back.
        """
        if self.mode is Buffering.ALL and not has_client_calls:
            return [rest for chunk in visible if (rest := self._hold_text(chunk))]
        self.chunks += visible
        if not (has_client_calls or (characters >= PROOF_CHARACTERS and not has_calls)):
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
            self.chunks.append({**chunk, "choices": [{**choice, "delta": text}]})
            choice.pop("logprobs", None)
        return chunk if any(delta.values()) else None
