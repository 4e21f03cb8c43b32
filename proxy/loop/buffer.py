"""The beginning of a turn that is held back until it shows whether the turn is the answer.

A turn that was *made* to answer is shown from the moment when it is long enough to be an answer. Of a turn that has to
be JSON only the text waits, for only the answer's may be shown: words beside calls, the client's own ones too, are no
JSON, and SDKs that parse the text would fail.
"""

from msgspec import Struct

from proxy.loop.actions import Buffering
from proxy.loop.chat import Json
from proxy.loop.citations import CITATIONS

# A forced turn with this much text is taken for an answer and shown, unless it begins like a call. "I'll search ..."
# before one more tool call is shorter; at a model's usual pace the wait is a second or two.
PROOF_CHARACTERS = 160


class TurnBuffer(Struct):
    """The chunks of one turn that wait.

    Attributes:
        mode: how much of the turn may still have to wait.
        chunks: those that wait.
    """

    mode: Buffering
    chunks: list[Json] = []

    def release(self, visible: list[Json], *, is_answer: bool, calls_client: bool) -> list[Json]:
        """The chunks that may be shown now; the others wait.

        Args:
            visible: new ones.
            is_answer: whether the turn is one, as far as it has come.
            calls_client: whether it calls tools of the client's: these calls are never held back.
        """
        if self.mode is Buffering.ALL:
            return [rest for chunk in visible if (rest := self._hold_text(chunk))]
        self.chunks += visible
        if not (calls_client or is_answer):
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
