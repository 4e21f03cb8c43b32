"""Which calls of a turn are run, and how the others are answered.

`TurnDecisions.decide` is the rule for server calls: for the calls of a complete turn, and for a call that might start
while its turn is still being written (`Run.would_run`). It changes nothing else; `CallHistory` records the outcome. Two
kinds of calls do not reach it, because `Run.receive_turn` handles them itself: the calls of a turn that was broken off,
and the calls of a forced turn without client calls.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from proxy.loop.actions import Stop
from proxy.loop.limits import Limits
from proxy.loop.many_tools import CALL_TOOL, FIND_TOOLS, MOST_SEARCHES, called_by, no_such_tool, with_schema
from proxy.loop.prompts import BUDGET_USED, REPEATED
from proxy.loop.queries import left_out_note, searches_in
from proxy.loop.results import (
    BEYOND_LIMIT,
    CredentialMissing,
    InvalidArguments,
    ToolError,
    ToolResult,
    failure,
    quoting,
    with_note,
)
from proxy.loop.tally import Tally
from proxy.wire.chat import JSON_BLANKS, Json, ToolCall, ToolSpec, Turn
from proxy.wire.json_text import is_object

# Finding the names nearest to a wrong name takes some milliseconds with thousands of tools, and a model that gets more
# names wrong than this in one turn is guessing.
_MOST_HINTS = 3  # in one turn

HasEnded: TypeAlias = Callable[[ToolCall], bool]
"""Whether a resolved call already has a result because it was started early."""

ReadArguments: TypeAlias = Callable[[ToolCall], str | None]
"""The arguments of a call as a JSON object, the only form that a history may hold: the model's own object or a repaired
one. None: the arguments are no object. The call has its tool's own name, or a name that no tool has."""


def as_object(call: ToolCall) -> str | None:
    """The arguments of a call if they are a JSON object or empty. A `ReadArguments` that repairs nothing."""
    if is_object(call.arguments):
        return call.arguments
    return "{}" if call.arguments in ("", "null") else None


class ToolDialect(Protocol):
    """Translates calls that some models were trained on into calls of the server's tools. Each run has one dialect."""

    def translate(self, call: ToolCall, alias: str) -> ToolCall:
        """A call by an alias, with its arguments translated for the tool itself. Raises `ToolError`."""
        ...

    def annotate(self, call: ToolCall, name: str, result: ToolResult) -> ToolResult:
        """The result of a call, with hints for the next call; `name` is the name by which the model called the tool."""
        ...

    def cite(self, number: int, line: int | None) -> str | None:
        """The URL of the page that a citation mark in the model's text refers to; see `citations.Cite`."""
        ...


class CallDecision(Struct, frozen=True):
    """The decision about one call of a turn.

    Attributes:
        call: the call as the model wrote it.
        key: the fingerprint of the resolved call, equal for calls that ask for the same thing.
        stop: the limit that permits no further call after this one; None: further calls may be run.
        to_run: the resolved call that is to be run; None: the call is not run.
        result: the answer to a call that is not run; None: this call is run, or an equal call of the turn is, and its
            result answers both.
        tool: the tool of the call; None: there is no such tool.
        counts: how many calls this one counts as if it is run: a search one for each query, `find_tools` none.
        left_out: the queries of a search that are not in `to_run`, because they are too many.
    """

    call: ToolCall
    key: tuple[str, str]
    stop: Stop | None
    to_run: ToolCall | None = None
    result: ToolResult | None = None
    tool: ToolSpec | None = None
    counts: int = 1
    left_out: tuple[str, ...] = ()


