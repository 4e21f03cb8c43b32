"""Drives a Run: the only place where the core meets I/O.

Upstream calls and tools are awaited here, under the deadline, and observers are told. Nothing is decided here but time:
when the deadline has passed the run is told so, and what tools are still doing is cut short.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from proxy.core import results
from proxy.core.actions import Action, CallTools, CallUpstream, Respond
from proxy.core.chat import Json, ToolCall, ToolOutput, ToolResult, Turn
from proxy.core.errors import ProxyError, ToolError, ToolTimeout
from proxy.core.run import Run
from proxy.ports import Clock, Observer, Show, Tell, Toolset, Upstream

OUT_OF_TIME = "The time for this request is used up; the call was stopped."


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long and how much at a time; seconds and bytes.

    deadline             from the start of the run; after it no tool and no further round is begun
    tool_timeout         for one call of a tool that has no timeout of its own
    max_parallel_tools   calls of one turn that run at the same time
    max_result_bytes     of one result; the rest is cut off, and the model is told
    """

    deadline: float = 240
    tool_timeout: float = 30
    max_parallel_tools: int = 8
    max_result_bytes: int = 65536


async def _tell_nobody(_: Json) -> None:
    """For clients that did not ask for progress."""


class Runner:
    """Everything that driving needs, for any number of runs."""

    def __init__(self, toolset: Toolset, *, observe: Observer, clock: Clock) -> None:
        self._toolset = toolset
        self._observe = observe
        self._clock = clock

    async def drive(
        self, run: Run, *, upstream: Upstream, pace: Pace, show: Show, tell: Tell = _tell_nobody
    ) -> Respond:
        """Run the conversation to its answer; what the client may see goes to `show` as it comes, progress to `tell`.

        Raises:
            ProxyError: the upstream failed, or the model gave no answer.
        """
        ends_at = self._clock.monotonic() + pace.deadline
        action: Action = run.start()
        while True:
            match action:
                case CallUpstream():
                    await tell({"type": "turn.started", "turn": action.number})
                    turn = await self._complete(action, upstream, show)
                    self._tell_time(run, ends_at)
                    action = run.receive_turn(turn)
                case CallTools():
                    answers = await self._execute(action, pace, ends_at, tell)
                    self._tell_time(run, ends_at)
                    action = run.receive_results(answers)
                case Respond():
                    for chunk in action.turn.held:
                        await show(chunk)
                    return action
                case _:
                    assert_never(action)

    def _tell_time(self, run: Run, ends_at: float) -> None:
        if self._clock.monotonic() >= ends_at:
            run.expire()

    async def _complete(self, call: CallUpstream, upstream: Upstream, show: Show) -> Turn:
        began = self._clock.monotonic()
        fields = {"turn": call.number, "upstream": upstream.name, "rung": call.rung}
        self._observe("turn.started", **fields)
        try:
            turn = await upstream.complete(call, show)
        except ProxyError as exc:
            self._observe("turn.failed", **fields, seconds=self._since(began), code=exc.code, status=exc.status)
            raise
        self._observe(
            "turn.completed",
            **fields,
            seconds=self._since(began),
            finish_reason=turn.finish_reason,
            calls=len(turn.calls),
            usage=turn.usage,
        )
        return turn

    async def _execute(self, action: CallTools, pace: Pace, ends_at: float, tell: Tell) -> Sequence[ToolResult]:
        """All calls of a turn at once, as many at a time as permitted; results in call order."""
        slots = asyncio.Semaphore(pace.max_parallel_tools)

        async def one(call: ToolCall) -> ToolResult:
            async with slots:
                event = {"turn": action.turn, "tool": call.name, "call_id": call.id, "arguments": call.arguments}
                began = self._clock.monotonic()
                await tell({"type": "tool.started", **event})
                result = await self._call(call, action.turn, pace, ends_at)
                event["seconds"] = self._since(began)
                outcome = (
                    {"type": "tool.failed", "error": result.content} if result.failed else {"type": "tool.completed"}
                )
                await tell({**outcome, **event})
                return result

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(call)) for call in action.calls]
        return [task.result() for task in tasks]

    async def _call(self, call: ToolCall, turn: int, pace: Pace, ends_at: float) -> ToolResult:
        began = self._clock.monotonic()
        fields = {"turn": turn, "tool": call.name, "call_id": call.id}
        self._observe("tool.started", **fields)
        try:
            output = await self._run_tool(call, pace, ends_at - began)
        except ToolError as exc:
            self._observe("tool.failed", **fields, seconds=self._since(began), outcome=exc.outcome)
            return results.failure(str(exc))
        except Exception:  # noqa: BLE001 - whatever a tool does, the conversation goes on; the log has the traceback
            self._observe("tool.crashed", **fields, seconds=self._since(began), exc_info=True)
            return results.failure("The tool failed.")
        self._observe("tool.completed", **fields, seconds=self._since(began), characters=len(output.text))
        return results.success(call.name, output, max_bytes=pace.max_result_bytes)

    async def _run_tool(self, call: ToolCall, pace: Pace, remaining: float) -> ToolOutput:
        """One call, not beyond the run's own time."""
        if remaining <= 0:
            raise ToolTimeout(OUT_OF_TIME)
        try:
            async with asyncio.timeout(remaining):
                return await self._toolset.execute(call, patience=pace.tool_timeout)
        except TimeoutError as exc:
            raise ToolTimeout(OUT_OF_TIME) from exc

    def _since(self, began: float) -> float:
        return round(self._clock.monotonic() - began, 6)
