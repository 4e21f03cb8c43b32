"""Any Chat Completions endpoint, with a profile for its quirks."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol

import orjson
from msgspec import Struct
from msgspec.structs import replace

from proxy.http.response import Response
from proxy.loop import rawjson, sse
from proxy.loop.actions import CallUpstream
from proxy.loop.assembler import NO_REASON, Assembler
from proxy.loop.calls import has_index, missing_index
from proxy.loop.chat import Json, Turn, inferred_reason
from proxy.loop.errors import ProxyError, UpstreamError, UpstreamRefused
from proxy.loop.tokens import estimated_usage
from proxy.ports import Answer, Eager, EnoughShown, RawRequest, RawResponse, Show, Write
from proxy.redact import redactor
from proxy.upstreams import failures
from proxy.upstreams.answers import parse_chunk, parse_completion, parse_object
from proxy.upstreams.connection import FOREIGN, Connection
from proxy.upstreams.names import ToolNames
from proxy.upstreams.profile import Profile
from proxy.upstreams.request_body import LatestRequests, as_json, prepare, serialize

_DONE = b"[DONE]"
_HEAD = ("id", "object", "created", "model")  # the fields that are equal in every chunk of a stream
# After [DONE] the rest of the response is read, so that its connection can be used again, but not waited for.
_DRAIN_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class OpenAICompatible:
    """One model at one upstream, for all requests.

    Attributes:
        name: the upstream's in the configuration.
        model: the upstream's name for the model.
        connection: the way to the upstream.
        profile: its quirks.
        api_key: sent with each request.
        of_client: whether the key is the client's own, so that errors about it are for the client.
        key_advice: what the operator may try where the key is refused.
    """

    name: str
    model: str
    connection: Connection
    profile: Profile
    api_key: str = field(repr=False)
    of_client: bool = False
    key_advice: str = ""

    async def complete(self, call: CallUpstream, show: Show, eager: Eager, latest: LatestRequests) -> Turn:
        """Make one upstream call of a run; `latest`: the requests that this one may extend."""
        call = call.for_upstream(self.profile.answer_steps)
        content, names = serialize(call, self.profile, self.model, latest)
        if names is not None:
            call = replace(call, renamed=names.originals)
        assembler = Assembler(call)
        try:
            if not call.body.get("stream"):
                raw = await self.connection.whole(content, key=self.api_key)
                answer, _ = parse_completion(raw, self.profile, names, call.body)
                assembler.feed_whole(answer)
                return assembler.finish()
            reader = _TurnReader(self.profile, names, assembler, show, eager, sse.Decoder())
            try:
                await self._read_stream(content, reader)
                for visible in assembler.close(done=reader.done):
                    await show(visible)
            except EnoughShown:  # the connection is closed by now, so the upstream writes no more
                return _ended_early(assembler.finish(), call.body)
            return assembler.finish()
        except ProxyError as exc:
            self._redact(exc)
            raise

    async def relay(self, body: bytes, request: Json) -> Answer:
        """Relay a whole completion; its bytes stay as they are wherever they can."""
        content, names = self._relayed_body(body, request)
        try:
            raw = await self.connection.whole(content, key=self.api_key)
            answer, changed = parse_completion(raw, self.profile, names, request)
        except ProxyError as exc:
            self._redact(exc)
            raise
        return Answer(sse.dumps(answer) if changed else raw, answer.get("usage"))

    async def relay_stream(self, body: bytes, request: Json, write: Write) -> Json | None:
        """Relay a streamed completion event by event, the original bytes wherever they can stay; returns its usage."""
        content, names = self._relayed_body(body, request)
        reader = _RelayReader(self.profile, names, request, write)
        try:
            await self._read_stream(content, reader)
        except ProxyError as exc:
            self._redact(exc)
            raise
        reader.require_finished()
        return reader.usage

    @asynccontextmanager
    async def open(self, request: RawRequest) -> AsyncIterator[RawResponse]:
        """Relay any other request."""
        parts = request.method, request.path, request.headers, request.body
        try:
            async with aclosing(await self.connection.send(*parts, key=self.api_key)) as response:
                yield RawResponse(response.status, response.headers, self._body(response))
        except ProxyError as exc:
            self._redact(exc)
            raise

    async def _body(self, response: Response) -> AsyncIterator[bytes]:
        while part := await self.connection.read(response):
            yield part

    def _relayed_body(self, body: bytes, request: Json) -> tuple[bytes, ToolNames | None]:
        """The client's body for this upstream: byte for byte, but for the model's name and the profile's changes."""
        prepared = prepare(request, self.profile)
        names = ToolNames.replaced_in(prepared)
        if names is not None:
            prepared = names.replace(prepared)
        if prepared is not request:
            return as_json({**prepared, "model": self.model}), names
        return rawjson.replace_model(body, self.model), names

    async def _read_stream(self, content: bytes, reader: "_Reader") -> None:
        """Make a Chat Completions call and give the events of its stream to `reader`, those of one read together."""
        connection = self.connection
        async with aclosing(await connection.complete(content, key=self.api_key, stream=True)) as response:
            # By prefix: Z.AI sends `text/event-stream;charset=UTF-8`.
            if not response.header(b"content-type").lower().startswith(b"text/event-stream"):
                failures.raise_if_failed(parse_object(await connection.read_whole(response)))
                raise UpstreamError("The upstream answered a stream with something else.")
            try:
                await response.pump(reader.take)
            except FOREIGN as exc:
                raise connection.ours(exc) from exc
            if not reader.done:
                await reader.take(b"")
                return
            with suppress(TimeoutError, *FOREIGN):
                async with asyncio.timeout(_DRAIN_SECONDS):
                    while await response.read():
                        pass

    def _redact(self, error: ProxyError) -> None:
        """Mask the upstream's key in an error that quotes it, and report one about the operator's account as a 502."""
        redact = redactor([self.api_key])
        for name in ("message", "type", "code", "param"):
            if text := getattr(error, name):
                setattr(error, name, redact(text))
        if isinstance(error, UpstreamRefused) and not self.of_client:
            error.blame_operator(self.name, self.key_advice)


