"""A tool with everything that is put around its calls: cache, check, time limit, slots, circuit breaker and retries.

    output: cache --> made: check --> time limit --> called: slot --> breaker --> the tool, again if that may help

A tool without a cache, or without a check, goes straight to the next of these steps.
"""

import asyncio
from functools import partial

import orjson
from msgspec import Struct, to_builtins
from msgspec.structs import replace

from proxy.kit.counted import counted
from proxy.kit.timeouts import elapsed, within
from proxy.loop.call_context import CallContext
from proxy.loop.results import InvalidArguments, ResultRefused, ToolError, ToolOutput, ToolTimeout, ToolUnavailable
from proxy.ports import Clock, Observer, Results
from proxy.tools.arguments import parse_arguments
from proxy.tools.check import Check, replaced
from proxy.tools.schema import schema_of
from proxy.tools.state import LONGEST_WAIT, ToolState
from proxy.tools.tool import RunInCall, Tool
from proxy.wire.chat import Json
from proxy.wire.search import NO_FILTERS

_FIRST_WAIT = 0.25  # seconds before the first retry, doubled for each further one


class ToolAttempt(Struct, eq=False):
    """One tool's turn at a call; another tool may answer if it fails.

    Attributes:
        arguments: the arguments, which fit the tool's schema.
        context: the context of the call, with its own filters; its scope is the caller, and a hash of the user's
            credentials that the tool gets.
        check: the check of the result; None: there is none.
        seconds: how long the tool may take; its check has time of its own.
        has_fallback: whether another tool is tried next.
        was_begun: whether the tool itself was called.
    """

    arguments: Json
    context: CallContext
    check: Check | None
    seconds: float
    has_fallback: bool
    was_begun: bool = False


