"""The history that a client sends in another form, as messages of Chat Completions.

A turn is an assistant message, followed directly by one tool message per call, in call order. Tool messages cannot hold
pictures, so the pictures of all results follow in a user message.
"""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from proxy.loop.prompts import PICTURE_BELOW
from proxy.wire.chat import Json


class PastResult(Struct, frozen=True):
    """The result of a call: its text, and the parts of its content that are not text."""

    text: str
    pictures: Sequence[Json] = ()


class PastCall(Struct):
    """A call of a turn; without a `result`, it has none yet."""

    id: str
    name: str
    arguments: str
    result: PastResult | None = None

    def as_chat(self) -> Json:
        """The entry in the message's `tool_calls`."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


def assistant_message(text: str, thoughts: Sequence[str], calls: Sequence[PastCall]) -> Json:
    """The message of a turn."""
    message: Json = {"role": "assistant", "content": text or None}
    if thoughts:
        message["reasoning_content"] = "\n\n".join(thoughts)
    if calls:
        message["tool_calls"] = [call.as_chat() for call in calls]
    return message


def with_results(message: Json, results: Iterable[PastResult], *, above_pictures: str = "") -> Iterator[Json]:
    """The messages of a turn, given that of the assistant; none for thoughts only, which some upstreams refuse.

    `above_pictures` is a sentence before the pictures, where they do not become a part of what the user says next.
    """
    calls: Sequence[Json] = message.get("tool_calls") or ()
    if not (calls or message.get("content") or message.get("refusal")):
        return
    yield message
    pictures: list[Json] = []
    for call, result in zip(calls, results, strict=True):
        yield {"role": "tool", "tool_call_id": call["id"], "content": result.text}
        pictures += result.pictures
    if pictures:
        heading = [{"type": "text", "text": above_pictures}] if above_pictures else []
        yield {"role": "user", "content": [*heading, *pictures]}


def result_of(parts: Sequence[Json], between: str, *, if_empty: str = "") -> PastResult:
    """The result in the parts of a content; `between` stands between their texts, `if_empty` in place of no parts."""
    pictures = [part for part in parts if part["type"] != "text"]
    return PastResult(joined_text(parts, between) or (PICTURE_BELOW if pictures else if_empty), pictures)


def joined_text(parts: Iterable[Json], between: str) -> str:
    """The texts of parts, with `between` between them."""
    return between.join([part["text"] for part in parts if part["type"] == "text"])


def content_of(parts: list[Json], between: str) -> str | list[Json]:
    """The content of a message in its simplest form: a string unless it has pictures."""
    for part in parts:
        if part["type"] != "text":
            return parts
    return joined_text(parts, between)
