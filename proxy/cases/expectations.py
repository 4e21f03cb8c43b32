"""Checks an exchange: each word of `expect` is a function of its name here.

docs/case.schema.json describes the words. For every exchange, the strict upstream must refuse nothing, a client must be
able to read the answer to its end, and the client's calls must have distinct ids.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from proxy.cases.answers import Answer, ExpectationFailed, expect
from proxy.cases.fake_servers import FakeServers
from proxy.cases.requests import Request
from proxy.cases.strict import pictures
from proxy.wire.chat import Json

_ERROR: Final = "error"
_FIRST_FAILURE: Final = 300
_ALWAYS: Final = "expect"  # in the place of a word, for what always has to hold


@dataclass(frozen=True, slots=True)
class Received:
    """A response as it came.

    Attributes:
        status: the HTTP status; None: the connection ended before it.
        headers: the headers, with names in lower case.
        body: the body.
        failure: the error of the client's library, if it raised one.
    """

    status: int | None
    headers: Mapping[str, str]
    body: bytes
    failure: str | None = None

    @property
    def is_stream(self) -> bool:
        """Whether the body is a stream of events."""
        return self.headers.get("content-type", "").startswith("text/event-stream")


@dataclass(frozen=True, slots=True)
class Outcome:
    """An exchange as the client and the servers behind the proxy saw it.

    Attributes:
        surface: the surface of the format.
        request: the request of the client.
        received: the response.
        answer: the body of the response, folded.
        servers: the servers behind the proxy, which keep their requests.
        seconds: the time from the request to the end of the response.
    """

    surface: str
    request: Request
    received: Received
    answer: Answer
    servers: FakeServers
    seconds: float

    @property
    def is_streamed(self) -> bool:
        """Whether a stream was asked for."""
        return bool((self.request.get("body") or {}).get("stream"))

    @property
    def is_success(self) -> bool:
        """Whether the status is that of an answer."""
        return (self.received.status or 0) < _FIRST_FAILURE

    @property
    def history(self) -> list[Json]:
        """The messages of the last request to an upstream."""
        messages: list[Json] = self.servers.asked[-1].request["messages"]
        return messages


def check(words: Json, outcome: Outcome) -> None:
    """Check what must hold of an exchange. Raises `ExpectationFailed` with the word and what did not hold."""
    for word, value in ((_ALWAYS, words), *words.items()):
        try:
            _WORDS[word](outcome, value)
        except ExpectationFailed as exc:
            exc.add_note(word)
            raise


def always(outcome: Outcome, words: Json) -> None:
    """Expect what has to hold of every exchange."""
    expect(not outcome.servers.refused, f"the upstream refused: {outcome.servers.refused}")
    received, failed = outcome.received, outcome.answer.error is not None
    is_stream = received.is_stream or not outcome.is_streamed or not outcome.is_success
    expect(is_stream, f"no stream: {received.headers.get('content-type', '')}")
    expect(failed == (_ERROR in words), f"the answer: {received.status} {received.body[-2000:]!r}")
    raised = received.failure or outcome.answer.error
    expect(bool(raised) == failed, raised or "the SDK takes the answer for a success")
    ids = [call["id"] for call in outcome.answer.calls]
    expect(all(ids), "a call without an id")
    expect(len({*ids}) == len(ids), f"calls with one id: {ids}")


def expected(case: Json, exchange: Json, surface: str) -> Json:
    """The expectations for an exchange: the case's and its own, each with its `on:` for this surface."""
    words: Json = {}
    for said in (case.get("expect", {}), exchange.get("expect", {})):
        for word, value in (said | said.get("on", {}).get(surface, {})).items():
            own = said.get(word)
            words[word] = own | value if word == _ERROR and own else value
    words.pop("on", None)
    return words


