"""`POST /v1/chat/completions`: the tool loop, or bytes handed through where no server tool is in play."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import uuid4

import structlog
from starlette.types import Receive, Scope, Send

from proxy.api.body import header, parse_chat_request, read_body, written
from proxy.api.caller import Caller, caller_of
from proxy.api.clients import Identity, StreamingClient, tool_headers, whole_completion
from proxy.api.race import together, until_disconnect
from proxy.api.replies import EventStream, Headers, send_bytes
from proxy.config import RequestLimits
from proxy.core import sse
from proxy.core.actions import Respond, Tally, sum_of
from proxy.core.chat import Json, ToolSpec, carries_image
from proxy.core.continuation import Continuation, put_back, runs_in
from proxy.core.errors import MaxDurationExceeded, ModelNotAllowed
from proxy.core.limits import Limits
from proxy.core.offer import Asked, Offer, make_offer, take_prefix
from proxy.core.run import Run
from proxy.ports import Model, Ports, Show, Tell
from proxy.runner import Pace, Runner

_ID_PREFIX = "chatcmpl-"
_OURS = "max_tool_calls"  # an upstream may refuse a field that it does not know


class ChatCompletions:
    """The endpoint, as an ASGI callable."""

    def __init__(self, ports: Ports, *, new_id: Callable[[], str] = lambda: f"{_ID_PREFIX}{uuid4().hex}") -> None:
        self._ports = ports
        self._server = ports.config.server
        self._new_id = new_id
        self._runner = Runner(ports.toolset, observe=ports.observe, clock=ports.clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        body = await read_body(scope, receive, max_bytes=self._server.max_body_bytes)
        request = parse_chat_request(body)
        caller = caller_of(scope)
        if runs := runs_in(request["messages"]):
            body, request = await self._put_back(runs, body, request, caller)
        name, asked_by_name = self._without_suffix(request["model"])
        body, request, asked_by_prefix = self._without_prefix(body, request)
        image = carries_image(request["messages"])
        model = self._ports.router.resolve(name, client_key=caller.upstream_key, image=image)
        if not caller.may_use(model.name):
            raise ModelNotAllowed(model.name)
        stream = bool(request.get("stream"))
        structlog.contextvars.bind_contextvars(model=model.name, upstream=model.upstream.name, stream=stream)
        limits = self._ports.config.limits.overridden(model.limits, caller.limits)
        budget = limits.budget(max_tool_calls=request.get("max_tool_calls"))
        chosen = _chosen_tools(header(scope, b"x-server-tools"))
        tell_events = (header(scope, b"x-tool-events") or "").lower() == "true"
        exchange = _Exchange(body, request, caller, model, limits, budget, tell_events)
        asked = Asked(asked_by_name or asked_by_prefix, chosen, model.upstream.native_search)
        offer = self._offer(exchange, asked)
        reply = self._streamed if stream else self._whole
        await reply(exchange, offer, receive, send)

    async def _put_back(self, runs: Sequence[str], body: bytes, request: Json, caller: Caller) -> tuple[bytes, Json]:
        """The request with what this client was not shown of earlier runs in its history again."""
        found: dict[str, Continuation] = {}
        for run in runs:
            stored = await self._ports.store.get(f"{caller.scope}:{run}")
            if stored is not None:
                found[run] = Continuation.from_json(stored)
        self._ports.observe("continuation.sought", sought=len(runs), found=len(found))
        if not found:
            return body, request
        request = {**request, "messages": put_back(request["messages"], found)}
        return written(request), request

    def _without_suffix(self, name: str) -> tuple[str, bool]:
        """The model's name without the suffix that asks for tools, and whether it was there."""
        suffix = self._ports.config.offer.model_suffix
        return (name.removesuffix(suffix), True) if suffix and name.endswith(suffix) else (name, False)

    def _without_prefix(self, body: bytes, request: Json) -> tuple[bytes, Json, bool]:
        """The request without the prefix that asks for tools, and whether it was there."""
        prefix = self._ports.config.offer.prefix
        messages = take_prefix(request["messages"], prefix) if prefix else None
        if messages is None:
            return body, request, False
        request = {**request, "messages": messages}
        return written(request), request, True

    def _offer(self, exchange: "_Exchange", asked: Asked) -> Offer:
        allowed = (exchange.caller.tools, exchange.model.tools, asked.names)
        tools = [
            spec
            for spec in self._ports.toolset.specs.values()
            if all(names is None or spec.is_among(names) for names in allowed)
        ]
        usable: list[ToolSpec] = tools if exchange.budget.allow_tools else []
        return make_offer(exchange.request, usable, asked)

    async def _whole(self, exchange: "_Exchange", offer: Offer, receive: Receive, send: Send) -> None:
        work = self._loop_whole if offer.in_play else self._relay_whole
        async with exchange.max_duration():
            reply = await until_disconnect(receive, work(exchange, offer))
        await send_bytes(send, 200, reply.headers, reply.body)

    async def _streamed(self, exchange: "_Exchange", offer: Offer, receive: Receive, send: Send) -> None:
        stream = EventStream(send)
        work = self._loop_stream if offer.in_play else self._relay_stream
        async with exchange.max_duration():
            beating = stream.keep_alive(self._server.keepalive_seconds)
            await until_disconnect(receive, work(exchange, offer, stream), beside=beating)

    async def _relay_whole(self, exchange: "_Exchange", _: Offer) -> "_Reply":
        answer = await exchange.model.upstream.relay(*exchange.for_upstream())
        _note_usage(answer.usage)
        return _Reply(answer.body)

    async def _relay_stream(self, exchange: "_Exchange", _: Offer, stream: EventStream) -> None:
        usage = await exchange.model.upstream.relay_stream(*exchange.for_upstream(), stream.write)
        _note_usage(usage)
        await stream.close()

    async def _loop_whole(self, exchange: "_Exchange", offer: Offer) -> "_Reply":
        identity = self._identity(exchange)
        events: list[Json] | None = [] if exchange.tell_events else None
        answers = await self._loops(exchange, offer, identity, lambda _: _show_nothing, _collect(events))
        return _Reply(sse.dumps(whole_completion(answers, identity, events=events)), tool_headers(answers))

    async def _loop_stream(self, exchange: "_Exchange", offer: Offer, stream: EventStream) -> None:
        options = exchange.request.get("stream_options") or {}
        identity = self._identity(exchange)
        client = StreamingClient(stream, identity, include_usage=bool(options.get("include_usage")))
        tell = client.tell if exchange.tell_events else _collect(None)
        await client.finish(await self._loops(exchange, offer, identity, client.show, tell))

    async def _loops(
        self,
        exchange: "_Exchange",
        offer: Offer,
        identity: Identity,
        show: Callable[[int], Show],
        tell: Tell,
    ) -> list[Respond]:
        """One loop for each choice that the client wants, independent of each other."""
        wanted = exchange.request.get("n") or 1
        ids = [identity.id, *(self._new_id() for _ in range(wanted - 1))]
        runs = [exchange.run(offer, one.removeprefix(_ID_PREFIX)) for one in ids]
        try:
            answers = await together(self._loop(exchange, run, show(index), tell) for index, run in enumerate(runs))
        finally:  # what was used is paid for, also where there is no answer
            _note_tally(sum_of([run.tally for run in runs]))
        structlog.contextvars.bind_contextvars(stop=answers[0].stop, rung=answers[0].rung)
        return answers

    async def _loop(self, exchange: "_Exchange", run: Run, show: Show, tell: Tell) -> Respond:
        upstream = exchange.model.upstream
        answer = await self._runner.drive(run, upstream=upstream, pace=exchange.pace(), show=show, tell=tell)
        if answer.continuation is not None:  # kept before the client can know of it
            await self._ports.store.put(f"{exchange.caller.scope}:{run.id}", answer.continuation.as_json())
        return answer

    def _identity(self, exchange: "_Exchange") -> Identity:
        return Identity(self._new_id(), int(self._ports.clock.time()), exchange.model.name)


