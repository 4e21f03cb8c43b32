"""The answers of an upstream: parsed, and mended so that OpenAI's SDKs can read them.

A `Mender` changes an answer in place. An answer that is relayed unchanged keeps its bytes: see `relay`.
The calls of a relayed stream are mended by `relayed_calls`, which remembers what the client has of each.
"""

import json
from collections.abc import Collection
from contextlib import suppress
from math import isfinite
from typing import Any

import orjson
from msgspec import Struct

from proxy.http.decode import Inflater
from proxy.turn.call_fragments import as_text
from proxy.turn.pieces import pieces_of_whole
from proxy.upstreams import failures
from proxy.upstreams.names import ToolNames, clean_calls
from proxy.upstreams.profile import Profile
from proxy.upstreams.split_characters import SplitCharacters
from proxy.wire import sse
from proxy.wire.chat import NATIVE_REASON, WINDOW_EXCEEDED, Json, inferred_reason
from proxy.wire.errors import UpstreamError
from proxy.wire.json_values import holds_too_many_values

# The values that typed OpenAI SDKs accept.
FINISH_REASONS = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"})
# Reasons of an answer that was refused or blocked, as gateways pass them on.
_REFUSALS = (
    "sensitive",  # GLM's
    "refusal",  # Anthropic's `stop_reason`
    "guardrail_intervened", "content_filtered",  # `stopReason` of Bedrock's Converse API
    # `FinishReason` of the Gemini API and of Vertex AI
    "safety", "recitation", "language", "blocklist", "prohibited_content", "spii", "model_armor",
    "image_safety", "image_prohibited_content", "image_recitation",
    "error_toxic",  # Cohere's v1 API
    "responsibleaipolicyviolation",  # the code of Azure's filter, as some gateways pass it on
)  # fmt: skip
# Reasons that servers of any profile may send, such as DeepSeek at Azure, Mistral, and GLM behind any server.
_OTHER_REASONS = {
    "tool_call": "tool_calls",
    "max_tokens": "length",
    "model_length": "length",
    "error_limit": "length",  # Cohere's v1 API
    WINDOW_EXCEEDED: "length",
    **dict.fromkeys(_REFUSALS, "content_filter"),
}
# Reasons of an answer that its server has broken off: vLLM and SGLang, DeepSeek, OpenRouter, Gemini's for a call that
# it could not write, and Z.AI, whose `network_error` was seen in answers with empty content and an orderly [DONE].
_FAILURES = frozenset({
    "abort", "aborted", "cancelled", "canceled", "engine_error", "error", "failed", "internal_error",
    "insufficient_system_resource", "malformed_function_call", "network_error", "server_error", "timeout",
})  # fmt: skip
# The data of events by which gateways keep a connection alive, in place of a comment.
_SIGNS_OF_LIFE = frozenset(
    b"ping pong alive keepalive keep-alive keep_alive heartbeat heart-beat processing waiting null".split()
)
_LONGEST_SIGN, _MOST_WORDS = 64, 2
# A chunk has at least one of these; other objects, such as `{"type": "ping"}`, are signs of life.
_CHUNK_FIELDS = frozenset({"choices", "usage", "id", "object", "model", "created"})
COMPLETION, CHUNK = "chat.completion", "chat.completion.chunk"
# A chunk has a few tokens, each with 20 alternatives at most; a whole answer of 2,048 such tokens is within its bound,
# and is parsed in one go within 100 ms whatever its values are.
MOST_EVENT_VALUES, MOST_ANSWER_VALUES = 100_000, 400_000
# How compressed bodies begin, as no text does; Brotli has no such mark.
_CODINGS = {b"\x1f\x8b": "gzip", b"\x78\x01": "deflate", b"\x78\x9c": "deflate", b"\x78\xda": "deflate"}
_MAGIC_BYTES = 2
_MOST_INFLATED = 8 * 1024 * 1024  # some 25 milliseconds
_MOST_CHOICES = 128  # the highest `n` that a request may have
_NO_COMPLETION = "The upstream's answer is no completion."
_NO_OBJECT = "The upstream's answer is no JSON object."


