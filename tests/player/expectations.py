"""What must hold of an exchange, word by word: each word of `expect` is a function of its name here.

docs/case.schema.json describes the words. Besides them it always holds that the upstream refuses nothing by its
strictness, that the vendor's SDK reads the answer to its end, and that the client's calls have ids of their own.
"""

import re
from dataclasses import dataclass
from typing import Any

import orjson

from tests.player.answers import Answer, fold
from tests.player.requests import Request
from tests.player.strict import pictures
from tests.player.turns import written
from tests.player.world import World

ERROR = "error"


@dataclass
class Outcome:
    """All that can be seen of an exchange from outside."""

    surface: str
    streamed: bool
    request: Request
    status: int
    headers: Any
    raw: bytes
    answer: Answer
    world: World
    seconds: float
    sdk_failure: str | None

    @property
    def history(self) -> list[dict[str, Any]]:
        """The messages of the last request to an upstream."""
        return self.world.asked[-1].request["messages"]


def check(expect: dict[str, Any], outcome: Outcome) -> None:
    """Raises `AssertionError` with what did not hold."""
    assert not outcome.world.refused, f"the upstream refused: {outcome.world.refused}"
    failed = outcome.answer.error is not None
    assert failed == (ERROR in expect), f"the answer: {outcome.status} {outcome.raw[-2000:]!r}"
    assert bool(outcome.sdk_failure) == failed, outcome.sdk_failure or "the SDK takes the answer for a success"
    ids = [call["id"] for call in outcome.answer.calls]
    assert all(ids), "a call without an id"
    assert len({*ids}) == len(ids), f"calls with one id: {ids}"
    for word, value in expect.items():
        WORDS[word](outcome, value)


def expected(case: dict[str, Any], exchange: dict[str, Any], surface: str) -> dict[str, Any]:
    """What must hold of an exchange on a surface: of the case, of the exchange, and of either on that surface."""
    words: dict[str, Any] = {}
    for said in (case.get("expect", {}), exchange.get("expect", {})):
        for word, value in (said | said.get("on", {}).get(surface, {})).items():
            own = said.get(word)
            words[word] = own | value if word == ERROR and own else value
    words.pop("on", None)
    return words


def check_same_as_recorded(got: dict[str, Any], outcome: Outcome) -> None:
    """The answer is the one that the client got when the case was recorded; ids, times and thoughts' seals apart."""
    assert outcome.status == got.get("status", 200), f"status {outcome.status}"
    raw = b"".join(written(piece, "") for piece in got.get("pieces", ()) if not isinstance(piece, int | float))
    raw = raw or (orjson.dumps(got["body"]) if "body" in got else got["raw"].encode())
    then, now = fold(raw, outcome.surface, streamed="pieces" in got), outcome.answer
    same_words = (now.text, now.reasoning, now.finish) == (then.text, then.reasoning, then.finish)
    assert same_words, f"the answer: {now.text!r}, {now.reasoning!r}, {now.finish}"
    assert [(one["name"], one["arguments"]) for one in now.calls] == [
        (one["name"], one["arguments"]) for one in then.calls
    ]
    assert (now.error or {}).get("code") == (then.error or {}).get("code"), now.error


def error(outcome: Outcome, expected: dict[str, Any]) -> None:
    """A fault: as the status of the answer, or as an event of a stream that has begun."""
    found = outcome.answer.error
    if not (outcome.streamed and outcome.status == 200):
        assert outcome.status == expected["status"], f"status {outcome.status}: {found}"
    for key in ("code", "type"):
        if key in expected:
            assert found[key] == expected[key], f"{key}: {found}"
    if "not_code" in expected:
        assert found.get("code") != expected["not_code"], found
    assert found["message"].startswith(expected.get("message_starts", "")), found["message"]
    numbers = [int(number) for number in re.findall(r"\d+", found["message"])]
    assert {*expected.get("numbers", ())} <= {*numbers}, found["message"]


def text(outcome: Outcome, expected: str) -> None:
    """The last turn's text. A stream of chat completions has earlier ones before it, set apart by a blank line."""
    found = outcome.answer.text.rstrip()
    if outcome.surface in {"chat", "relay"} and outcome.streamed and "\n\n" in found:
        found = found.rpartition("\n\n")[2]
    assert found == expected.rstrip(), f"text: {outcome.answer.text!r}"


def not_shown(outcome: Outcome, expected: list[str]) -> None:
    shown = outcome.answer.text + outcome.answer.reasoning + orjson.dumps(outcome.answer.calls).decode()
    for part in expected:
        assert part not in shown, f"{part!r} is shown: {shown!r}"


def finish(outcome: Outcome, expected: str) -> None:
    assert outcome.answer.finish == expected, f"it ends as {outcome.answer.finish}"


def calls(outcome: Outcome, expected: list[dict[str, Any]]) -> None:
    """The client's calls, in order."""
    found = outcome.answer.calls
    assert [call["name"] for call in found] == [call["name"] for call in expected], f"calls: {found}"
    for got, wanted in zip(found, expected, strict=True):
        assert _arguments(got["arguments"], wanted), f"arguments: {got}, not {wanted}"


def content_type(outcome: Outcome, expected: str) -> None:
    assert outcome.headers["content-type"].split(";")[0] == expected, outcome.headers["content-type"]


def keepalives(outcome: Outcome, expected: int) -> None:
    """Comments, or pings on the Messages API, while the upstream is silent."""
    found = outcome.raw.count(
        b"event: ping" if outcome.surface.startswith("messages") else b"\n:"
    ) + outcome.raw.startswith(b":")
    assert found >= expected, f"{found} comments"


