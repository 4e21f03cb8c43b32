"""The script of the scripted upstream: conversations, each with a pattern for the user's question.

    pace: 0.02                       # seconds between two pieces of an answer
    delay: 0.2                       # seconds before the first one
    conversations:
      - when: nanaimo                # a regular expression, searched in the user's messages, the last one first
        turns:
          - reasoning: I should look that up.
            text: Let me check.
            calls:
              - {name: web_search, arguments: {query: Nanaimo weather}}
          - {status: 503, headers: {retry-after: "1"}}    # the turn after the results fails once
          - text: It rains.                               # and is answered when it is asked for again
      - when: ""                     # anything else
        turns: [{tokens: 200}]

docs/testing.md explains every key. The turn is found by counting the assistant's messages since the question, so any
number of conversations can run at the same time.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path as File
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from proxy.config import document
from proxy.config.conversion import Converter, Path
from proxy.config.document import Leaf, Node
from proxy.wire.chat import Json, text_of
from proxy.wire.errors import ConfigurationError

Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=10**6)]
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Status: TypeAlias = Annotated[int, Meta(ge=100, le=599)]
FailureStatus: TypeAlias = Annotated[int, Meta(ge=400, le=599)]
Length: TypeAlias = Annotated[int, Meta(ge=1, le=10**6)]
Pattern: TypeAlias = Annotated[str, Meta(description="a regular expression")]

FIRST_FAILURE: Final = 300
"""The lowest HTTP status that no answer of a model has."""


class ScriptValue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mapping of the script."""


class ScriptedCall(ScriptValue, frozen=True, kw_only=True):
    """A tool call that the scripted model makes. Arguments given as text are written as they are, malformed or not."""

    name: str
    arguments: dict[str, Any] | str = {}
    id: str | None = None


class ScriptedTurn(ScriptValue, frozen=True, kw_only=True):
    """A scripted answer of the model; the fields of time and failure replace those of the script.

    Attributes:
        text: what the model says.
        reasoning: what it thinks.
        calls: its tool calls.
        refusal: its refusal, in the place of a text.
        tokens: the length of a made-up text, in the place of `text`.
        finish_reason: why it ends; None: as the answer does.
        usage: in the place of the real counts; None: there is none.
        status: the HTTP status.
        headers: headers of the response; None takes one away.
        body: the whole body: text as it is, anything else as JSON.
        delay: seconds before the first piece.
        pace: seconds between two pieces.
        jitter: seconds by which a piece may come earlier or later.
        cut: the connection ends without the answer's end.
        error_rate: the share of requests that fail instead.
        errors: the HTTP statuses of such failures, each as likely as the others.
    """

    text: str = ""
    reasoning: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    refusal: str | None = None
    tokens: Length | None = None
    finish_reason: str | None = None
    usage: dict[str, Any] | UnsetType | None = UNSET
    status: Status = 200
    headers: dict[str, str | None] = {}
    body: Any = UNSET
    delay: Seconds | None = None
    pace: Seconds | None = None
    jitter: Seconds | None = None
    cut: bool = False
    error_rate: Share | None = None
    errors: tuple[FailureStatus, ...] | None = None

    @property
    def fails(self) -> bool:
        """Whether this turn is a failure, so that a client's next attempt gets the turn after it."""
        return self.status >= FIRST_FAILURE or self.cut


class Conversation(ScriptValue, frozen=True, kw_only=True, dict=True):  # `dict` for the cached property
    """The model's turns for a user's question that matches `when`."""

    when: Pattern = ""
    turns: Annotated[tuple[ScriptedTurn, ...], Meta(min_length=1)]

    @cached_property
    def steps(self) -> Sequence[Sequence[ScriptedTurn]]:
        """The turns, each with the failures before it, which are the answers to the first attempts at it."""
        steps: list[list[ScriptedTurn]] = [[]]
        for turn in self.turns:
            steps[-1].append(turn)
            if not turn.fails:
                steps.append([])
        return steps if steps[-1] else steps[:-1]


class Script(ScriptValue, frozen=True, kw_only=True):
    """All conversations, with the times and failures of every turn that has none of its own."""

    conversations: Annotated[tuple[Conversation, ...], Meta(min_length=1)]
    models: tuple[str, ...] = ("glm-4.7", "gpt-oss-120b", "mock")
    seed: int = 0
    delay: Seconds = 0.0
    pace: Seconds = 0.0
    jitter: Seconds = 0.0
    error_rate: Share = 0.0
    errors: tuple[FailureStatus, ...] = (500,)

    def steps(self, request: Json) -> tuple[int, Sequence[ScriptedTurn]]:
        """The place of the turn that a chat request asks for in its conversation, and the attempts at it.

        A turn of calls none of which the request permits is passed over, but for the last one.
        """
        messages: Sequence[Json] = request.get("messages") or ()
        steps, answers = self.conversations[-1].steps, None
        for at, message in reversed(list(enumerate(messages))):
            if message.get("role") == "user" and (found := self._conversation(text_of(message))):
                steps, answers = found.steps, sum(later.get("role") == "assistant" for later in messages[at:])
                break
        last = len(steps) - 1
        first, permitted = last if answers is None else min(answers, last), permitted_functions(request)
        for number in range(first, last):
            turn = steps[number][-1]
            if not turn.calls or any(call.name in permitted for call in turn.calls):
                return number, steps[number]
        return last, steps[last]

    def turn(self, request: Json) -> ScriptedTurn:
        """The model's answer to a chat request, once no attempt at it fails any more."""
        return self.steps(request)[1][-1]

    def _conversation(self, message: str) -> Conversation | None:
        return next((one for one in self.conversations if re.search(one.when, message, re.IGNORECASE)), None)


def permitted_functions(request: Json) -> Mapping[str, Any]:
    """The functions that a chat request offers and permits to call: name -> JSON Schema of the arguments, if given."""
    functions = [tool.get("function") for tool in request.get("tools") or ()]
    offered = {one["name"]: one.get("parameters") for one in functions if isinstance(one, dict) and "name" in one}
    match request.get("tool_choice"):
        case "none":
            return {}
        case {"function": {"name": str(name)}}:
            return {name: offered[name]} if name in offered else {}
        case _:
            return offered


def load(path: File) -> Script:
    """Read a script.

    Raises:
        ConfigurationError: with one line per fault, `script.yaml:LINE: path: what is wrong`.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as exc:
        raise ConfigurationError([f"{path}: is not UTF-8"]) from exc
    except OSError as exc:
        raise ConfigurationError([f"{path}: cannot be read: {exc.strerror}"]) from exc
    return parse(text, name=str(path))


def parse(text: str, *, name: str = "script") -> Script:
    """Read the text of a script, which messages call `name`. Raises `ConfigurationError`, as `load` does."""
    reader = _ScriptReader()
    script = reader.value(document.read(text, name=name) or Leaf(None, is_null=True), Script, Path("", 1))
    if reader.faults:
        raise ConfigurationError([f"{name}:{fault.path.line}: {fault}" for fault in reader.faults])
    read: Script = script
    return read


class _ScriptReader(Converter):
    def leaf(self, node: Node, kind: Any, path: Path, *, nullable: bool = False) -> Any:
        value = super().leaf(node, kind, path, nullable=nullable)
        if kind == Pattern and isinstance(value, str):
            try:
                re.compile(value)
            except re.error as exc:
                return self.fault(path, f"is not a regular expression: {exc}")
        return value
