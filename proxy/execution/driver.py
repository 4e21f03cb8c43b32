"""Drives a Run. Only this module and `call_runner` connect the loop to I/O.

The driver awaits upstream calls and tools, and sends events to observers. It makes one decision, about time: once the
deadline has passed, it tells the run to end.
"""

import asyncio
from contextlib import suppress

from proxy.execution.call_runner import CallRunner
from proxy.execution.deadline import Deadline
from proxy.kit.timeouts import elapsed
from proxy.loop.actions import Action, CallTools, CallUpstream, Respond
from proxy.loop.call_context import CallContext
from proxy.loop.many_tools import FindTools
from proxy.loop.run import Run
from proxy.loop.run_events import StopGenerating
from proxy.ports import Audience, Clock, ExecuteTool, Observer, Upstream
from proxy.wire.chat import Turn
from proxy.wire.errors import ContextFull, ProxyError, fault_of


class Driver:
    """Drives any number of runs. One function runs all of their tool calls."""

    def __init__(self, execute: ExecuteTool, find: FindTools, *, observe: Observer, clock: Clock) -> None:
        self._execute = execute
        self._find = find
        self._observe = observe
        self._clock = clock

    async def drive(
        self,
        run: Run,
        *,
        upstream: Upstream,
        context: CallContext,
        audience: Audience | None,
    ) -> Respond:
        """Drive a run to its answer.

        Args:
            run: the run.
            upstream: answers the turns of the run.
            context: the context of the run's tool calls.
            audience: receives everything that the client may see, as it happens; None if only the answer is needed.

        Raises:
            ProxyError: the upstream failed, or the model gave no answer.
        """
        deadline = Deadline(self._clock.monotonic, context.ends)
        runner = CallRunner(
            run,
            self._execute,
            self._find,
            context,
            deadline,
            audience=audience,
            observe=self._observe,
            clock=self._clock,
        )
        try:
            action: Action = run.start_turn()
            while not isinstance(action, Respond):
                match action:
                    case CallUpstream():
                        try:
                            turn = await self._complete(action, upstream, audience, runner)
                        except ContextFull as full:
                            if full.was_shown:
                                raise
                            action = run.receive_refusal(full)
                            self._observe("results.cut", turn=action.number)
                            continue
                        if not deadline.seconds_left():
                            run.expire()
                        action = run.receive_turn(turn, runner.has_ended)
                    case CallTools():  # calls of the latest turn
                        answers = await runner.run_all(action.calls, turn.envelope.get("model"))
                        if not deadline.seconds_left():
                            run.expire()
                        action = run.receive_results(answers)
                if audience is not None and (answered := run.take_answered()):
                    await runner.show_answered(answered, audience)
            if audience is not None and not run.awaits_check:
                await release(action.turn, audience)
            return action
        finally:
            await runner.aclose()

    async def _complete(
        self, call: CallUpstream, upstream: Upstream, audience: Audience | None, runner: CallRunner
    ) -> Turn:
        """The turn that answers one upstream call, with events for the client and the observers."""
        await runner.begin_turn(call.number)
        began = self._clock.monotonic()
        if self._observe.handles("turn.started"):
            made = call.for_upstream(upstream.traits.answer_steps)
            self._observe(
                "turn.started",
                turn=call.number,
                upstream=upstream.name,
                upstream_model=upstream.model,
                content={"messages": made.body["messages"]},
                **({"rung": made.step} if made.step else {}),
            )
        try:
            turn = await upstream.complete(call, None if audience is None else audience.show, runner)
        except (ProxyError, asyncio.CancelledError) as exc:
            where, seconds = {"turn": call.number, "upstream": upstream.name}, elapsed(began, self._clock.monotonic())
            if step := call.for_upstream(upstream.traits.answer_steps).step:
                where["rung"] = step
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
            seconds=elapsed(began, self._clock.monotonic()),
            finish_reason=turn.finish_reason,
            calls=len(turn.calls),
            usage=turn.usage,
            content={"message": turn.message},
            **({"rung": turn.step} if turn.step else {}),
        )
        return turn


async def release(turn: Turn, audience: Audience) -> None:
    """Show the chunks of the answer that were held back until it proved to be one."""
    with suppress(StopGenerating):
        for chunk in (*turn.buffered, *turn.aside):
            await audience.show(chunk)
