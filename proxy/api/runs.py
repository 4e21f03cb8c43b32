"""The runs of a request: how they are made, driven to their answers, checked against a schema, and stored."""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from secrets import token_hex
from typing import Any, TypeAlias

import orjson
from msgspec.structs import replace

from proxy.api.access import Caller
from proxy.api.ports import Ports
from proxy.api.preparation import Prepared
from proxy.api.reply import Audiences, Reply, hidden_as_stored
from proxy.api.request import ResolvedRequest
from proxy.execution.driver import Driver, release
from proxy.kit import request_context
from proxy.loop.actions import Respond, Stop
from proxy.loop.call_context import CallContext
from proxy.loop.limits import Limits
from proxy.loop.offer import Offer
from proxy.loop.prompts import DOES_NOT_FIT
from proxy.loop.run import Run
from proxy.loop.tally import Tally, sum_of
from proxy.ports import Audience, Clock
from proxy.wire.chat import BROKEN_OFF, Json
from proxy.wire.credentials import Credentials
from proxy.wire.errors import NoFinalAnswer
from proxy.wire.relayed import Headers
from proxy.wire.search import SearchFilters
from proxy.wire.usage import token_count

_Work: TypeAlias = Coroutine[Any, Any, Respond]


class Runs:
    """Makes the runs of requests under one configuration."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._driver = Driver(ports.toolset.execute, ports.toolset.find, observe=ports.observe, clock=ports.clock)

    async def answers(self, prepared: Prepared, reply: Reply, audiences: Audiences) -> Sequence[Respond]:
        """Make an independent run for each of the `run_ids` of a request, and drive all of them to their answers.

        If the answer is to be checked, its text is not shown.
        """
        request = prepared.request
        # A model that is offered no server tools gets no guidance about them.
        limits = request.limits if request.offer.offered else replace(request.limits, guidance=False)
        driver = self._driver  # of all requests, unless the tools of this one or their settings are its own
        execute = reply.execute or request.own.toolset.execute
        if execute != self._ports.toolset.execute:
            driver = Driver(execute, request.own.toolset.find, observe=self._ports.observe, clock=self._ports.clock)
        context = call_context(request.caller, limits, request.filters, request.own.credentials, self._ports.clock)
        tallies, works = [], []
        for run_id, audience in zip(prepared.run_ids, audiences, strict=True):
            run = self._run_of(request, limits, run_id, awaits_check=prepared.check is not None)
            work = driver.drive(run, upstream=request.model.upstream, context=context, audience=audience)
            tallies.append(run.tally)
            # A client without tools of its own has no results to come back with, so nothing is stored for it.
            works.append(self._stored(work, request, run_id, reply) if request.offer.client_tools else work)
        answers: Sequence[Respond] = ()
        try:
            # A single run gets no task of its own, which would keep a failure in memory with all its frames.
            answers = await _all_of(works) if len(works) > 1 else [await works[0]]
        finally:  # the use is paid for, even without an answer
            _note_end(sum_of(tallies), answers)
        return answers

    def _run_of(self, request: ResolvedRequest, limits: Limits, run_id: str, *, awaits_check: bool) -> Run:
        """A new run of the request."""
        return Run(
            request.chat,
            request.offer,
            limits,
            run_id,
            dialect=self._ports.dialect(request.offer.server_tools) if request.offer.offered else None,
            earlier_sources=request.sources,
            read_arguments=request.own.toolset.history_arguments,
            awaits_check=awaits_check,
        )

    async def _stored(self, work: _Work, request: ResolvedRequest, run_id: str, reply: Reply) -> Respond:
        """The answer of a run, once its hidden part is stored.

        It is stored before the other choices end: a client that streams has already seen the calls, and may come back
        with their results even if another choice fails.
        """
        answer = await work
        if answer.continuation is not None and reply.keeps_hidden(answer):
            held = hidden_as_stored(answer.continuation, request.own.credentials)
            await self._ports.store.put(request.caller.scope, run_id, held)
        return answer

    async def fitting_answers(self, prepared: Prepared, reply: Reply, audiences: Audiences) -> Sequence[Respond]:
        """The one answer to a request with a schema. The audience is shown the text only of the answer that fits.

        Raises:
            NoFinalAnswer: neither the answer fits, nor the second one, for which the model is told the fault.
        """
        [answer], [audience] = await self.answers(prepared, reply, audiences), audiences
        answer = await self._fitting(prepared, reply, answer, audience)
        if audience is not None:
            await release(answer.turn, audience)
        return [answer]

    async def _fitting(self, prepared: Prepared, reply: Reply, answer: Respond, audience: Audience | None) -> Respond:
        """The answer, or a second one if it does not fit. Raises `NoFinalAnswer`."""
        request, check = prepared.request, prepared.check
        if check is None or answer.stop is Stop.CLIENT_TOOL_CALLS or _is_no_answer(answer):
            return answer
        fault = check.fault(answer.turn.text)
        if fault is None:
            return answer
        if request.limits.output_left(answer.tally) == 0:  # the answer has used all tokens that the model may write
            return replace(answer, finish_reason="length")
        self._ports.observe("answer.unfit")
        again = replace(prepared, request=_retry(request, check.schema, answer, fault), run_ids=[token_hex(16)])
        [second] = await self.answers(again, reply, [audience])
        if not _is_no_answer(second) and check.fault(second.turn.text) is not None:
            raise NoFinalAnswer("The model's answer does not fit the JSON Schema, although it was asked twice.")
        tally = sum_of([answer.tally, second.tally])
        earlier = (*answer.earlier_turns, answer.turn)
        of_first = {"stop": answer.stop, "step": answer.step, "sources": answer.sources, "added": answer.added}
        return replace(second, tally=tally, earlier_turns=earlier, **of_first)


def call_context(
    caller: Caller, limits: Limits, filters: SearchFilters, credentials: Credentials, clock: Clock
) -> CallContext:
    """The context of the tool calls of a request that begins now."""
    ends = clock.monotonic() + limits.deadline
    timeouts = limits.tool_timeout, limits.max_tool_timeout
    return CallContext(caller.scope, filters, *timeouts, caller.tools, ends, credentials)


def _is_no_answer(answer: Respond) -> bool:
    """Whether the model was stopped in the middle of its answer, or refuses to answer in the field `refusal`."""
    refuses = bool(answer.turn.message.get("refusal")) and not answer.turn.text.strip()
    return refuses or answer.finish_reason in BROKEN_OFF


def _retry(request: ResolvedRequest, schema: Json, answer: Respond, fault: str) -> ResolvedRequest:
    """The request, without tools, to correct an answer that does not fit."""
    text = answer.turn.text
    demand = DOES_NOT_FIT.format(fault=fault, schema=orjson.dumps(schema).decode())
    turns: Sequence[Any] = [{"role": "user", "content": demand}]
    if text.strip():  # GLM refuses an empty message
        turns = [{"role": "assistant", "content": text}, *turns]
    chat = {**request.chat, "messages": [*request.chat["messages"], *turns]}
    limits = replace(request.limits, max_output_tokens=request.limits.output_left(answer.tally))
    return replace(request, chat=chat, limits=limits, offer=Offer())


async def _all_of(works: Iterable[_Work]) -> list[Respond]:
    """The answers of runs, in order. The first failure cancels the other runs, and is raised itself, not in a group."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures
    return [task.result() for task in tasks]


