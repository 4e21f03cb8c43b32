"""Making a model answer: from the moment a limit permits no further round of tools, in at most three attempts.

By which step an attempt is made depends on the upstream that answers it, and which one that is may change in the very
turn, by a fallback. So a call says only that it is the first, second or third attempt; the upstream that takes it picks
the step out of its profile and gives the request that step's shape.
"""

from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from proxy.loop.chat import Json, Turn
from proxy.loop.leaks import holds_raw_format
from proxy.loop.prompts import retell


class AnswerStep(StrEnum):
    """One way of making a model answer, mildest first."""

    NOTICE = "notice"  # the results say that the budget is used up; the tools stay
    WITHDRAW = "withdraw"  # the server's tools are taken out of the request
    RETELL = "retell"  # a fresh conversation without tools, the results retold as ordinary text


AnswerSteps: TypeAlias = tuple[AnswerStep, AnswerStep, AnswerStep]
"""The steps that the models of one kind of upstream bear, one for each attempt."""

ATTEMPTS = 3
DEFAULT_ANSWER_STEPS: AnswerSteps = (AnswerStep.NOTICE, AnswerStep.WITHDRAW, AnswerStep.RETELL)


class Forcing(Struct, frozen=True):
    """What an upstream needs to give a request the shape of a step.

    Attributes:
        attempt: 0, 1 or 2, the place of its step among the upstream's.
        client_tools: the entries of the request's `tools` that are the client's.
        asked: how many of the request's messages are the client's; those after them were added by the run.
    """

    attempt: int
    client_tools: tuple[Json, ...]
    asked: int

    def shaped(self, body: Json, step: AnswerStep) -> Json:
        """The request for this step; `body` is the one for the mildest."""
        if step is AnswerStep.NOTICE:
            return body
        body = {**body, "tools": self.client_tools}
        if not self.client_tools:
            for field in ("tools", "tool_choice", "parallel_tool_calls"):
                body.pop(field, None)
        if step is AnswerStep.RETELL:
            messages = body["messages"]
            body["messages"] = retell(messages[: self.asked], messages[self.asked :])
        return body


def is_answer(turn: Turn) -> bool:
    """Whether a turn that was made to answer does: it says something, and asks for nothing more."""
    return bool(turn.text.strip()) and not turn.calls and not turn.garbled and not holds_raw_format(turn.text)