class Mender(Struct, frozen=True):
    """Parses the answer to one request, and mends it so that an OpenAI SDK can read it.

    Attributes:
        profile: the profile of the upstream.
        names: the names of tools that were replaced in the request; None: none were.
        request: the request.
        characters: joins characters that are split between two chunks; None: the client joins them.
    """

    profile: Profile
    names: ToolNames | None
    request: Json
    characters: SplitCharacters | None = None

    def chunk(self, event: sse.SseEvent, calling: Collection[int] = ()) -> Json | None:
        """The mended chunk in an event; None: the event is only a sign of life.

        Args:
            event: an event of the stream.
            calling: the indices of the choices that have had tool calls in earlier chunks.

        Raises:
            UpstreamError: the event holds an error, or is not a chunk.
        """
        if len(event.data) > MOST_EVENT_VALUES and holds_too_many_values(event.data, MOST_EVENT_VALUES):
            raise UpstreamError(f"The upstream sent an event of more than {MOST_EVENT_VALUES} JSON values.")
        try:
            chunk = orjson.loads(event.data)
        except orjson.JSONDecodeError:
            if _is_sign_of_life(event):
                return None
            chunk = event.data.decode("utf-8", "replace") if event.type == "error" else self._reread(event.data)
        if event.type == "error":
            failures.raise_if_failed(chunk)
            failures.raise_if_failed({"error": chunk})
            raise UpstreamError("The upstream reported an error in the middle of its stream.")
        if not isinstance(chunk, dict):
            if _is_sign_of_life(event):
                return None
            failures.raise_if_failed(chunk)
            raise UpstreamError(_NO_OBJECT)
        if "error" in chunk or not chunk.get("choices"):
            failures.raise_if_failed(chunk)
            if _CHUNK_FIELDS.isdisjoint(chunk):
                return None
        mend(chunk, self.profile, kind=CHUNK, calling=calling)
        if self.names is not None:
            self.names.restore(chunk)
        return chunk

    def _reread(self, data: bytes) -> Any:
        if self.characters is not None:
            with suppress(orjson.JSONDecodeError):
                return self.characters.loads(data)
        return parsed(data)

    def completion(self, raw: bytes) -> Json:
        """A whole answer, mended. If the answer holds an error, it is raised."""
        answer = parse_object(raw)
        if "error" in answer or not answer.get("choices"):
            failures.raise_if_failed(answer)
        mend(answer, self.profile, kind=COMPLETION)
        fill_in(answer, self.request)
        if self.names is not None:
            self.names.restore(answer)
        clean_calls(answer, self.request)
        return answer

    def relayed(self, raw: bytes) -> tuple[Json, bool]:
        """A whole answer, mended, and whether it had to be mended."""
        answer = self.completion(raw)
        return answer, differs(answer, raw)


def differs(answer: Json, raw: bytes) -> bool:
    """Whether a mended answer differs from its bytes; one that is nested too deep to be written is sent as it came."""
    try:
        return bool(answer != parsed(raw))
    except RecursionError:
        return False


def _is_sign_of_life(event: sse.SseEvent) -> bool:
    """Whether an event that is no chunk says only that the server lives, such as `[PING]` or `: keep-alive`."""
    data = event.data
    if event.type.encode().lower() in _SIGNS_OF_LIFE:
        return True
    if len(data) > _LONGEST_SIGN or b"error" in data.lower():
        return False
    words = [word for part in data.lower().split() if (word := part.strip(b":\"'[]().*"))]
    return not words or (len(words) <= _MOST_WORDS and words[-1] in _SIGNS_OF_LIFE)


def fill_in(answer: Json, request: Json) -> None:
    """Add the missing parts of a whole answer that can be inferred without doubt, in place.

    Raises:
        UpstreamError: the answer is not a completion.
    """
    if not answer["choices"]:
        raise UpstreamError(_NO_COMPLETION)
    for choice in answer["choices"]:
        if "message" not in choice:
            # Azure's content filter removes everything from an answer but the finish reason.
            if choice.get("finish_reason") != "content_filter":
                raise UpstreamError("The upstream's answer has no message.")
            choice["message"] = {"role": "assistant", "content": ""}
        if not choice.get("finish_reason"):
            usage = answer.get("usage") if len(answer["choices"]) == 1 else None
            if (reason := inferred_reason(choice["message"], request, usage)) is not None:
                choice["finish_reason"] = reason


def as_stream(raw: bytes) -> bytes:
    """A whole completion that was sent in place of a stream, as one.

    Raises:
        UpstreamError: it is no completion, or holds an error.
    """
    answer = parse_object(raw)
    failures.raise_if_failed(answer)
    choices = answer["choices"] if isinstance(answer.get("choices"), list) else []
    messages = [choice.get("message") if isinstance(choice, dict) else None for choice in choices]
    if not messages or not all(isinstance(message, dict) for message in messages):
        raise UpstreamError("The upstream answered a stream with something else.")
    return b"".join(map(sse.encode, pieces_of_whole({**answer, "object": CHUNK}))) + sse.DONE


def plain(raw: bytes) -> bytes:
    """A whole answer, decompressed if it is compressed although nothing says so.

    Raises:
        UpstreamError: it is compressed in a way that is not known, is broken, or is too large.
    """
    coding = _CODINGS.get(raw[:_MAGIC_BYTES])
    if coding is None:
        return raw
    inflater, body = Inflater(coding), bytearray()
    try:
        for piece in inflater.feed(raw):
            body += piece
            if len(body) > _MOST_INFLATED:
                raise UpstreamError(f"The upstream's compressed answer has more than {_MOST_INFLATED} bytes.")
        inflater.close()
    except ValueError as exc:
        raise UpstreamError(f"The upstream's answer seems to be compressed ({coding}): {exc}.") from exc
    return bytes(body)


def parse_object(raw: bytes) -> Json:
    """Parse a JSON object. If `raw` is something else, or too much, the error in it or an `UpstreamError` is raised."""
    if holds_too_many_values(raw, MOST_ANSWER_VALUES):
        raise UpstreamError(f"The upstream sent an answer of more than {MOST_ANSWER_VALUES} JSON values.")
    answer = parsed(raw)
    if not isinstance(answer, dict):
        failures.raise_if_failed(answer)
        raise UpstreamError(_NO_OBJECT)
    return answer