def tool_headers(answers: Sequence[Respond]) -> Headers:
    """The headers of a whole answer: its numbers of upstream calls and tool calls, and why its run ended."""
    tally = sum_of([answer.tally for answer in answers])
    return (
        (b"x-tool-turns", str(tally.turns).encode()),
        (b"x-tool-calls", str(tally.total_tool_calls).encode()),
        (b"x-tool-stop", answers[0].stop.encode()),
    )


def _note_end(tally: Tally, answers: Sequence[Respond]) -> None:
    """Add the use of all runs, and how the first of the `answers` came about, to the log line of the request."""
    if answers:
        first = answers[0]
        request_context.add({"stop": first.stop} if first.step is None else {"stop": first.stop, "rung": first.step})
    note_use(tally, turns=tally.turns, tool_calls=tally.total_tool_calls, searches=tally.web_searches)
    if tally.failed_tool_calls:
        request_context.add({"failed_calls": tally.failed_tool_calls})


def note_use(tally: Tally, **counts: float) -> None:
    """Add tokens, cost and other counts to the sums in the log line of the request."""
    for name in ("prompt_tokens", "completion_tokens"):
        if (count := token_count(tally.usage, name)) is not None:
            counts[name] = count
    if (cached := token_count(tally.usage, "prompt_tokens_details", "cached_tokens")) is not None:
        counts["cached_tokens"] = cached
    if (cost := tally.total_cost) is not None:
        counts["cost"] = cost
    known: dict[str, Any] = request_context.fields.get({})
    for name, number in counts.items():
        known[name] = known.get(name, 0) + number