@dataclass(frozen=True, slots=True)
class _Reply:
    """A whole answer: its bytes, and what is said beside it."""

    body: bytes
    extra: Headers = ()

    @property
    def headers(self) -> Headers:
        return ((b"content-type", b"application/json"), *self.extra)


@dataclass(frozen=True, slots=True)
class _Exchange:
    """One request on its way through: what was asked, of whom, and how far it may go."""

    body: bytes
    request: Json
    caller: Caller
    model: Model
    limits: RequestLimits
    budget: Limits
    tell_events: bool

    def for_upstream(self) -> tuple[bytes, Json]:
        """The body as the client sent it, but for the field that is said to us alone."""
        if _OURS not in self.request:
            return self.body, self.request
        request = {key: value for key, value in self.request.items() if key != _OURS}
        return written(request), request

    def run(self, offer: Offer, run_id: str) -> Run:
        """One loop for one choice."""
        request = {key: value for key, value in self.request.items() if key != "n"}
        ladder = self.model.upstream.ladder
        return Run(request, offer=offer, limits=self.budget, ladder=ladder, run_id=run_id)

    def pace(self) -> Pace:
        one_at_a_time = self.request.get("parallel_tool_calls") is False
        return Pace(
            deadline=self.limits.deadline,
            scope=self.caller.scope,
            tool_timeout=self.limits.tool_timeout,
            max_parallel_tools=1 if one_at_a_time else self.limits.max_parallel_tools,
            max_result_bytes=self.limits.max_result_bytes,
            max_total_result_bytes=self.limits.max_total_result_bytes,
        )

    @asynccontextmanager
    async def max_duration(self) -> AsyncIterator[None]:
        """Bounds the whole of it. Raises `MaxDurationExceeded`."""
        try:
            async with asyncio.timeout(self.limits.max_duration):
                yield
        except TimeoutError as exc:
            raise MaxDurationExceeded(f"The request took longer than {self.limits.max_duration:g} seconds.") from exc


def _chosen_tools(header_value: str | None) -> frozenset[str] | None:
    """What `x-server-tools` chooses among the tools that the client may use; None: all of them."""
    if header_value is None or header_value.strip() == "all":
        return None
    return frozenset(name.strip() for name in header_value.split(",")) - {"none"}


def _collect(events: list[Json] | None) -> Tell:
    """Progress for a client that does not stream: told at the end, if it asked for it."""

    async def tell(event: Json) -> None:
        if events is not None:
            events.append(event)

    return tell


async def _show_nothing(_: Json) -> None:
    """A client that does not stream sees nothing before the end."""


def _note_tally(tally: Tally) -> None:
    """What a loop has used, for the request's log line."""
    structlog.contextvars.bind_contextvars(turns=tally.turns, tool_calls=tally.total_tool_calls)
    _note_usage(tally.usage)


def _note_usage(usage: Json | None) -> None:
    """The tokens of a request, for its log line."""
    if usage:
        structlog.contextvars.bind_contextvars(
            prompt_tokens=usage.get("prompt_tokens"), completion_tokens=usage.get("completion_tokens")
        )
