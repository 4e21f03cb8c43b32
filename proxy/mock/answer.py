"""A scripted turn as the answer to one request: what the model writes, piece by piece, in the manner of its family.

The differences between the manners are taken from recorded traffic:

    glm       reasoning_content; role in every delta; each call whole in one chunk; usage in the finish chunk
    gpt_oss   reasoning; calls in fragments; usage in a chunk of its own when asked for
    openai    the same without reasoning
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import accumulate, chain, pairwise, zip_longest
from random import Random
from typing import Any, ClassVar, Final

import orjson
from msgspec import UNSET

from proxy.mock import pieces
from proxy.mock.script import ScriptedCall, ScriptedTurn, permitted_functions
from proxy.wire.chat import Json
from proxy.wire.tokens import count_tokens

_LONGEST_SCHEMA: Final = 8  # levels of a schema for which arguments are made up
_PLAIN: Final = {"string": "text", "integer": 1, "number": 1, "boolean": True, "null": None}


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A tool call, with its arguments in pieces."""

    id: str
    name: str
    arguments: Sequence[str]


@dataclass(slots=True)
class Written:
    """The text, reasoning and calls of one choice, in pieces, with the finish reason."""

    reasoning: Sequence[str] = ()
    text: Sequence[str] = ()
    refusal: Sequence[str] = ()
    calls: list[WrittenCall] = field(default_factory=list)
    finish_reason: str = "stop"

    @property
    def length(self) -> int:
        """The number of pieces; the name of a call counts as one."""
        calls = sum(1 + len(call.arguments) for call in self.calls)
        return len(self.reasoning) + len(self.text) + len(self.refusal) + calls


def write(turn: ScriptedTurn, request: Json, *, identity: str, thinks: bool = True) -> Written:
    """One choice of a scripted turn, cut or lengthened as `max_tokens`, `min_tokens`, `ignore_eos` and `stop` demand.

    Args:
        turn: the turn.
        request: the chat request.
        identity: of this choice; ids and made-up texts follow from it.
        thinks: whether the model has thoughts at all.
    """
    dice = Random(identity)  # noqa: S311 - the same text for the same request
    text = pieces.pieces_of(turn.text) if turn.tokens is None else pieces.made_up(turn.tokens, dice)
    text, stopped = _stopped(text, request.get("stop"))
    written = Written(
        reasoning=pieces.pieces_of(turn.reasoning) if thinks else (),
        text=text,
        refusal=pieces.pieces_of(turn.refusal or ""),
        calls=[] if stopped else [_call(call, at, identity) for at, call in enumerate(_calls(turn, request))],
    )
    written.finish_reason = "tool_calls" if written.calls else "stop"
    _bound(written, request, dice)
    if turn.finish_reason is not None:
        written.finish_reason = turn.finish_reason
    return written


def _stopped(text: list[str], stop: Any) -> tuple[list[str], bool]:
    """The text before the first of the stop sequences, and whether there was one."""
    whole = "".join(text)
    found = [at for one in ([stop] if isinstance(stop, str) else stop or ()) if one and (at := whole.find(one)) >= 0]
    if not found:
        return text, False
    ends = accumulate(map(len, text), initial=0)
    first = min(found)
    return [whole[begin : min(end, first)] for begin, end in pairwise(ends) if begin < first], True


def _calls(turn: ScriptedTurn, request: Json) -> Sequence[ScriptedCall]:
    """The calls of a turn that the request permits; the one that it demands, if the turn has none."""
    permitted, choice = permitted_functions(request), request.get("tool_choice")
    calls = [call for call in turn.calls if call.name in permitted]
    if not calls and permitted and choice not in (None, "auto", "none"):
        name, schema = next(iter(permitted.items()))
        calls = [ScriptedCall(name=name, arguments=orjson.dumps(example(schema)).decode())]
    return calls[:1] if request.get("parallel_tool_calls") is False else calls


def _call(call: ScriptedCall, at: int, identity: str) -> WrittenCall:
    written = call.arguments if isinstance(call.arguments, str) else orjson.dumps(call.arguments).decode()
    return WrittenCall(call.id or f"call_{digest(identity)}{at}", call.name, pieces.pieces_of(written))