class CallHistory(Struct):
    """The tool calls of a run so far, and the limits on further calls.

    Attributes:
        tools: every name under which a server tool may be called -> the tool.
        limits: the limits of the run.
        dialect: translates calls by aliases; None if such calls have the tools' own arguments.
        tally: counts the calls that are run.
        sources: URL -> title of the pages in all results.
        results: fingerprint -> result of the calls that succeeded. A failed call may be repeated.
        repeated: the fingerprints of repeated calls that were answered from `results`.
        read: reads the arguments of calls for the history.
        searchable: the tools that the model can find, by their own names, if there are many.
        unlisted: the servers with unknown tools, because the request lacks a header.
        searches: the number of searches for tools.
    """

    tools: Mapping[str, ToolSpec]
    limits: Limits
    dialect: ToolDialect | None
    tally: Tally
    sources: dict[str, str]
    results: dict[tuple[str, str], ToolResult] = {}
    repeated: set[tuple[str, str]] = set()
    read: ReadArguments = as_object
    searchable: Mapping[str, ToolSpec] = {}
    unlisted: Sequence[ToolSpec] = ()
    searches: int = 0

    def resolve(self, call: ToolCall, *, hints: bool = True) -> tuple[ToolSpec, ToolCall]:
        """The tool of a call, and the call with the tool's own name and arguments.

        Raises:
            ToolError: the call cannot be translated, or there is no such tool. `hints`: name the nearest tools.
        """
        tool = self.tools.get(call.name)
        if tool is not None and tool.name == CALL_TOOL:
            call = called_by(self._read(call.name, call.arguments), call)
            tool = self.tools.get(call.name)
        if tool is None or tool.name == CALL_TOOL:
            if server := next((one for one in self.unlisted if call.name.startswith(one.name)), None):
                raise CredentialMissing(call.name, server.needs)
            raise ToolError(no_such_tool(call.name, self.searchable if hints else ()))
        if call.name == tool.name:
            return tool, call
        resolved = replace(call, name=tool.name)
        return tool, resolved if self.dialect is None else self.dialect.translate(resolved, call.name)

    def begin(self, decisions: Iterable[CallDecision]) -> tuple[ToolCall, ...]:
        """Record the decisions about the calls of a turn, and return the calls to run."""
        runnable: list[ToolCall] = []
        for decision in decisions:
            if decision.to_run is not None:
                runnable.append(decision.to_run)
                if decision.tool is not None and decision.counts:
                    self.tally.count_call(decision.tool, decision.counts)
                else:
                    self.searches += 1
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
                if decision.left_out:
                    result = replace(result, content=with_note(result, left_out_note(decision.left_out)))
                if self.searchable and decision.tool is not None and result.outcome == InvalidArguments.outcome:
                    # The model may not have seen the schema.
                    result = with_schema(result, decision.tool, most_bytes=self.limits.max_result_bytes)
                new[decision.key] = result
                self.sources.update(result.sources)
                if not decision.counts:
                    pass  # a search for tools, which may be repeated
                elif result.failed:
                    self.tally.failed_tool_calls += 1
                else:
                    self.results[decision.key] = result
            answers.append(self._quoting(decision.call, decision.result or new[decision.key]))
        return answers

    def refuse(self, calls: Iterable[ToolCall], why: str) -> list[ToolResult]:
        """The answers to calls that are not run."""
        return [self._quoting(call, failure(why)) for call in calls]

    def in_history(self, turn: Turn) -> Turn:
        """A turn for the history: the arguments of every call are a JSON object, if necessary an empty one.

        Some servers parse the arguments of earlier calls, and refuse the request if any arguments are not an object.
        """
        changed: dict[int, Json] = {}
        entries = turn.message.get("tool_calls") or ()
        for at, entry in enumerate(entries):
            if not isinstance(function := entry.get("function"), dict):
                continue
            written = (function.get("arguments") or "").strip(JSON_BLANKS)
            is_clients = bool(turn.client_ids) and turn.client_ids[at] is not None
            read = self._read("" if is_clients else function.get("name") or "", written)
            if read != written:
                changed[at] = {**entry, "function": {**function, "arguments": "{}" if read is None else read}}
        if not changed:
            return turn
        message = {**turn.message, "tool_calls": [changed.get(at, entry) for at, entry in enumerate(entries)]}
        return replace(turn, message=message)

    def _quoting(self, call: ToolCall, answer: ToolResult) -> ToolResult:
        """The answer to a call, with the call's arguments quoted in it if the history cannot contain them."""
        if not (answer.failed and call.arguments.strip()) or self._read(call.name, call.arguments) is not None:
            return answer
        return quoting(answer, call.arguments)

    def _read(self, name: str, arguments: str) -> str | None:
        tool = self.tools.get(name)
        # A call by an alias with its own parameters is not read as a call of the tool.
        own_name = "" if tool is None or name in tool.alias_parameters else tool.name
        return self.read(ToolCall("", own_name, arguments))

    def count_dropped(self, calls: Iterable[tuple[ToolCall, ToolResult | None]]) -> None:
        """Count calls that were started early and then refused, each with its result if it has one."""
        own = {tool.name: tool for tool in self.tools.values()}  # a client's tool may have taken a tool's own name
        for call, result in calls:
            tool = own[call.name]
            self.tally.count_call(tool, searches_in(tool, call, self.read, sys.maxsize)[1], dropped=True)
            if result is not None:
                self.tally.add_cost(result)


