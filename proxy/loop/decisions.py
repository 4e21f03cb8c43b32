"""Which calls of a turn are run, and what answers the others.

`decide` is the rule for server calls: those of a whole turn, and one that could start while its turn is still being
written (`Run.may_start`). It is pure; `CallHistory` records the outcome. Two kinds of calls do not reach it, because
`Run.receive_turn` deals with them itself: those of a turn that was broken off, and those of a forced turn without calls
of the client's.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from proxy.loop.actions import AnsweredCall, Stop
from proxy.loop.chat import ToolCall, ToolSpec
from proxy.loop.limits import Limits
from proxy.loop.prompts import BUDGET_USED, NO_SUCH_TOOL, REPEATED
from proxy.loop.results import BEYOND_LIMIT, ToolError, ToolResult, failure
from proxy.loop.tally import Tally

HasEnded: TypeAlias = Callable[[ToolCall], bool]
"""Whether a resolved call has a result already, because it was started early."""


class ToolDialect(Protocol):
    """The calls that some models were trained on, in terms of the server's tools. A run has one of its own."""

    def translate(self, call: ToolCall, alias: str) -> ToolCall:
        """A call that the model made by an alias, with arguments for the tool itself. Raises `ToolError`."""
        ...

    def annotate(self, call: ToolCall, name: str, result: ToolResult) -> ToolResult:
        """The result of a call, with what the model needs for its next one; `name` is the one that the model used."""
        ...

    def cite(self, number: int, line: int | None) -> str | None:
        """The URL of the page that a citation mark in the model's text refers to; see `citations.Cite`."""
        ...


class CallDecision(Struct, frozen=True):
    """The decision about one call of a turn.

    Attributes:
        call: the call as the model wrote it.
        key: the fingerprint of the resolved call: the same for calls that ask for the same thing.
        stop: the limit that permits no further call after this one; None: further calls may be run.
        to_run: the resolved call, which is to be run; None: it is not run.
        result: answers a call that is not run; None where an equal call of the turn is run, whose result answers both.
    """

    call: ToolCall
    key: tuple[str, str]
    stop: Stop | None
    to_run: ToolCall | None = None
    result: ToolResult | None = None


class CallHistory(Struct):
    """The tool calls of a run so far, and what bounds further ones.

    Attributes:
        tools: every name under which a server tool may be called -> the tool.
        limits: of the run.
        dialect: translates calls by aliases; None: they are made in the tools' own terms.
        tally: counts the calls that are run.
        sources: URL -> title, of all results.
        results: of the calls that succeeded, by `ToolCall.fingerprint`. A call that failed may be made again.
        repeated: the fingerprints of calls that were made again, and answered from `results`.
    """

    tools: Mapping[str, ToolSpec]
    limits: Limits
    dialect: ToolDialect | None
    tally: Tally
    sources: dict[str, str]
    results: dict[tuple[str, str], ToolResult] = {}
    repeated: set[tuple[str, str]] = set()

    def resolve(self, call: ToolCall) -> ToolCall:
        """The call under its tool's own name, in the tool's own terms. Raises `ToolError`."""
        tool = self.tools.get(call.name)
        if tool is None:
            raise ToolError(NO_SUCH_TOOL.format(name=call.name))
        if call.name == tool.name:
            return call
        resolved = replace(call, name=tool.name)
        return resolved if self.dialect is None else self.dialect.translate(resolved, call.name)

    def begin(self, decisions: Iterable[CallDecision]) -> tuple[ToolCall, ...]:
        """Record what was decided about the calls of a turn, and return those that are to be run."""
        runnable: list[ToolCall] = []
        for decision in decisions:
            if decision.to_run is not None:
                runnable.append(decision.to_run)
                self.tally.count_call(self.tools[decision.call.name])
            elif decision.key in self.results:
                self.repeated.add(decision.key)
        return tuple(runnable)

    def finish(self, decisions: Iterable[CallDecision], results: Sequence[ToolResult]) -> list[ToolResult]:
        """Record the `results` of the calls that were run, and return the answers to all calls, in order."""
        arrived = iter(results)
        new: dict[tuple[str, str], ToolResult] = {}
        answers: list[ToolResult] = []
        for decision in decisions:
            if decision.to_run is not None:
                result = next(arrived)
                self.tally.add_cost(result)
                if self.dialect is not None:
                    result = self.dialect.annotate(decision.to_run, decision.call.name, result)
                new[decision.key] = result
                self.sources.update(result.sources)
                if result.failed:
                    self.tally.failed_tool_calls += 1
                else:
                    self.results[decision.key] = result
            answers.append(decision.result or new[decision.key])
        return answers

    def count_dropped(self, calls: Iterable[tuple[ToolCall, ToolResult | None]]) -> None:
        """Count calls that were started early and are not wanted after all, with their results if they have any."""
        own = {tool.name: tool for tool in self.tools.values()}  # a client's tool may have taken an own name
        for call, result in calls:
            self.tally.count_call(own[call.name])
            if result is not None:
                self.tally.add_cost(result)

    def answered(
        self, decisions: Iterable[CallDecision], answers: Iterable[ToolResult], contents: Iterable[str]
    ) -> list[AnsweredCall]:
        """The calls of a turn, each with its answer and the text (of `contents`) in which the model reads that."""
        return [
            AnsweredCall(
                decision.to_run or decision.call,
                tool.name if (tool := self.tools.get(decision.call.name)) else "",
                decision.to_run is not None,
                answer,
                content,
            )
            for decision, answer, content in zip(decisions, answers, contents, strict=True)
        ]


def decide(
    calls: Iterable[ToolCall], history: CallHistory, stop: Stop | None, has_ended: HasEnded | None = None
) -> list[CallDecision]:
    """Decide what is done with the calls of one turn, in order.

    Args:
        calls: the server's calls of the turn, as the model wrote them.
        history: the calls of the turns before.
        stop: a limit that was reached before, so that no call is run; None: calls run while the budget lasts.
        has_ended: tells which calls have a result already, which is used whatever limit has been reached meanwhile.
    """
    most, total, by_tool = history.limits.max_tool_calls, history.tally.total_tool_calls, {**history.tally.tool_calls}
    first: dict[tuple[str, str], CallDecision] = {}  # of equal calls
    decisions: list[CallDecision] = []
    for call in calls:
        to_run = result = None
        try:
            resolved = history.resolve(call)
        except ToolError as exc:
            key, result = call.fingerprint, failure(str(exc), outcome=exc.outcome)
        else:
            key, tool = resolved.fingerprint, history.tools[call.name]
            used = by_tool.get(tool.name, 0)
            if key in first:
                result = first[key].result
            elif key in history.repeated:
                stop, result = stop or Stop.REPEATED_CALL, failure(REPEATED, outcome=BEYOND_LIMIT)
            elif known := history.results.get(key):
                result = replace(known, content=f"{REPEATED}\n\n{known.content}")
            elif (stop or total >= most) and not (has_ended and has_ended(resolved)):
                stop, result = stop or history.limits.calls_stop, failure(BUDGET_USED, outcome=BEYOND_LIMIT)
            elif tool.max_calls is not None and used >= tool.max_calls:
                result = failure(BUDGET_USED, outcome=BEYOND_LIMIT)
            else:
                to_run, total, by_tool[tool.name] = resolved, total + 1, used + 1
        decision = CallDecision(call, key, stop, to_run, result)
        decisions.append(decision)
        first.setdefault(key, decision)
    return decisions
