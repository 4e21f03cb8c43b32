"""Cases as the script of the scripted upstream: a request gets the answer that the same request has got then.

A request is the same if its user's messages are, and if as many messages of the assistant follow the last of them; what
is made anew each time (a date among the instructions, the results of a search, ids) need not be. Of several answers the
one whose request is most like it is given; several that are equally like it are given in turn, and then again.
So neither the order of conversations matters nor how many run at the same time.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson
from msgspec import Struct, field

from proxy.cases.comparison import is_same
from proxy.cases.replies import parsed
from proxy.cases.strict import refusals
from proxy.wire.chat import Json, text_of

CHAT: Final = "completions"
"""The last part of the path of chat requests."""

ANY: Final = ""
"""The question of a hand-written case that says nothing of its request."""

_UNLIKE, _LIKE, _SAME_MESSAGES, _SAME = range(4)
_MOST_NAMED: Final = 3  # questions, in the reason why a request has no answer
_LONGEST_QUESTION: Final = 60  # characters of each


class Rules(Struct, frozen=True):
    """The checks of a hand-written case's upstreams on requests, and the calls that later requests have to contain."""

    strict: Sequence[str]
    calls: Sequence[Json]


class Given(Struct, frozen=True, kw_only=True):
    """An answer of a case.

    Attributes:
        place: where it stands: file, exchange, upstream and number.
        upstream: the name of the upstream that gave it.
        path: the last part of the path of the request to it.
        asked: the body of that request; None: it is not known.
        question: the last message of the user in it.
        number: how many messages of the assistant followed.
        answer: the answer, as it stands in the case.
        rules: of a hand-written case; None: the case was recorded.
    """

    place: str
    upstream: str
    path: str
    asked: Any
    question: str
    number: int
    answer: Json
    rules: Rules | None


class Unanswered(Exception):
    """No case has an answer to a request. Its text says why."""


class CaseScript(Struct, frozen=True, kw_only=True):
    """The answers of cases, and which request each belongs to.

    Attributes:
        given: the answers, in their order.
        pace: whether recorded answers take the time that they took then; hand-written ones always do.
        notes: what is missing in the cases.
        by_question: the answers by the last part of the path and the question.
    """

    given: Sequence[Given]
    pace: bool = False
    notes: Sequence[str] = ()
    by_question: Mapping[tuple[str, str], Sequence[Given]] = field(default_factory=dict)

    @property
    def models(self) -> Sequence[str]:
        """The models that the recorded requests have asked for."""
        models = [one.asked.get("model") for one in self.given if isinstance(one.asked, dict)]
        return sorted({model for model in models if isinstance(model, str)})

    def knows(self, path: str) -> bool:
        """Whether requests to a path are answered by cases: completions, and whatever else was recorded."""
        return (end := end_of(path)) == CHAT or any(one.path == end for one in self.given)

    def answers(self, path: str, body: bytes) -> Sequence[Given]:
        """The answers to a request; several are those to the attempts at it. Raises `Unanswered`."""
        request, end = parsed(body), end_of(path)
        questions = [*_questions_of(request)] or [question_of(request)]
        for question, number in (*questions, (ANY, questions[0][1])):
            known = self._of_upstream(self.by_question.get((end, question), ()), path)
            if found := _answers_of(known, request, len(body), number, is_last=question == questions[0][0]):
                return found
        raise Unanswered(self._reason(end, *questions[0], known=self.by_question.get((end, questions[0][0]), ())))

    def _of_upstream(self, known: Sequence[Given], path: str) -> Sequence[Given]:
        """The answers of the upstream whose name is a part of the path; all of them if there is none."""
        parts = frozenset(path.split("/"))
        return [one for one in known if one.upstream in parts] or known

    def _reason(self, end: str, question: str, number: int, *, known: Sequence[Given]) -> str:
        if not question:
            return f"No case has an answer to this request to {end}."
        after = f"{number} assistant {'message' if number == 1 else 'messages'}"
        reason = f"No case has an answer to the user's last message {_short(question)} with {after} after it"
        if numbers := sorted({one.number for one in known}):
            if number in numbers:
                return f"{reason} and these messages before it."
            return f"{reason}; the cases have one after {', '.join(map(str, numbers))}."
        questions = list(dict.fromkeys(one.question for one in self.given if one.question))
        named = ", ".join(map(_short, questions[:_MOST_NAMED])) or "no question"
        more = f" and {len(questions) - _MOST_NAMED} more" if len(questions) > _MOST_NAMED else ""
        return f"{reason}. They know {named}{more}."


def refusal_of(given: Given, request: Any) -> str | None:
    """Why the upstream of a hand-written case refuses a request; None: it does not."""
    if given.rules is None or not isinstance(request, dict):
        return None
    return next(refusals(request, strict=given.rules.strict, given=given.rules.calls), None)


def question_of(request: Any) -> tuple[str, int]:
    """The last message of the user in a request, on any surface, and how many of the assistant's follow."""
    return next(_questions_of(request), ("", 0))


def _questions_of(request: Any) -> Iterator[tuple[str, int]]:
    """The messages of the user, the last one first, each with the number of the assistant's that follow it."""
    number = 0
    for message in reversed(_messages(request)):
        number += message.get("role") == "assistant"
        if _is_said_by_user(message):
            yield text_of(message), number


def _messages(request: Any) -> Sequence[Json]:
    messages = request.get("messages", request.get("input")) if isinstance(request, dict) else None
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    return [one for one in messages if isinstance(one, dict)] if isinstance(messages, list) else []


def _is_said_by_user(message: Json) -> bool:
    """Whether a message is the user's own: on the Messages API results of tools are said by the user, too."""
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    is_result = any(isinstance(part, dict) and part.get("type") == "tool_result" for part in parts)
    return message.get("role") == "user" and not (is_result and not text_of(message))


def _answers_of(known: Sequence[Given], request: Any, size: int, number: int, *, is_last: bool) -> Sequence[Given]:
    """The answers among those to a question; where the user has said more since, only those of hand-written cases."""
    if refusing := [one for one in known if size > one.answer.get("refuse_over", size)]:
        return refusing[:1]
    if is_last:
        alike = [(_likeness(one, request), one) for one in known if one.number == number and one.rules is None]
        best = max((likeness for likeness, _ in alike), default=_UNLIKE)
        if best != _UNLIKE:
            return [one for likeness, one in alike if likeness == best]
    written = [one for one in known if one.rules is not None and "refuse_over" not in one.answer]
    numbers = [one.number for one in written if one.number <= number]
    return [one for one in written if one.number == max(numbers)] if numbers else ()  # the last one is repeated


def _likeness(given: Given, request: Any) -> int:
    """How much a request is like that to which an answer was given."""
    if given.asked is None:
        return _LIKE
    if is_same(given.asked, request):
        return _SAME
    then, now = _messages(given.asked), _messages(request)
    if not then or [*map(text_of, filter(_is_said_by_user, then))] != [*map(text_of, filter(_is_said_by_user, now))]:
        return _UNLIKE
    return _SAME_MESSAGES if is_same(then, now) else _LIKE


def end_of(path: str) -> str:
    """The last part of a path, which says what a request asks for."""
    return path.partition("?")[0].rstrip("/").rpartition("/")[2]


def _short(question: str) -> str:
    text = orjson.dumps(question[:_LONGEST_QUESTION]).decode()
    return text if len(question) <= _LONGEST_QUESTION else f"{text[:-1]}..."