def _bound(written: Written, request: Json, dice: Random) -> None:
    """Make what is written as long as the request demands, at least and at most."""
    most = request.get("max_completion_tokens", request.get("max_tokens"))
    least = most if request.get("ignore_eos") and most is not None else request.get("min_tokens") or 0
    if missing := max(0, least - written.length):
        more = pieces.made_up(missing, dice)
        written.text = [*written.text, *([f" {more[0]}", *more[1:]] if written.text else more)]
    if most is None or (written.length <= most and not request.get("ignore_eos")):
        return
    left = most
    for name in ("reasoning", "text", "refusal"):
        kept = getattr(written, name)[:left]
        setattr(written, name, kept)
        left -= len(kept)
    kept_calls = []
    for call in written.calls:
        if left > 0:
            kept_calls.append(WrittenCall(call.id, call.name, call.arguments[: left - 1]))
            left -= 1 + len(kept_calls[-1].arguments)
    written.calls, written.finish_reason = kept_calls, "length"


def example(schema: Any, depth: int = 0) -> Any:
    """A small value that fits an ordinary JSON Schema: the one that it names first, or a plain one of its type."""
    if not isinstance(schema, dict) or depth > _LONGEST_SCHEMA:
        return {}
    named = [schema[key] for key in ("const", "default") if key in schema] or _listed(schema, "enum")
    if named:
        return named[0]
    if options := _listed(schema, "anyOf") or _listed(schema, "oneOf"):
        return example(options[0], depth + 1)
    kind = next(iter(_listed(schema, "type")), schema.get("type"))
    if kind == "array":
        return [example(schema.get("items"), depth + 1)] if schema.get("minItems") else []
    if isinstance(kind, str) and kind in _PLAIN:
        least = schema.get("minimum")
        return least if kind in ("integer", "number") and isinstance(least, (int, float)) else _PLAIN[kind]
    known = properties if isinstance(properties := schema.get("properties"), dict) else {}
    names = [name for name in _listed(schema, "required") if isinstance(name, str)]
    return {name: example(known.get(name), depth + 1) for name in names}


def _listed(schema: Json, key: str) -> list[Any]:
    """The list at a key of a schema; empty if something else is there."""
    return value if isinstance(value := schema.get(key), list) else []


def digest(text: str) -> str:
    """A short identity that follows from a text."""
    return sha256(text.encode("utf-8", "replace")).hexdigest()[:20]


def manner_of(model: str) -> str:
    """The manner of a model: that of the family in its name, or OpenAI's."""
    if "glm" in model:
        return "glm"
    return "gpt_oss" if "gpt-oss" in model else "openai"


class ScriptedAnswer(ABC):
    """An answer of the scripted model, whole or in the pieces of a stream.

    Args:
        request: the request.
        seed: the script's; the ids of the answer follow from it and from the request.
    """

    _prefix: ClassVar[str]  # of the answer's id
    _kind: ClassVar[str]  # of the whole answer
    _chunk_kind: ClassVar[str]

    def __init__(self, request: Json, *, seed: int) -> None:
        self._request = request
        self._model = str(request.get("model"))
        body = orjson.dumps({**request, "stream": None, "stream_options": None}, option=orjson.OPT_SORT_KEYS)
        self._identity = f"{seed} {body.decode()}"
        self._id = f"{self._prefix}-{digest(self._identity)}"
        self._choices: list[Written] = []
        self._created = int(time.time())

    @property
    def length(self) -> int:
        """The number of pieces that come one after the other; choices are written at the same time."""
        return max(written.length for written in self._choices)

    def whole(self) -> Json:
        """The answer as a whole."""
        choices = [self._whole_choice(index, written) for index, written in enumerate(self._choices)]
        usage = {} if self._usage is None else {"usage": self._usage}
        return {**self._head(self._kind), "choices": choices, **usage}

    def chunks(self) -> Iterator[list[Json]]:
        """The chunks of a stream, those of each piece together; the last ones are the end of the answer."""
        streams = [self._stream(index, written) for index, written in enumerate(self._choices)]
        last = max(1, self.length)
        for number, together in enumerate(zip_longest(*streams, fillvalue=()), 1):
            found = [*chain(*together)]
            if self._asks_of_stream("continuous_usage_stats"):
                found = [{**chunk, "usage": self._counts(min(number, self.length))} for chunk in found]
            yield self._with_usage(found) if number == last else found

    @abstractmethod
    def _whole_choice(self, index: int, written: Written) -> Json:
        """A choice of the whole answer."""

    @abstractmethod
    def _stream(self, index: int, written: Written) -> Iterator[Sequence[Json]]:
        """The chunks of a choice, those of each piece together."""

    @property
    @abstractmethod
    def _prompt_tokens(self) -> int: ...

    @property
    def _usage(self) -> Mapping[str, Any] | None:
        return self._counts(sum(written.length for written in self._choices))

    def _counts(self, written: int) -> dict[str, Any]:
        read = self._prompt_tokens
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}

    def _with_usage(self, last: list[Json]) -> list[Json]:
        """The last chunks of the answer, with its usage where the request asks for it."""
        if not self._asks_of_stream("include_usage"):
            return last
        return [*last, {**self._head(self._chunk_kind), "choices": [], "usage": self._usage}]

    def _head(self, kind: str) -> Json:
        return {"id": self._id, "created": self._created, "object": kind, "model": self._model}

    def _asks_of_stream(self, option: str) -> bool:
        return bool((self._request.get("stream_options") or {}).get(option))


