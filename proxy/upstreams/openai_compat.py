"""Any Chat Completions endpoint, with a profile for what is particular about it."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, TypeAlias

import orjson
from msgspec.structs import replace

from proxy.http.client import Reply
from proxy.loop import numbers, sse
from proxy.loop.actions import CallUpstream
from proxy.loop.assembler import NO_REASON, Assembler, has_index, missing_index, turn_from_completion
from proxy.loop.chat import Json, Turn
from proxy.loop.endings import inferred_reason
from proxy.loop.errors import ProxyError, UpstreamError, UpstreamRefused
from proxy.loop.forcing import AnswerSteps
from proxy.loop.rawjson import replace_model
from proxy.ports import Answer, Eager, RawRequest, RawResponse, Show, Write
from proxy.upstreams import failures
from proxy.upstreams.connection import Connection, is_event_stream
from proxy.upstreams.names import ToolNames, renamed_in
from proxy.upstreams.profile import CHUNK, COMPLETION, Profile, complete, mend, prepare
from proxy.upstreams.request_body import LatestRequests, as_json, serialize

_DONE = b"[DONE]"
_HEAD = ("id", "object", "created", "model")  # what is the same in every chunk of a stream
_ERROR_EVENT = "The upstream reported an error in the middle of its stream."
_NO_OBJECT = "The upstream's answer is no JSON object."
# After [DONE] the rest of the response is read, so that its connection can be used again, but not waited for.
_DRAIN_SECONDS = 0.25
# A shorter key is no secret but a placeholder; taking it out would only garble what is said.
_SHORTEST_SECRET = 8
_Handle: TypeAlias = Callable[[list[sse.Event], sse.Event | None], Awaitable[None]]
"""Takes events, and the end mark where it follows them."""


@dataclass(frozen=True, slots=True)
class OpenAICompatible:
    """One model at one upstream, for all requests.

    Attributes:
        connection: the way to the upstream.
        profile: what is particular about it.
        model: its name for the model.
        api_key: that it is asked with.
        of_client: whether the key is the client's own: what the upstream says of it is then for the client.
        name: the upstream's in the configuration.
    """

    connection: Connection
    profile: Profile
    model: str
    api_key: str = field(repr=False)
    of_client: bool = False
    name: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.connection.name)

    @property
    def answer_steps(self) -> AnswerSteps:
        """The steps by which its models are made to answer."""
        return self.profile.answer_steps

    async def complete(self, call: CallUpstream, show: Show, eager: Eager, latest: LatestRequests) -> Turn:
        """Make one upstream call of a run; `latest`: the requests that its own may extend."""
        call = call.for_upstream(self.answer_steps)
        content, names = serialize(call, self.profile, self.model, latest)
        if names is not None:
            call = replace(call, renamed=names.told)
        try:
            if not call.body.get("stream"):
                raw = await self.connection.whole(content, key=self.api_key)
                answer, _ = self._completion(raw, names, call.body)
                return turn_from_completion(answer, call)
            async with aclosing(await self._stream(content)) as reply:
                return await self._assemble(reply, Assembler(call), names, show, eager)
        except ProxyError as exc:
            self._keep_quiet(exc)
            raise

    async def relay(self, body: bytes, request: Json) -> Answer:
        """Hand a whole completion through; its bytes stay as they are wherever they can."""
        content, names = self._own_bytes(body, request)
        try:
            raw = await self.connection.whole(content, key=self.api_key)
            answer, changed = self._completion(raw, names, request)
        except ProxyError as exc:
            self._keep_quiet(exc)
            raise
        return Answer(sse.dumps(answer) if changed else raw, answer.get("usage"))

    async def relay_stream(self, body: bytes, request: Json, write: Write) -> Json | None:
        """Hand a streamed completion through, event by event, the original bytes wherever they can stay."""
        content, names = self._own_bytes(body, request)
        relayed = _Relayed(self.profile, names, request)

        def handle(events: list[sse.Event], end: sse.Event | None) -> Awaitable[None]:
            if end is None and len(events) == 1:
                return write(relayed.take(events[0]))
            return _write_good(events, end, relayed, write)

        try:
            async with aclosing(await self._stream(content)) as reply:
                await _each(self.connection, reply, handle)
        except ProxyError as exc:
            self._keep_quiet(exc)
            raise
        relayed.require_finished()
        return relayed.usage

    @asynccontextmanager
    async def open(self, request: RawRequest) -> AsyncIterator[RawResponse]:
        """Hand any other request through."""
        asked = request.method, request.path, request.headers, request.body
        try:
            async with aclosing(await self.connection.send(*asked, key=self.api_key)) as reply:
                yield RawResponse(reply.status, reply.headers, self._body(reply))
        except ProxyError as exc:
            self._keep_quiet(exc)
            raise

    async def _body(self, reply: Reply) -> AsyncIterator[bytes]:
        while part := await self.connection.read(reply):
            yield part

    def _own_bytes(self, body: bytes, request: Json) -> tuple[bytes, ToolNames | None]:
        """The client's body for this upstream: byte for byte, but for the model's name and the profile's repairs."""
        prepared = prepare(request, self.profile)
        names = renamed_in(prepared)
        if names is not None:
            prepared = names.outward(prepared)
        if prepared is not request:
            return as_json({**prepared, "model": self.model}), names
        return replace_model(body, self.model), names

    async def _stream(self, content: bytes) -> Reply:
        """The reply to a Chat Completions call, which is a stream and has to be closed."""
        reply = await self.connection.complete(content, key=self.api_key, stream=True)
        if not is_event_stream(reply):
            async with aclosing(reply):
                answer = _parsed(await self.connection.read_whole(reply))
                raise failures.from_body(answer) or UpstreamError("The upstream answered a stream with something else.")
        return reply

    async def _assemble(
        self, reply: Reply, assembler: Assembler, names: ToolNames | None, show: Show, eager: Eager
    ) -> Turn:
        done = False

        async def handle(events: list[sse.Event], end: sse.Event | None) -> None:
            nonlocal done
            done = end is not None
            for event in events:
                chunk, _ = _chunk(event, self.profile, names, numbers.loads)
                for visible in assembler.feed(chunk):
                    await show(visible)
                for ready in assembler.take_ready():
                    eager.start(ready)

        await _each(self.connection, reply, handle)
        for visible in assembler.close(done=done):
            await show(visible)
        return assembler.finish()

    def _completion(self, raw: bytes, names: ToolNames | None, request: Json) -> tuple[Json, bool]:
        """A whole answer, and whether it had to be mended. Raises the error that it holds, if it holds one."""
        answer = _parsed(raw)
        if "error" in answer or not answer.get("choices"):
            failures.require_none(answer)
        changed = mend(answer, self.profile, kind=COMPLETION)
        changed = complete(answer, request) or changed
        return answer, (names is not None and names.inward(answer)) or changed

    def _keep_quiet(self, error: ProxyError) -> None:
        """Take the upstream's key out of an error that quotes it, and the operator's account out of one about it."""
        if len(self.api_key) >= _SHORTEST_SECRET:
            for name in ("message", "type", "code", "param"):
                said = getattr(error, name)
                if said and self.api_key in said:
                    setattr(error, name, said.replace(self.api_key, "***"))
        if isinstance(error, UpstreamRefused) and not self.of_client:
            error.blame_operator(self.name)