def upstream_calls(outcome: Outcome, expected: int | dict[str, int]) -> None:
    found = len(outcome.world.asked)
    if isinstance(expected, int):
        assert found == expected, f"{found} calls of the upstream"
    else:
        assert expected.get("least", 0) <= found <= expected["most"], f"{found} calls of the upstream"


def asked(outcome: Outcome, expected: dict[str, Any]) -> None:
    """Which upstream and model was asked, in every call; an upstream that failed before its fallback apart."""
    last = outcome.world.asked[-1]
    for one in outcome.world.asked if "model" in expected else ():
        assert one.request["model"] == expected["model"], f"asked {one.request['model']}"
    assert last.upstream == expected.get("upstream", last.upstream), f"asked {last.upstream}"


def pictures_asked(outcome: Outcome, expected: int) -> None:
    """The number of pictures in every request; where one was taken out, its message says so."""
    said = outcome.request["body"].get("messages") or outcome.request["body"]["input"]
    for one in outcome.world.asked:
        contents = [message.get("content") for message in one.request["messages"]]
        assert sum(map(pictures, contents)) == expected, f"{sum(map(pictures, contents))} pictures"
        if not expected and any(map(pictures, (message["content"] for message in said))):
            assert re.search(r"\b(image|picture)\b", orjson.dumps(contents).decode(), re.IGNORECASE), "no note"


def bytes_asked(outcome: Outcome, expected: int) -> None:
    assert len(outcome.world.asked[-1].body) <= expected, f"{len(outcome.world.asked[-1].body)} bytes"


def other_tools(outcome: Outcome, expected: list[Any]) -> None:
    """The tools of the last request that are no functions."""
    tools = outcome.world.asked[-1].request.get("tools") or []
    assert [tool for tool in tools if tool.get("type") != "function"] == expected, tools


def history(outcome: Outcome, expected: list[dict[str, Any]]) -> None:
    """The calls of all turns in the last request to the upstream, in order, each with its result."""
    messages = outcome.history
    results = {message["tool_call_id"]: str(message["content"]) for message in messages if message["role"] == "tool"}
    found = [(message, call) for message in messages for call in message.get("tool_calls") or ()]
    names = [call["function"]["name"] for _, call in found]
    assert names == [call["name"] for call in expected], f"calls in the history: {names}"
    for (message, call), wanted in zip(found, expected, strict=True):
        _check_call(message, call, results[call["id"]], wanted, outcome.world)


def searches(outcome: Outcome, expected: list[str]) -> None:
    assert sorted(outcome.world.searches) == sorted(expected), f"searches: {outcome.world.searches}"


def received(outcome: Outcome, expected: list[Any]) -> None:
    """What the HTTP and MCP tools were called with."""
    assert same(outcome.world.received, expected), outcome.world.received


def within_seconds(outcome: Outcome, expected: float) -> None:
    assert outcome.seconds <= expected, f"{outcome.seconds} s"


def new_sessions(outcome: Outcome, expected: int) -> None:
    found = sum(player.sessions_opened for player in outcome.world.mcp.values())
    assert found == expected, f"{found} sessions"


def _check_call(message: Any, call: Any, result: str, wanted: dict[str, Any], world: World) -> None:
    if "id" in wanted:
        assert call["id"] == wanted["id"], call
    if "arguments" in wanted:
        assert _arguments(call["function"]["arguments"], wanted), f"{call}, not {wanted}"
    if "run_or_quoted" in wanted:
        _check_run_or_quoted(call, result, wanted["run_or_quoted"], world)
    for key in ("extra_content",):
        if key in wanted:
            assert call.get(key) == wanted[key], call
    for key, value in wanted.get("message", {}).items():
        assert message.get(key) == value, f"{key} of the message: {message}"
    assert wanted.get("result_has", "") in result, f"result: {result!r}"
    if "failed" in wanted:
        assert ('"error"' in result) == wanted["failed"], f"result: {result!r}"


def _check_run_or_quoted(call: Any, result: str, written: str, world: World) -> None:
    """A call that was not run has empty arguments, and its result says what the model wrote."""
    arguments = orjson.loads(call["function"]["arguments"])
    if '"error"' not in result:
        # A call of an exchange before is known by its result: a search finds pages that quote it.
        ran, query = world.searches + world.received, arguments.get("query", arguments)
        is_known = query in ran or (isinstance(query, str) and query in result)
        assert is_known, f"run with {ran}, and the history holds {arguments}"
        return
    assert arguments == {}, f"arguments that were not run: {arguments}"
    quoted = result + result.replace('\\"', '"').replace("\\\\", "\\").replace("\\n", "\n")
    assert written in quoted, f"the result does not quote {written!r}: {result!r}"


def _arguments(found: str, wanted: dict[str, Any]) -> bool:
    """Arguments given as text are compared byte for byte, others as JSON."""
    arguments = wanted.get("arguments")
    if arguments is None:
        return True
    if isinstance(arguments, str):
        return found == arguments
    try:
        return same(orjson.loads(found), arguments)
    except orjson.JSONDecodeError:
        return False


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON; `1` and `true` are not."""
    return orjson.dumps(one, option=orjson.OPT_SORT_KEYS) == orjson.dumps(other, option=orjson.OPT_SORT_KEYS)


WORDS = {
    word.__name__: word
    for word in (
        error, text, not_shown, finish, calls, content_type, keepalives, upstream_calls, asked, pictures_asked,
        bytes_asked, other_tools, history, searches, received, within_seconds, new_sessions,
    )
}  # fmt: skip