def error(outcome: Outcome, expected: Json) -> None:
    """A fault: as the status of the answer, or as an event of a stream that has begun."""
    found = outcome.answer.error or {}
    if not (outcome.is_streamed and outcome.is_success):
        expect(outcome.received.status == expected["status"], f"status {outcome.received.status}: {found}")
    for key in ("code", "type"):
        if key in expected:
            expect(found[key] == expected[key], f"{key}: {found}")
    if "not_code" in expected:
        expect(found.get("code") != expected["not_code"], found)
    expect(found["message"].startswith(expected.get("message_starts", "")), found["message"])
    numbers = [int(number) for number in re.findall(r"\d+", found["message"])]
    expect({*expected.get("numbers", ())} <= {*numbers}, found["message"])


def text(outcome: Outcome, expected: str) -> None:
    """The last turn's text. A stream of chat completions has earlier ones before it, set apart by a blank line."""
    found = outcome.answer.text.rstrip()
    if outcome.surface in {"chat", "relay"} and outcome.is_streamed and "\n\n" in found:
        found = found.rpartition("\n\n")[2]
    expect(found == expected.rstrip(), f"text: {outcome.answer.text!r}")


def not_shown(outcome: Outcome, expected: list[str]) -> None:
    """Texts that stand nowhere in the answer."""
    shown = outcome.answer.text + outcome.answer.reasoning + orjson.dumps(outcome.answer.calls).decode()
    for part in expected:
        expect(part not in shown, f"{part!r} is shown: {shown!r}")


def finish(outcome: Outcome, expected: str) -> None:
    """Why the answer ends."""
    expect(outcome.answer.finish == expected, f"it ends as {outcome.answer.finish}")


def calls(outcome: Outcome, expected: list[Json]) -> None:
    """The client's calls, in order."""
    found = outcome.answer.calls
    expect([call["name"] for call in found] == [call["name"] for call in expected], f"calls: {found}")
    for got, wanted in zip(found, expected, strict=True):
        expect(_arguments(got["arguments"], wanted), f"arguments: {got}, not {wanted}")


def content_type(outcome: Outcome, expected: str) -> None:
    """The type of the answer, without parameters."""
    found = outcome.received.headers["content-type"]
    expect(found.split(";")[0] == expected, found)


def keepalives(outcome: Outcome, expected: int) -> None:
    """Comments, or pings on the Messages API, while the upstream is silent."""
    raw = b"\n" + outcome.received.body
    found = raw.count(b"event: ping" if outcome.surface.startswith("messages") else b"\n:")
    expect(found >= expected, f"{found} comments")


def upstream_calls(outcome: Outcome, expected: int | dict[str, int]) -> None:
    """The number of requests to upstreams."""
    found = len(outcome.servers.asked)
    bounds = {"least": expected, "most": expected} if isinstance(expected, int) else expected
    expect(bounds.get("least", 0) <= found <= bounds["most"], f"{found} calls of the upstream")


def asked(outcome: Outcome, expected: Json) -> None:
    """Which upstream and model was asked, in every call; an upstream that failed before its fallback apart."""
    last = outcome.servers.asked[-1]
    for one in outcome.servers.asked if "model" in expected else ():
        expect(one.request["model"] == expected["model"], f"asked {one.request['model']}")
    expect(last.upstream == expected.get("upstream", last.upstream), f"asked {last.upstream}")


def pictures_asked(outcome: Outcome, expected: int) -> None:
    """The number of pictures in every request; where one was taken out, its message says so."""
    said = outcome.request["body"].get("messages") or outcome.request["body"]["input"]
    for one in outcome.servers.asked:
        contents = [message.get("content") for message in one.request["messages"]]
        found = sum(map(pictures, contents))
        expect(found == expected, f"{found} pictures")
        if not expected and any(map(pictures, (message["content"] for message in said))):
            expect(re.search(r"\b(image|picture)\b", orjson.dumps(contents).decode(), re.IGNORECASE), "no note")


def bytes_asked(outcome: Outcome, expected: int) -> None:
    """The largest size of the last request to an upstream."""
    expect(len(outcome.servers.asked[-1].body) <= expected, f"{len(outcome.servers.asked[-1].body)} bytes")