class ChatAnswer(ScriptedAnswer):
    """An answer in the shapes of Chat Completions.

    Args:
        turn: the turn.
        request: the request.
        seed: the script's; the ids of the answer follow from it and from the request.
    """

    _prefix, _kind, _chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, turn: ScriptedTurn, request: Json, *, seed: int) -> None:
        super().__init__(request, seed=seed)
        self._manner = manner_of(self._model)
        self._turn = turn
        self._choices = [
            write(turn, request, identity=f"{self._identity} {index}", thinks=self._manner != "openai")
            for index in range(request.get("n") or 1)
        ]

    def _stream(self, index: int, written: Written) -> Iterator[Sequence[Json]]:
        is_glm = self._manner == "glm"
        deltas = [*self._deltas(written)] or [{}]
        for number, delta in enumerate(deltas, 1):
            found = [self._chunk(index, delta)] if delta else []
            if number == 1 and not is_glm:
                found.insert(0, self._chunk(index, {"role": "assistant", "content": ""}))
            if number == len(deltas) and not self._turn.cut:
                found.append(self._chunk(index, {"content": ""} if is_glm else {}, written.finish_reason))
            yield found

    def _with_usage(self, last: list[Json]) -> list[Json]:
        if self._turn.cut or self._usage is None:
            return last
        if self._manner == "glm":
            return [*last[:-1], {**last[-1], "usage": self._usage}]
        return super()._with_usage(last)

    def _deltas(self, written: Written) -> Iterator[Json]:
        """The deltas of a stream, one for each piece of the answer in the order in which pieces are sent."""
        yield from ({self._reasoning_field: piece} for piece in written.reasoning)
        yield from ({"content": piece} for piece in written.text)
        yield from ({"refusal": piece} for piece in written.refusal)
        for at, call in enumerate(written.calls):
            opening = {"id": call.id, "index": at, "type": "function", "function": {"name": call.name, "arguments": ""}}
            if self._manner == "glm":
                yield from ({} for _ in call.arguments)
                yield {"tool_calls": [{**_whole_call(call), "index": at}]}
                continue
            yield {"tool_calls": [opening]}
            for piece in call.arguments:
                yield {"tool_calls": [{"index": at, "function": {"arguments": piece}}]}

    def _whole_choice(self, index: int, written: Written) -> Json:
        text, refusal = "".join(written.text) or None, "".join(written.refusal) or None
        message: Json = {"role": "assistant", "content": text, "refusal": refusal}
        if written.reasoning:
            message[self._reasoning_field] = "".join(written.reasoning)
        if written.calls:
            message["tool_calls"] = [*map(_whole_call, written.calls)]
        choice: Json = {"index": index, "message": message, "finish_reason": written.finish_reason}
        if self._request.get("logprobs"):
            choice["logprobs"] = {"content": [_logprob(piece) for piece in written.text], "refusal": None}
        return choice

    @property
    def _reasoning_field(self) -> str:
        return "reasoning_content" if self._manner == "glm" else "reasoning"

    def _chunk(self, index: int, delta: Json, finish_reason: str | None = None) -> Json:
        choice: Json = {"index": index, "delta": delta}
        if self._manner == "glm":
            choice["delta"] = delta if "tool_calls" in delta else {"role": "assistant", **delta}
        if self._request.get("logprobs") and (piece := delta.get("content")):
            choice["logprobs"] = {"content": [_logprob(piece)], "refusal": None}
        if finish_reason or self._manner != "glm":
            choice["finish_reason"] = finish_reason
        return {**self._head(self._chunk_kind), "choices": [choice]}

    @property
    def _prompt_tokens(self) -> int:
        return count_tokens(self._request)

    @property
    def _usage(self) -> Mapping[str, Any] | None:
        if self._turn.usage is not UNSET:
            return self._turn.usage
        thoughts = sum(len(written.reasoning) for written in self._choices)
        details = {"completion_tokens_details": {"reasoning_tokens": thoughts}} if thoughts else {}
        return {**(super()._usage or {}), **details}


def _whole_call(call: WrittenCall) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": "".join(call.arguments)}}


def _logprob(piece: str) -> Json:
    """A token of which the model was certain."""
    return {"token": piece, "logprob": 0.0, "bytes": list(piece.encode()), "top_logprobs": []}
