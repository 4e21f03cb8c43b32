"""The base of all surfaces. A surface is a codec: it gives the same requests and runs the shapes of one API.

Chat Completions, Responses and Messages are surfaces. To add another one, write a subclass of `Surface` whose
`__call__`

1. reads the body (`body.read_body`), checks it, and translates it into a request of Chat Completions;
2. resolves that request: `self.resolver.access` (caller, model, limits, usable tools), then its own tools within
   these, then `self.resolver.finish` (offer, filters);
3. answers with `self.send_stream` or `self.send_whole`, which end the work when the client leaves or at `max_duration`;
4. in that work, awaits `self.run`, which tells its `Audience` all that the client may see: chunks and events. The
   surface encodes both in the shapes of its API, and at the end the `Respond` of each choice.

Errors are raised as `ProxyError`. `proxy.paths` has the paths of all surfaces, and `_ERROR_SHAPES` in `app.routes` the
shape of their errors; a stream whose last events depend on those before sets `event_stream.STREAM_ERROR_ENCODER`.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

from msgspec.structs import replace
from starlette.types import Receive, Scope, Send

from proxy.api.event_stream import EventStream
from proxy.api.exchange import Work, send_bytes, while_wanted
from proxy.api.ports import Ports
from proxy.api.request import RequestResolver, ResolvedRequest
from proxy.execution.driver import Driver
from proxy.kit import request_context
from proxy.loop.actions import Respond
from proxy.loop.call_context import CallContext
from proxy.loop.continuation import CarriedTurns, Continuation, as_json
from proxy.loop.run import Run
from proxy.loop.tally import Tally, sum_of
from proxy.ports import Audience, ExecuteTool
from proxy.wire import rawjson
from proxy.wire.credentials import BOUND
from proxy.wire.relayed import Headers
from proxy.wire.usage import token_count

Keep: TypeAlias = Callable[[Respond], bool]
"""Whether the hidden part of an answer is stored for the client's next request."""


def keep_all(_: Respond) -> bool:
    """Store the hidden part of every answer."""
    return True


class Surface:
    """The base of an endpoint whose requests are answered by a model.

    Attributes:
        ports: the interfaces to the rest of the proxy.
        server: the `server:` of the configuration.
        resolver: resolves its requests.
    """

    def __init__(self, ports: Ports) -> None:
        self.ports = ports
        self.server = ports.config.server
        self.resolver = RequestResolver(ports)
        self._driver = Driver(ports.toolset.execute, ports.toolset.find, observe=ports.observe, clock=ports.clock)

    async def send_whole(
        self, request: ResolvedRequest, work: Work[tuple[bytes, Headers]], scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Send the JSON body and the extra headers that `work` returns.

        Raises:
            MaxDurationExceeded: the work took longer than the request may.
            ClientLeft: the client left before the work was done.
        """
        body, headers = await while_wanted(scope, receive, work, seconds=request.limits.max_duration)
        headers = [(b"content-type", b"application/json"), *headers]
        if request.ignored:
            headers.append(_ignored_header(request))
        await send_bytes(send, 200, headers, body)

    async def send_stream(
        self,
        request: ResolvedRequest,
        work: Callable[[EventStream], Coroutine[Any, Any, None]],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Stream the events that `work` writes, with a heartbeat after each long silence.

        Raises:
            MaxDurationExceeded: the work took longer than the request may.
            ClientLeft: the client left before the work was done.
        """
        stream = EventStream(scope, send)
        if request.ignored:
            stream.add_headers([_ignored_header(request)])
        heartbeat = partial(stream.keep_alive, self.server.keepalive_seconds)
        seconds = request.limits.max_duration
        await while_wanted(scope, receive, partial(work, stream), seconds=seconds, beside=heartbeat)

    async def run(
        self,
        request: ResolvedRequest,
        run_ids: Sequence[str],
        audiences: Sequence[Audience | None],
        *,
        execute: ExecuteTool | None = None,
        keep: Keep = keep_all,
        awaits_check: bool = False,
    ) -> Sequence[Respond]:
        """Make an independent run for each of the `run_ids`, and drive all of them to their answers.

        Args:
            request: the request.
            run_ids: 32 hexadecimal digits each, from which the ids of the client's own calls are made.
            audiences: for each run, who is told all that the client may see of it; None: only its answer is needed.
            execute: runs the tool calls; None: the server tools as they are.
            keep: whether the hidden part of an answer is stored for the client.
            awaits_check: whether the text of the answers is left to be shown with `driver.release`, after a check.
        """
        # A model that is offered no server tools gets no guidance about them.
        limits = request.limits if request.offer.in_play else replace(request.limits, guidance=False)
        driver, toolset = self._driver, request.own.toolset
        if execute is not None or toolset is not self.ports.toolset:
            execute = execute or toolset.execute
            driver = Driver(execute, toolset.find, observe=self.ports.observe, clock=self.ports.clock)
        upstream, owner, caller = request.model.upstream, request.caller.scope, request.caller
        context = CallContext(
            owner,
            request.filters,
            limits.tool_timeout,
            limits.max_tool_timeout,
            caller.tools,
            self.ports.clock.monotonic() + limits.deadline,
            request.own.credentials,
        )
        tallies, works = [], []
        for run_id, audience in zip(run_ids, audiences, strict=True):
            dialect = self.ports.dialect(request.offer.server_tools) if request.offer.in_play else None
            run = Run(
                request.chat,
                request.offer,
                limits,
                run_id,
                dialect=dialect,
                earlier_sources=request.sources,
                read_arguments=toolset.history_arguments,
                awaits_check=awaits_check,
            )
            work = driver.drive(run, upstream=upstream, context=context, audience=audience)
            tallies.append(run.tally)
            # A client without tools of its own has no results to come back with, so nothing is stored for it.
            works.append(self._stored(work, request, run_id, keep) if request.offer.client_tools else work)
        answers: Sequence[Respond] = ()
        try:
            # A single run gets no task of its own, which would keep a failure in memory with all its frames.
            answers = await _all_of(works) if len(works) > 1 else [await works[0]]
        finally:  # what was used is paid for, even without an answer
            _note_end(sum_of(tallies), answers)
        return answers

    async def _stored(
        self, work: Coroutine[Any, Any, Respond], request: ResolvedRequest, run_id: str, keep: Keep
    ) -> Respond:
        """The answer of a run, once its hidden part is stored.

        It is stored before the other choices end: a client that streams has already seen the calls, and may come back
        with their results even if another choice fails.
        """
        answer = await work
        if answer.continuation is not None and keep(answer):
            await self.keep_hidden(request, run_id, answer.continuation)
        return answer

    async def keep_hidden(self, request: ResolvedRequest, run_id: str, hidden: Continuation | CarriedTurns) -> None:
        """Store what a client is not shown of a run, for the requests that may open it."""
        held = as_json(hidden)
        if bound := request.own.credentials.bound():
            held[BOUND] = bound
        await self.ports.store.put(request.caller.scope, run_id, rawjson.dumps_answer(held))


async def _all_of(works: Iterable[Coroutine[Any, Any, Respond]]) -> list[Respond]:
    """The answers of runs, in order. The first failure cancels the other runs, and is raised itself, not in a group."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures
    return [task.result() for task in tasks]


def _ignored_header(request: ResolvedRequest) -> tuple[bytes, bytes]:
    """The header with the names of the tools that the client has selected and cannot have."""
    return b"x-tools-ignored", ",".join(request.ignored).encode()


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