class GuardedTool:
    """A tool with its state, and the one way to its output.

    Attributes:
        tool: the tool.
        state: its cache, slots and circuit breaker.
        parse: turns the text of a call's arguments into an object and the text for the history, as `parse_arguments`.
        last_parsed_arguments: the latest arguments as written, and as the history has them, which asks for them soon
            afterwards.
        fallbacks: the names of the tools that are tried in order if it fails.
    """

    def __init__(self, tool: Tool, state: ToolState, *, clock: Clock, observe: Observer) -> None:
        self.tool = tool
        self.state = state
        self.parse = partial(parse_arguments, schema=schema_of(tool.parameters), repair=tool.repair)
        self.last_parsed_arguments: tuple[str, str] = ("{}", "{}")
        self.fallbacks = (tool.fallback,) if isinstance(tool.fallback, str) else tool.fallback or ()
        self._run = _run_of(tool)
        self._clock = clock
        self._observe = observe

    async def output(self, attempt: ToolAttempt) -> ToolOutput:
        """The output for a call: from the cache or from the tool, checked, and in time. Raises `ToolError`."""
        cache, check = self.state.cache, attempt.check
        try:
            if cache is not None:
                # The wait for an equal call counts as well; the check has time of its own.
                async with asyncio.timeout(attempt.seconds + (check.timeout if check else 0)):
                    return await self._cached(attempt, cache)
            return await self._made(attempt)
        except TimeoutError as exc:
            if attempt.was_begun:  # not if it has only waited for a slot, or for an equal call
                self._failed(attempt, None)
            raise ToolTimeout(f"The tool gave no answer within {counted(attempt.seconds, 'second')}.") from exc

    async def _cached(self, attempt: ToolAttempt, cache: Results) -> ToolOutput:
        """The output for a call, from the cache or from the tool."""
        tool, context, was_run = self.tool, attempt.context, False

        async def run() -> ToolOutput:
            nonlocal was_run
            was_run = True
            return await self._made(attempt)

        asked: object = attempt.arguments
        if tool.run_filtered and context.filters != NO_FILTERS:
            asked = [attempt.arguments, context.filters]
        key = orjson.dumps(asked, option=orjson.OPT_SORT_KEYS, default=to_builtins).decode()
        version = tool.version if attempt.check is None else f"{tool.version} {attempt.check.version}"
        output = await cache.get_or_run(f"{context.scope}\n{version}\n{key}", run)
        if was_run:
            return output
        self._observe("tool.cache_hit", tool=tool.name)
        return replace(output, cost=None if output.cost is None else 0, pages={})

    async def _made(self, attempt: ToolAttempt) -> ToolOutput:
        """The output of the tool, in time, and as its check lets it pass if there is one."""
        called, check = within(attempt.seconds, self._called(attempt)), attempt.check
        if check is None:
            return await called
        try:
            output = await called
        except ToolError as exc:  # a tool's words about its failure are checked as well
            if attempt.was_begun and not isinstance(exc, InvalidArguments):  # else the words are the proxy's
                exc.args = (await self._passed(attempt, check, str(exc)),)
            raise
        text = await self._passed(attempt, check, output.text)
        return output if text == output.text else replaced(output, text)

    async def _passed(self, attempt: ToolAttempt, check: Check, text: str) -> str:
        """The text of a tool, or the text that its check puts in its place. Raises `ResultRefused`."""
        began, tool = self._clock.monotonic(), self.tool.name
        verdict = await check.verdict(tool, attempt.arguments, text)
        fields = {"outcome": verdict.outcome, "why": verdict.why, "seconds": elapsed(began, self._clock.monotonic())}
        self._observe("tool.checked", tool=tool, **fields)
        if verdict.outcome in ("refused", "failed"):
            raise ResultRefused(verdict.text, why=verdict.why)
        return verdict.text

    async def _called(self, attempt: ToolAttempt) -> ToolOutput:
        """The tool's own output, once it has a slot and unless its breaker is open; all retries count as one call."""
        tool, state = self.tool, self.state
        async with state.slots:
            now = self._clock.monotonic()
            if not state.breaker.allows(now, client=attempt.context.scope, has_fallback=attempt.has_fallback):
                raise state.refusal(now)
            attempt.was_begun = True
            retried = 0
            while True:
                try:
                    returned = await self._run(attempt.arguments, attempt.context)
                    break
                except ToolUnavailable as exc:
                    wait = exc.wait or _FIRST_WAIT * 2**retried
                    if retried == tool.retries or exc.cause in ("key", "quota") or wait > LONGEST_WAIT:
                        self._failed(attempt, exc)
                        raise
                    retried += 1
                    self._observe("tool.retried", tool=tool.name, attempt=retried, outcome=exc.outcome, why=exc.why)
                await self._clock.sleep(wait)
        output = ToolOutput(returned) if isinstance(returned, str) else returned
        if not isinstance(output, ToolOutput):
            raise ToolError("The tool returned something that is not text.")
        if state.breaker.succeeded():
            state.refusals = 0
            self._observe("tool.breaker_closed", tool=tool.name)
        return output if tool.price is None else replace(output, cost=tool.price * output.searches)

    def _failed(self, attempt: ToolAttempt, error: ToolUnavailable | None) -> None:
        """Count a failed call for the circuit breaker of the tool; None: it has timed out."""
        state, now = self.state, self._clock.monotonic()
        if state.failed(now, error, client=attempt.context.scope, has_fallback=attempt.has_fallback):
            seconds = state.breaker.wait(now)
            self._observe("tool.breaker_opened", tool=self.tool.name, seconds=seconds, cause=state.cause)


def _run_of(tool: Tool) -> RunInCall:
    """The function that runs a tool, whichever of the three it has."""
    run, run_filtered = tool.run, tool.run_filtered
    if tool.run_in_call is not None:
        return tool.run_in_call
    if run_filtered is not None:
        return lambda arguments, context: run_filtered(arguments, context.filters)
    return lambda arguments, _: run(arguments)
