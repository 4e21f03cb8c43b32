"""Whether an answer is one that the contract allows: a whole one, or a failure that says so."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

_OK = 200
_WITH_RETRY_AFTER = (429, 503)
_DONE = b"[DONE]"


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, and how it may be answered: with which statuses, and with which word where it is answered well."""

    path: str
    body: bytes
    word: str
    statuses: frozenset[int]
    headers: Mapping[str, str]

    @property
    def may_fail(self) -> bool:
        """Whether anything but a good answer is allowed."""
        return self.statuses != {_OK}


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back; `whole`: its end was seen."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    whole: bool = True


def fault_of(ask: Ask, answer: Answer) -> str | None:
    """What is wrong with an answer; None where nothing is."""
    if "x-request-id" not in answer.headers:
        return "there is no x-request-id"
    if answer.status not in ask.statuses:
        return f"status {answer.status}: {answer.body[:300]!r}"
    if not answer.whole:
        return f"it breaks off: ...{answer.body[-300:]!r}"
    try:
        return _of_body(ask, answer)
    except (orjson.JSONDecodeError, LookupError, TypeError) as exc:
        return f"{exc!r}: {answer.body[-300:]!r}"


def _of_body(ask: Ask, answer: Answer) -> str | None:
    if answer.status != _OK:
        return _of_refusal(answer)
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        return _of_stream(ask, answer.body)
    return _of_whole(ask, orjson.loads(answer.body))


def _of_refusal(answer: Answer) -> str | None:
    error = orjson.loads(answer.body)["error"]
    if not error["message"] or error.keys() < {"message", "type", "param", "code"}:
        return f"the envelope is {error}"
    if answer.status in _WITH_RETRY_AFTER and "retry-after" not in answer.headers:
        return f"there is no Retry-After: {error}"
    return None


def _of_whole(ask: Ask, payload: Any) -> str | None:
    if ask.path.endswith("/responses"):
        return _of_response(ask, payload)
    choice = payload["choices"][0]
    return _of_text(ask, choice["finish_reason"], choice["message"]["content"])


def _of_response(ask: Ask, response: Any) -> str | None:
    said = [part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"]]
    return _of_text(ask, "stop" if response["status"] == "completed" else response["status"], "".join(said))


def _of_text(ask: Ask, reason: str | None, text: str | None) -> str | None:
    if reason == "tool_calls":
        return None
    return None if reason == "stop" and ask.word in (text or "") else f"{reason}: {text!r} for {ask.word}"


def _of_stream(ask: Ask, body: bytes) -> str | None:
    data = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: ")]
    done = bool(data) and data[-1] == _DONE
    events = [orjson.loads(event) for event in data if event != _DONE]
    if ask.path.endswith("/responses"):
        return _of_events(ask, events, done=done)
    return _of_chunks(ask, events, done=done)


def _of_chunks(ask: Ask, chunks: list[Any], *, done: bool) -> str | None:
    failed = bool(chunks) and "error" in chunks[-1]
    choices = [choice for chunk in chunks for choice in chunk.get("choices", ())]
    reasons = [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]
    if failed:
        return (
            None if ask.may_fail and not done and not reasons else f"an error with [DONE] {done}, {reasons}: {chunks}"
        )
    if not done or len(reasons) != 1:
        return f"[DONE] {done}, finish reasons {reasons}: {chunks[-3:]}"
    return _of_text(ask, reasons[0], "".join(choice["delta"].get("content") or "" for choice in choices))


def _of_events(ask: Ask, events: list[Any], *, done: bool) -> str | None:
    kinds = [event["type"] for event in events]
    ends = [kind for kind in kinds if kind in ("response.completed", "response.incomplete", "response.failed")]
    numbers = [event["sequence_number"] for event in events]
    if not done or len(ends) != 1 or kinds[-1] != ends[0] or numbers != list(range(len(numbers))):
        return f"[DONE] {done}, ends {ends}, numbers {numbers[-5:]}: {kinds[-5:]}"
    if ends == ["response.failed"]:
        return None if ask.may_fail and "error" in kinds else f"it failed: {events[-1]}"
    return _of_response(ask, events[-1]["response"]) if "error" not in kinds else "an error, and a good end"
