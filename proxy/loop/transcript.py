"""The conversation of a run as its model reads it."""

from collections.abc import Sequence

from msgspec import Struct

from proxy.loop.chat import Json, Turn
from proxy.loop.continuation import storable
from proxy.loop.prompts import ANSWER_NOW
from proxy.loop.results import ToolResult, with_note


class Transcript(Struct):
    """The messages of a run: the client's, and after them those that the run adds; nothing is ever taken out.

    A turn's assistant message stands as it was received, and straight after it one tool message per call, in call
    order. A conversation without that assistant message makes GLM answer with nothing.

    Attributes:
        given: the client's messages, with our guidance.
        added: the messages of the run.
    """

    given: Sequence[Json]
    added: list[Json] = []

    def add(self, turn: Turn, answers: Sequence[ToolResult], note: str | None) -> None:
        """Add a turn and the answers to all of its calls, the last of them with a note to the model."""
        self.added.append(turn.message)
        for call, answer in zip(turn.calls, answers, strict=True):
            self.added.append({"role": "tool", "tool_call_id": call.id, "content": answer.content})
        if note is not None:
            self.added[-1]["content"] = with_note(answers[-1], note)

    def contents_of(self, turn: Turn, answers: Sequence[ToolResult]) -> list[str]:
        """The answers to a turn's calls as the model reads them: with notes, if the turn has been added."""
        for at in range(len(self.added) - 1, -1, -1):
            if self.added[at] is turn.message:
                return [message["content"] for message in storable(self.added[at + 1 : at + 1 + len(answers)])]
        return [answer.content for answer in answers]

    def demand_answer(self) -> None:
        """Ask for the answer in a message of its own, unless the last result does that already."""
        latest = (self.added or self.given)[-1]
        if ANSWER_NOW not in str(latest.get("content")):
            self.added.append({"role": "user", "content": ANSWER_NOW})
