"""A model at any Chat Completions endpoint, with a profile for the quirks of the upstream."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from dataclasses import replace as replace_field
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from proxy.config.model import PriceConfig
from proxy.config.redaction import redactor, without_pieces
from proxy.http.client import BearerKey
from proxy.http.response import READ_BYTES, Response
from proxy.keys.pool import KeyPool, PoolKey
from proxy.kit.beside import beside
from proxy.loop.actions import CallUpstream
from proxy.loop.run_events import StopGenerating
from proxy.ports import EarlyCalls, Show
from proxy.recording.recording import note_system_first
from proxy.turn.assembler import Assembler
from proxy.upstreams.answers import Mender, as_stream, plain
from proxy.upstreams.ending import Ending
from proxy.upstreams.endpoint import FOREIGN, Endpoint
from proxy.upstreams.failures import clipped
from proxy.upstreams.late_system import SystemPlacement, without_late_system
from proxy.upstreams.names import ToolNames
from proxy.upstreams.prices import with_cost
from proxy.upstreams.profile import Profile
from proxy.upstreams.relay import CompletionReader, RelayReader
from proxy.upstreams.request_body import prepare, serialize
from proxy.upstreams.sight import Sight
from proxy.upstreams.split_characters import SplitCharacters
from proxy.upstreams.turn_reader import TurnReader
from proxy.wire import rawjson, sse
from proxy.wire.chat import Json, Turn
from proxy.wire.errors import ProxyError, UpstreamError, UpstreamRefused
from proxy.wire.relayed import CountUsage, RawRequest, RawResponse, RelayClient
from proxy.wire.tokens import count_tokens, has_all_counts, tokens_of, with_estimates
from proxy.wire.usage import credible, other_usage

# A key of which its provider shows the ends, as in `sk-pr***4f2A`.
_CUT_KEY = re.compile(r"[\w-]*\*{2,}[\w*-]*|[\w-]+(?:\.{3}|…)[\w-]+")
# After [DONE], the rest of the response is read for so long, so that its connection can be used again.
_DRAIN_SECONDS = 0.25


class _BodyReader(Protocol):
    """Takes the body of a stream; `done` once `[DONE]` has arrived, after which everything is ignored."""

    done: bool
    ending: Ending

    async def take(self, data: bytes) -> bool:
        """Take the bytes of one read, or empty bytes as the end of the body; whether the stream is done."""
        ...


@dataclass(frozen=True, slots=True)
class OpenAICompatible:
    """A model at an upstream; all requests share it.

    Attributes:
        name: the upstream's name in the configuration.
        model: the upstream's name for the model.
        endpoint: the upstream's endpoint.
        profile: the upstream's quirks.
        keys: the upstream's keys; None: it has one, or gets the clients' own.
        key_advice: advice for the operator if the key is refused.
        key_source: where the key comes from, for callers who are the operator; None: they are somebody else.
        price: the price of tokens; None: no cost is added to the usage.
        counts_use: whether the tokens of every answer are counted, and estimated if the upstream does not send them.
        asks_for_usage: whether the usage of a relayed stream is asked for, even if the client does not ask for it.
        placement: where it takes system messages.
        sight: whether it sees pictures.
    """

    name: str
    model: str
    endpoint: Endpoint
    profile: Profile
    keys: KeyPool | None = None
    key_advice: str = ""
    key_source: str | None = None
    price: PriceConfig | None = None
    counts_use: bool = False
    asks_for_usage: bool = False
    placement: SystemPlacement = field(default_factory=SystemPlacement)
    sight: Sight = field(default_factory=Sight)
    # Made so far, by the number of the key.
    _with_keys: dict[int, "OpenAICompatible"] = field(default_factory=dict, init=False)

    async def complete(self, call: CallUpstream, show: Show | None, early: EarlyCalls) -> Turn:
        """Make one upstream call of a run (`Upstream.complete`).

        The usage of the turn includes its cost. Counts that the upstream has not sent, or that no model can have
        written, are estimated.
        """
        call = call.for_upstream(self.profile.answer_steps)
        if self.placement.at_the_beginning:
            note_system_first(self.name)
            body = {**call.body, "messages": without_late_system(call.body["messages"])}
            call = replace(call, body=body)
        content, names = serialize(call, self.profile, self.model)
        profile, mender = self.profile, Mender(self.profile, names, call.body, SplitCharacters())
        renamed = names.originals if names is not None else {}
        assembler = Assembler(call, renamed, thoughts_in_text=profile.thoughts_in_text)
        try:
            reader = TurnReader(mender, assembler, show or show_nothing, early, Ending(profile))
            raw: bytes | None = None
            if call.body.get("stream"):
                await self._read_stream(content, reader)
            else:
                raw = await self._read_answer(content, reader)
            if raw is not None and show is None:
                assembler.feed_unseen(await beside(len(raw), partial(mender.completion, raw)))
            else:
                if raw is not None:
                    await reader.take_whole(await beside(len(raw), partial(mender.completion, raw)))
                for visible in assembler.close(done=reader.done):
                    await reader.show(visible)
            turn = assembler.finish()
        except StopGenerating:  # the connection is closed by now, so the upstream stops writing
            turn = _ended_early(assembler.finish())
        except (ProxyError, asyncio.CancelledError) as exc:
            turn = assembler.finish()
            early.drop()
            if self.counts_use and (turn.envelope or not isinstance(exc, ProxyError)):
                early.count_unfinished(await self._used(turn.usage, call.body, len(content), partial(_written, turn)))
            raise await self._compared(exc, content)  # noqa: B904 - mostly the same exception
        usage = await self._used(turn.usage, call.body, len(content), partial(_written, turn))
        return replace(turn, usage=usage)

    async def relay(self, body: bytes, request: Json, count: CountUsage) -> bytes:
        """Relay a whole completion, with its original bytes if possible."""
        content, mender = self._relayed_body(body, request)
        try:
            reader = CompletionReader(mender, Ending(self.profile))
            raw = await self._read_answer(content, reader)
            if raw is None:
                answer, changed = reader.completion(), True
            else:
                answer, changed = await beside(len(raw), partial(mender.relayed, raw))
        except asyncio.CancelledError:
            if self.counts_use:
                count(await self._used(None, request, len(content), float))
            raise
        except UpstreamRefused as exc:
            raise await self._compared(exc, content)  # noqa: B904 - mostly the same exception
        usage = answer.get("usage") or other_usage(answer)
        if usage and self.price is not None:
            usage = answer["usage"] = with_cost(usage, self.price)
            changed = True
        if self.counts_use:
            usage = await self._used(usage, request, len(content), partial(_written_in, answer))
        count(usage)
        return rawjson.dumps_answer(answer) if changed or raw is None else raw

    async def relay_stream(self, body: bytes, request: Json, client: RelayClient) -> None:
        """Relay a streamed completion event by event, with the original bytes if possible."""
        options = request.get("stream_options") or {}
        shows_usage = not self.asks_for_usage or bool(options.get("include_usage"))
        if not shows_usage:
            request = {**request, "stream_options": {**options, "include_usage": True}}
            body = rawjson.dumps(request)
        content, mender = self._relayed_body(body, request)
        decoder = sse.Decoder(note_ids=client.note_ids)
        ending = Ending(self.profile)
        reader = RelayReader(mender, client.write, ending, self.price, shows_usage, decoder)
        is_counted = False

        async def used() -> Json | None:
            if not self.counts_use:
                return reader.usage
            return await self._used(reader.usage, request, len(content), lambda: reader.written)

        async def end() -> None:
            nonlocal is_counted
            reader.require_finished()
            client.count(await used())
            is_counted = True
            await client.finish(reader.last)

        try:
            await self._read_stream(content, reader, end)
        except (ProxyError, asyncio.CancelledError) as exc:
            if not is_counted and (reader.written or not isinstance(exc, ProxyError)):
                client.count(await used())
            raise await self._compared(exc, content)  # noqa: B904 - mostly the same exception

    @asynccontextmanager
    async def open(self, request: RawRequest) -> AsyncIterator[RawResponse]:
        """Relay any other request."""
        parts = request.method, request.path, request.headers, request.body
        async with aclosing(await self.endpoint.send(*parts)) as response:
            yield RawResponse(response.status, response.headers, self._body(response))

    def with_key(self, key: PoolKey) -> "OpenAICompatible":
        """This model, asked with one of the upstream's keys."""
        if (keyed := self._with_keys.get(key.number)) is None:
            keyed = self._with_keys[key.number] = replace_field(
                self, endpoint=replace_field(self.endpoint, credential=BearerKey(key.key))
            )
        return keyed

    async def _compared(self, failure: BaseException, content: bytes) -> BaseException:
        """A failure; a refusal that came inside an answer has its words compared with the request."""
        if not isinstance(failure, UpstreamRefused) or failure.read_again is None:
            return failure
        sent = self.endpoint.sent(content)
        return await beside(sent.size, partial(failure.read_again, sent=sent, zone=self.profile.zone))

    def redact(self, error: ProxyError) -> None:
        """Mask the secrets in an error of this upstream, and make an error about the operator's account theirs."""
        for name in ("message", "type", "code", "param", "upstream_code"):
            if text := getattr(error, name):
                setattr(error, name, self._redacted(text))
        if isinstance(error, UpstreamRefused) and not self.uses_client_key:
            if error.operator_code:
                error.message = _CUT_KEY.sub("***", error.message)
            error.blame_operator(self.name, self.key_advice, source=self.key_source)

    def why_refused(self, error: UpstreamRefused) -> str:
        """The upstream's refusal of a key as text for the log, with every secret masked."""
        advice = self.key_advice if error.operator_code else ""
        return f"HTTP {error.status}: {_CUT_KEY.sub('***', self._redacted(error.message))} {advice}".rstrip()

    def _redacted(self, text: str) -> str:
        secrets = [*self.endpoint.credential.secrets, *self.endpoint.secrets]
        return without_pieces(clipped(redactor(secrets)(text)), secrets)

    @property
    def uses_client_key(self) -> bool:
        """Whether the client's own key is sent, so that errors about it are for the client."""
        return self.endpoint.credential.uses_client_key

    def with_cost(self, usage: Json) -> Json:
        """A usage with its cost, if the model has a price."""
        return with_cost(usage, self.price)

    async def _used(self, usage: Json | None, request: Json, size: int, written: Callable[[], float]) -> Json:
        """The usage of a call, with its cost: the upstream's credible counts, and estimates of those that are missing.

        `size` is the bytes of the request, and `written` estimates the tokens of the answer, as far as it has come.
        """
        counted = credible(usage)
        if not has_all_counts(counted):
            estimate = partial(with_estimates, counted, partial(count_tokens, request), written)
            counted = await beside(size, estimate)
        return counted if self.price is None else with_cost(counted, self.price)

    async def _body(self, response: Response) -> AsyncIterator[bytes]:
        while part := await self.endpoint.read(response):
            yield part

    def _relayed_body(self, body: bytes, request: Json) -> tuple[bytes, Mender]:
        """The client's body for this upstream, and the mender of the answer.

        The body is unchanged but for the model's name and the changes of the profile.
        """
        names = ToolNames.replaced_in(request)
        prepared = prepare(request if names is None else names.replace(request), self.profile)
        mender = Mender(self.profile, names, request)
        if prepared is not request:
            return rawjson.dumps({**prepared, "model": self.model}), mender
        return rawjson.replace_model(body, self.model), mender

    async def _read_stream(
        self, content: bytes, reader: _BodyReader, end: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Make a Chat Completions call, and give the bytes of its stream to `reader`, read by read.

        `end` is called when the reader has the whole stream, before the connection is made ready for another call.
        """
        endpoint = self.endpoint
        async with aclosing(await endpoint.respond(endpoint.stream, content)) as response:
            # A prefix, because Z.AI sends `text/event-stream;charset=UTF-8`.
            is_named = response.header(b"content-type").lower().startswith(b"text/event-stream")
            parts: list[bytes] = []
            if not is_named:
                begin = await self._beginning(response)
                parts.append(begin if sse.begins_stream(begin) else as_stream(begin))
            await self._pump(response, reader, parts)
            if end is not None:
                await end()
            if reader.done and response.take_whole() is None:
                with suppress(TimeoutError, *FOREIGN):
                    async with asyncio.timeout(_DRAIN_SECONDS):
                        while await response.read():
                            pass

    async def _read_answer(self, content: bytes, reader: _BodyReader) -> bytes | None:
        """Make a Chat Completions call, and return its answer; None: it was a stream, which `reader` has taken."""
        endpoint = self.endpoint
        response = await endpoint.respond(endpoint.whole, content)
        raw = response.take_whole()
        if raw is not None and not sse.begins_stream(raw := plain(raw)):
            return raw
        async with aclosing(response):
            begin = await self._beginning(response) if raw is None else raw
            if not sse.begins_stream(begin):
                return begin
            parts = [begin[at : at + READ_BYTES] for at in range(0, len(begin), READ_BYTES)]
            await self._pump(response, reader, parts)
            return None

    async def _beginning(self, response: Response) -> bytes:
        """The first bytes of a body, enough to know whether it is a stream; all of it if it is none."""
        begin = b""
        while sse.begins_stream(begin) is None and (part := await self.endpoint.read(response)):
            begin += part
        return begin if sse.begins_stream(begin) else plain(await self.endpoint.read_whole(response, begin))

    async def _pump(self, response: Response, reader: _BodyReader, parts: Sequence[bytes]) -> None:
        """Give a stream to its reader: the parts that were read already, and then the rest to its end.

        Once the answer is complete, a connection that breaks off or stays open ends the stream as well.
        """
        ending = reader.ending
        ending.response = response
        try:
            for part in parts:
                if await reader.take(part):
                    return
                await asyncio.sleep(0)  # other requests run between the parts of a stream that came as a whole
            await response.pump(reader.take)
        except FOREIGN as exc:
            if not ending.has_begun:
                raise self.endpoint.translated(exc) from exc
            return
        if not reader.done:  # the last event may have no blank line behind it, or be only the half of one
            with suppress(UpstreamError) if ending.has_begun else nullcontext():
                await reader.take(b"")


async def show_nothing(_: object) -> None:
    """Show nothing of an answer to a client that has asked for a whole completion."""


def _ended_early(turn: Turn) -> Turn:
    """A turn that ends in the middle of its text, because the client needs no more; its calls are dropped."""
    message = {key: value for key, value in turn.message.items() if key != "tool_calls"}
    return replace(turn, message=message, finish_reason="stop", calls=(), client_ids=())


def _written(turn: Turn) -> float:
    """The estimated tokens that a model has written in a turn, as far as it has come."""
    return tokens_of(turn.message) if turn.envelope else 0


def _written_in(answer: Json) -> float:
    """The estimated tokens of all choices of a whole answer."""
    return sum(tokens_of(choice["message"]) for choice in answer["choices"])