def _ended_early(turn: Turn, request: Json) -> Turn:
    """A turn that ends within its text, because the client wants no more of it; what it has called is dropped."""
    message = {key: value for key, value in turn.message.items() if key != "tool_calls"}
    usage = turn.usage or estimated_usage(request, message)
    return replace(turn, message=message, finish_reason="stop", calls=(), client_ids=(), usage=usage)


class _Reader(Protocol):
    """Takes the body of a stream; it is `done` when `[DONE]` has come, and nothing that follows counts."""

    done: bool

    async def take(self, data: bytes) -> bool:
        """Take the bytes of one read, or, where they are empty, the end of the body; whether the stream is done."""
        ...


class _TurnReader(Struct, eq=False):
    """Assembles a turn, shows what the client may see of it, and starts its calls as soon as they are whole."""

    profile: Profile
    names: ToolNames | None
    assembler: Assembler
    show: Show
    eager: Eager
    decoder: sse.Decoder
    done: bool = False

    async def take(self, data: bytes) -> bool:
        assembler = self.assembler
        for event in self.decoder.feed(data) if data else self.decoder.close():
            if event.data[:6] == _DONE:
                self.done = True
                break
            chunk, _ = parse_chunk(event, self.profile, self.names, rawjson.loads)
            for visible in assembler.feed(chunk):
                await self.show(visible)
            for ready in assembler.take_ready():
                self.eager.start(ready)
        return self.done


@dataclass(slots=True)
class _RelayReader:
    """Relays a stream and remembers what its end is judged by.

    Attributes:
        finished: the indices of the choices that have a finish reason.
        choices: what each choice holds so far, by its index.
        head: the latest chunk with a delta.
    """

    profile: Profile
    names: ToolNames | None
    request: Json
    write: Write
    decoder: sse.Decoder = field(default_factory=sse.Decoder)
    done: bool = False
    usage: Json | None = None
    finished: set[int] = field(default_factory=set)
    choices: dict[int, "_StreamedChoice"] = field(default_factory=dict)
    head: Json = field(default_factory=dict)

    async def take(self, data: bytes) -> bool:
        good: list[bytes] = []
        try:
            for event in self.decoder.feed(data) if data else self.decoder.close():
                if event.data[:6] == _DONE:
                    good += (self._missing_end(), event.raw)
                    self.done = True
                    break
                good.append(self._mended(event))
        finally:  # the events before a bad one are written before the error is reported
            if good:
                await self.write(b"".join(good))
        return self.done

    def _mended(self, event: sse.Event) -> bytes:
        """The event for the client: its original bytes, unless an OpenAI SDK cannot read them."""
        chunk, changed = parse_chunk(event, self.profile, self.names, orjson.loads)
        if changed or _lacks_index(chunk):
            chunk, _ = parse_chunk(event, self.profile, self.names, rawjson.loads)
            changed = True
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk["choices"]:
            index = choice.get("index") or 0
            if choice.get("finish_reason"):
                self.finished.add(index)
            if delta := choice.get("delta"):
                self.head = chunk
                so_far = self.choices.get(index) or self.choices.setdefault(index, _StreamedChoice())
                so_far.take(delta)
        return sse.encode(chunk) if changed else event.raw

    def _missing_end(self) -> bytes:
        """The events that are missing before `[DONE]`: finish reasons of whole choices that came without one.

        Raises:
            UpstreamError: no choice is whole.
        """
        events: list[bytes] = []
        usage = self.usage if len(self.choices) == 1 else None
        for index, choice in self.choices.items():
            if index in self.finished or (reason := inferred_reason(choice.message, self.request, usage)) is None:
                continue
            self.finished.add(index)
            head = {name: self.head[name] for name in _HEAD if name in self.head}
            events.append(sse.encode({**head, "choices": [{"index": index, "delta": {}, "finish_reason": reason}]}))
        self.require_finished()
        return b"".join(events)

    def require_finished(self) -> None:
        """Raise `UpstreamError` where no choice has a finish reason: the stream was cut off."""
        if not self.finished:
            raise UpstreamError(NO_REASON)


@dataclass(slots=True)
class _StreamedChoice:
    """As much of a relayed choice as its end is judged by."""

    has_text: bool = False
    function: Json | None = None
    ids: dict[int, str] = field(default_factory=dict)
    arguments: dict[int, list[str]] = field(default_factory=dict)

    def take(self, delta: Json) -> None:
        """Add a delta, and give its calls the indices that they lack."""
        if delta.get("content") or delta.get("refusal"):
            self.has_text = True
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
        return {"refusal": self.has_text, "tool_calls": calls, "function_call": self.function}


def _lacks_index(chunk: Json) -> bool:
    """Whether a chunk has a tool call without an index."""
    for choice in chunk["choices"]:
        delta = choice.get("delta")
        if delta and (calls := delta.get("tool_calls")) and not all(map(has_index, calls)):
            return True
    return False
