"""Making a model answer, at a limit or after a second blank turn, in at most three attempts.

The step of an attempt depends on the upstream, and a fallback may replace the upstream in the middle of a turn. A call
therefore has only the number of the attempt. The upstream that takes the call picks the step from its profile, and
shapes the request for that step.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from proxy.loop.prompts import retell
from proxy.turn.json_mode import JsonMode
from proxy.turn.leaks.written import holds_raw_format, is_bare_call
from proxy.wire.chat import Json, Turn, drop_tools
from proxy.wire.errors import NoFinalAnswer


class AnswerStep(StrEnum):
    """A way of making a model answer. The mildest step comes first."""

    NOTICE = "notice"  # the results tell the model that the budget is used up; the tools stay
    WITHDRAW = "withdraw"  # the server's tools are taken out of the request
    RETELL = "retell"  # the conversation is sent without tools, the results as ordinary text


AnswerSteps: TypeAlias = tuple[AnswerStep, AnswerStep, AnswerStep]
"""The steps for the models of one kind of upstream, one for each attempt."""

_ATTEMPTS = 3
_OTHER_ANSWERS = ("refusal", "audio", "images", "tool_calls")  # fields of a message that make it an answer without text
DEFAULT_ANSWER_STEPS: AnswerSteps = (AnswerStep.NOTICE, AnswerStep.WITHDRAW, AnswerStep.RETELL)


class Forcing(Struct, frozen=True):
    """An attempt at making the model answer, with the values that shape a request for the attempt's step.

    Attributes:
        attempt: 0, 1 or 2, the index of the step among the upstream's steps.
        client_entries: the client's entries of the request's `tools`.
        given: how many messages the request had before the run added any.
    """

    attempt: int
    client_entries: tuple[Json, ...]
    given: int

    @property
    def is_last(self) -> bool:
        """Whether no further attempt follows."""
        return self.attempt == _ATTEMPTS - 1

    def next(self) -> "Forcing":
        """The next attempt. Raises `NoFinalAnswer`: this was the last attempt."""
        if self.is_last:
            raise NoFinalAnswer("The model did not give an answer in words, although it was asked in every known way.")
        return replace(self, attempt=self.attempt + 1)

    def shaped(self, body: Json, step: AnswerStep) -> Json:
        """The request shaped for a step. `body` is shaped for the mildest step."""
        if step is AnswerStep.NOTICE:
            return body
        body = {**body, "tools": self.client_entries}
        if not self.client_entries:
            drop_tools(body)
        if step is AnswerStep.RETELL:
            messages = body["messages"]
            body["messages"] = retell(messages[: self.given], messages[self.given :])
        return body


def is_blank(turn: Turn) -> bool:
    """Whether a turn has nothing for the user. Thoughts do not count."""
    return not turn.text.strip() and not any(turn.message.get(field) for field in _OTHER_ANSWERS)


def is_worth_another_attempt(turn: Turn, forcing: Forcing | None) -> bool:
    """Whether a forced turn used up its tokens before any text, and another attempt remains."""
    ran_out = turn.finish_reason == "length" and not turn.text.strip()
    return ran_out and forcing is not None and not forcing.is_last


def is_answer(turn: Turn, tools: Mapping[str, Json], *, json_mode: Callable[[], JsonMode]) -> bool:
    """Whether a turn is an answer: it has something for the user and no calls, not even calls written into its text."""
    if is_blank(turn) or turn.calls or turn.garbled or holds_raw_format(turn.text):
        return False
    return not is_bare_call(turn.text, tools, json_mode=json_mode)
