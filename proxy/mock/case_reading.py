"""What the scripted upstream answers by: the file of a script, or the answers in cases and folders of them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import orjson

from proxy.cases import case_format
from proxy.kit.recording import NOT_MADE
from proxy.mock.case_script import ANY, CHAT, CaseScript, Given, Rules, end_of, question_of
from proxy.mock.demo import DEMO
from proxy.mock.script import FIRST_FAILURE, Script, load
from proxy.wire.chat import Json
from proxy.wire.errors import ConfigurationError


class Scripted(NamedTuple):
    """The sources of the scripted upstream's answers: the cases first, then the script."""

    script: Script = DEMO
    cases: CaseScript | None = None


def scripted_by(paths: Sequence[Path], *, pace: bool = False) -> Scripted:
    """One script, or cases and folders of them; without either the demo's script. Raises `ConfigurationError`."""
    if not paths:
        return Scripted()
    cases = [path for path in paths if _is_case(path)]
    if len(cases) == len(paths):
        return Scripted(cases=load_cases(paths, pace=pace))
    if len(paths) > 1:
        script = next(path for path in paths if path not in cases)
        raise ConfigurationError([f"{script}: is a script, which has no other beside it"])
    return Scripted(load(paths[0]))


def _is_case(path: Path) -> bool:
    """Whether a path is for cases: a folder, or JSON other than a script."""
    if path.is_dir():
        return True
    if path.suffix != ".json":
        return False
    try:
        content = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return True
    return not (isinstance(content, dict) and "conversations" in content)


def load_cases(paths: Sequence[Path], *, pace: bool = False) -> CaseScript:
    """The script of case files and of folders of them.

    Raises:
        ConfigurationError: a file cannot be read or is no case, or a folder has none.
    """
    given: list[Given] = []
    notes: list[str] = []
    for path in case_format.files_in([*paths]):
        case = case_format.load(path)
        given += _given_in(case, str(path))
        if cut := case.get("cut"):
            notes.append(f"{path} was cut, and answers without {', '.join(cut)}")
    by_question: dict[tuple[str, str], list[Given]] = defaultdict(list)
    for one in given:
        by_question[one.path, one.question].append(one)
    return CaseScript(given=given, pace=pace, notes=notes, by_question=dict(by_question))


def _given_in(case: Json, file: str) -> Iterator[Given]:
    """The answers in a case, each with the request to which it belongs."""
    answers = [turn for exchange in case["exchanges"] for _, _, one in _answers(exchange) for turn in _turns(one)]
    rules = Rules(case.get("strict", ()), [turn for turn in answers if turn.get("calls")])
    end, question, first, last = CHAT, ANY, 0, 0
    for at, exchange in enumerate(case["exchanges"], 1):
        ask = exchange.get("ask", {})
        if "request" in exchange:
            path = exchange["request"]["path"]
            end = CHAT if case_format.surface_of(path) != "other" else end_of(path)
            question, first = question_of(exchange["request"].get("body"))
        elif "text" in ask or "messages" in ask:
            texts = [one["text"] for one in ask.get("messages", ()) if one["role"] == "user"]
            question, first = (texts or [ask.get("text", ANY)])[-1] * ask.get("times", 1), 0
        elif "results" in ask:  # the conversation goes on
            first = last
        numbers: dict[str, int] = {}
        for upstream, place, answer in _answers(exchange):
            asked = answer.get("asked")
            number = numbers.setdefault(upstream, first)
            key = question_of(asked) if asked is not None else (question, number)
            numbers[upstream] += not _fails(answer)
            yield Given(
                place=f"{file}, exchange {at}, answer {place} of {upstream}",
                upstream=upstream,
                path=end_of(answer["path"]) if "path" in answer else end if asked is None else CHAT,
                asked=asked,
                question=key[0],
                number=key[1],
                answer=answer,
                rules=None if "at" in answer else rules,
            )
        last = max(numbers.values(), default=first)


def _answers(exchange: Json) -> Iterable[tuple[str, int, Json]]:
    """The answers of the upstreams in an exchange, in the order in which they began: upstream, number, answer."""
    given = exchange.get("upstream", [{"text": "FINAL answer."}])
    named = given if isinstance(given, dict) else {"up": given}
    found = [(name, at, one) for name, answers in named.items() for at, one in enumerate(answers, 1)]
    made = [one for one in found if one[2].get("fails") not in NOT_MADE]
    return sorted(made, key=lambda one: one[2].get("at", 0.0))


def _turns(answer: Json) -> Sequence[Json]:
    return [*answer["by_stream"].values()] if "by_stream" in answer else [answer]


def _fails(answer: Json) -> bool:
    """Whether an answer has a failure, after which a client sends its request again."""
    return any(
        turn.get("status", 200) >= FIRST_FAILURE or turn.get("cut") or "fails" in turn or "refuse_over" in turn
        for turn in _turns(answer)
    )
