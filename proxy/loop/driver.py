"""Drives a Run: the only place where the loop meets I/O.

Upstream calls and tools are awaited here, under the deadline, and observers are told. Nothing is decided here but time:
when the deadline has passed the run is told so, and what tools are still doing is cut short.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from msgspec import Struct

from proxy.loop import results
from proxy.loop.actions import Action, CallTools, CallUpstream, Respond
from proxy.loop.chat import Json, ToolCall, ToolOutput, ToolResult, Turn
from proxy.loop.errors import ProxyError, ToolError, ToolTimeout
from proxy.loop.limits import Limits
from proxy.loop.run import Run
from proxy.ports import Clock, Observer, Show, Tell, Toolset, Upstream, elapsed, fault_of
from proxy.timeouts import within

OUT_OF_TIME = "The time for this request is used up; the call was stopped."


class Deadline(Struct, eq=False):
    """The end of a run's time; whether it has passed is decided here alone.

    A timer may fire before the clock says so (one of uvloop by up to 1.5 ms). What it has cut short was cut
    short by the deadline, so from then on the deadline has passed, whatever the clock says.

    Attributes:
        passed: whether something has found that it has.
    """

    _clock: Clock
    _at: float
    passed: bool = False

    def seconds_left(self) -> float:
        """Seconds until then, never negative."""
        return max(0.0, self._at - self._clock.monotonic())

    def has_passed(self) -> bool:
        """Whether it has passed by now."""
        self.passed = self.passed or self._clock.monotonic() >= self._at
        return self.passed


class Runner:
    """Everything that driving needs, for any number of runs."""

    def __init__(self, toolset: Toolset, *, observe: Observer, clock: Clock) -> None:
        self._toolset = toolset
        self._observe = observe
        self._clock = clock
        self._tells_turns, self._tells_calls = observe.wants("turn.started"), observe.wants("tool.started")

    async def drive(self, run: Run, *, upstream: Upstream, scope: str, show: Show, tell: Tell | None = None) -> Respond:
        """Run the conversation to its answer.

        Args:
            run: the conversation.
            upstream: answers its turns.
            scope: whose request it is: tools share results with the same caller only.
            show: takes what the client may see, as it comes.
            tell: takes the progress; None: nobody wants to hear of it.

        Raises:
            ProxyError: the upstream failed, or the model gave no answer.
        """
        deadline = Deadline(self._clock, self._clock.monotonic() + run.limits.deadline)
        calls = _Calls(self, run, tell, deadline, run.limits, scope, run.limits.max_total_result_bytes)
        action: Action = run.start()
        receive: Callable[[Any], Action]
        given: Any  # what `receive` takes
        try:
            # `isinstance` takes four times as long to say no.
            while type(action) is not Respond:
                if type(action) is CallUpstream:
                    calls.turn = action.number
                    if tell is not None:
                        await tell({"type": "turn.started", "turn": action.number})
                    receive, given = run.receive_turn, await self._complete(action, upstream, show, calls)
                else:
                    receive, given = run.receive_results, await calls.results(action)
                if deadline.has_passed():
                    run.expire()
                action = receive(given)
            for chunk in (*action.turn.buffered, *action.turn.aside):
                await show(chunk)
            return action
        finally:
            if calls.under_way:
                await calls.aclose()

    def now(self) -> float:
        """Seconds on a clock that never goes back."""
        return self._clock.monotonic()

    def since(self, began: float) -> float:
        """Seconds since a time of `now`."""
        return elapsed(self._clock, began)

    async def _complete(self, call: CallUpstream, upstream: Upstream, show: Show, calls: "_Calls") -> Turn:
        began = self._clock.monotonic()
        if self._tells_turns:
            made = call.for_upstream(upstream.answer_steps)
            self._observe(
                "turn.started",
                turn=call.number,
                upstream=upstream.name,
                upstream_model=upstream.model,
                content={"messages": made.body["messages"]},
                **_rung(made.step),
            )
        try:
            turn = await upstream.complete(call, show, calls)
        except (ProxyError, asyncio.CancelledError) as exc:
            where = {"turn": call.number, "upstream": upstream.name, **_rung(call.step_among(upstream.answer_steps))}
            seconds = elapsed(self._clock, began)
            if isinstance(exc, ProxyError):
                self._observe("turn.failed", **where, seconds=seconds, **fault_of(exc))
            else:
                self._observe("turn.abandoned", **where, seconds=seconds)
            raise
        self._observe(
            "turn.completed",
            turn=call.number,
            upstream=upstream.name,  # a fallback may have answered
            upstream_model=upstream.model,
            response_model=turn.envelope.get("model"),
            seconds=elapsed(self._clock, began),
            finish_reason=turn.finish_reason,
            calls=len(turn.calls),
            usage=turn.usage,
            content={"message": turn.message},
            **_rung(turn.step),
        )
        return turn

    async def call(self, call: ToolCall, calls: "_Calls") -> ToolResult:
        """One call of a tool, whatever becomes of it."""
        began, turn = self._clock.monotonic(), calls.turn
        if self._tells_calls:
            self._observe(
                "tool.started",
                turn=turn,
                tool=call.name,
                call_id=call.id,
                argument_bytes=len(call.arguments.encode("utf-8", "replace")),
                content={"arguments": call.arguments},
            )
        try:
            if calls.deadline.has_passed():
                raise TimeoutError  # noqa: TRY301 - as when it is used up in the middle of the call
            limits = calls.limits
            work = self._toolset.execute(
                call, patience=limits.tool_timeout, at_most=limits.max_tool_timeout, scope=calls.scope
            )
            output = await within(calls.deadline.seconds_left(), work)
        except TimeoutError:
            calls.deadline.passed = True
            self._tell_without_result("tool.failed", call, turn, began, outcome=ToolTimeout.outcome)
            return results.failure(OUT_OF_TIME)
        except ToolError as exc:
            self._tell_without_result("tool.failed", call, turn, began, outcome=exc.outcome, why=exc.why)
            return results.failure(str(exc))
        except asyncio.CancelledError:
            self._tell_without_result("tool.abandoned", call, turn, began)
            raise
        except Exception:  # noqa: BLE001 - whatever a tool does, the conversation goes on; the log has the traceback
            self._tell_without_result("tool.crashed", call, turn, began, exc_info=True)
            return results.failure("The tool failed.")
        self._observe(
            "tool.completed",
            turn=turn,
            tool=call.name,
            call_id=call.id,
            seconds=elapsed(self._clock, began),
            characters=len(output.text),
            content={"result": output.text},
        )
        return calls.fenced(call.name, output)

    def _tell_without_result(self, event: str, call: ToolCall, turn: int, began: float, **fields: object) -> None:
        seconds = elapsed(self._clock, began)
        self._observe(event, turn=turn, tool=call.name, call_id=call.id, seconds=seconds, **fields)


def _rung(step: str | None) -> Json:
    """The step by which a model is made to answer, as the field of an event."""
    return {} if step is None else {"rung": step}


class _Calls(Struct, eq=False):
    """The tool calls of one run: begun while their turn is still being written, where they may be. Implements `Eager`.

    None outlives the run, which ends with `aclose`.

    Attributes:
        deadline: of the run.
        limits: of the run.
        scope: whose request it is.
        turn: whose calls come next.
        under_way: calls that were begun, each in a task of its own.
    """

    _runner: Runner
    _run: Run
    _tell: Tell | None
    deadline: Deadline
    limits: Limits
    scope: str
    _result_bytes_left: int
    turn: int = 0
    _slots: asyncio.Semaphore | None = None  # for calls beside others
    under_way: set[asyncio.Task[ToolResult]] = set()
    _started: dict[tuple[str, str], tuple[ToolCall, asyncio.Task[ToolResult]]] = {}

    def start(self, call: ToolCall) -> None:
        """Begin a call whose arguments are complete, if it would be run anyway."""
        if self.deadline.has_passed():
            return
        canonical = self._run.may_start(call, [started for started, _ in self._started.values()])
        if canonical is not None:
            self._started[canonical.fingerprint] = (canonical, self._begin(canonical))

    def abandon(self) -> None:
        """Stop what was begun early and has not been asked for."""
        if self._started:
            for _, task in self._started.values():
                task.cancel()
            self._started.clear()

    async def aclose(self) -> None:
        """Stop all that is under way, and see it end."""
        for task in self.under_way:
            task.cancel()
        await asyncio.wait(self.under_way)

    async def results(self, action: CallTools) -> Sequence[ToolResult]:
        """All calls of a turn at once, as many at a time as permitted; results in call order."""
        if len(action.calls) == 1 and not self._started:
            return [await self._one(action.calls[0])]  # there is nothing else to do meanwhile
        tasks = [self._take(call) or self._begin(call) for call in action.calls]
        self.abandon()
        return [await task for task in tasks]

    def _take(self, call: ToolCall) -> "asyncio.Task[ToolResult] | None":
        _, task = self._started.pop(call.fingerprint, (None, None))
        return task

    def _begin(self, call: ToolCall) -> "asyncio.Task[ToolResult]":
        self._slots = self._slots or asyncio.Semaphore(self.limits.max_parallel_tools)
        task = asyncio.create_task(self._in_turn(call, self._slots))
        self.under_way.add(task)
        task.add_done_callback(self.under_way.discard)
        return task

    async def _in_turn(self, call: ToolCall, slots: asyncio.Semaphore) -> ToolResult:
        """One call beside others, of which only so many may be under way."""
        async with slots:
            return await self._one(call)

    def fenced(self, tool: str, output: ToolOutput) -> ToolResult:
        """An output as the model gets it, within what one result and all of the run's together may take."""
        most = self.limits.max_result_bytes
        if self._result_bytes_left < most:
            most = max(0, self._result_bytes_left)
        result = results.success(tool, output, max_bytes=most)
        self._result_bytes_left -= len(result.content.encode())
        return result

    def _one(self, call: ToolCall) -> Coroutine[Any, Any, ToolResult]:
        return self._runner.call(call, self) if self._tell is None else self._told(call, self._tell)

    async def _told(self, call: ToolCall, tell: Tell) -> ToolResult:
        """One call, for a client that wants to hear of it."""
        event = {"turn": self.turn, "tool": call.name, "call_id": call.id, "arguments": call.arguments}
        began = self._runner.now()
        await tell({"type": "tool.started", **event})
        result = await self._runner.call(call, self)
        event["seconds"] = self._runner.since(began)
        if result.failed:
            event["error"] = result.content
        await tell({"type": "tool.failed" if result.failed else "tool.completed", **event})
        return result
