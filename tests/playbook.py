"""Dialogues with a Run, written as they are spoken.

    play = Playbook(run) << asks() >> calls(search) << runs("web_search") >> results("found")
    play << asks() >> says("Hi") << responds("Hi")

`<<` is what the run wants next, checked by an expectation; `>>` is what comes back to it.
"""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from msgspec.structs import replace

from proxy.loop.actions import Action, CallTools, CallUpstream, Respond
from proxy.loop.decisions import ToolDialect
from proxy.loop.forcing import DEFAULT_ANSWER_STEPS, AnswerSteps
from proxy.loop.limits import Limits
from proxy.loop.offer import make_offer
from proxy.loop.results import ToolResult
from proxy.loop.run import Run
from proxy.turn.call_ids import client_call_id
from proxy.wire.chat import ToolCall, ToolSpec, Turn, calls_of, name_of
from proxy.wire.errors import ContextFull

Expectation = Callable[[Action], None]

SEARCH = ToolSpec(
    name="web_search",
    description="Search the web.",
    parameters={"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    aliases=("browser.search",),
)
TIME = ToolSpec(name="current_time", description="The time.", parameters={"type": "object"})


def run_of(
    request: dict[str, Any] | None = None,
    *,
    tools: Sequence[ToolSpec] = (SEARCH, TIME),
    dialect: ToolDialect | None = None,
    search_above: int | None = None,
    **limits: Any,
) -> Run:
    request = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **(request or {})}
    limits = {"guidance": False, **limits}
    offer = make_offer(request, tools, search_above=search_above)
    return Run(request, offer=offer, limits=Limits(**limits), dialect=dialect)


class Playbook:
    """A run, and the upstream that answers it: one whose models are made to answer by these `steps`."""

    def __init__(self, run: Run, *, steps: AnswerSteps = DEFAULT_ANSWER_STEPS) -> None:
        self.run = run
        self.steps = steps
        self.pending: Action | None = run.start_turn()

    def falls_back(self, steps: AnswerSteps) -> "Playbook":
        """From now on another upstream answers; the call that waits for an answer goes to it too."""
        self.steps = steps
        return self

    def __lshift__(self, expectation: Expectation) -> "Playbook":
        assert self.pending is not None, "nothing came back to the run before this expectation"
        expectation(self.made if isinstance(self.pending, CallUpstream) else self.pending)
        return self

    @property
    def made(self) -> CallUpstream:
        """The call that waits for an answer, as its upstream makes it."""
        assert isinstance(self.pending, CallUpstream), self.pending
        return self.pending.for_upstream(self.steps)

    def __rshift__(self, event: Turn | list[ToolResult] | ContextFull) -> "Playbook":
        if isinstance(event, ContextFull):
            assert isinstance(self.pending, CallUpstream), f"a refusal came, but the run wants {self.pending}"
            self.pending = self.run.receive_refusal(event)
        elif isinstance(event, Turn):
            assert isinstance(self.pending, CallUpstream), f"a turn came, but the run wants {self.pending}"
            event = replace(with_client_ids(event, self.pending), step=self.pending.for_upstream(self.steps).step)
            self.pending = self.run.receive_turn(event)
        else:
            assert isinstance(self.pending, CallTools), f"results came, but the run wants {self.pending}"
            assert len(event) == len(self.pending.calls)
            self.pending = self.run.receive_results(event)
        return self


def with_client_ids(turn: Turn, call: CallUpstream) -> Turn:
    """The turn as the assembler gives it: the client's calls have ids for the client."""
    numbers = count()
    ids = [
        client_call_id(call.run_id, next(numbers)) if name_of(entry) in call.view.client_tools else None
        for entry in turn.message.get("tool_calls") or ()
    ]
    return replace(turn, client_ids=tuple(ids))


# -- what comes back --


def call(name: str = "web_search", arguments: str = '{"query":"x"}', id: str = "call_1") -> ToolCall:  # noqa: A002
    return ToolCall(id, name, arguments)


def calls(*wanted: ToolCall, text: str | None = None, **turn: Any) -> Turn:
    entries = [
        {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}} for one in wanted
    ]
    return turn_of({"role": "assistant", "content": text, "tool_calls": entries}, "tool_calls", **turn)


def says(text: str | None, *, finish_reason: str = "stop", **turn: Any) -> Turn:
    return turn_of({"role": "assistant", "content": text}, finish_reason, **turn)


def turn_of(message: dict[str, Any], finish_reason: str, *, tokens: int = 0, **turn: Any) -> Turn:
    usage = {"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens} if tokens else None
    return Turn(message, finish_reason, {"index": 0}, calls=calls_of(message), usage=usage, **turn)


def results(*texts: str) -> list[ToolResult]:
    return [ToolResult(text) for text in texts]


# -- what the run wants --


def asks(
    *roles: str, step: Any = ..., tools: list[str] | None = None, tool_choice: Any = ..., number: int | None = None
) -> Expectation:
    def check(action: Action) -> None:
        assert isinstance(action, CallUpstream), action
        assert step is ... or action.step == step, f"step {action.step}"
        if roles:
            assert tuple(message["role"] for message in action.body["messages"]) == roles
        if tools is not None:
            assert [tool["function"]["name"] for tool in action.body.get("tools", ())] == tools
        if tool_choice is not ...:
            assert action.body.get("tool_choice") == tool_choice
        if number is not None:
            assert action.number == number

    return check


def last_message(check: Callable[[dict[str, Any]], bool]) -> Expectation:
    def expect(action: Action) -> None:
        assert isinstance(action, CallUpstream), action
        assert check(action.body["messages"][-1]), action.body["messages"][-1]

    return expect


def told(*contents: str) -> Expectation:
    """The run asks on, and the last messages are tool messages with these texts in them, in this order."""

    def check(action: Action) -> None:
        assert isinstance(action, CallUpstream), action
        messages = [message for message in action.body["messages"] if message["role"] == "tool"][-len(contents) :]
        assert len(messages) == len(contents)
        for message, content in zip(messages, contents, strict=True):
            assert content in message["content"], f"{content!r} not in {message['content']!r}"

    return check


def runs(*names: str) -> Expectation:
    def check(action: Action) -> None:
        assert isinstance(action, CallTools), action
        assert tuple(one.name for one in action.calls) == names

    return check


def responds(text: str | None = None, **fields: Any) -> Expectation:
    def check(action: Action) -> None:
        assert isinstance(action, Respond), action
        if text is not None:
            assert action.message["content"] == text
        for name, value in fields.items():
            assert getattr(action, name) == value, f"{name}: {getattr(action, name)!r}"

    return check


def searched(
    request: dict[str, Any] | None = None, *, steps: AnswerSteps = DEFAULT_ANSWER_STEPS, **run: Any
) -> Playbook:
    """A run whose first turn has made one search, with a result."""
    play = Playbook(run_of(request, **run), steps=steps)
    return play << asks() >> calls(call()) << runs("web_search") >> results("found")