class TurnDecisions:
    """The decisions about the server's calls of one turn, in the order of the calls.

    Args:
        history: the calls of the earlier turns.
        stop: a limit that was already reached, so that no call runs; None if calls run while the budget lasts.
        has_ended: whether a call already has a result. Such a result is used even if a limit has been reached since.
        hints: the number of calls of unknown tools that are answered with the nearest names.
    """

    def __init__(
        self,
        history: CallHistory,
        stop: Stop | None = None,
        has_ended: HasEnded | None = None,
        *,
        hints: int = _MOST_HINTS,
    ) -> None:
        self._history, self._stop, self._has_ended, self._hints = history, stop, has_ended, hints
        self._total = history.tally.calls
        self._in_turn: dict[str, int] = {}  # a tool's name -> how many of its calls are to run
        self._first: dict[tuple[str, str], CallDecision] = {}  # of equal calls

    def decide(self, call: ToolCall) -> CallDecision:
        """Decide about the next call, as the model wrote it."""
        try:
            tool, resolved = self._history.resolve(call, hints=self._hints > 0)
        except ToolError as exc:
            self._hints -= 1
            result = failure(str(exc), outcome=exc.outcome)
            decision = CallDecision(call, call.fingerprint, self._stop, result=result)
        else:
            decision = self._decide(call, tool, resolved)
        self._first.setdefault(decision.key, decision)
        return decision

    def _decide(self, call: ToolCall, tool: ToolSpec, resolved: ToolCall) -> CallDecision:
        key, history, result = resolved.fingerprint, self._history, None
        in_turn = self._in_turn.get(tool.name, 0)
        left = history.limits.max_tool_calls - self._total
        left_of_tool = left if tool.max_calls is None else tool.max_calls - history.tally.calls_of(tool.name) - in_turn
        is_spent = self._stop or left <= 0
        if key in self._first:
            result = self._first[key].result
        elif tool.name == FIND_TOOLS:
            if not is_spent and history.searches + in_turn < MOST_SEARCHES:
                self._in_turn[tool.name] = in_turn + 1
                return CallDecision(call, key, self._stop, resolved, tool=tool, counts=0)
            result = failure(BUDGET_USED, outcome=BEYOND_LIMIT)
        elif key in history.repeated:
            self._stop, result = self._stop or Stop.REPEATED_CALL, failure(REPEATED, outcome=BEYOND_LIMIT)
        elif known := history.results.get(key):
            result = replace(known, content=f"{REPEATED}\n\n{known.content}")
        elif is_spent and not (self._has_ended and self._has_ended(resolved)):
            self._stop = self._stop or history.limits.calls_stop
            result = failure(BUDGET_USED, outcome=BEYOND_LIMIT)
        elif left_of_tool <= 0 and tool.max_calls is not None:
            result = failure(BUDGET_USED, outcome=BEYOND_LIMIT)
        else:
            most = max(1, min(left, left_of_tool))
            resolved, counts, left_out = searches_in(tool, resolved, history.read, most)
            self._total += counts
            self._in_turn[tool.name] = in_turn + counts
            return CallDecision(call, key, self._stop, resolved, tool=tool, counts=counts, left_out=left_out)
        return CallDecision(call, key, self._stop, result=result, tool=tool)
