"""The messages of a run: the client's, and after them those that the run adds.

A turn's assistant message stands as it was received, and straight after it one tool message per call, in call order. A
conversation without that assistant message makes GLM answer with nothing.
"""

from collections.abc import Sequence

from proxy.loop.chat import Json, ToolResult, Turn
from proxy.loop.prompts import ANSWER_NOW, with_guidance
from proxy.loop.results import with_note


class Transcript:
    """A conversation, to which only ever something is added.

    Args:
        messages: the client's.
        guidance: a text for their system message, or None.

    Attributes:
        messages: all of them, for the next turn.
        given: how many of them are the client's, a system message of the guidance included.
    """

    def __init__(self, messages: Sequence[Json], guidance: str | None) -> None:
        self.messages = list(messages) if guidance is None else with_guidance(messages, guidance)
        self.given = len(self.messages)

    @property
    def added(self) -> tuple[Json, ...]:
        """The messages of the run."""
        return tuple(self.messages[self.given :])

    def add(self, turn: Turn, answers: Sequence[ToolResult], note: str | None) -> None:
        """Add a turn and the answers to all of its calls, the last of them with a note to the model."""
        self.messages.append(turn.message)
        for call, answer in zip(turn.calls, answers, strict=True):
            self.messages.append({"role": "tool", "tool_call_id": call.id, "content": answer.content})
        if note is not None:
            self.messages[-1]["content"] = with_note(answers[-1], note)

    def demand_answer(self) -> None:
        """Ask for the answer in a message of its own, unless the last result says that already."""
        if ANSWER_NOW not in str(self.messages[-1].get("content")):
            self.messages.append({"role": "user", "content": ANSWER_NOW})