def parsed(raw: bytes) -> Any:
    """Parse JSON, also if only orjson refuses it: NaN, 1e400, half of an emoji that was split between two chunks.

    Raises:
        UpstreamError: it is not JSON for any parser.
    """
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return _parsed_leniently(raw)


def _parsed_leniently(raw: bytes) -> Any:
    try:
        answer = json.loads(raw, parse_constant=lambda _: None, parse_float=_finite)
        return orjson.loads(json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError) as exc:
        what = "not JSON" if _is_text(raw) else "neither JSON nor text: it may be compressed without a content-encoding"
        raise UpstreamError(f"The upstream's answer is {what}.") from exc


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _finite(text: str) -> float | None:
    number = float(text)
    return number if isfinite(number) else None


def mend(answer: Json, profile: Profile, *, kind: str, calling: Collection[int] = ()) -> None:
    """Mend a completion or chunk in place, so that an OpenAI SDK can read it.

    Args:
        answer: the upstream's JSON.
        profile: the profile of the upstream.
        kind: the value of `object`, `chat.completion` or `chat.completion.chunk`.
        calling: the indices of the choices that have had tool calls in earlier chunks of the stream.

    Raises:
        UpstreamError: the answer is not a completion, or reports a failure in a choice or as a finish reason.
    """
    answer["object"] = kind
    if not isinstance(answer.get("usage"), _OBJECT_OR_NONE):
        answer["usage"] = None
    choices = answer.get("choices")
    if choices is None:
        choices = answer["choices"] = []
    if not isinstance(choices, list) or len(choices) > _MOST_CHOICES:
        raise UpstreamError(_NO_COMPLETION)
    for choice in choices:
        _mend_choice(choice, profile, calling)


def _mend_choice(choice: Any, profile: Profile, calling: Collection[int]) -> None:
    if not isinstance(choice, dict):
        raise UpstreamError(_NO_COMPLETION)
    if choice.get("error"):
        failures.raise_if_failed({"error": choice["error"]})
    for key in _PARTS:
        if key in choice:
            part = choice[key] = {} if choice[key] is None else choice[key]
            if not isinstance(part, dict):
                raise UpstreamError(f"The upstream did not send an object as '{key}'.")
            if part.get("tool_calls"):
                _mend_calls(part["tool_calls"])
    reason = choice.get("finish_reason")
    if reason is not None and not (isinstance(reason, str) and reason in FINISH_REASONS):
        _mend_reason(choice, profile, calling)


def _mend_reason(choice: Json, profile: Profile, calling: Collection[int]) -> None:
    """Replace a finish reason that is not OpenAI's. Raises `UpstreamError` if the reason stands for a failure."""
    reason = choice["finish_reason"]
    known = reason.lower() if isinstance(reason, str) else ""
    if known in _FAILURES:
        raise UpstreamError(f"The upstream broke off its answer: {known}.")
    if known and (reason in profile.finish_reasons or reason == WINDOW_EXCEEDED):
        choice[NATIVE_REASON] = reason
    meant = profile.finish_reasons.get(known) or _OTHER_REASONS.get(known)
    if meant is None and known in FINISH_REASONS and known != "stop":  # in other letters, such as Gemini's LENGTH
        meant = known
    if meant is None:
        part = choice.get("message") or choice.get("delta") or {}
        has_calls = (choice.get("index") or 0) in calling or part.get("tool_calls")
        meant = "tool_calls" if has_calls else "stop"
    choice["finish_reason"] = meant if reason else None


# Tuples, because a union would be created anew for each call of `isinstance`.
_OBJECT_OR_NONE = (dict, type(None))
_TEXT_OR_NONE = (str, type(None))
_ID = (str, int, type(None))  # some servers number their calls
_PARTS = ("message", "delta")


def _mend_calls(calls: Any) -> None:
    """Validate the tool calls of a message or delta, and mend their types and arguments."""
    if not isinstance(calls, list):
        raise UpstreamError(_NO_COMPLETION)
    for call in calls:
        if not isinstance(call, dict):
            raise UpstreamError(_NO_COMPLETION)
        function = call.get("function")
        if not (
            isinstance(call.get("id"), _ID)
            and isinstance(call.get("type"), _TEXT_OR_NONE)
            and isinstance(function, _OBJECT_OR_NONE)
        ):
            raise UpstreamError("The upstream sent a tool call whose id, type or function cannot be read.")
        if not function:
            continue
        name = function.get("name")
        if not isinstance(name, _TEXT_OR_NONE):
            raise UpstreamError("The upstream sent a function name that is not text.")
        if name and not call.get("type"):  # Mistral leaves the type out
            call["type"] = "function"
        elif call.get("type") == "":  # AtlasCloud sends an empty type in later fragments of a call
            del call["type"]
        if not isinstance(function.get("arguments"), _TEXT_OR_NONE):
            function["arguments"] = as_text(function["arguments"])