def other_tools(outcome: Outcome, expected: list[Any]) -> None:
    """The tools of the last request that are no functions."""
    tools = outcome.servers.asked[-1].request.get("tools") or []
    expect([tool for tool in tools if tool.get("type") != "function"] == expected, tools)


def history(outcome: Outcome, expected: list[Json]) -> None:
    """The calls of all turns in the last request to the upstream, in order, each with its result."""
    messages = outcome.history
    results = {message["tool_call_id"]: str(message["content"]) for message in messages if message["role"] == "tool"}
    found = [(message, call) for message in messages for call in message.get("tool_calls") or ()]
    names = [call["function"]["name"] for _, call in found]
    expect(names == [call["name"] for call in expected], f"calls in the history: {names}")
    for (message, call), wanted in zip(found, expected, strict=True):
        _check_call(message, call, results[call["id"]], wanted, outcome.servers)


def searches(outcome: Outcome, expected: list[str]) -> None:
    """The queries of all searches, in any order."""
    expect(sorted(outcome.servers.searches) == sorted(expected), f"searches: {outcome.servers.searches}")


def received(outcome: Outcome, expected: list[Any]) -> None:
    """The arguments with which HTTP and MCP tools were called."""
    expect(same(outcome.servers.received, expected), outcome.servers.received)


def within_seconds(outcome: Outcome, expected: float) -> None:
    """How long the exchange may take."""
    expect(outcome.seconds <= expected, f"{outcome.seconds} s")


def new_sessions(outcome: Outcome, expected: int) -> None:
    """How many sessions MCP servers have opened."""
    found = sum(player.sessions_opened for player in outcome.servers.mcp.values())
    expect(found == expected, f"{found} sessions")


def _check_call(message: Any, call: Any, result: str, wanted: Json, servers: FakeServers) -> None:
    if "id" in wanted:
        expect(call["id"] == wanted["id"], call)
    if "arguments" in wanted:
        expect(_arguments(call["function"]["arguments"], wanted), f"{call}, not {wanted}")
    if "run_or_quoted" in wanted:
        _check_run_or_quoted(call, result, wanted["run_or_quoted"], servers)
    if "extra_content" in wanted:
        expect(call.get("extra_content") == wanted["extra_content"], call)
    for key, value in wanted.get("message", {}).items():
        expect(message.get(key) == value, f"{key} of the message: {message}")
    expect(wanted.get("result_has", "") in result, f"result: {result!r}")
    if "failed" in wanted:
        expect(('"error"' in result) == wanted["failed"], f"result: {result!r}")


def _check_run_or_quoted(call: Any, result: str, written: str, servers: FakeServers) -> None:
    """A call that was not run has empty arguments, and its result says what the model wrote."""
    arguments = orjson.loads(call["function"]["arguments"])
    if '"error"' not in result:
        # A call of an exchange before is known by its result: a search finds pages that quote it.
        ran, query = servers.searches + servers.received, arguments.get("query", arguments)
        is_known = query in ran or (isinstance(query, str) and query in result)
        expect(is_known, f"run with {ran}, and the history holds {arguments}")
        return
    expect(arguments == {}, f"arguments that were not run: {arguments}")
    quoted = result + result.replace('\\"', '"').replace("\\\\", "\\").replace("\\n", "\n")
    expect(written in quoted, f"the result does not quote {written!r}: {result!r}")


def _arguments(found: str, wanted: Json) -> bool:
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


_WORDS: Final[Mapping[str, Callable[[Outcome, Any], None]]] = {
    word.__name__: word
    for word in (
        error, text, not_shown, finish, calls, content_type, keepalives, upstream_calls, asked, pictures_asked,
        bytes_asked, other_tools, history, searches, received, within_seconds, new_sessions,
    )
} | {_ALWAYS: always}  # fmt: skip

WORDS: Final = _WORDS.keys() - {_ALWAYS}
"""The words of `expect`."""
