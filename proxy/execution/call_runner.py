"""Starts the tool calls of one run, awaits them within the deadline, and cancels them at the end of the run."""

import asyncio
from collections.abc import Callable, Sequence

from proxy.execution.deadline import Deadline
from proxy.execution.observed import IN_OUR_WORDS, observed
from proxy.kit.timeouts import elapsed
from proxy.loop import many_tools, results
from proxy.loop.actions import AnsweredCall
from proxy.loop.call_context import CallContext
from proxy.loop.many_tools import FIND_TOOLS, FindTools
from proxy.loop.results import InvalidArguments, ToolError, ToolResult, ToolUnavailable
from proxy.loop.run import Run
from proxy.loop.run_events import CallBegan, CallEnded, CallsAnswered, TurnBegan
from proxy.ports import Audience, Clock, ExecuteTool, Observer
from proxy.wire.chat import ToolCall


class CallRunner:
    """The tool calls of one run, and the owner of their tasks: none outlives `aclose`. Implements `ports.EarlyCalls`.

    A call is announced to the client at its place in the turn, and may start while the turn is still being written
    (`announce`). When the turn is complete, `run_all` takes over the calls that were started, starts the others, and
    cancels those that the run refuses after all.

    A TaskGroup does not fit: it would cancel the other calls when one tool fails, although a tool's failure is a result
    like any other, and it would wrap the failure of the run itself in a group.

    Attributes:
        were_shown: whether the client was shown any of the turn's calls.
        count_unfinished: counts the tokens of an upstream call that ended without a turn.
    """

    def __init__(
        self,
        run: Run,
        execute: ExecuteTool,
        find: FindTools,
        context: CallContext,
        deadline: Deadline,
        *,
        audience: Audience | None,
        observe: Observer,
        clock: Clock,
    ) -> None:
        self._turn = 0
        self._model: str | None = None  # the upstream's name for its model
        self.were_shown = False
        self.count_unfinished = run.count_unfinished
        self._run = run
        self._execute = execute
        self._context = context
        self._find = find
        self._deadline = deadline
        self._audience = audience
        self._observe = observe
        self._clock = clock
        self._slots = asyncio.Semaphore(run.limits.max_parallel_tools)
        self._result_bytes_left = run.limits.max_total_result_bytes
        self._tasks: set[asyncio.Task[ToolResult]] = set()
        self._announced: set[ToolCall] = set()  # of the turn
        self._run_calls: Sequence[ToolCall] = ()  # of the turn
        self._started: dict[ToolCall, asyncio.Task[ToolResult]] = {}  # early calls that the run may still refuse
        self._ended: dict[ToolCall, CallEnded] = {}  # early calls that have ended; the client has not been told yet

    async def begin_turn(self, number: int) -> None:
        """Begin a turn, to which later calls belong, and tell the client unless the turn is repeated."""
        if self._started:  # in the turn before, whose calls were refused when it was complete
            self.drop()
        is_repeated = number == self._turn
        self._turn, self.were_shown, self._run_calls = number, False, ()
        if self._audience is not None:
            self._announced.clear()
            if not is_repeated:
                await self._audience.show_event(TurnBegan(number))

    async def announce(self, call: ToolCall, model: str | None, *, start: bool) -> None:
        """Announce the next complete call of the turn if the run would run it. With `start`, it may start early."""
        if self._audience is None and not start:
            return
        self._model = model
        resolved = self._run.would_run(call) if self._deadline.seconds_left() else None
        if resolved is None:
            return
        if self._audience is not None:
            await self._announce(resolved, self._audience)
        if start and self._run.may_start(resolved):
            self._started[resolved] = self._begin(resolved)

    def has_ended(self, call: ToolCall) -> bool:
        """Whether a resolved call of the turn was started early and already has a result."""
        return call in self._started and self._started[call].done()

    def drop(self) -> None:
        """Cancel and count the calls that were started early and are not needed."""
        started = self._started.items()
        ended = [(call, task.result() if task.done() and not task.cancelled() else None) for call, task in started]
        self._run.count_dropped(ended)
        for task in self._started.values():
            task.cancel()
        self._started.clear()
        self._ended.clear()

    async def run_all(self, calls: Sequence[ToolCall], model: str | None) -> Sequence[ToolResult]:
        """The results of the calls of a complete turn, in their order; `model` is the upstream's name for its model."""
        self._model, self._run_calls = model, calls
        if self._audience is not None:
            for call in calls:
                if call not in self._announced:
                    await self._announce(call, self._audience)
        if len(calls) == 1 and not self._started:
            return [await self._call(calls[0])]  # without a task, which costs a loop 5 % of its instructions
        tasks: list[asyncio.Task[ToolResult]] = []
        running: list[asyncio.Task[ToolResult]] = []
        for call in calls:
            task = self._started.pop(call, None) or self._begin(call)
            tasks.append(task)
            if not task.done():
                running.append(task)
            elif self._audience is not None:
                await self._audience.show_event(self._ended.pop(call))
        if self._started:
            self.drop()
        # Not one by one: a cancellation would then end only the first task, and free its slot for another call.
        if running:
            await asyncio.wait(running)
        return [task.result() for task in tasks]

    async def show_answered(self, answered: Sequence[AnsweredCall], audience: Audience) -> None:
        """Show the calls of a turn that were answered without being run, and that all calls are answered."""
        for one in answered:
            call = one.resolved
            if call in self._run_calls:
                continue
            if call not in self._announced:
                await self._announce(call, audience)
            await audience.show_event(CallEnded(self._turn, call, one.result, 0.0))
        await audience.show_event(CallsAnswered(tuple(answered)))

    async def aclose(self) -> None:
        """Cancel the calls that are still running, and wait for them to end."""
        if self._started:
            self.drop()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _begin(self, call: ToolCall) -> asyncio.Task[ToolResult]:
        task = asyncio.create_task(self._call(call))  # noqa: TID251 - `aclose` awaits it
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _announce(self, call: ToolCall, audience: Audience) -> None:
        """Show a call to the client, in the order of the calls in their turn."""
        self._announced.add(call)
        was_shown = await audience.show_event(CallBegan(self._turn, call, self._model))
        self.were_shown = was_shown or self.were_shown

    async def _call(self, call: ToolCall) -> ToolResult:
        """Run one call as soon as fewer than `max_parallel_tools` are running, and show its end to the client.

        The run may still refuse an early call, so the end of such a call is shown when the turn is complete.
        """
        async with self._slots:
            if self._audience is None:
                return await self._result(call)
            turn, began = self._turn, self._clock.monotonic()
            result = await self._result(call)
            ended = CallEnded(turn, call, result, elapsed(began, self._clock.monotonic()))
            if call in self._started:
                self._ended[call] = ended
            else:
                await self._audience.show_event(ended)
            return result

    async def _result(self, call: ToolCall) -> ToolResult:
        """The result of one call, or its failure as a result, with events for the observers."""
        if call.name == FIND_TOOLS:
            return await self._found(call)
        try:
            output = await observed(
                call,
                self._execute,
                self._context,
                deadline=self._deadline,
                observe=self._observe,
                clock=self._clock,
                turn=self._turn,
            )
        except ToolError as exc:  # whatever a tool does, the conversation goes on
            is_busy = isinstance(exc, ToolUnavailable) and exc.cause == "busy"
            outcome = "busy" if is_busy else exc.outcome
            if isinstance(exc, IN_OUR_WORDS):
                return results.failure(str(exc), outcome=outcome)
            message = str(exc)
            return self._cut(lambda most: results.failure_of(call.name, message, outcome=outcome, max_bytes=most))
        return self._cut(lambda most: results.success(call.name, output, max_bytes=most))

    async def _found(self, call: ToolCall) -> ToolResult:
        """The result of a search for tools, which observers do not count as a tool call either."""
        try:
            query, tools = self._run.sought(call)
        except InvalidArguments as exc:
            self._observe("tools.searched", turn=self._turn, tool=FIND_TOOLS, outcome=exc.outcome)
            return results.failure(str(exc), outcome=exc.outcome)
        names = many_tools.ranked(query, await self._find(query, tools), tools)
        outcome = "found" if names else "none"
        self._observe(
            "tools.searched",
            turn=self._turn,
            tool=FIND_TOOLS,
            outcome=outcome,
            found=", ".join(names),
            content={"query": query},
        )
        return self._cut(lambda most: ToolResult(many_tools.found(query, names, tools, most_bytes=most)))

    def _cut(self, make: Callable[[int], ToolResult]) -> ToolResult:
        """A result of at most so many bytes as are left for one result and for all of the run."""
        result = make(max(0, min(self._run.limits.max_result_bytes, self._result_bytes_left)))
        self._result_bytes_left -= len(result.content.encode())
        return result