async def _each(connection: Connection, reply: Reply, handle: _Handle) -> None:
    """Give the events of a reply to `handle`, those of one read at a time, up to and including [DONE]."""
    decoder = sse.Decoder()
    end: sse.Event | None = None

    async def take(data: bytes) -> bool:
        nonlocal end
        events, end = _until_done(decoder.feed(data))
        if events or end:
            await handle(events, end)
        return end is not None

    await connection.pump(reply, take)
    if end is not None:
        await _drain(connection, reply)
    elif rest := list(decoder.close()):
        await handle(*_until_done(rest))


async def _drain(connection: Connection, reply: Reply) -> None:
    with suppress(TimeoutError, UpstreamError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            while await connection.read(reply):
                pass


async def _write_good(events: Iterable[sse.Event], end: sse.Event | None, relayed: "_Relayed", write: Write) -> None:
    """All events of one read in one write; those before a bad one are written before it is told."""
    good: list[bytes] = []
    try:
        good.extend(relayed.take(event) for event in events)
        if end is not None:
            good += (relayed.ending(), end.raw)
    finally:
        if good:
            await write(b"".join(good))


@dataclass(slots=True)
class _Relayed:
    """A stream that is handed through, event by event, and what is known of it so far."""

    profile: Profile
    names: ToolNames | None
    request: Json
    usage: Json | None = None
    finished: set[int] = field(default_factory=set)  # the choices that have a finish_reason
    said: dict[int, "_Said"] = field(default_factory=dict)  # what each choice holds
    head: Json = field(default_factory=dict)  # the latest chunk that said anything

    def take(self, event: sse.Event) -> bytes:
        """The event as the client gets it: its original bytes, unless an OpenAI SDK would choke on them."""
        chunk, changed = _chunk(event, self.profile, self.names, orjson.loads)
        if changed or _lacks_index(chunk):
            chunk, _ = _chunk(event, self.profile, self.names, numbers.loads)
            changed = True
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk["choices"]:
            index = choice.get("index") or 0
            if choice.get("finish_reason"):
                self.finished.add(index)
            if delta := choice.get("delta"):
                self.head = chunk
                said = self.said.get(index) or self.said.setdefault(index, _Said())
                said.take(delta)
        return sse.encode(chunk) if changed else event.raw

    def ending(self) -> bytes:
        """The events that `[DONE]` should have come after: the finish reasons of whole choices that came without one.

        Raises:
            UpstreamError: no choice is whole.
        """
        events: list[bytes] = []
        usage = self.usage if len(self.said) == 1 else None
        for index, said in self.said.items():
            if index in self.finished or (reason := inferred_reason(said.message, self.request, usage)) is None:
                continue
            self.finished.add(index)
            head = {name: self.head[name] for name in _HEAD if name in self.head}
            events.append(sse.encode({**head, "choices": [{"index": index, "delta": {}, "finish_reason": reason}]}))
        self.require_finished()
        return b"".join(events)

    def require_finished(self) -> None:
        """A stream may end when the model said why it stopped. Raises `UpstreamError` where it did not."""
        if not self.finished:
            raise UpstreamError(NO_REASON)


@dataclass(slots=True)
class _Said:
    """What a choice of a stream that is handed through holds, as far as its end is judged by it."""

    spoke: bool = False
    function: Json | None = None
    ids: dict[int, str] = field(default_factory=dict)
    arguments: dict[int, list[str]] = field(default_factory=dict)

    def take(self, delta: Json) -> None:
        """Take note of a delta, and give its calls the indices that they lack."""
        if delta.get("content") or delta.get("refusal"):
            self.spoke = True
        self.function = self.function or delta.get("function_call")
        for call in delta.get("tool_calls") or ():
            if not has_index(call):
                call["index"] = missing_index(call, self.ids)
            index = call["index"]
            self.ids[index] = call.get("id") or self.ids.get(index, "")
            function = call.get("function") or {}
            self.arguments.setdefault(index, []).append(function.get("arguments") or "")

    @property
    def message(self) -> Json:
        """The message, as far as its end is judged by it."""
        calls = [{"function": {"arguments": "".join(pieces)}} for pieces in self.arguments.values()]
        return {"refusal": self.spoke, "tool_calls": calls, "function_call": self.function}


def _lacks_index(chunk: Json) -> bool:
    """Whether a chunk has a call that does not say which one it is."""
    for choice in chunk["choices"]:
        delta = choice.get("delta")
        if delta and (calls := delta.get("tool_calls")) and not all(map(has_index, calls)):
            return True
    return False


def _chunk(
    event: sse.Event, profile: Profile, names: ToolNames | None, parse: Callable[[bytes], Any]
) -> tuple[Json, bool]:
    """The chunk in an event, and whether it had to be mended. Raises the error that it holds, if it holds one."""
    try:
        chunk = parse(event.data)
    except orjson.JSONDecodeError:
        chunk = event.data.decode("utf-8", "replace") if event.type == "error" else _leniently(event.data)
    if event.type == "error":
        failures.require_none(chunk)
        raise failures.from_body({"error": chunk}) or UpstreamError(_ERROR_EVENT)
    if chunk.__class__ is not dict:
        raise UpstreamError(_NO_OBJECT)
    if "error" in chunk or not chunk.get("choices"):
        failures.require_none(chunk)
    changed = mend(chunk, profile, kind=CHUNK)
    return chunk, (names is not None and names.inward(chunk)) or changed


def _leniently(raw: bytes) -> Any:
    """What orjson refuses and other parsers do not: NaN, 1e400, half of an emoji that was split over two chunks.

    Raises:
        UpstreamError: it is no JSON for them either.
    """
    try:
        answer = json.loads(raw, parse_constant=lambda _: None, parse_float=_finite)
        return orjson.loads(json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError) as exc:
        raise UpstreamError("The upstream's answer is not JSON.") from exc


def _finite(text: str) -> float | None:
    number = float(text)
    return number if isfinite(number) else None


def _until_done(events: Iterable[sse.Event]) -> tuple[list[sse.Event], sse.Event | None]:
    """The events before the end mark, and the mark where it was among them; nothing that follows it counts."""
    before: list[sse.Event] = []
    for event in events:
        if event.data[:6] == _DONE:
            return before, event
        before.append(event)
    return before, None


def _parsed(raw: bytes) -> Json:
    try:
        answer = numbers.loads(raw)
    except orjson.JSONDecodeError:
        answer = _leniently(raw)
    if not isinstance(answer, dict):
        raise UpstreamError(_NO_OBJECT)
    return answer
