"""Whether a client asks for JSON, so that a JSON text may be the answer and need not be a leaked tool call.

    a `response_format` demands JSON   every JSON text is an answer
    the messages name JSON             a JSON text is an answer unless it is sure to be a call: it names a tool, or has
                                       arguments that only gpt-oss's own browser has
    neither                            an object that could be the arguments of a call is a call

A message that names JSON counts as asking for it, unless it forbids it ("Never show raw JSON"): there are too many ways
to ask, in too many languages, and refusing an answer is worse than showing a leak.
"""

import re
from collections.abc import Iterable, Iterator
from enum import Enum, auto

import orjson
from msgspec.structs import replace

from proxy.turn.citations import CITATIONS, moved_back
from proxy.wire.chat import Json, Turn, text_of

_ROLES = frozenset({"system", "developer", "user"})  # the roles whose messages may ask for JSON

# "Never output raw JSON", "do not answer in JSON".
_FORBIDDING = re.compile(
    r"\b(?:never|not|avoid|\w+n['\u2019]t)\s+(?:ever\s+)?(?:answer|respond|reply|return|output|give|send|write|use|show)\w*"
    r"(?:\W+(?:to|with|in|as|any|an?|users?|them|raw|plain)){0,4}\W+json\b",
    re.IGNORECASE,
)

_FENCE = re.compile(r"```\w*\s*")  # the beginning of a code fence
_THOUGHTS, _THOUGHTS_END = "<think>", "</think>"


class JsonMode(Enum):
    """How a client asks for JSON."""

    NO = auto()
    BY_PROMPT = auto()
    BY_FORMAT = auto()


def json_mode(request: Json, messages: Iterable[Json]) -> JsonMode:
    """How a client asks for JSON: by the `response_format` of its request, in the words of its messages, or not at all.

    The whole conversation is searched, so this is called only for the rare text that may be a call in JSON.
    """
    if demands_json(request):
        return JsonMode.BY_FORMAT
    texts = (text_of(message) for message in messages if message.get("role") in _ROLES)
    is_asked = any("json" in text.lower() and "json" in _FORBIDDING.sub("", text).lower() for text in texts)
    return JsonMode.BY_PROMPT if is_asked else JsonMode.NO


def demands_json(request: Json) -> bool:
    """Whether a request's `response_format` permits nothing but JSON."""
    response_format = request.get("response_format")
    return isinstance(response_format, dict) and response_format.get("type") in ("json_object", "json_schema")


def with_bare_json(turn: Turn) -> Turn:
    """The turn with nothing but the JSON as its text, if that is in a code fence or behind thoughts in `<think>`.

    What is left has to be JSON; any other text stays as it is.
    """
    text = turn.message.get("content")
    if not isinstance(text, str) or (place := _place_of_json(text)) is None:
        return turn
    shown = _place_of_json("".join(map(_text_in, turn.buffered)))
    buffered = turn.buffered if shown is None else tuple(_cut(turn.buffered, *shown))
    return replace(turn, message={**turn.message, "content": text[slice(*place)]}, buffered=buffered)


def _place_of_json(text: str) -> tuple[int, int] | None:
    """The beginning and the end of the JSON in a text that wraps it; None: the text does not wrap any."""
    begin, end = _without_blanks(text, 0), len(text.rstrip())
    if not text.startswith((_THOUGHTS, "```"), begin):
        return None
    if text.startswith(_THOUGHTS, begin) and (at := text.find(_THOUGHTS_END, begin)) >= 0:
        begin = _without_blanks(text, at + len(_THOUGHTS_END))
    if (fence := _FENCE.match(text, begin)) and text.endswith("```", fence.end(), end):
        begin, end = fence.end(), len(text[: end - len("```")].rstrip())
    try:
        orjson.loads(text[begin:end])
    except orjson.JSONDecodeError:
        return None
    return begin, end


def _without_blanks(text: str, begin: int) -> int:
    """The index of the first character from `begin` on that is not blank."""
    return len(text) - len(text[begin:].lstrip())


def _text_in(chunk: Json) -> str:
    return next((choice["delta"].get("content") or "" for choice in chunk["choices"]), "")


def _cut(chunks: Iterable[Json], begin: int, end: int) -> Iterator[Json]:
    """The chunks without their text before `begin` and from `end` on; the indices count over the text of all chunks."""
    at = 0
    for chunk in chunks:
        if not (text := _text_in(chunk)):
            yield chunk
            continue
        [choice] = chunk["choices"]
        first = max(0, begin - at)
        delta = {**choice["delta"], "content": text[first : max(0, end - at)]}
        if cited := delta.get(CITATIONS):
            delta[CITATIONS] = moved_back(cited, first)
        if any(delta.values()):
            yield {**chunk, "choices": [{**choice, "delta": delta}]}
        at += len(text)
